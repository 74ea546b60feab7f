"""The gateway answers randomly mutated requests without a 5xx, a hang or a broken record.

A failure prints its seed. HOSTILE_SEED=n repeats it, and HOSTILE_CASES=n mutates more requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import aiohttp
import pytest
from bent_requests import CROWDED, CROWDS, EPISODE, GOOD, HELD, KNOWN, bent, heavy, held
from memory import flat
from open_rollout import a_rollout, rig, sealed
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.records import MAX_IGNORED
from headway_coordinator.gateway import bodies
from headway_wire import contents

pytestmark = pytest.mark.hostile

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
CASES = int(os.environ.get("HOSTILE_CASES", "150"))
MAX_MEMORY = 64 * 1024 * 1024
SIZE = 1024 * 1024
HEAVY = 0.02
"""Share of the requests in which every part is large."""
NOT_OURS = {"Content-Encoding", "Expect"}
"""Headers that aiohttp refuses with a message of its own."""


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


@pytest.mark.parametrize("path", GOOD)
async def test_no_mutated_request_causes_a_5xx_or_a_broken_record(
    tok: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To aiohttp, a deflated body that breaks off never ends, so only a deadline ends it.
    monkeypatch.setattr(contents, "BODY_SECONDS", 1.0)
    monkeypatch.setattr(bodies, "CALL_SECONDS", 1.0)
    chance = random.Random(f"{SEED}/{path}")
    seen = set()
    async with rig(tok, context=4000) as r:
        await r.chat()  # the first turn imports modules, which must not count
        with flat(MAX_MEMORY):
            for number in range(CASES):
                is_heavy = path in KNOWN and chance.random() < HEAVY
                data, headers = (heavy(path, chance, SIZE), {}) if is_heavy else bent(path, chance)
                lenient = chance.random() < 0.5
                at = f"HOSTILE_SEED={SEED}, request {number}: {data[:200]!r} {headers} {lenient=}"
                async with (
                    r.server.open(a_rollout(EPISODE, lenient=lenient), r.backend) as one,
                    asyncio.timeout(30),
                    # A session for each request, because the server closes the connection after invalid HTTP.
                    aiohttp.ClientSession() as http,
                    http.post(f"{r.url}/e/{one.token}{path}", data=data, headers=headers) as answer,
                ):
                    text = await answer.text()
                    seen.add(answer.status)
                    assert answer.status < 500, f"{at}: {text[:500]}"
                    assert not one.faults, at
                    assert sealed(one), at
                    if answer.content_type == "text/event-stream":
                        assert answer.status == 200, at
                    elif answer.content_type != "application/json":
                        assert set(headers) & NOT_OURS, f"{at}: {text[:500]}"
                    elif answer.status >= 400:
                        assert json.loads(text)["error"]["code"], at
                        assert len(text) < 6000, at
    assert seen & {200, 409}, "some of them are good"
    assert 400 in seen


@pytest.mark.parametrize("path", GOOD)
async def test_requests_are_valid_before_they_are_mutated(tok: Any, path: str) -> None:
    async with rig(tok, context=4000) as r, r.server.open(a_rollout(EPISODE), r.backend) as r.rollout:
        if path == "/update-reward":
            await r.post("/complete-rollout", GOOD["/complete-rollout"])
        status, answer = await r.post(path, GOOD[path])
        assert status == 200, answer


@pytest.mark.parametrize("path", HELD)
async def test_requests_with_a_schema_are_valid_before_mutation(tok: Any, path: str) -> None:
    async with rig(tok, context=4000) as r, r.server.open(a_rollout(EPISODE), r.backend) as r.rollout:
        status, answer = await r.post(path, held(path))
        assert status == 200, answer


@pytest.mark.parametrize("path", CROWDED)
async def test_a_record_keeps_a_bounded_number_of_ignored_names(tok: Any, path: str) -> None:
    asked = GOOD[path] | CROWDED[path]
    async with (
        rig(tok, context=4000) as r,
        r.server.open(a_rollout(EPISODE, lenient=True), r.backend) as r.rollout,
    ):
        status, answer = await r.post(path, asked)
        assert status == 200, answer
        assert len(sealed(r.rollout).ignored) == MAX_IGNORED


@pytest.mark.parametrize("path", CROWDS)
async def test_a_conversation_of_many_values_is_answered(tok: Any, path: str) -> None:
    """Each conversation is valid, but may be longer than the context."""
    field = "input" if path == "/v1/responses" else "messages"
    async with rig(tok, context=4000) as r:
        await r.chat()
        for conversation in CROWDS[path]():
            asked = {name: GOOD[path][name] for name in ("model", "max_tokens") if name in GOOD[path]}
            async with r.server.open(a_rollout(EPISODE), r.backend) as r.rollout:
                with flat(MAX_MEMORY):
                    status, answer = await r.post(path, asked | {field: conversation})
            assert status == 200 or answer["error"]["code"] == "context_length_exceeded", answer
