"""One job from preflight to report: the product's coordinator and ledger, with other parts simulated."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job_rig import publishing
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import until_ready
from scripted_learner import ScriptedLearner
from tests.estimate.boxes import Box, Boxes, of_environment, serving
from tests.estimate.jobs import SMALL, Job
from tests.estimate.spoken import Clerk, Course, Spoken
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.config import JobConfig
from headway_api.document import Json
from headway_api.seeds import seed
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint

PATIENCE = 1800.0
ROWS = {"train": 96, "validation": 64, "test": 32}
"""Rows of the data, at most."""


@dataclass(frozen=True)
class Came:
    """What a job's preflight estimated, and what the job then cost and did."""

    job: Job
    report: Json
    """The report that the product writes."""
    statuses: list[Json]
    """Each status that the coordinator wrote, in order."""
    broken: int
    """How many sandboxes broke off."""

    def made(self, basis: str) -> Json:
        """The estimate with this basis, as the report compares it with the bill."""
        found: list[Json] = self.report["estimate"]["made"]
        return next(each for each in found if each["basis"] == basis)


async def run(job: Job, folder: Path) -> Came:
    """Run the whole job."""
    stage = _played(job, folder) if job.played else _demo(job, folder)
    boxes, store, statuses = Boxes(stage.box, job.lost), FileStore(), list[Json]()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving(stage.server.app()))
        boxes.url = await stack.enter_async_context(serving(boxes.app()))

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine, engine)}

        port = free_port()
        coordinator = Coordinator(
            stage.config, KEYS, store, folder / "cache", statuses.append,
            broker_url=boxes.url, discover=discover, port=port,
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(PATIENCE):
            running = asyncio.create_task(coordinator.run())
            await until_ready(running, port)
            await asyncio.gather(stage.learner(url, store, coordinator).run(), running)
        report = json.loads(store.get(coordinator.layout.report))
    return Came(job, report, statuses, boxes.broken)


@dataclass(frozen=True)
class _Stage:
    """The parts that a job runs on."""

    config: JobConfig
    server: Any
    box: Callable[[str], Box]
    learner: Callable[[str, FileStore, Coordinator], ScriptedLearner]


def _demo(job: Job, folder: Path) -> _Stage:
    """The demo's model and desk, and the product's learner."""
    from tests.estimate.learner import Trained  # torch and DeepSpeed take seconds
    from tests.estimate.served import Served
    from tests.signals import judges
    from tests.signals.demo import Settings, quickstart

    inputs = quickstart.inputs(Settings.from_environ(os.environ).cache, 0)
    base = inputs / "model"
    for split, limit in ROWS.items():
        rows = (inputs / f"{split}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"{split}.jsonl").write_text("".join(rows[:limit]))
    document = quickstart.merged(quickstart.job("desk")["spec"], SMALL)
    document = quickstart.merged(document, dict(job.spec))
    if "full" in document["model"]:
        del document["model"]["lora"]
    config = _config(document, folder, base)
    served = Served(base, 2 * 512)

    def learner(url: str, store: FileStore, coordinator: Coordinator) -> ScriptedLearner:
        return Trained(url, TO_COORDINATOR, store, coordinator.layout, config.spec, base, served)

    box = of_environment(lambda lease: judges.desk(job.judge, None, seed(0, "luck", lease) / 2**31))
    return _Stage(config, served, box, learner)


def _played(job: Job, folder: Path) -> _Stage:
    """A played model in a played environment; the learner trains nothing, and counts its tokens."""
    from tests.signals.demo import quickstart

    made = tokenizer(folder / "model", QWEN3_TEMPLATE)
    made.save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}))
    course = Course(7, growth=0.02, skill=0.4)
    for split, limit in ROWS.items():
        rows = [{"prompt": f"{split} case {n}: " + "please " * (n % 9)} for n in range(limit)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = quickstart.merged(quickstart.job("desk")["spec"], SMALL)
    document = quickstart.merged(
        document, {"model": {"contextLength": 1024}, "rollout": {"sampling": {"maxTokens": 80}}}
    )
    document = quickstart.merged(document, dict(job.spec))
    config = _config(document, folder, folder / "model")

    class Moving(ScriptedLearner):
        def commit(self, step: int, groups: list[Any], **fields: Any) -> Any:
            course.step = step
            return super().commit(step, groups, **fields)

    def learner(url: str, store: FileStore, coordinator: Coordinator) -> ScriptedLearner:
        layout = coordinator.layout
        return Moving(url, TO_COORDINATOR, store, layout, publishing(store, layout))

    return _Stage(config, Spoken(folder, course), lambda lease: Clerk(course), learner)


def _config(document: Json, folder: Path, base: Path) -> JobConfig:
    """The job's configuration, with data and artifacts in files."""
    splits = [name for name in ROWS if name in document["data"]]
    document["data"] = {name: {"uri": f"file://{folder}/{name}.jsonl"} for name in splits}
    document["model"]["base"] = f"file://{base}"
    document["output"] = {"uri": f"file://{folder}/out"}
    document.pop("tracking", None)
    config = {"name": "job", "namespace": "ns", "uid": "uid", "spec": document}
    return JobConfig.model_validate(config)
