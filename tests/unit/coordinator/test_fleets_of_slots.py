"""Several fleets share the same servers, with one slot each. The weight agent's HTTP API is the real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from episodes import version
from evaluation_rig import spec
from faulty_servers import Scripted, engine, serving
from role_keys import TO_ROLLOUT
from scripted_fleet import REQUEST, manifest, until

from headway_api.conditions import Reason
from headway_api.config import EvalConfig
from headway_api.records import Canary, WeightsManifest, WeightsState
from headway_api.status import ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator.engines import fleet as fleets
from headway_coordinator.engines import proven as proving
from headway_coordinator.engines import vllm
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Endpoint, Failure
from headway_coordinator.evaluation import candidates
from headway_coordinator.evaluation.servers import Served
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.evaluation.units import Units
from headway_coordinator.faults import CandidateError, InfraError
from headway_rollout.agent import application
from headway_rollout.weights.slots import SlotRefusedError
from headway_rollout.weights.updater import NOTHING


class Agent:
    """A scripted weight agent that takes any weights, in at most two slots."""

    def __init__(self) -> None:
        self.slots: dict[str, WeightsState] = {}
        self.bad: set[str] = set()
        self.unreachable = False
        """Whether the artifact store is unreachable."""

    def state(self, slot: str) -> WeightsState:
        return self.slots.get(slot, NOTHING)

    async def take(self, slot: str, manifest: WeightsManifest) -> WeightsState:
        if len(self.slots.keys() | {slot}) > 2:
            raise SlotRefusedError("it has room for 2; release one")
        good = WeightsState(version=manifest.version, ready=True)
        bad = NOTHING.model_copy(update={"error": "canary off by 3.1", "reason": "VerificationFailed"})
        unreachable = NOTHING.model_copy(update={"error": "connection refused", "reason": "UpdateFailed"})
        self.slots[slot] = bad if slot in self.bad else unreachable if self.unreachable else good
        return self.slots[slot]

    def release(self, slot: str) -> None:
        self.slots.pop(slot, None)

    def alive(self) -> bool:
        return True

    async def ready(self) -> bool:
        return True


class Rig:
    """One server, and the fleets that use it."""

    def __init__(self, http: aiohttp.ClientSession, vllm: Scripted, agent: Agent, url: str) -> None:
        self.engine = vllm
        self.agent = agent
        self.there = {Endpoint(vllm.url, url)}
        self._http = http
        self._running: list[asyncio.Task[None]] = []

    async def discover(self) -> set[Endpoint]:
        return self.there

    def fleet(self, slot: str, **how: Any) -> Fleet:
        found = Fleet(self._http, TO_ROLLOUT, self.discover, slot=slot, **how)
        self._running.append(asyncio.create_task(found.run()))
        return found

    def asked(self, what: str) -> set[str]:
        """Values of this field in all requests for tokens."""
        return {body[what] for _, body in self.engine.asked}

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


@asynccontextmanager
async def a_rig() -> AsyncIterator[Rig]:
    agent = Agent()
    server = TestServer(application(agent, TO_ROLLOUT))
    async with serving(engine([4, 9])) as scripted, server, aiohttp.ClientSession() as http:
        rig = Rig(http, scripted, agent, str(server.make_url("")).rstrip("/"))
        try:
            async with asyncio.timeout(30):
                yield rig
        finally:
            await rig.stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "DISCOVER_SECONDS", 0.05)


def base(canary: Canary | None = None) -> WeightsManifest:
    return WeightsManifest(version=version(0), kind="base", uri="s3://b/model", files=[], canary=canary)


async def test_fleets_of_one_version_share_no_weights_or_prefix() -> None:
    async with a_rig() as rig:
        one, other = rig.fleet("one"), rig.fleet("other")
        for fleet in (one, other):
            await fleet.want(manifest(0))
            assert (await fleet.generate("e", REQUEST, 5)).versions[0].version == version(0)
        assert rig.asked("model") == {"one-0.0", "other-0.0"}
        assert len(rig.asked("cache_salt")) == 2
        assert set(rig.agent.slots) == {"one", "other"}


async def test_base_model_samples_have_the_version_of_its_manifest() -> None:
    """The engine has taken no weights, so it knows of no version."""
    async with a_rig() as rig:
        fleet = rig.fleet("plain")
        await fleet.want(base())
        sampled = await fleet.generate("e", REQUEST, 5)
        assert [(span.start, span.end, span.version) for span in sampled.versions] == [(0, 2, version(0))]
        assert rig.asked("model") == {"base"}


def test_full_weights_need_the_version_that_the_server_names() -> None:
    """Full weights have the base model's name, and may be replaced during a request."""
    content = [{"token_id": 4, "logprob": -0.5}]
    spans = [{"version": "default", "start": 0, "end": 1}]
    choice = {"finish_reason": "stop", "token_ids": [4], "logprobs": {"content": content}}
    answer = {"choices": [choice | {"weight_versions": spans}]}
    assert vllm.read(answer, version(3), static=True).versions[0].version == version(3)
    with pytest.raises(vllm.ServerLostError, match="default"):
        vllm.read(answer, version(3), static=False)
    with pytest.raises(InfraError, match="which weights"):
        vllm.read({"choices": [choice]}, version(3), static=False)


