"""A sandbox's server bounds what it receives and sends, and names the place of an environment's fault."""

from __future__ import annotations

import _thread
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_server import Server

import headway_api.bounds
from headway_api.sandbox_api import Problem
from headway_sandbox import bounds
from headway_sandbox import http as wire

ODD = """
import time
from headway_sandbox.environment import Environment, Observation, Reward, ToolError, tool, user

class Odd(Environment):
    def reset(self, row, seed):
        self.row = row
        if "reset" in row:
            return eval(row["reset"])
        return Observation([user("?")])

    @tool
    def give(self, what: str) -> str:
        '''Return it.'''
        return eval(what)

    @tool
    def hang(self) -> str:
        '''Never return.'''
        while True:
            time.sleep(0.01)

    @tool
    def leave(self) -> str:
        '''End the process, it thinks.'''
        raise SystemExit(3)

    def reward(self, transcript):
        return eval(self.row.get("reward", "0.0"))

    def score(self, transcript):
        return eval(self.row.get("score", "0.0"))

def deep(levels):
    found = []
    for _ in range(levels):
        found = [found]
    return found

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

def mute():
    raise Mute
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "odd.py").write_text(ODD)
    running = Server(tmp_path, "odd:Odd").start()
    yield running
    running.close()


def call(server: Server, name: str, **arguments: Any) -> tuple[int, Any]:
    return server.post("/tool", {"name": name, "arguments": arguments})


def problem(answer: tuple[int, Any], status: int = 500) -> Problem:
    assert answer[0] == status, answer
    return Problem.model_validate(answer[1])


def raw(server: Server, request: bytes) -> bytes:
    """Send bytes, and nothing after them. Returns the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        return connection.recv(65536)


@pytest.mark.parametrize("body", [b"[" * 50_000, b'{"lease":' * 900 + b"1" + b"}" * 900, b"[1," * 20_000])
def test_a_deep_body_is_refused_and_the_next_is_answered(server: Server, body: bytes) -> None:
    head = f"POST /lease HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert raw(server, head + body).split(b" ")[1] in (b"400", b"413")
    server.begin()


@pytest.mark.parametrize("deadline", ["NaN", "Infinity", "1e999", "1" + "0" * 400, '"soon"', "true"])
def test_a_deadline_that_is_not_finite_is_refused(server: Server, deadline: str) -> None:
    body = f'{{"lease": "e", "token": "secret", "deadline": {deadline}}}'.encode()
    head = f"POST /lease HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert b"deadline must be a number" in raw(server, head + body)
    server.begin()


def test_a_body_of_many_values_is_refused(server: Server) -> None:
    server.begin()
    body = b'{"name": "give", "arguments": {"what": [' + b"0," * 1_100_000 + b"0]}}"
    head = f"POST /tool HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: {len(body)}\r\n\r\n"
    assert b"more than 1000000 values" in raw(server, head.encode() + body)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /finish HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", b"401"),
        (b"POST /nowhere HTTP/1.1\r\nContent-Length: 10\r\n\r\n", b"404"),
        (b"POST /lease HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", b"413"),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", b"413"),
        (b"POST /tool HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 9000000\r\n\r\n", b"413"),
    ],
)
def test_a_body_is_refused_by_its_head_alone(server: Server, head: bytes, status: bytes) -> None:
    """No part of the body is sent, so a server that waited for it would not answer."""
    server.begin()
    assert raw(server, head).split(b" ")[1] == status


def test_strangers_connections_yield_to_the_leases_holder(server: Server) -> None:
    server.begin()
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    ask = ("POST", "/tool", json.dumps({"name": "give", "arguments": {"what": "'fine'"}}))
    kept.request(*ask, {"Authorization": "Bearer secret"})
    assert json.loads(kept.getresponse().read())["content"] == "fine"
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(100)]
    assert idle[0].recv(1) == b"", "the oldest is closed"
    assert server.get("/healthz")[0] == 200
    kept.request(*ask, {"Authorization": "Bearer secret"})
    assert kept.getresponse().status == 200
    for connection in (*idle, kept):
        connection.close()


