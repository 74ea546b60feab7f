"""The client's methods as coroutines: each runs in a thread, so that it does not block the event loop."""

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
    """As `Run`, whose methods have the details. `status` is a coroutine too."""

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
        """As `Run.status`."""
        return await asyncio.to_thread(lambda: self._run.status)

    async def poll(self) -> Status | None:
        """As `Run.poll`."""
        return await asyncio.to_thread(self._run.poll)

    async def wait(self, timeout: float | None = None) -> Status:
        """As `Run.wait`. Cancelling it ends the wait, not the job."""
        waiting = Waiting(self.name, self._run.poll, timeout)
        while (found := await asyncio.to_thread(waiting.look)) is None:
            await asyncio.sleep(waiting.pause())
        return found

    async def suspend(self) -> None:
        """As `Run.suspend`."""
        await asyncio.to_thread(self._run.suspend)

    async def resume(self) -> None:
        """As `Run.resume`."""
        await asyncio.to_thread(self._run.resume)

    async def metrics(self) -> DataFrame:
        """As `Run.metrics`."""
        return await asyncio.to_thread(self._run.metrics)

    async def validations(self) -> DataFrame:
        """As `Run.validations`."""
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
        """As `Run.trajectories`, for `async for`."""
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
        """As `Run.report`."""
        return await asyncio.to_thread(self._run.report, path, tokenizer=tokenizer)

    async def cost(self) -> Bill:
        """As `Run.cost`."""
        return await asyncio.to_thread(self._run.cost)


class AsyncTrainingClient:
    """As `TrainingClient`, whose methods have the details."""

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
        """As for `TrainingClient`."""
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
        """As `TrainingClient.train`."""
        begin = self._client.train
        return AsyncRun(await asyncio.to_thread(begin, spec, name=name, fresh=fresh, **changes))

    async def evaluate(
        self, spec: Spec, *, name: str | None = None, fresh: bool = False, **changes: Any
    ) -> AsyncRun[RLEvalJobStatus]:
        """As `TrainingClient.evaluate`."""
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
        """As `TrainingClient.run`."""
        if kind == "eval":
            return AsyncRun(await asyncio.to_thread(self._client.run, name, "eval"))
        return AsyncRun(await asyncio.to_thread(self._client.run, name))