async def test_weights_failing_in_one_slot_leave_others_in_rotation() -> None:
    async with a_rig() as rig:
        rig.agent.bad = {"bad"}
        good, bad = rig.fleet("good"), rig.fleet("bad")
        for fleet in (good, bad):
            await fleet.want(manifest(0))
        await until(lambda: "canary off" in str(bad.router.problem()))
        assert bad.verification_failures == 1
        assert (await good.generate("e", REQUEST, 5)).tokens == [4, 9]
        assert good.router.problem() is None


async def test_a_candidate_waits_for_an_unavailable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "REFUSED_SECONDS", 0.0)
    monkeypatch.setattr(proving, "LOOK_SECONDS", 0.01)
    async with a_rig() as rig:
        rig.agent.unreachable = True
        fleet = rig.fleet("slot")
        await fleet.want(manifest(0))
        looks = 0

        def is_wanted() -> bool:
            nonlocal looks
            if "connection refused" in str(fleet.router.problem()):
                looks += 1
            rig.agent.unreachable = looks < 3
            return True

        await proving.proven("spec.candidates[slot].checkpoint.job", fleet, is_wanted, 20)
        assert looks >= 3
        assert fleet.router.in_rotation()


@pytest.mark.parametrize("patience", [0.0, 20.0])
async def test_candidate_with_wrong_weights_fails_with_field_and_fix(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(proving, "REFUSED_SECONDS", 0.0)
    monkeypatch.setattr(proving, "LOOK_SECONDS", 0.01)
    async with a_rig() as rig:
        rig.agent.bad = {"slot"}
        fleet = rig.fleet("slot")
        await fleet.want(manifest(0))
        with pytest.raises(CandidateError) as raised:
            await proving.proven("spec.candidates[slot].checkpoint.job", fleet, lambda: True, patience)
    assert raised.value.reason == "VerificationFailed"
    assert raised.value.field == "spec.candidates[slot].checkpoint.job"
    assert "canary off by 3.1; restore the base model" in str(raised.value)


UNREACHABLE = Failure(Reason.UPDATE_FAILED, "connection refused")
WRONG = Failure(Reason.VERIFICATION_FAILED, "canary off")


@pytest.mark.parametrize(
    ("failures", "seconds", "beside", "reason"),
    [
        ([WRONG, WRONG], proving.REFUSED_SECONDS + 1, 0, "VerificationFailed"),
        ([WRONG, WRONG], proving.REFUSED_SECONDS - 1, 0, None),
        ([WRONG, UNREACHABLE], proving.REFUSED_SECONDS + 1, 0, None),
        ([UNREACHABLE], proving.REFUSED_SECONDS + 1, 0, None),
        ([UNREACHABLE], 3599, proving.OTHER_SERVED_SECONDS - 1, None),
        ([UNREACHABLE], 3599, proving.OTHER_SERVED_SECONDS + 1, "UpdateFailed"),
        ([UNREACHABLE], 3601, 0, "UpdateFailed"),
    ],
)
def test_a_candidate_fails_if_servers_never_hold_its_weights(
    failures: list[Failure], seconds: float, beside: float, reason: str | None
) -> None:
    fault = proving.refusal("spec.candidates[c].model.base", failures, seconds, beside, 3600)
    assert (fault and fault.reason) == reason
    if reason == "UpdateFailed":
        assert str(fault).endswith("raise spec.pendingDeadlineSeconds if it passes by itself")


@pytest.mark.parametrize("stored", [True, False])
async def test_weights_deleted_before_servers_had_them_are_missing(
    monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """The servers report only that they cannot load the weights."""
    monkeypatch.setattr(proving, "REFUSED_SECONDS", 0.0)
    monkeypatch.setattr(proving, "LOOK_SECONDS", 0.01)
    missing = CandidateError("CheckpointMissing", "it was deleted", "spec.candidates[base].checkpoint")

    def manifest_of(*_: object) -> None:
        if not stored:
            raise missing

    monkeypatch.setattr(candidates, "manifest", manifest_of)
    units = Units.__new__(Units)
    resolved = ResolvedCandidate(name="base", kind="Weights")
    units.job = EvalConfig(name="job", namespace="ns", uid="u", spec=spec(), candidates=(resolved,))
    units.state, units.store, units.changed = (
        EvalState({"base": CandidateState("base")}, 1),
        FileStore(),
        lambda: None,
    )
    router = Mock(in_rotation=list, servers={"one": Mock(failure=WRONG)})
    found = await units._proven({"base": Served(Mock(router=router), Mock())})
    assert found == {}
    assert units.state.candidates["base"].reason == ("VerificationFailed" if stored else "CheckpointMissing")


async def test_time_before_another_candidate_loaded_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is available again, but this candidate's next load has not begun yet."""
    monkeypatch.setattr(proving, "OTHER_SERVED_SECONDS", 0.3)
    monkeypatch.setattr(proving, "LOOK_SECONDS", 0.01)
    async with a_rig() as rig:
        rig.agent.unreachable = True
        fleet = rig.fleet("slot")
        await fleet.want(manifest(0))
        seen: list[float] = []
        began = time.monotonic()

        def served_since() -> float | None:
            seen.append(time.monotonic())
            return began + 1 if time.monotonic() > began + 1 else None

        with pytest.raises(CandidateError, match="connection refused"):
            await proving.proven("f", fleet, lambda: True, 600, served_since)
    assert seen[-1] > began + 1.3


async def test_a_slot_that_is_released_makes_room_for_another() -> None:
    async with a_rig() as rig:
        first, second, third = (rig.fleet(slot) for slot in ("first", "second", "third"))
        for fleet in (first, second):
            await fleet.want(manifest(0))
            await fleet.ready()
        await third.want(manifest(0))
        await until(lambda: "room for 2" in str(third.router.problem()))
        await first.release()
        await third.ready()
        assert set(rig.agent.slots) == {"second", "third"}
        assert not first.router.in_rotation()
        assert second.router.in_rotation()


async def test_a_returning_server_unloads_a_released_slot() -> None:
    async with a_rig() as rig:
        fleet = rig.fleet("slot")
        await fleet.want(manifest(0))
        await fleet.ready()
        there, rig.there = rig.there, set()
        await until(lambda: not fleet.router.servers)
        await fleet.release()
        assert rig.agent.slots, "nobody could tell it"
        rig.there = there
        await until(lambda: not rig.agent.slots)
        await fleet.want(manifest(1))
        await fleet.ready()
        assert rig.agent.slots["slot"].version == version(1)


async def test_fleet_without_weights_names_what_it_waits_for() -> None:
    async with a_rig() as rig:
        fleet = rig.fleet("slot", unannounced="the candidate's weights are not known yet")
        await until(lambda: fleet.router.servers)
        assert fleet.router.problem() == "the candidate's weights are not known yet"
        assert "learner" in str(rig.fleet("policy").router.problem())
