"""The middleware before vLLM's routes passes on only requests with the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headway_rollout.auth_middleware import ENV_DIGEST, AuthMiddleware, Message, Receive, Scope, Send, digest

KEY = "the-key"
RIGHT = (b"authorization", b"Bearer the-key")


class Behind:
    """The app behind the middleware, which records the requests that reach it."""

    def __init__(self) -> None:
        self.came: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.came.append(scope)


@pytest.fixture(autouse=True)
def digest_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_DIGEST, digest(KEY))


async def knock(
    *headers: tuple[bytes, bytes], kind: str = "http", method: str = "POST", path: str = "/pause"
) -> tuple[bool, Sequence[Message]]:
    """Send a request. Returns whether the middleware passed it on, and the messages that it sent itself."""
    behind, messages = Behind(), []
    scope: dict[str, Any] = {"type": kind, "path": path, "headers": [*headers]}
    if kind == "http":
        scope["method"] = method

    async def receive() -> Message:
        raise AssertionError("the middleware reads no body")

    async def send(message: Message) -> None:
        messages.append(message)

    await AuthMiddleware(behind)(scope, receive, send)
    return bool(behind.came), messages


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_request_with_the_key_is_passed_on(kind: str) -> None:
    assert await knock(RIGHT, (b"host", b"a"), kind=kind) == (True, [])


WRONG = {
    "none": [],
    "another": [(b"authorization", b"Bearer another")],
    "empty": [(b"authorization", b"Bearer ")],
    "no-scheme": [(b"authorization", b"the-key")],
    "other-scheme": [(b"authorization", b"Basic the-key")],
    "its-digest": [(b"authorization", b"Bearer " + digest(KEY).encode())],
    "longer": [(b"authorization", b"Bearer the-key ")],
    "not-ascii": [(b"authorization", b"Bearer \xff\xfe")],
    "twice": [RIGHT, (b"authorization", b"Bearer another")],
    "elsewhere": [(b"x-api-key", b"the-key")],
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(
    "path", ["/pause", "/metrics", "/v1/models", "/health/", "/healthz", "//health", "/"]
)
async def test_a_request_without_the_key_is_refused(headers: list[tuple[bytes, bytes]], path: str) -> None:
    passed, messages = await knock(*headers, path=path)
    assert not passed
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
    assert messages[0]["status"] == 401
    assert b"coordinator-to-rollout" in messages[1]["body"]
    assert KEY.encode() not in messages[1]["body"]


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
async def test_a_websocket_without_the_key_is_closed(headers: list[tuple[bytes, bytes]]) -> None:
    passed, messages = await knock(*headers, kind="websocket", path="/health")
    assert (passed, [message["type"] for message in messages]) == (False, ["websocket.close"])


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "HEAD", "PUT"])
async def test_only_reads_of_health_need_no_key(method: str) -> None:
    assert await knock(method="GET", path="/health") == (True, [])
    assert not (await knock(method=method, path="/health"))[0]


async def test_the_servers_lifespan_events_are_passed_on() -> None:
    behind = Behind()
    await AuthMiddleware(behind)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert len(behind.came) == 1


@pytest.mark.parametrize("wrong", ["", "00", "no digest", None])
def test_without_a_digest_nothing_is_served(wrong: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong is None:
        monkeypatch.delenv(ENV_DIGEST)
    else:
        monkeypatch.setenv(ENV_DIGEST, wrong)
    with pytest.raises((KeyError, ValueError)):
        AuthMiddleware(Behind())
