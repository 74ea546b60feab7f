"""The gateway against anyone who can reach its port. It refuses hostile requests before they cost much."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import re
import resource
import select
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from memory import flat
from open_rollout import USER, Rig, a_rollout, rig, until
from scripted_model import ANSWER, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api import bounds
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.gateway import bodies
from headway_coordinator.gateway.asks import Ask, Sampling, Session
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import PROBE_TOOLS, choose
from headway_wire import contents
from headway_wire import listening as wire

MAX_MEMORY = 64 * bounds.MIB
PATHS = (
    *("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"),
    *("/v1/completions", "/v1/tools/x", "/complete-rollout", "/update-reward"),
)
NO_HTTP = (
    b"\x16\x03\x01\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nno header\r\n\r\n",
)
OTHER = {"role": "user", "content": "And y?"}


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


@asynccontextmanager
async def listening(tok: Any, context: int = 1000) -> AsyncIterator[Rig]:
    """The gateway, served as the coordinator serves it."""
    async with AsyncExitStack() as stack:
        model = ScriptedModel(tok, [ANSWER])
        backend = Backend(
            Gateway(choose(tok, "qwen3"), model, context, 5.0), TurnLimiter(AdaptiveSemaphore(8))
        )
        gateway = GatewayServer()
        serving = wire.listening(gateway.app(), 0, host="127.0.0.1", leave_with_client=True)
        served = await stack.enter_async_context(serving)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        one = await stack.enter_async_context(gateway.open(a_rollout(), backend))
        yield Rig(
            gateway, backend, one, model, http, f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}"
        )


async def answer_to(r: Rig, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """The gateway's answer to these bytes. It must answer without waiting, because nothing more is sent."""
    host, port = r.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b"\r\nHost: gateway\r\n\r\n" + body)
    try:
        async with asyncio.timeout(20):
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split()[1])
            length = re.search(rb"Content-Length: ([0-9]+)", answer)
            assert length is not None
            return status, json.loads(await reader.readexactly(int(length[1])))
    finally:
        writer.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_token_is_refused_before_the_body_comes(tok: Any, path: str) -> None:
    async with listening(tok) as r:
        status, answer = await answer_to(r, f"POST /e/nobody{path} HTTP/1.1\r\nContent-Length: 60000")
        assert (status, answer["error"]["code"]) == (404, "trajectory_not_found")


