"""Support for tests of the learner: made-up episodes, a scripted coordinator, and the real process.

The scripted coordinator has only the learner API. It hands out a list of batches, in order. A test can make
it drop connections, answer 503, or be unavailable. The learner is the real one.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web
from ports import free_port
from role_keys import TO_COORDINATOR, written

from headway_api import names
from headway_api.config import JobConfig
from headway_api.records import (
    Batch,
    Canary,
    EpisodeRecord,
    Finished,
    GroupRecord,
    Outcome,
    PolicyVersion,
    Purpose,
    StepReport,
    TrainingRow,
    VersionSpan,
    WeightsManifest,
)

VOCABULARY = 512
DRIVER = Path("/dev/nvidiactl")
"""This file exists if NVIDIA's driver is installed."""


def episode(
    group_id: str,
    index: int,
    *,
    rng: random.Random,
    reward: float | None,
    version: PolicyVersion,
    turns: int = 2,
) -> EpisodeRecord:
    """An episode of a few turns in one training row. Without a reward, it is an InfraError and has no row."""
    tokens, mask, spans = [], [], []
    for _ in range(turns):
        tokens += [rng.randrange(VOCABULARY) for _ in range(rng.randint(3, 12))]
        mask += [0] * (len(tokens) - len(mask))
        start = len(tokens)
        tokens += [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 8))]
        mask += [1] * (len(tokens) - start)
        spans.append(VersionSpan(start=start, end=len(tokens), version=version))
    logprobs = [-rng.uniform(5.5, 7.0) if trained else 0.0 for trained in mask]
    row = TrainingRow(tokens=tokens, mask=mask, logprobs=logprobs, versions=spans)
    return EpisodeRecord(
        episode_id=f"{group_id}-{index}-100",
        group_id=group_id,
        index=index,
        attempt=100,
        outcome=Outcome.INFRA_ERROR if reward is None else Outcome.COMPLETED,
        reward=reward,
        messages=[],
        turns=[],
        rows=[] if reward is None else [row],
        sandbox_seconds=1.0,
        started_at=0.0,
        finished_at=1.0,
    )


def group(
    group_id: str, rewards: Sequence[float | None], *, seed: int = 0, step: int = 0, lag: int = 0
) -> GroupRecord:
    """A group with one episode for each reward. The same arguments give the same group."""
    rng = random.Random(f"{group_id}/{seed}")
    version = PolicyVersion(incarnation=0, step=max(0, step - lag))
    return GroupRecord(
        group_id=group_id,
        purpose=Purpose.TRAIN,
        row=0,
        epoch=0,
        step=step,
        episodes=[
            episode(group_id, index, rng=rng, reward=reward, version=version)
            for index, reward in enumerate(rewards)
        ],
    )


def batch(step: int, *, groups: int = 2, seed: int = 0) -> Batch:
    """Batch of `step`: `groups` groups with mixed rewards, an InfraError and, last, a uniform group."""
    made = [
        group(f"t000-{step * groups + n:06d}", [1.0, 0.0, 0.25 * n, None], seed=seed, step=step - 1)
        for n in range(groups - 1)
    ]
    made.append(group(f"t000-{step * groups + groups - 1:06d}", [1.0, 1.0, 1.0], seed=seed, step=step - 1))
    return Batch(step=step, epoch=0, groups=made)


def report(step: int) -> StepReport:
    """A learner's report on a step without groups."""
    version = PolicyVersion(incarnation=0, step=step)
    canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1e-3)
    return StepReport(
        step=step,
        version=version,
        groups=[],
        train_tokens={},
        weights=WeightsManifest(version=version, kind="lora", uri="file:///w", files=[], canary=canary),
        durable=step,
        metrics={},
    )


def job(
    folder: Path,
    model: Path,
    *,
    lora: dict[str, Any] | None = None,
    dtype: str = "float32",
    zero_stage: int = 2,
    processes: int = 1,
    algorithm: dict[str, Any] | None = None,
    checkpoints: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
    offload: str = "none",
    recompute: bool | None = None,
) -> JobConfig:
    """A job whose store and cache are below `folder`, and whose base model is `model`."""
    training = {"lora": lora} if lora else {"full": {}}
    return JobConfig.model_validate(
        {
            "name": "refunds",
            "namespace": "rl",
            "uid": "11111111-2222-3333-4444-555555555555",
            "spec": {
                "model": {"base": f"file://{model}", "dtype": dtype, **training},
                "data": {"train": {"uri": f"file://{folder}/train.jsonl"}},
                "environment": {"image": "refunds-env:1", "entrypoint": "refunds:Desk"},
                "algorithm": {"batchSize": 2, "groupSize": 4, **(algorithm or {})},
                "checkpoints": checkpoints or {},
                "optimizer": {"learningRate": 1e-3, "warmupSteps": 2, **(optimizer or {})},
                "rollout": {"sampling": {"maxTokens": 64, **(sampling or {})}},
                "learner": {
                    "processesPerNode": processes,
                    "deepspeed": {"zeroStage": zero_stage, "offload": offload},
                    "activationCheckpointing": recompute,
                },
                "evaluation": {"everySteps": 0, "atStart": False},
                "output": {"uri": f"file://{folder}/store"},
            },
        }
    )


