"""The HTTP session of kopf: it reduces jobs to their identities, and passes on everything else unchanged."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from kopf._cogs.clients.api import iter_jsonlines
from kubernetes import client
from observed_cluster import PLATFORM

from headway_operator.app import _session, registry
from headway_operator.controller import Controller
from headway_operator.kube import Api
from headway_operator.session import BoundedResponse, session
from headway_operator.telemetry import Telemetry

JOBS = "/apis/headway.dev/v1alpha1/rltrainingjobs"
DEEP = '{"a":' * 9000 + "1" + "}" * 9000


def body(name: str, more: str = "{}") -> str:
    metadata = {"name": name, "namespace": "team", "uid": f"u-{name}", "resourceVersion": "7"}
    text = json.dumps({"kind": "RLTrainingJob", "metadata": metadata | {"managedFields": "MORE"}})
    return text.replace('"MORE"', more)


def line(kind: str, text: str) -> bytes:
    return f'{{"type":"{kind}","object":{text}}}\n'.encode()


@asynccontextmanager
async def served(answer: bytes) -> AsyncIterator[tuple[aiohttp.ClientSession, str, list[str]]]:
    """A server that sends one answer in small pieces, and the Accept headers of its requests."""
    asked: list[str] = []

    async def give(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Accept"])
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        for place in range(0, len(answer), 7001):
            await response.write(answer[place : place + 7001])
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", give)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with session(aiohttp.TCPConnector(), {}) as caller:
        yield caller, f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


async def watched(answer: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """What kopf's own line reader reads of a watch, and the Accept headers."""
    async with (
        served(answer) as (caller, url, asked),
        await caller.request("get", f"{url}{JOBS}", params={"watch": "true"}) as response,
    ):
        found = [json.loads(text) async for text in iter_jsonlines(response.content)]
    return found, asked


async def test_a_watch_shows_identities_of_jobs() -> None:
    found, asked = await watched(line("ADDED", body("a")) + line("DELETED", body("b")))
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in found] == [
        ("ADDED", "a"),
        ("DELETED", "b"),
    ]
    assert found[0]["object"]["metadata"].keys() == {"name", "namespace", "uid", "resourceVersion"}
    assert asked == ["application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"]


@pytest.mark.parametrize("more", [DEEP, "[" + "{}," * 300_000 + "{}]"], ids=["deep", "fat"])
async def test_an_object_of_any_shape_ends_no_watch(more: str) -> None:
    found, _ = await watched(line("ADDED", body("odd", more)) + line("ADDED", body("next")))
    assert [event["object"]["metadata"]["name"] for event in found] == ["odd", "next"]
    assert all("managedFields" not in event["object"]["metadata"] for event in found)


async def test_a_line_without_identity_is_left_out() -> None:
    found, _ = await watched(line("ADDED", "{}") + b"\n[]\n" + line("ADDED", body("next")))
    assert [event["object"]["metadata"]["name"] for event in found] == ["next"]


async def test_a_line_beyond_all_bounds_is_left_out() -> None:
    found, _ = await watched(
        line("ADDED", body("odd", '"' + "x" * 5_000_000 + '"')) + line("ADDED", body("b"))
    )
    assert [event["object"]["metadata"]["name"] for event in found] == ["b"]


async def test_an_error_of_a_watch_makes_kopf_list_again() -> None:
    """At any code other than 410, kopf would end the operator."""
    found, _ = await watched(line("ERROR", '{"code":500,"message":"no"}'))
    assert [(event["type"], event["object"]["code"]) for event in found] == [("ERROR", 410)]


async def test_a_list_shows_identities_of_jobs() -> None:
    items = ",".join([body("a", DEEP), "{}", body("b")])
    text = f'{{"metadata":{{"resourceVersion":"9","continue":"c"}},"items":[{items}]}}'
    async with (
        served(text.encode()) as (caller, url, asked),
        await caller.request("get", f"{url}{JOBS}") as response,
    ):
        found = await response.json()
    assert found["metadata"] == {"resourceVersion": "9", "continue": "c"}
    assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b"]
    assert asked == ["application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"]


async def test_other_answers_are_unchanged() -> None:
    async with (
        served(b'{"groups":[{"name":"headway.dev"}]}') as (caller, url, asked),
        await caller.request("get", f"{url}/apis") as response,
    ):
        assert await response.json() == {"groups": [{"name": "headway.dev"}]}
    assert asked == ["*/*"]


async def test_kopf_connects_by_this_session() -> None:
    found = _session(kopf.ConnectionInfo(server="https://api.test:6443", insecure=True, token="t"))
    assert found is not None
    assert found.server == "https://api.test:6443"
    assert found.aiohttp_session.headers["Authorization"] == "Bearer t"
    assert found.aiohttp_session._response_class is BoundedResponse
    await found.aiohttp_session.close()


def test_kopf_logs_in_where_its_loop_runs() -> None:
    """kopf calls plain functions in a thread of their own, in which no session can be made."""
    handlers = registry(Controller(Api(client.Configuration()), PLATFORM, Telemetry()))
    (login,) = [handler for handler in handlers._activities._handlers if handler.id.endswith("login")]
    assert inspect.iscoroutinefunction(login.fn)
