"""The client's methods as coroutines. Each runs in a thread, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from headway_api.records import Outcome, Purpose
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_cli.bill import Bill
from headway_cli.client.client import JOBS, TrainingClient
from headway_cli.client.document import Spec
from headway_cli.client.run import PAGE, Run, Status, Trajectory
from headway_cli.client.waiting import Waiting

if TYPE_CHECKING:
    from pandas import DataFrame


class AsyncRun(Generic[Status]):
    """A `Run` whose methods are coroutines, also `status`. Arguments and errors are those of `Run`."""

    def __init__(self, run: Run[Status]) -> None:
        """
        Args:
            run: the run whose methods become coroutines.
        """
        self._run = run

    def __repr__(self) -> str:
        return f"<AsyncRun of {self.kind} {self.name}>"

    @property
    def kind(self) -> str:
        """`RLTrainingJob` or `RLEvalJob`."""
        return self._run.kind

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._run.name

    async def status(self) -> Status:
        """`Run.status` as a coroutine."""
        return await asyncio.to_thread(lambda: self._run.status)

    async def poll(self) -> Status | None:
        """`Run.poll` as a coroutine."""
        return await asyncio.to_thread(self._run.poll)

    async def wait(self, timeout: float | None = None) -> Status:
        """`Run.wait` as a coroutine. Cancelling it ends the wait, not the job."""
        waiting = Waiting(self.name, self._run.poll, timeout)
        while (found := await asyncio.to_thread(waiting.look)) is None:
            await asyncio.sleep(waiting.pause())
        return found

    async def suspend(self) -> None:
        """`Run.suspend` as a coroutine."""
        await asyncio.to_thread(self._run.suspend)

    async def resume(self) -> None:
        """`Run.resume` as a coroutine."""
        await asyncio.to_thread(self._run.resume)

    async def metrics(self) -> DataFrame:
        """`Run.metrics` as a coroutine."""
        return await asyncio.to_thread(self._run.metrics)

    async def validations(self) -> DataFrame:
        """`Run.validations` as a coroutine."""
        return await asyncio.to_thread(self._run.validations)

    async def trajectories(
        self,
        purpose: Purpose | str | None = None,
        *,
        step: int | None = None,
        row: int | None = None,
        outcome: Outcome | str | None = None,
        disagree: bool = False,
        failed: bool = False,
        task: str | None = None,
    ) -> AsyncIterator[Trajectory]:
        """`Run.trajectories` for `async for`."""
        found = await asyncio.to_thread(
            self._run.trajectories,
            purpose,
            step=step,
            row=row,
            outcome=outcome,
            disagree=disagree,
            failed=failed,
            task=task,
        )
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    async def report(self, path: str | Path = PAGE, *, tokenizer: str | Path | None = None) -> Path:
        """`Run.report` as a coroutine."""
        return await asyncio.to_thread(self._run.report, path, tokenizer=tokenizer)

    async def cost(self) -> Bill:
        """`Run.cost` as a coroutine."""
        return await asyncio.to_thread(self._run.cost)


class AsyncTrainingClient:
    """A `TrainingClient` whose methods are coroutines. Arguments and errors are those of `TrainingClient`."""

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        *,
        endpoint_url: str | None = None,
        local: bool = False,
        folder: str | Path = JOBS,
        modules: str | Path | None = None,
        prices: str | Path | None = None,
        secrets: Mapping[str, str | Path] | None = None,
    ) -> None:
        """Create a client with the arguments of `TrainingClient`."""
        self._client = TrainingClient(
            context,
            namespace,
            endpoint_url=endpoint_url,
            local=local,
            folder=folder,
            modules=modules,
            prices=prices,
            secrets=secrets,
        )

    async def train(
        self, spec: Spec, *, name: str | None = None, fresh: bool = False, **changes: Any
    ) -> AsyncRun[RLTrainingJobStatus]:
        """`TrainingClient.train` as a coroutine."""
        begin = self._client.train
        return AsyncRun(await asyncio.to_thread(begin, spec, name=name, fresh=fresh, **changes))

    async def evaluate(
        self, spec: Spec, *, name: str | None = None, fresh: bool = False, **changes: Any
    ) -> AsyncRun[RLEvalJobStatus]:
        """`TrainingClient.evaluate` as a coroutine."""
        begin = self._client.evaluate
        return AsyncRun(await asyncio.to_thread(begin, spec, name=name, fresh=fresh, **changes))

    @overload
    async def run(
        self, name: str, kind: Literal["training"] = "training"
    ) -> AsyncRun[RLTrainingJobStatus]: ...
    @overload
    async def run(self, name: str, kind: Literal["eval"]) -> AsyncRun[RLEvalJobStatus]: ...
    async def run(
        self, name: str, kind: Literal["training", "eval"] = "training"
    ) -> AsyncRun[RLTrainingJobStatus] | AsyncRun[RLEvalJobStatus]:
        """`TrainingClient.run` as a coroutine."""
        if kind == "eval":
            return AsyncRun(await asyncio.to_thread(self._client.run, name, "eval"))
        return AsyncRun(await asyncio.to_thread(self._client.run, name))
