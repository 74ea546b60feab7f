"""An endpoint candidate as a unit of an evaluation: how it starts, and when its episodes begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from endpoint_service import MODEL, fails, listing, says, serving
from evaluation_rig import ABroker, EvalJob, spec

from headway_api.config import EvalConfig
from headway_api.sandbox_api import PoolState
from headway_api.status import ResolvedCandidate
from headway_coordinator.endpoint import candidate, pace
from headway_coordinator.endpoint import chat as endpoint
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.endpoint.pace import Pace
from headway_coordinator.evaluation.run import Evaluation
from headway_coordinator.evaluation.stall import blocker
from headway_coordinator.evaluation.units import Units


async def evaluated(folder: Path, url: str, broker: Any, rows: int = 2) -> Evaluation:
    """Run a coordinator that measures one endpoint candidate, until it ends."""
    asked = {"name": "other", "endpoint": {"url": url, "model": MODEL}}
    job = EvalJob(folder, spec(candidates=[asked]), rows=rows)
    evaluation = await job.coordinator()
    of = EvalConfig(
        name="job",
        namespace="ns",
        uid="uid",
        spec=job.spec,
        candidates=(ResolvedCandidate(name="other", kind="Endpoint"),),
    )
    no = cast(Any, None)
    units = Units(of, evaluation.state, no, "key", job.store, folder, broker, no, no, no, no)
    await evaluation.run([*units.all()])
    return evaluation


async def test_no_episode_begins_while_the_endpoint_asks_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the episode's sandbox would be idle, and its deadline would come closer."""
    order: list[str] = []

    class Noting(ABroker):
        async def reset(self, row: dict[str, Any], seed: int) -> Any:
            order.append("begins")
            return await super().reset(row, seed)

    async def ready(self: Pace) -> None:
        order.append("waits")

    monkeypatch.setattr(Pace, "ready", ready)
    async with serving(says(), models=listing(MODEL)) as service:
        evaluation = await evaluated(tmp_path, service.url, Noting(), rows=1)
    assert evaluation.state.candidates["other"].stage == "Complete"
    assert sorted(order) == ["begins", "begins", "waits", "waits"]
    assert order[0] == "waits"


async def test_an_endpoint_without_its_secret_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate, "LOOK_SECONDS", 0.01)
    endpoint_of = {"url": "http://x/v1", "model": MODEL, "secretRef": {"name": "keys"}}
    asked = [{"name": "other", "endpoint": endpoint_of}, {"name": "base", "model": {"base": "s3://b/m"}}]
    job = EvalJob(tmp_path, spec(candidates=asked, pendingDeadlineSeconds=1))
    evaluation, no = await job.coordinator(), cast(Any, None)
    resolved = (ResolvedCandidate(name="other", kind="Endpoint"),)
    of = EvalConfig(name="job", namespace="ns", uid="uid", spec=job.spec, candidates=resolved)
    messages: list[str | None] = []
    stalled: list[str] = []
    other = evaluation.state.candidates["other"]

    def changed() -> None:
        messages.append(other.message)
        stalled.append(blocker(evaluation, {}, PoolState(ready=1, starting=0, leased=0), 60.0).words)

    units = Units(of, evaluation.state, no, "key", job.store, tmp_path, no, no, no, no, no,
                  changed=changed, endpoints=tmp_path)  # fmt: skip
    await evaluation.run([*units.all(), job.unit("base")])
    assert (other.stage, other.reason) == ("Failed", "EndpointDenied")
    assert messages[0] == other.message, "it says what it waits for"
    assert stalled[0] == f"candidate other waits: {other.message}"
    assert other.message is not None
    assert other.message.startswith("spec.candidates[other].endpoint.secretRef: candidate other: the key")
    base = evaluation.state.candidates["base"]
    assert (base.stage, len(base.tries)) == ("Complete", len(job.rows))


async def test_the_next_process_knows_that_a_candidate_had_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "FIRST_PAUSE_SECONDS", 0.01)
    known: list[bool] = []
    begun = EndpointChat.__init__

    def init(self: EndpointChat, *given: Any, **more: Any) -> None:
        known.append(more["answered"])
        begun(self, *given, **more)

    monkeypatch.setattr(endpoint.EndpointChat, "__init__", init)
    broken = [says(), says(), fails(500)]
    async with serving(*broken, models=listing(MODEL)) as service:
        first = await evaluated(tmp_path, service.url, ABroker(), rows=2)
        assert {one.scored for one in first.state.candidates["other"].all_tries} == {True, False}
        service.answers = [says()]
        await evaluated(tmp_path, service.url, ABroker(), rows=2)
    assert known == [False, True]
