"""Every declared metric is produced by a whole job, by the learner or by the broker.

The coordinator is the real one, and its servers answer by script. The learner's step is the real one, except
for the optimizer's arithmetic. Metrics of an evaluation are computed from the job's validation, under another
prefix. Tests of the operator cover its own metrics.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import re
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import learner_rig
import pytest
from aiohttp import web
from episodes import a_group
from faulty_servers import Fault, Scripted, broker, fail, first, sandbox, serving, weights_slot
from job_rig import manifest, publishing
from ports import free_port
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_analysis.comparison import compare_all
from headway_analysis.measures import metrics
from headway_analysis.measures.tries import Rules, TryPlace, tries_of
from headway_api.accelerators import Holder
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.in_force import InForce
from headway_api.metrics import FAMILIES, family
from headway_api.records import Batch
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines import concurrency
from headway_coordinator.engines import fleet as fleets
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.evaluation import projections
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.metrics.prometheus import Exporter
from headway_coordinator.spool import decode
from headway_coordinator.status import JobUpdate
from headway_sandbox.broker import metrics as broker_metrics
from headway_trainer import learner as learners
from headway_trainer.assembly import Assembly
from headway_trainer.batch import training_batch
from headway_trainer.checkpoint.signer import Signer
from headway_trainer.engine import Update
from headway_trainer.objective.presets import Objective
from headway_trainer.step import MAXIMA, SUMS, StepResult
from headway_trainer.stopwatch import Stopwatch

ELSEWHERE = ("operator/", "job/", "namespace_budget/")
"""Prefixes of metrics that the operator produces."""


def of_validation(fault: Fault) -> Fault:
    """The fault, but only at validation rows, so that the preflight passes."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        body = await request.json()
        return await fault(request) if body["row"]["prompt"].startswith("validation") else None

    return answer


def weight_agent_that_fails_once() -> Scripted:
    """A weight agent that reports a wrong digest for the policy's first weights, and takes all others."""
    held: dict[str, Any] = {"version": None, "ready": False}

    def take(body: Any) -> Any:
        if body["kind"] == "base":
            held.update(version=body["version"], ready=True)
        elif "error" not in held:
            held.update(error="Corrupt: another digest", reason="VerificationFailed")
        else:
            held.update(version=body["version"], ready=True, error=None, reason=None, canary_error=1e-6)
        return held

    of_policy = {"GET /v1/weights": lambda body: held, "POST /v1/weights": take}
    return Scripted({**weights_slot("?slot=validation"), **of_policy})


def with_tasks(config: JobConfig) -> JobConfig:
    """The same job with a test split, a budget and a column that names each row's task."""
    content = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    uri = content["spec"]["data"]["validation"]["uri"].replace("validation", "test")
    rows = [{"prompt": f"test {n}", "task": "even"} for n in range(8)]
    Path(uri.removeprefix("file://")).write_text("".join(json.dumps(row) + "\n" for row in rows))
    content["spec"]["data"]["test"] = {"uri": uri}
    content["spec"]["algorithm"]["groupSize"] = 3
    content["spec"]["budget"] = {"usd": "100", "tokens": {"sample": 10**9}}
    content["spec"]["preflight"] = {"policy": "Warn", "episodes": 8, "checks": {"splits": "Off"}}
    for block in ("train", "validation", "test"):
        content["spec"]["data"][block]["taskColumn"] = "task"
    return JobConfig.model_validate(content)


async def coordinators(folder: Path) -> set[str]:
    """Metrics that a coordinator shows during and after a job.

    Metrics of an engine are shown only while its last answer is valid. The job may end between two answers.
    """
    box, rewards = sandbox(), itertools.cycle([0, 1, 1])

    def judged(_: Any) -> Any:
        reward = next(rewards)
        return {"reward": reward, "score": reward, "metrics": {"parts": reward}}

    box.answers = {**box.answers, "POST /finish": judged}
    box.faults["POST /reset"] = of_validation(first(1, fail(500)))
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving(speaking_engine(folder)))
        agent = await stack.enter_async_context(serving(weight_agent_that_fails_once()))
        leases = await stack.enter_async_context(
            serving(broker((await stack.enter_async_context(serving(box))).url))
        )

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        store, port = FileStore(), free_port()
        coordinator = Coordinator(
            with_tasks(job(folder)),
            KEYS,
            store,
            folder / "cache",
            lambda status: JobUpdate(accelerator_seconds={Holder("learner", "H100"): 60}),
            broker_url=leases.url,
            discover=discover,
            port=port,
        )
        publish = publishing(store, coordinator.layout)
        learner = ScriptedLearner(
            f"http://127.0.0.1:{port}", TO_COORDINATOR, store, coordinator.layout, publish
        )
        async with asyncio.timeout(100):
            running = asyncio.create_task(coordinator.run())
            await until_ready(running, port)
            shown, _, _ = await asyncio.gather(seen(coordinator, running), learner.run(), running)
    text = coordinator._exporter.text().decode()
    assert 'headway_rollout_rerouted_requests_total{job_name="job",namespace="ns"} 0.0' in text
    assert 'headway_weights_verification_failures_total{job_name="job",namespace="ns"} 1.0' in text
    assert 'headway_episodes_retried_total{job_name="job",namespace="ns",purpose="validation"} 1.0' in text
    return shown | families(text_string_to_metric_families(text)) | evaluated(store, coordinator.layout)