@pytest.mark.parametrize("path", ["/complete-rollout", "/update-reward"])
async def test_a_client_without_a_token_may_send_64_kib(tok: Any, path: str) -> None:
    async with listening(tok) as r:
        status, answer = await answer_to(r, f"POST {path} HTTP/1.1\r\nContent-Length: 65537")
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        body = b"\x1f\x8b" + gzip.compress(b"[" * 16 * bounds.MIB)[2:]
        head = f"POST {path} HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}"
        with flat(MAX_MEMORY):
            status, answer = await answer_to(r, head, body)
        assert (status, answer["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_does_not_arrive_is_answered(
    tok: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(bodies, "CALL_SECONDS", 0.3)
    async with listening(tok) as r:
        head = f"POST /e/{r.rollout.token}{path} HTTP/1.1\r\nContent-Length: 100"
        status, answer = await answer_to(r, head, b"{")
        assert (status, answer["error"]["code"]) == (408, "request_too_slow")


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nX: "])
async def test_a_head_that_does_not_arrive_ends_its_connection(
    tok: Any, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEAD_SECONDS", 0.3)
    async with listening(tok) as r:
        host, port = r.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)

        async def drip() -> None:
            while sent:
                await asyncio.sleep(0.05)
                writer.write(b"a")

        dripping = asyncio.create_task(drip())
        try:
            async with asyncio.timeout(20):
                assert await reader.read() == b""
        finally:
            dripping.cancel()
            writer.close()


SERVED = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import uvloop
from contextlib import AsyncExitStack
from open_rollout import a_rollout
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend
from headway_wire.listening import listening

async def main():
    gateway = GatewayServer()
    async with AsyncExitStack() as stack:
        serving = listening(gateway.app(), 0, host="0.0.0.0", leave_with_client=True)
        served = await stack.enter_async_context(serving)
        one = await stack.enter_async_context(gateway.open(a_rollout(), Backend(None, None)))
        print(served.sockets[0].getsockname()[1], one.token, flush=True)
        await asyncio.to_thread(sys.stdin.read)

uvloop.run(main())
"""


async def a_call(url: str) -> int:
    """The HTTP status of a request on a new connection."""
    async with asyncio.timeout(20), aiohttp.ClientSession() as http, http.get(url) as answer:
        return answer.status


async def test_300_half_requests_do_not_reset_other_connections() -> None:
    """The server is a subprocess whose hard limit of descriptors leaves no room for more connections."""
    support = str(Path(__file__).parents[2] / "support")
    path = os.pathsep.join([support, *filter(None, sys.path)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVED),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdout is not None
    port, token = (await process.stdout.readline()).decode().split()
    half: list[asyncio.StreamWriter] = []
    try:
        for number in range(300):
            _, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"POST /complete-rollout HTTP/1.1\r\nContent-Le")
            half.append(writer)
            if number % 50 == 49:
                for host in ("127.0.0.1", "127.0.0.2"):
                    assert await a_call(f"http://{host}:{port}/e/{token}/v1/models") == 200, number
    finally:
        for writer in half:
            writer.close()
        await process.communicate(b"")
    assert process.returncode == 0


def test_the_soft_limit_of_descriptors_is_raised() -> None:
    from headway_wire.connections import raise_descriptors

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
        peak = raise_descriptors()
        assert peak == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"0," * (3 * bounds.MIB) + b"0]}",
        b'{"messages":[' + b"0," * 150_000 + b"0]}",
        b'{"messages":[{"role":"user","content":"a"}],"tools":[' + b"0," * 150_000 + b"0]}",
        b'{"messages":[{"role":"user","content":[' + b"0," * 150_000 + b"0]}]}",
        b'{"messages":[{"role":"assistant","tool_calls":[' + b"0," * 150_000 + b"0]}]}",
        b'{"messages":' + b"[" * 150_000 + b"]" * 150_000 + b"}",
        b'{"messages":[{"role":"user","content":"' + b"a" * (7 * bounds.MIB) + b'"}],"stop":["a"]}',
    ],
    ids=["many", "messages", "tools", "parts", "calls", "deep", "long"],
)
async def test_a_body_of_many_mistakes_gets_a_short_refusal(tok: Any, body: bytes) -> None:
    packed = gzip.compress(body)
    async with rig(tok) as r:
        with flat(MAX_MEMORY):
            async with r.http.post(
                r.base + "/v1/chat/completions", data=packed, headers={"Content-Encoding": "gzip"}
            ) as answer:
                found = await answer.json()
        assert answer.status == 400
        assert found["error"]["type"] == "invalid_request_error"
        assert len(found["message"]) < 500
        assert not r.rollout.faults


LONG = {
    "system": [{"role": "system", "content": "word " * 1_500_000}, USER],
    "developer": [{"role": "developer", "content": "\N{GRINNING FACE}" * 1_900_000}, USER],
    "user": [{"role": "user", "content": "\N{GRINNING FACE}" * 1_900_000}],
    "assistant": [USER, {"role": "assistant", "content": "\u4f60\u597d" * 1_300_000}, OTHER],
    "letters": [{"role": "user", "content": "=" * 7_500_000}],
}


@pytest.mark.parametrize("name", LONG)
async def test_a_conversation_far_beyond_the_context_is_not_rendered(tok: Any, name: str) -> None:
    async with rig(tok) as r:
        body = json.dumps({"messages": LONG[name]}, ensure_ascii=False).encode()
        # Memory for copies of the text, including the client's, but not for its tokens.
        with flat(MAX_MEMORY + 8 * len(body)):
            async with r.http.post(r.base + "/v1/chat/completions", data=body) as answer:
                found = await answer.json()
        assert (answer.status, found["error"]["code"]) == (400, "context_length_exceeded")
        assert r.rollout.truncated
        assert r.model.requests == []


async def test_tools_far_beyond_the_context_are_counted_and_refused(tok: Any) -> None:
    functions = [{"name": f"f{n}", "description": "word " * 10_000} for n in range(100)]
    tools = [{"type": "function", "function": function} for function in functions]
    async with rig(tok) as r:
        status, answer = await r.chat(USER, tools=tools)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_conversation_of_long_tokens_that_fits_is_rendered(tok: Any) -> None:
    """A text of more than four bytes a token of context is counted first, and this one fits."""
    text = "<|im_start|>" * 120  # one token each
    assert len(text) > 4 * 200
    async with rig(tok, context=200) as r:
        status, _ = await r.chat({"role": "user", "content": text})
        assert status == 200


async def test_long_conversations_are_counted_one_at_a_time(tok: Any) -> None:
    class Counting:
        def __init__(self, inner: Any) -> None:
            self.inner, self.now, self.peak = inner, 0, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def exceeds(self, *args: Any) -> bool:
            self.now += 1
            self.peak = max(self.peak, self.now)
            try:
                return bool(self.inner.exceeds(*args))
            finally:
                self.now -= 1

    counting = Counting(choose(tok, "qwen3"))
    core = Gateway(counting, ScriptedModel(tok, [ANSWER]), 100, 5.0)
    asks = [Ask([{"role": "system", "content": "word " * 20_000}, USER]) for _ in range(6)]
    sessions = [Session(f"e{n}", 3, Sampling(1.0, 1.0, 20)) for n in range(6)]
    found = await asyncio.gather(*map(core.chat, sessions, asks), return_exceptions=True)
    assert {type(one).__name__ for one in found} == {"ContextFullError"}
    assert counting.peak == 1


async def test_an_answer_to_an_unknown_path_hides_the_token(
    tok: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(tok) as r:
        for path in ("/v1/embeddings", f"/{'a' * 100}"):
            status, answer = await r.post(path, {})
            assert status == 404
            assert r.rollout.token not in json.dumps(answer)
    assert r.rollout.token not in caplog.text


async def test_a_bug_of_ours_is_logged_without_the_token(
    tok: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway_coordinator.gateway import openai

    def broken() -> Any:
        raise RuntimeError("oops")

    monkeypatch.setattr(openai, "models", broken)
    async with listening(tok) as r, r.http.get(r.base + "/v1/models") as answer:
        assert answer.status == 500
    assert "GET /e/{token}/v1/models failed" in caplog.text
    assert r.rollout.token not in caplog.text


@pytest.mark.parametrize("sent", NO_HTTP)
async def test_bytes_that_are_not_http_leave_no_traceback(
    tok: Any, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listening(tok) as r:
        host, port = r.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.0 400")
        writer.close()
    assert "Traceback" not in caplog.text


async def test_an_edit_in_the_middle_of_a_history_is_a_fork(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        _, first = await r.chat(USER)
        message = first["choices"][0]["message"]
        _, second = await r.chat(USER, message, OTHER)
        edited = [USER, message, {"role": "user", "content": "And z?"}]
        await r.chat(*edited)
        session = r.rollout.session
        assert len(linearize(session.graph)) == 2
        assert session.forks == 1
        await r.chat(USER, message, OTHER, second["choices"][0]["message"], OTHER)
        assert (session.forks, len(linearize(session.graph))) == (1, 2)


async def test_an_edit_together_with_new_tools_counts_as_a_fork(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        _, first = await r.chat(USER)
        await r.chat(USER, first["choices"][0]["message"], OTHER)
        await r.chat(USER, first["choices"][0]["message"], OTHER, tools=PROBE_TOOLS)
        assert r.rollout.session.forks == 1


async def test_an_answer_that_is_left_unread_was_not_delivered(tok: Any) -> None:
    """The client sends the request again, without a retry header, and gets the same sample."""
    async with listening(tok) as r:
        session = r.rollout.session
        sent = socket.create_connection(("127.0.0.1", int(r.url.rpartition(":")[2])))
        body = json.dumps({"messages": [USER]}).encode()
        head = f"POST /e/{r.rollout.token}/v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}"
        await asyncio.to_thread(sent.sendall, head.encode() + b"\r\nHost: g\r\n\r\n" + body)
        await until(lambda: session.taken == 1 and r.rollout.calls == 0)
        await asyncio.to_thread(select.select, [sent], [], [], 20)  # the answer has arrived and stays unread
        sent.close()
        await until(lambda: session.taken == 0)
        assert linearize(session.graph, session.unseen) == []
        status, _ = await r.chat()
        assert (status, session.taken, len(session.turns)) == (200, 1, 1)
        assert len(r.model.requests) == 1


async def test_an_answer_that_was_read_stays_delivered(tok: Any) -> None:
    async with listening(tok) as r:
        session = r.rollout.session
        asked = {"messages": [USER]}
        async with aiohttp.ClientSession() as http, http.post(r.base + PATHS[0], json=asked) as answer:
            await answer.read()
        await asyncio.sleep(0.1)
        await r.chat(OTHER)
        assert (session.taken, len(session.turns)) == (2, 2)


async def test_a_turn_that_a_client_continues_counts_as_delivered(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        _, first = await r.chat(USER)
        session = r.rollout.session
        r.rollout.unanswered(session.nodes[0])
        assert session.taken == 0
        await r.chat(USER, first["choices"][0]["message"], OTHER)
        assert session.taken == 2
