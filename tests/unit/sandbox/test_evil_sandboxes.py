"""A sandbox runs the user's image. Whatever its server answers, the broker and all other sandboxes go on."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pods_api
import pytest
from aiohttp import web
from role_keys import LEASES, TO_BROKER
from sandbox_broker import SMALL, job_config

from headway_api.sandbox_api import PROOF_PREFIX, Lease, LeaseRequest
from headway_sandbox import session
from headway_sandbox.broker import pods, pool, proof, service
from headway_sandbox.broker.kube import Credentials, Pods
from headway_sandbox.broker.leases import Leases
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.service import Service
from headway_sandbox.broker.warm import WarmPool

EVIL, GOOD = "127.77.0.1", "127.77.0.2"
SOON = time.time() + 600


def json_answer(document: Any) -> dict[str, Any]:
    return {"body": json.dumps(document).encode()}


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 65536)


WELL = json_answer({"lease": None, "deadline": None})
BAD_ANSWERS = {
    "not JSON": {"body": b"fine"},
    "nothing": {"body": b""},
    "a list": json_answer([]),
    "an empty object": json_answer({}),
    "a lease that is a list": json_answer({"lease": ["e"], "deadline": SOON}),
    "a lease without an end": json_answer({"lease": "e", "deadline": None}),
    "a deadline that is text": json_answer({"lease": "e", "deadline": "soon"}),
    "a deadline that is infinite": {"body": b'{"lease": "e", "deadline": 1e999}'},
    "a deadline in a thousand years": json_answer({"lease": "e", "deadline": SOON + 1e11}),
    "a lease of a megabyte": json_answer({"lease": "e" * 2**20, "deadline": SOON}),
    "a depth of 100,000": {"body": b"[" * 100_000},
    "a depth of 1,000": {"body": b"[" * 1000 + b"]" * 1000},
    "half of a surrogate pair": {"body": b'{"lease": "\\ud800", "deadline": 1e9}'},
    "bytes that are not UTF-8": {"body": b'{"lease": "\xff", "deadline": 1e9}'},
    "200 MB in 200 KB": {
        "body": gzip.compress(b" " * 2**27),
        "headers": {"Content-Encoding": "gzip"},
    },
    "no end": endless,
    "a forged lease": json_answer({"lease": "e", "deadline": SOON}),
}


@asynccontextmanager
async def broker(
    api: pods_api.PodsApi, limit: int = 2, at_once: int = 1
) -> AsyncIterator[tuple[WarmPool, Leases]]:
    """A pool and its leases over the pods of `api`. An error in their tasks fails the test."""
    config = job_config("team", "image", "u-1", sandbox={"warmPool": {"min": 1, "max": limit}})
    metrics = Metrics(config)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(pods_api.served(api.app(), "127.0.0.1", 0))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        over = Pods(http, server, "team", ssl.create_default_context(), Credentials(None))
        limits = pool.Limits(1, limit, at_once)
        warm = WarmPool(over, http, pods.SandboxKind(config), pods.Platform({}, SMALL, []), limits, metrics)
        leases = Leases(warm, http, LEASES, metrics)
        running = asyncio.create_task(warm.run())
        try:
            yield warm, leases
            assert not running.done(), running.exception()
        finally:
            running.cancel()
            await asyncio.wait([running])


def found(name: str) -> dict[str, Any]:
    """A pod that an earlier broker of this job created."""
    config = job_config("team", "image", "u-1")
    return pods.manifest(pods.SandboxKind(config), pods.Platform({}, SMALL, []), name)


async def leased(leases: Leases, name: str) -> Lease:
    async with asyncio.timeout(60):
        return await leases.grant(LeaseRequest(lease=name, owner="one", deadline_seconds=60))


def sandbox(uid: str, lease: str | None = None) -> web.Application:
    """The app of a real sandbox server.

    This job has bound it to `lease`, or it is still free if that is None.
    """
    real = session.Session(lambda: None)  # type: ignore[arg-type, return-value]
    if lease is not None:
        token = proof.token_of(LEASES.encode(), uid, lease)
        real._lease, real._token, real._deadline = lease, token, SOON

    async def health(_: web.Request) -> web.Response:
        return web.json_response(real.health())

    async def prove(request: web.Request) -> web.Response:
        return web.json_response(real.prove(await request.json()))

    steps = {("GET", "/healthz"): health, ("POST", "/proof"): prove, ("POST", "/lease"): {"status": 204}}
    return pods_api.answering(steps)


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_a_bad_answer_ends_only_that_sandbox(answer: Any) -> None:
    api = pods_api.PodsApi([EVIL, GOOD])
    evil = {("GET", "/healthz"): answer, ("POST", "/proof"): json_answer({"proof": "0" * 64})}
    for name in ("evil", "good"):
        api.add(found(name))
    async with (
        pods_api.served(pods_api.answering(evil), EVIL, pods_api.SANDBOX_PORT),
        pods_api.served(sandbox("any"), GOOD, pods_api.SANDBOX_PORT),
        broker(api) as (_, leases),
    ):
        assert (await leased(leases, "e")).pod == "good"
        async with asyncio.timeout(60):
            while not api.deleted:
                await asyncio.sleep(0.01)
        assert api.deleted == [EVIL]


async def test_the_broker_says_what_is_wrong_with_the_answer() -> None:
    api = pods_api.PodsApi([EVIL])
    evil = pods_api.answering({("GET", "/healthz"): json_answer([])})
    async with pods_api.served(evil, EVIL, pods_api.SANDBOX_PORT), broker(api, 1) as (warm, _):
        async with asyncio.timeout(60):
            while warm.problem is None:
                await asyncio.sleep(0.01)
        assert (warm.problem.reason, warm.problem.field) == ("SandboxUnfit", "spec.environment.image")
        assert "does not answer as a sandbox" in warm.problem.message


@pytest.mark.parametrize(("answered", "given_up"), [(False, True), (True, False)])
async def test_an_image_that_never_answers_is_given_up(answered: bool, given_up: bool) -> None:
    state = {"terminated": {"exitCode": 1, "message": "No module named headway_sandbox"}}
    ended = {
        "metadata": {"name": "p"},
        "status": {"phase": "Failed", "containerStatuses": [{"state": state}]},
    }
    async with broker(pods_api.PodsApi([])) as (warm, _):
        warm._has_answered = answered
        problems = [warm._ended(ended) for _ in range(pods.MAX_UNANSWERED)]
    assert [problem.permanent for problem in problems] == [False] * (pods.MAX_UNANSWERED - 1) + [given_up]
    assert all("No module named headway_sandbox" in problem.message for problem in problems)


async def test_the_remaining_tries_of_an_image_run_together() -> None:
    """The pool first tries one pod alone. Once that pod has ended by itself, it tries the others together."""
    api, seen = pods_api.PodsApi([]), set[str]()
    async with broker(api, limit=8, at_once=8) as (warm, _), asyncio.timeout(60):
        for together in (1, pods.MAX_UNANSWERED - 1):
            while len(fresh := api.pods.keys() - seen) < together:
                await asyncio.sleep(0.01)
            assert len(fresh) == together
            assert warm.problem is None or not warm.problem.permanent
            seen |= fresh
            for name in fresh:
                api.end(name, 1, "No module named headway_sandbox")
        while not (warm.problem and warm.problem.permanent):
            await asyncio.sleep(0.01)
        assert len(seen) == pods.MAX_UNANSWERED


async def test_the_broker_follows_no_redirect() -> None:
    visited: list[str] = []

    async def visit(request: web.Request) -> web.Response:
        visited.append(request.path)
        return web.json_response({"lease": None, "deadline": None})

    api = pods_api.PodsApi([EVIL])
    unavailable = {"status": 307, "headers": {"Location": f"http://{GOOD}:{pods_api.SANDBOX_PORT}/healthz"}}
    elsewhere = pods_api.answering({("GET", "/healthz"): visit, ("POST", "/lease"): visit})
    evil = pods_api.answering({("GET", "/healthz"): WELL, ("POST", "/lease"): unavailable})
    async with (
        pods_api.served(evil, EVIL, pods_api.SANDBOX_PORT),
        pods_api.served(elsewhere, GOOD, pods_api.SANDBOX_PORT),
        broker(api, 1) as (_, leases),
    ):
        task = asyncio.create_task(leased(leases, "e"))
        async with asyncio.timeout(60):
            while not api.deleted:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
    assert visited == []


async def test_a_restarted_broker_recognizes_the_jobs_leases() -> None:
    api = pods_api.PodsApi([GOOD])
    api.add(found("kept"))
    app = sandbox("uid-of-kept", "episode-1")
    async with pods_api.served(app, GOOD, pods_api.SANDBOX_PORT), broker(api) as (warm, leases):
        async with asyncio.timeout(60):
            await warm.listed.wait()
        lease = await leased(leases, "episode-1")
        assert (lease.pod, api.deleted) == ("kept", [])


async def test_a_sandbox_cannot_claim_the_lease_of_another() -> None:
    """It knows only the token of its own lease and its own pod."""
    api = pods_api.PodsApi([EVIL, GOOD])
    api.add(found("thief"))
    own = proof.token_of(LEASES.encode(), "uid-of-thief", "episode-1").encode()

    async def prove(request: web.Request) -> web.Response:
        challenge = (await request.json())["challenge"]
        made = hmac.new(own, f"{PROOF_PREFIX}{challenge}".encode(), hashlib.sha256).hexdigest()
        return web.json_response({"proof": made})

    thief = {
        ("GET", "/healthz"): json_answer({"lease": "episode-2", "deadline": SOON}),
        ("POST", "/proof"): prove,
    }
    async with (
        pods_api.served(pods_api.answering(thief), EVIL, pods_api.SANDBOX_PORT),
        pods_api.served(sandbox("any"), GOOD, pods_api.SANDBOX_PORT),
        broker(api) as (_, leases),
    ):
        lease = await leased(leases, "episode-2")
        assert lease.pod != "thief"
        assert api.deleted == [EVIL]


async def test_of_two_pods_with_one_lease_one_is_kept() -> None:
    api = pods_api.PodsApi([EVIL, GOOD])
    api.add(found("first"))
    api.add(found("second"))
    async with (
        pods_api.served(sandbox("uid-of-first", "e"), EVIL, pods_api.SANDBOX_PORT),
        pods_api.served(sandbox("uid-of-second", "e"), GOOD, pods_api.SANDBOX_PORT),
        broker(api) as (_, leases),
    ):
        kept = await leased(leases, "e")
        async with asyncio.timeout(60):
            while not api.deleted:
                await asyncio.sleep(0.01)
        gone = {"first": EVIL, "second": GOOD}
        del gone[kept.pod]
        assert api.deleted == list(gone.values())


STRANGERS = [None, {"uid": "u-2", "controller": True}, {"uid": "u-1", "controller": False}]


@pytest.mark.parametrize("owner", STRANGERS)
async def test_a_pod_with_only_the_labels_is_not_the_jobs(owner: dict[str, Any] | None) -> None:
    """Such a pod would receive the rows with their answers.

    It belongs to somebody else, so it is not deleted.
    """
    api = pods_api.PodsApi([EVIL, GOOD])
    stranger = found("stranger")
    stranger["metadata"]["ownerReferences"] = [] if owner is None else [owner]
    api.add(stranger)
    async with (
        pods_api.served(sandbox("any"), EVIL, pods_api.SANDBOX_PORT),
        pods_api.served(sandbox("any"), GOOD, pods_api.SANDBOX_PORT),
        broker(api, 1) as (warm, leases),
    ):
        lease = await leased(leases, "e")
        assert lease.pod != "stranger"
        assert (warm.counts().alive, api.deleted) == (1, [])


@pytest.mark.parametrize(
    "line",
    [b"[]", b"{}", b"fine", b"[" * 50_000, b'{"type": "ADDED", "object": []}', b" " * (5 * 2**20)],
    ids=["a list", "no type", "not JSON", "deep", "no object", "no end"],
)
async def test_an_odd_watch_event_makes_the_broker_list_pods_again(line: bytes) -> None:
    api = pods_api.PodsApi([GOOD], first=line + b"\n" * (len(line) < 2**20))
    async with (
        pods_api.served(sandbox("any"), GOOD, pods_api.SANDBOX_PORT),
        broker(api) as (_, leases),
    ):
        assert (await leased(leases, "e")).url == f"http://{GOOD}:{pods_api.SANDBOX_PORT}"
        assert api.first == b"", "it was sent"


async def asked(leases: Leases, warm: WarmPool, path: str, token: str, data: Any) -> tuple[int, str]:
    """Post to the broker's own HTTP API. Returns status and text."""
    config = job_config("team", "image", "u-1")
    app = Service(warm, leases, Metrics(config), TO_BROKER).app()
    async with pods_api.served(app, "127.0.0.1", 0) as url, aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        async with http.post(url + path, data=data, headers=headers) as response:
            return response.status, (await response.json())["reason"]