@pytest.mark.parametrize("sent", [b"GET /healthz HT", b"POST /lease HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"])
def test_a_slow_request_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(wire, "BODY_SECONDS", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    _thread.start_new_thread(wire.Served(lambda *_: (200, {})).serve, (listener,))
    with socket.create_connection(listener.getsockname(), timeout=30) as connection:
        connection.sendall(sent)
        drip = sent[-1:]
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            try:
                connection.sendall(drip)
                connection.settimeout(0.05)
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    pytest.fail("a byte now and then kept the connection")


def test_an_oversized_name_is_not_repeated(server: Server) -> None:
    server.begin()
    status, body = call(server, "x" * 100_000)
    assert status == 200
    assert len(body["content"]) < 1_000


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            "{1, 2}",
            "tool give returned a value that is not JSON: Object of type set is not JSON serializable",
        ),
        ("deep(500)", "tool give returned a value nested more than 96 levels deep"),
        ("deep(100_000)", "tool give returned a value nested more than 96 levels deep"),
        ("'x' * 5_000_000", "tool give returned 5000000 characters; show the agent 4194304 at most"),
        ("['x' * 5_000_000]", "characters; show the agent 4194304 at most"),
        ("1 / 0", "tool give raised ZeroDivisionError: division by zero"),
        ("mute()", "tool give raised Mute: (its text cannot be read)"),
        ("__import__('json').loads('{')", "tool give raised JSONDecodeError"),
    ],
)
def test_a_fault_of_a_tool_names_it_and_the_line(server: Server, what: str, says: str) -> None:
    server.begin()
    found = problem(call(server, "give", what=what))
    assert (found.reason, found.field) == ("ToolFailed", "spec.environment.entrypoint")
    assert says in found.message
    assert f"({server.folder}/odd.py:" in found.message
    assert len(found.message) < 3_000
    assert server.tool("give", what="'go on'").content == "go on"


def test_a_tool_that_would_end_the_process_is_a_fault(server: Server) -> None:
    server.begin()
    found = problem(call(server, "leave"))
    assert "tool leave raised SystemExit: 3" in found.message
    assert "odd.py:26 in leave" in found.message


def test_undecodable_bytes_reach_the_agent_as_question_marks(server: Server) -> None:
    server.begin()
    assert server.tool("give", what=r"'a\udcffb'").content == "a?b"


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ("Observation([{'content': {1}}])", "a value that is not JSON: Object of type set"),
        ("Observation([{'content': float('nan')}])", "a value that is not JSON: Out of range float values"),
        ("Observation([user('?')] * 20_000)", "at most 10000 messages"),
        ("Observation([user('x' * 8_000_000)])", "; return at most"),
        ("Observation([{'content': deep(300)}])", "nested more than 96 levels deep"),
        ("None", "AttributeError"),
    ],
)
def test_a_first_state_that_cannot_be_sent_is_a_fault(server: Server, first: str, says: str) -> None:
    server.lease()
    found = problem(server.post("/reset", {"row": {"reset": first}, "seed": 0}))
    assert found.reason == "ResetFailed"
    assert found.message.startswith("reset r"), "returned, or raised"
    assert says in found.message
    assert "odd.py:" in found.message or first == "None"


@pytest.mark.parametrize(
    ("row", "reason", "says"),
    [
        ({"reward": "1e200"}, "RewardOutOfBounds", "reward is 1e+200; beyond 1e+06"),
        ({"score": "-2e6"}, "RewardOutOfBounds", "score is -2e+06; beyond 1e+06"),
        ({"reward": "Reward(0, {'m': 1e200})"}, "RewardOutOfBounds", "metric m is 1e+200; beyond 1e+12"),
        ({"reward": "Reward(0, {'m': float('inf')})"}, "RewardNotFinite", "metric m is inf"),
        ({"reward": "Reward(0, {str(i): 0 for i in range(1001)})"}, "RewardOutOfBounds", "1001 metrics"),
        ({"reward": "Reward(0, {'x' * 300: 0})"}, "RewardOutOfBounds", "a name of 300 characters"),
        ({"reward": "10 ** 400"}, "RewardOutOfBounds", "an integer of more than 308 digits"),
        ({"reward": "1 / 0"}, "RewardFailed", "odd.py:29 in reward"),
        ({"score": "1 / 0"}, "RewardFailed", "odd.py:32 in score"),
    ],
)
def test_numbers_of_a_judgement_are_within_bounds(
    server: Server, row: dict[str, str], reason: str, says: str
) -> None:
    server.lease()
    assert server.post("/reset", {"row": row, "seed": 0})[0] == 200
    found = problem(server.finish())
    assert (found.reason, says in found.message) == (reason, True), found.message


def test_a_tool_that_hangs_is_named_with_its_line(server: Server) -> None:
    body = {"lease": "e", "token": "secret", "deadline": time.time() + 300, "seconds": 1.0}
    assert server.post("/lease", body, None)[0] == 204
    assert server.post("/reset", {"row": {}, "seed": 0})[0] == 200
    found = problem(call(server, "hang"), 504)
    assert found.reason == "EnvironmentHangs"
    assert found.message.startswith("tool hang has not returned by the end of the episode's time: ")
    assert "odd.py:2" in found.message
    assert found.message.endswith("in hang")
    assert server.get("/healthz")[0] == 200


def test_both_sides_have_the_same_bounds() -> None:
    for name in ("SCORE", "MAGNITUDE", "VALUES"):
        assert getattr(bounds, name) == getattr(headway_api.bounds, name), name
