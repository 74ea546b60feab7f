"""schemathesis tests the running gateway with requests that it generates from the gateway's OpenAPI document.

No answer is a 5xx, each conforms to the document, and each episode has a record. HOSTILE_SEED=n repeats the
same requests, and HOSTILE_CASES=n generates more.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from guests import guest
from open_rollout import Rig, rig, sealed
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.gateway.rollouts import Status

SEED = os.environ.get("HOSTILE_SEED", "1")
TURNS = (
    *("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"),
    "/v1/completions",
)
CASES = int(os.environ.get("HOSTILE_CASES", "15"))
"""Random requests for each operation, besides those that schemathesis makes from every bound in a schema."""
pytestmark = [pytest.mark.hostile, pytest.mark.timeout(900 + 3 * CASES)]

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def counted(served: list[Rig], seen: list[tuple[str, int]]) -> Any:
    """A middleware that resets the rollout to a status in which the route is allowed, and records each
    answer.

    The job is lenient for every second request. The episode's record is made after each request.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
        [r] = served
        rollout = r.rollout
        wanted = Status.READY if request.path.endswith("update-reward") else Status.PENDING
        rollout.status, rollout.rewards = wanted, None
        rollout.lenient = not rollout.lenient
        rollout._tokens_done.clear()
        rollout.session = Session(rollout.trajectory_id, 3, Sampling(1.0, 1.0, 64))
        r.server._turns[rollout.trajectory_id]._by_request.clear()
        answer: web.StreamResponse = await handler(request)
        resource = request.match_info.route.resource
        sealed(rollout)
        seen.append((resource.canonical if resource else "", answer.status))
        return answer

    return middleware


@pytest.mark.long
async def test_the_gateway_conforms_to_its_own_document(tok: Any, tmp_path: Path) -> None:
    python = await asyncio.to_thread(guest, "schemathesis")
    served: list[Rig] = []
    seen: list[tuple[str, int]] = []
    async with rig(tok, context=4000, around=counted(served, seen)) as r:
        served.append(r)
        r.rollout.expires_at = float("inf")
        command = [python.parent / "st", "run", f"{r.url}/openapi.json", "--url", r.base]
        command += ["--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"]
        command += ["--max-examples", str(CASES), "--seed", SEED, "--no-color", "--workers", "1"]
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, f"HOSTILE_SEED={SEED}: {output.decode(errors='replace')[-6000:]}"
    assert not r.rollout.faults
    for route in (*TURNS, "/v1/tools/{name}", "/complete-rollout", "/update-reward"):
        answered = {status for path, status in seen if path.endswith(route)}
        assert {200, 400} <= answered, f"{route}: {answered}"