DEEP = b'{"lease": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
LONG = json.dumps({"lease": "e", "owner": "o" * 201, "deadline_seconds": 1}).encode()
LATE = json.dumps({"lease": "e", "owner": "o", "deadline_seconds": 1e300}).encode()


@pytest.mark.parametrize(
    ("path", "token", "data", "status", "reason"),
    [
        ("/v1/leases", "another", b"[" * 2**20, 401, "Unauthorized"),
        ("/v1/leases", TO_BROKER, b" " * 2**20, 413, "MalformedRequest"),
        ("/v1/leases", TO_BROKER, DEEP, 400, "MalformedRequest"),
        ("/v1/leases", TO_BROKER, LATE, 400, "MalformedRequest"),
        ("/v1/owners", "another", b"[" * 2**20, 401, "Unauthorized"),
        ("/v1/owners", TO_BROKER, b" " * 2**20, 413, "MalformedRequest"),
        ("/v1/owners", TO_BROKER, LONG, 400, "MalformedRequest"),
    ],
)
async def test_the_broker_refuses_requests_out_of_bounds(
    path: str, token: str, data: bytes, status: int, reason: str
) -> None:
    async with broker(pods_api.PodsApi([])) as (warm, leases):
        assert await asked(leases, warm, path, token, data) == (status, reason)


async def test_the_broker_does_not_wait_for_a_late_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BODY_SECONDS", 0.2)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with broker(pods_api.PodsApi([])) as (warm, leases):
        assert await asked(leases, warm, "/v1/owners", TO_BROKER, slow()) == (408, "MalformedRequest")


def test_both_sides_use_the_same_prefix_for_signatures() -> None:
    assert session.PROOF_PREFIX == PROOF_PREFIX
    assert len(proof.challenge()) == session.CHALLENGE
