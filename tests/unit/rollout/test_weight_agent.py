from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from role_keys import TO_ROLLOUT

from headway_api.records import PolicyVersion, WeightsManifest, WeightsState
from headway_api.sandbox_api import Problem
from headway_rollout.agent import application
from headway_rollout.weights.slots import SlotRefusedError
from headway_rollout.weights.updater import NOTHING

AUTHORIZED = {"Authorization": f"Bearer {TO_ROLLOUT}"}
MANIFEST = {
    "version": {"incarnation": 0, "step": 3},
    "kind": "lora",
    "uri": "s3://bucket/weights",
    "files": [],
    "canary": {"tokens": [1, 2], "logprobs": [-1.0], "tolerance": 0.1},
}


class Scripted:
    """Scripted slots behind the weight agent's HTTP API."""

    def __init__(self) -> None:
        self.states: dict[str, WeightsState] = {}
        self.up = True
        self.taken: list[WeightsManifest] = []

    def state(self, slot: str) -> WeightsState:
        return self.states.get(slot, NOTHING)

    async def take(self, slot: str, manifest: WeightsManifest) -> WeightsState | None:
        if not self.up:
            return None
        if slot == "one-too-many":
            raise SlotRefusedError("release one")
        self.taken.append(manifest)
        state = WeightsState(version=manifest.version, ready=True, canary_error=1e-6, seconds=0.1)
        self.states[slot] = state
        return state

    def release(self, slot: str) -> None:
        if slot == "policy":
            raise SlotRefusedError("it stays")
        self.states.pop(slot, None)

    def alive(self) -> bool:
        return self.up

    async def ready(self) -> bool:
        return self.up


@pytest.fixture
def server() -> Scripted:
    return Scripted()


@pytest.fixture
async def client(server: Scripted) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(application(server, TO_ROLLOUT))) as client:
        yield client


async def test_a_manifest_is_taken_and_answered_with_the_state(
    client: TestClient[Any, Any], server: Scripted
) -> None:
    answer = await client.post("/v1/weights", json=MANIFEST, headers=AUTHORIZED)
    assert answer.status == 200
    state = WeightsState.model_validate_json(await answer.text())
    assert state.version == PolicyVersion(incarnation=0, step=3)
    shown = await client.get("/v1/weights", headers=AUTHORIZED)
    assert WeightsState.model_validate_json(await shown.text()) == state


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TO_ROLLOUT}])
async def test_a_request_without_the_token_is_refused(
    client: TestClient[Any, Any], server: Scripted, header: dict[str, str]
) -> None:
    for answer in (
        await client.post("/v1/weights", json=MANIFEST, headers=header),
        await client.get("/v1/weights", headers=header),
        await client.delete("/v1/weights?slot=tuned", headers=header),
    ):
        assert answer.status == 401
        assert Problem.model_validate_json(await answer.text()).reason == "Unauthorized"
    assert server.taken == []


async def test_an_invalid_manifest_is_refused(client: TestClient[Any, Any]) -> None:
    answer = await client.post("/v1/weights", json={"version": "0.1"}, headers=AUTHORIZED)
    assert answer.status == 400
    assert Problem.model_validate_json(await answer.text()).reason == "InvalidManifest"


async def test_a_starting_engine_answers_with_retry_after(
    client: TestClient[Any, Any], server: Scripted
) -> None:
    server.up = False
    answer = await client.post("/v1/weights", json=MANIFEST, headers=AUTHORIZED)
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) > 0


async def state_of(client: TestClient[Any, Any], slot: str, method: str = "GET") -> WeightsState:
    answer = await client.request(method, f"/v1/weights?slot={slot}", headers=AUTHORIZED)
    return WeightsState.model_validate_json(await answer.text())


async def test_each_slot_has_its_own_state_until_it_is_released(client: TestClient[Any, Any]) -> None:
    await client.post("/v1/weights?slot=tuned", json=MANIFEST, headers=AUTHORIZED)
    assert (await state_of(client, "tuned")).ready
    assert not (await state_of(client, "policy")).ready
    assert await state_of(client, "tuned", "DELETE") == NOTHING
    assert await state_of(client, "tuned") == NOTHING


@pytest.mark.parametrize("slot", ["", "Tuned", "a.b", "-a", "a-", "a/b", "a" * 64])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_the_name_of_a_slot_is_a_dns_label(
    client: TestClient[Any, Any], server: Scripted, method: str, slot: str
) -> None:
    how: dict[str, Any] = {"params": {"slot": slot}, "json": MANIFEST, "headers": AUTHORIZED}
    answer = await client.request(method, "/v1/weights", **how)
    assert answer.status == 400
    assert Problem.model_validate_json(await answer.text()).reason == "InvalidSlot"
    assert server.taken == []


@pytest.mark.parametrize(("method", "slot"), [("POST", "one-too-many"), ("DELETE", "policy")])
async def test_a_refused_slot_or_release_is_a_conflict(
    client: TestClient[Any, Any], method: str, slot: str
) -> None:
    how: dict[str, Any] = {"params": {"slot": slot}, "json": MANIFEST, "headers": AUTHORIZED}
    answer = await client.request(method, "/v1/weights", **how)
    assert answer.status == 409
    assert Problem.model_validate_json(await answer.text()).reason == "SlotRefused"


async def test_probes_need_no_token(client: TestClient[Any, Any], server: Scripted) -> None:
    assert [(await client.get(path)).status for path in ("/healthz", "/readyz")] == [200, 200]
    server.up = False
    assert [(await client.get(path)).status for path in ("/healthz", "/readyz")] == [503, 503]