@dataclass
class ScriptedCoordinator:
    """Serves the learner API from a list of batches, and keeps the learner's reports."""

    batches: list[Batch]
    fault: Callable[[web.Request], str | None] = lambda request: None
    """Called before every request; returns None, "drop" (close the connection) or "503"."""
    reports: list[StepReport] = field(default_factory=list)
    polls: int = 0
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)
    hold: int = 0
    """Number of the next polls to answer with 204."""

    @property
    def step(self) -> int:
        """The step of the learner's last report; -1 before any."""
        return self.reports[-1].step if self.reports else -1

    @property
    def durable(self) -> int:
        """The newest durable step of the learner's last report; -1 before any."""
        return self.reports[-1].durable if self.reports else -1

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        """Serve the learner API; yields its base URL."""
        app = web.Application(client_max_size=2**28, middlewares=[self._guard])
        app.add_routes([web.post("/v1/steps", self._steps), web.get("/v1/batch", self._batch)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        assert site._server is not None
        try:
            yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TO_COORDINATOR}":
            return web.json_response({"message": "not this job's key"}, status=401)
        fault = self.fault(request)
        if fault == "503":
            return web.Response(status=503)
        response: web.StreamResponse = await handler(request)
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _steps(self, request: web.Request) -> web.Response:
        self.reports.append(StepReport.model_validate_json(await request.read()))
        self.acknowledged.set()
        return web.Response(status=204)

    async def _batch(self, request: web.Request) -> web.Response:
        self.polls += 1
        step = int(request.query["step"])
        if step != self.step + 1:
            return web.json_response({"message": f"at step {self.step}, not {step - 1}"}, status=409)
        if self.hold:
            self.hold -= 1
            await asyncio.sleep(min(0.05, float(request.query["wait"])))  # instead of a long poll
            return web.Response(status=204)
        if step > len(self.batches):
            validated = self.batches[-1].validated if self.batches else []
            done = Finished(reason="MaxSteps", validated=validated).model_dump_json()
            return web.Response(status=410, text=done, content_type="application/json")
        body = gzip.compress(self.batches[step - 1].model_dump_json().encode())
        return web.Response(body=body, content_type="application/json", headers={"Content-Encoding": "gzip"})


async def reached(
    served: ScriptedCoordinator, step: int, timeout: float = 120, *, durable: bool = False
) -> None:
    """Wait until the learner has reported `step`, or has reported it as durable."""
    while (served.durable if durable else served.step) < step:
        served.acknowledged.clear()
        await asyncio.wait_for(served.acknowledged.wait(), timeout)


def require_accelerators(processes: int) -> None:
    """Skip a test with more ranks than GPUs, if there are GPUs: NCCL needs a GPU for each rank."""
    if not DRIVER.exists():
        return
    import pytest
    import torch

    there = torch.cuda.device_count()
    if 0 < there < processes:
        pytest.skip(f"{processes} ranks need a GPU each, and this machine has {there}")


class LearnerProcess:
    """`python -m headway_trainer.launch` for a job in a folder. `place`: variables of one of several
    nodes."""

    def __init__(self, config: JobConfig, folder: Path, url: str, place: Mapping[str, str]) -> None:
        require_accelerators(int(place.get("NNODES", "1")) * config.spec.learner.processes_per_node)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.json").write_text(config.model_dump_json(by_alias=True, exclude_none=True))
        self._log = (folder / "learner.log").open("ab")
        self.log = folder / "learner.log"
        self._environ = {
            **os.environ,
            "HEADWAY_CONFIG": str(folder / "job.json"),
            "HEADWAY_KEYS_DIR": str(written(folder, names.LEARNER)),
            "HEADWAY_CACHE_DIR": str(folder / "cache"),
            "HEADWAY_COORDINATOR_URL": url,
            "NPROC": str(config.spec.learner.processes_per_node),
            "MASTER_PORT": str(free_port()),
            "HEADWAY_PROBE_PORT": "0",
            "OMP_NUM_THREADS": "1",
            **place,
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> LearnerProcess:
        """Start the process in a process group of its own."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headway_trainer.launch",
            env=self._environ,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process group. SIGKILL also kills all descendants, as in a container."""
        assert self._process is not None
        if self._process.returncode is not None:
            return
        below = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def kill_rank(self, rank: int) -> None:
        """Kill one of several ranks alone. A rank that does not run is not an error."""
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children():
                if process.environ().get("RANK") == str(rank):
                    process.kill()

    async def exit(self, timeout: float = 300) -> int:
        """Wait for the end of the process; returns its exit code."""
        assert self._process is not None
        try:
            return await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            self.kill()
            raise AssertionError(
                f"the learner did not end; its log:\n{self.log.read_text()[-4000:]}"
            ) from None


@asynccontextmanager
async def learner(
    config: JobConfig, folder: Path, url: str, place: Mapping[str, str] | None = None
) -> AsyncIterator[LearnerProcess]:
    """Run the learner, or one node of it, until the block ends. Then it is killed."""
    process = await LearnerProcess(config, folder, url, place or {}).start()
    try:
        yield process
    finally:
        process.kill()
        await process.exit()
