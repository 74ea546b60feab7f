"""A training job that samples its held-out rows on a dedicated server."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from aiohttp import web
from episodes import version
from faulty_servers import Scripted, broker, sandbox, serving
from job_rig import Job, publishing, spec
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api.conditions import Reason
from headway_api.records import EpisodeRecord, GroupRecord, PolicyVersion, Purpose, WeightsManifest
from headway_api.store import FileStore
from headway_coordinator.conditions import failures
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint, Failure, Router
from headway_coordinator.episode import Task
from headway_coordinator.spool import decode
from headway_coordinator.status import JobUpdate
from headway_coordinator.validation_servers import NOT_VALIDATING


class Server:
    """A rollout server of full training. Its engine reports the version with which it sampled each token."""

    def __init__(self, folder: Path) -> None:
        self.taken: list[int] = []
        self.fails: str | None = None
        self._held: dict[str, Any] = {"version": None, "ready": False}
        self.engine = speaking_engine(folder)
        speak = self.engine.answers["POST /inference/v1/generate"]

        def generate(body: Any) -> Any:
            answer = speak(body)
            held = str(PolicyVersion.model_validate(self._held["version"]))
            choice = answer["choices"][0]
            choice["weight_versions"] = [{"version": held, "start": 0, "end": len(choice["token_ids"])}]
            return answer

        def take(body: Any) -> Any:
            if self.fails is not None:
                return {"version": None, "ready": False, "error": self.fails, "reason": "VerificationFailed"}
            self.taken.append(body["version"]["step"])
            self._held.update(version=body["version"], ready=True, canary_error=1e-6)
            return self._held

        self.engine.answers = {**self.engine.answers, "POST /inference/v1/generate": generate}
        self.agent = Scripted({"GET /v1/weights": lambda body: self._held, "POST /v1/weights": take})

    async def discover(self) -> set[Endpoint]:
        return {Endpoint(self.engine.url, self.agent.url)}

    @property
    def turns(self) -> int:
        return self.engine.count("POST /inference/v1/generate")


class Rig:
    """The real coordinator over two servers: one for training, one for held-out rows."""

    def __init__(self, folder: Path, kind: Literal["full", "lora"] = "full") -> None:
        self.kind = kind
        self.train, self.held_out = Server(folder / "train"), Server(folder / "held-out")
        (folder / "test.jsonl").write_text(json.dumps({"prompt": "test 0"}) + "\n")
        data = {name: {"uri": f"file://{folder}/{name}.jsonl"} for name in ("train", "validation", "test")}
        model = {"base": f"file://{folder}/model", "dtype": "float32"}
        model |= {"full": {}} if kind == "full" else {"lora": {"rank": 8, "alpha": 16}}
        self.config = job(folder, model=model, data=data, evaluation={"passK": [1], "servers": "Dedicated"})
        self.folder = folder
        self.store = FileStore()
        self.port = free_port()
        self.status: list[dict[str, Any]] = []

    async def run(self, stack: AsyncExitStack) -> tuple[Coordinator, ScriptedLearner, asyncio.Task[None]]:
        for server in (self.train, self.held_out):
            await stack.enter_async_context(serving(server.engine))
            await stack.enter_async_context(serving(server.agent))
        box = await stack.enter_async_context(serving(sandbox()))
        leases = await stack.enter_async_context(serving(broker(box.url)))
        coordinator = Coordinator(
            self.config,
            KEYS,
            self.store,
            self.folder / "cache",
            self.status.append,
            broker_url=leases.url,
            discover=self.train.discover,
            discover_validation=self.held_out.discover,
            port=self.port,
        )
        self.layout = coordinator.layout
        published = publishing(self.store, self.layout)

        def publish(step: int) -> WeightsManifest:
            return published(step).model_copy(update={"kind": self.kind})

        url = f"http://127.0.0.1:{self.port}"
        learner = ScriptedLearner(url, TO_COORDINATOR, self.store, self.layout, publish)
        running = asyncio.create_task(coordinator.run())

        async def stop() -> None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        stack.push_async_callback(stop)
        await until_ready(running, self.port)
        return coordinator, learner, running

    def groups(self, uris: list[str]) -> list[GroupRecord]:
        return [decode(self.store.get(uri)) for uri in uris]


def turns(groups: list[GroupRecord]) -> int:
    return sum(len(episode.turns) for group in groups for episode in group.episodes)


def versions(groups: list[GroupRecord]) -> set[int]:
    rows = [row for group in groups for episode in group.episodes for row in episode.rows]
    return {span.version.step for row in rows for span in row.versions}


@pytest.mark.parametrize("kind", ["full", "lora"])
async def test_dedicated_servers_validate_and_test_during_training(
    kind: Literal["full", "lora"], tmp_path: Path
) -> None:
    rig = Rig(tmp_path, kind)
    trained = asyncio.Event()

    async def until_trained(request: web.Request) -> None:
        await trained.wait()

    rig.held_out.engine.faults["POST /inference/v1/generate"] = until_trained  # type: ignore[assignment]
    async with AsyncExitStack() as stack, asyncio.timeout(100):
        coordinator, learner, running = await rig.run(stack)
        await learner.run(steps=2)
        assert coordinator._parts is not None
        training, fleet = coordinator._parts.training, coordinator._parts.fleet
        assert training.state.evaluations == {}, "none is over, and all steps are taken"
        await fleet.ready()
        text = coordinator._exporter.text().decode()
        trained.set()
        await asyncio.gather(learner.run(), running)
    for purpose, step in (("train", 2), ("validation", 0)):
        labels = f'job_name="job",namespace="ns",purpose="{purpose}"'
        assert f'headway_weights_servers{{{labels},state="serving"}} 1.0' in text
        url = (rig.train if purpose == "train" else rig.held_out).engine.url
        assert f'headway_weights_version{{{labels},server="{url}"}} {step}.0' in text
    status, layout = rig.status[-1], rig.layout
    assert status["validation"]["step"] == 2
    assert status["test"] is not None
    assert rig.train.taken == [0, 1, 2]
    assert rig.held_out.taken[:2] == [0, 2], "what is validated, and nothing between"
    train = rig.groups(rig.store.list(layout.train_groups))
    validated = {step: rig.groups(rig.store.list(layout.validation_groups(step))) for step in (0, 2)}
    tested = rig.groups(rig.store.list(f"{layout.root}/trajectories/evaluation"))
    assert {step: versions(found) for step, found in validated.items()} == {0: {0}, 2: {2}}
    assert tested
    assert rig.train.turns == turns(train)
    assert rig.held_out.turns == turns([*validated[0], *validated[2], *tested])
    assert rig.held_out.agent.count("DELETE") == 0, "the engine has no other weights to go back to"


async def test_a_server_that_fails_to_load_weights_is_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.held_out.fails = "canary off by 3.1"
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        coordinator, learner, running = await rig.run(stack)
        await learner.run(steps=2)
        [condition] = [c for c in coordinator.status().conditions if c.type == "WeightsInSync"]
        assert coordinator._parts is not None
        training = coordinator._parts.training
        assert "canary off by 3.1" in str(training.validations.problem)
        rig.held_out.fails = None
        await asyncio.gather(learner.run(), running)
    assert (condition.status, condition.reason) == ("False", "VerificationFailed")
    assert condition.message == f"{rig.held_out.engine.url}, for held-out rows: canary off by 3.1"
    [last] = [c for c in rig.status[-1]["conditions"] if c["type"] == "WeightsInSync"]
    assert last["status"] == "True"


async def test_a_dedicated_server_holds_weights_until_others_come(tmp_path: Path) -> None:
    """An engine of full training has one slot, which cannot be emptied."""
    rig = Rig(tmp_path)
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        coordinator, learner, _ = await rig.run(stack)
        await learner.run(steps=1)
        assert coordinator._parts is not None
        training, concurrent = coordinator._parts.training, coordinator._parts.concurrent
        assert concurrent is not None
        while 0 not in training.state.evaluations or training.validations.unfinished:
            await asyncio.sleep(0.01)
        assert concurrent.fleet.router.problem() == NOT_VALIDATING
        assert training.validations.problem is None
        assert concurrent.fleet.router.replicas == 1
        coordinator._apply(JobUpdate(replicas=7))
        assert concurrent.fleet.router.replicas == 1
        [condition] = [c for c in coordinator.status().conditions if c.type == "WeightsInSync"]
        assert condition.reason != "VerificationFailed"
    assert rig.held_out.agent.count("DELETE") == 0


async def test_held_out_episodes_do_not_use_places_of_training(tmp_path: Path) -> None:
    of = spec(batchSize=3)
    job = Job(tmp_path, of, rows=12, dedicated=2)
    held, plain = asyncio.Event(), job.episode

    async def episode(task: Task) -> EpisodeRecord:
        await held.wait()
        return await plain(task)

    job.episode = episode  # type: ignore[method-assign]
    async with job.coordinator() as (training, learner, running):
        await training.report(learner.commit(0, []))
        limit = {Purpose.TRAIN: of.rollout.max_concurrency, Purpose.VALIDATION: 2}
        while any(training.state.in_flight[purpose] < count for purpose, count in limit.items()):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert training.state.in_flight[Purpose.VALIDATION] == 2, "of three rows"
        held.set()
        await asyncio.gather(learner.run(), running)


def test_failures_name_the_server_even_once_it_is_gone() -> None:
    router, at = Router(wanted=version(1)), Endpoint("http://a:8000", "http://a:8001")
    router.discovered({at})
    assert failures(router) == {}
    failure = Failure(Reason.UPDATE_FAILED, "no such file")
    router.failed(at, failure)
    assert failures(router) == {"http://a:8000": failure}
    router.discovered(())
    assert failures(router) == {"http://a:8000 (gone)": failure}