def evaluated(store: FileStore, layout: Layout) -> set[str]:
    """Metrics that an evaluation reports, computed from the groups of the job's validation."""
    groups = [decode(store.get(uri)) for uri in store.list(layout.validation_groups(0))]
    named = {family(name).name for name in metrics.evaluation(groups, [1], 1.0, "eval", max_turns=4)}
    return named | compared()


def compared() -> set[str]:
    """Metrics that an evaluation shows while it runs."""
    tries = {
        name: [one for row in range(8) for one in tries_of(a_group(f"e-{name}-{row:06d}", [row % 2]),
               TryPlace(name, row), Rules())]
        for name in ("base", "tuned")
    }  # fmt: skip
    found = compare_all(tries, [1], "base", None)
    state = EvalState({name: CandidateState(name) for name in tries}, rows=8)
    exporter = Exporter("ns", "job", lambda: projections.samples(found, state))
    return families(text_string_to_metric_families(exporter.text().decode()))


async def seen(coordinator: Coordinator, running: asyncio.Task[None]) -> set[str]:
    found: set[str] = set()
    while not running.done():
        found |= families(text_string_to_metric_families(coordinator._exporter.text().decode()))
        await asyncio.sleep(0.05)
    return found


def the_learners(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Metrics that the learner reports for a step, including those of its own timing."""
    tokens = dict.fromkeys([*SUMS, *MAXIMA, "ratio_min"], 1.0)
    result = StepResult(Update(1.0, 1e-4), tokens, action_tokens=10, micro_batches=1)
    monkeypatch.setattr(learners, "optimizer_step", lambda *args, **kwargs: result)
    config = learner_job()
    learner = object.__new__(learners.Learner)
    learner._spec, learner._store = config.spec, FileStore()
    objective = Objective.of(config.spec.algorithm)
    parts = {"engine": None, "policy": None, "objective": objective, "max_tokens": 1, "in_force": InForce()}
    publisher = SimpleNamespace(publish=lambda store, uri, version: manifest(1))
    learner._parts = cast(Assembly, SimpleNamespace(**parts, publisher=publisher))
    learner._layout = learners.Layout("file:///o", "ns", "job", "uid")
    learner._journal = learners.Journal(FileStore(), learner._layout, Signer.of("t", learner._layout))
    learner._ranks = type("Ranks", (), {"first": False})()
    learner.checkpointer = type("Checkpointer", (), {"durable": 0})()
    groups = [learner_rig.group("t0-000000", [1.0, 0.0]), learner_rig.group("t0-000001", [1.0, 1.0])]
    batch = training_batch(Batch(step=1, epoch=0, groups=groups), objective)
    before = Stopwatch(dict.fromkeys(["wait_for_batch", "save_checkpoint", "prune", "report", "start"], 0.5))
    return set(learner.train(batch, incarnation=0, before=before).metrics)


def learner_job() -> JobConfig:
    spec = {
        "model": {"base": "s3://b/m"},
        "data": {"train": {"uri": "s3://b/t.jsonl"}},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "evaluation": {"everySteps": 0, "atStart": False},
        "output": {"uri": "s3://b/o"},
    }
    return JobConfig.model_validate({"name": "job", "namespace": "ns", "uid": "uid", "spec": spec})


def the_brokers() -> set[str]:
    """Metrics of the broker. Also checks that the broker calls each method that changes one."""
    sources = "".join(path.read_text() for path in Path(broker_metrics.__file__).parent.glob("*.py"))
    moved = [
        name for name, _ in inspect.getmembers(broker_metrics.Metrics, inspect.isfunction) if name[0] != "_"
    ]
    assert [name for name in moved if f"metrics.{name}(" not in sources] == []
    found = broker_metrics.Metrics(learner_job()).registry.collect()
    return {known for metric in found for known in of_prometheus(metric.name)}


def families(found: Iterable[Metric]) -> set[str]:
    return {known for metric in found if metric.samples for known in of_prometheus(metric.name)}


def of_prometheus(name: str) -> list[str]:
    """Declared names of the families that Prometheus knows as `name`."""
    shapes = {
        known.name: re.sub(r"\\{\w+\\}", r"\\w+", re.escape(known.name.replace("/", "_")))
        for known in FAMILIES
    }
    return [known for known, shape in shapes.items() if re.fullmatch(f"headway_{shape}", name)]


async def test_declared_and_produced_metric_families_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(concurrency, "LOOK_SECONDS", 0.05)
    produced = await coordinators(tmp_path) | the_learners(monkeypatch) | the_brokers()
    declared = {known.name for known in FAMILIES if not known.name.startswith(ELSEWHERE)}
    assert declared - produced == set(), "nothing produces these; CONTRIBUTING.md lists the functions that do"
    assert produced - declared == set(), (
        "nothing declares these: add a MetricFamily in api/headway_api/metrics/; if a name begins like the "
        "operator's, rename it"
    )
