"""Every route of a sandbox's server refuses a body out of bounds with a named reason, and the server goes on.

`tests/unit/test_every_route.py` has the routes of the other servers.

Add each new route of the sandbox's server here.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_server import Server

from headway_sandbox import bounds
from headway_sandbox.server import OPEN_TO_ALL, steps
from headway_sandbox.session import Session

POSTS = (
    *("/lease", "/proof", "/reset", "/tool", "/agent", "/agent/wait", "/finish", "/probe", "/group"),
    *("/judge/questions", "/judge/answer"),
)
READS_NONE = {("GET", "/healthz")}
MAX_BODY = {path: bounds.BODIES.get(path, bounds.SMALL) for path in POSTS}
"""The largest body of each route, in bytes."""
TURN = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "{}"}}]}
ANSWERED = {"role": "tool", "tool_call_id": "c", "content": "1"}
GROUP = """
from headway_sandbox.environment import Environment, Observation, user

class Counter(Environment):
    def reset(self, row, seed):
        return Observation([user("count")])

    def reward(self, transcript):
        return 0.0

    def score(self, transcript):
        return 0.0

    def group_reward(self, transcripts):
        return [float(len(each.calls)) for each in transcripts]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("sandbox")).start()
    running.begin()
    yield running
    running.close()


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Server]:
    """A leased sandbox without an episode, whose environment rewards whole groups."""
    (tmp_path / "grouping.py").write_text(GROUP)
    running = Server(tmp_path, "grouping:Counter").start()
    assert running.lease()[0] == 204
    yield running
    running.close()


def sent(server: Server, path: str, body: bytes, length: int | None = None) -> tuple[int, Any]:
    """Post a body. The head announces `length` bytes, or the body's own length. Returns status and answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("POST", path)
    connection.putheader("Authorization", "Bearer secret")
    connection.putheader("Content-Length", str(len(body) if length is None else length))
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


def test_every_route_of_a_sandbox_is_listed_here() -> None:
    session: Any = object.__new__(Session)
    assert {("POST", path) for path in steps(session)} | OPEN_TO_ALL == {
        *(("POST", path) for path in POSTS),
        *READS_NONE,
    }


@pytest.mark.parametrize("path", POSTS)
def test_a_body_announced_as_too_long_is_refused(server: Server, path: str) -> None:
    status, problem = sent(server, path, b"", MAX_BODY[path] + 1)
    assert (status, problem["reason"]) == (413, "MalformedRequest")
    assert str(MAX_BODY[path]) in problem["message"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    {
        "deep": b"[" * 60_000,
        "deep objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        "deep in an object": b'{"row": ' + b"[" * 200 + b"]" * 200 + b"}",
        "many digits": b'{"a": ' + b"9" * 10_000 + b"}",
        "no text": b"\xff\xfe",
        "a list": b"[]",
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_out_of_bounds_is_refused(server: Server, path: str, body: tuple[str, bytes]) -> None:
    status, problem = sent(server, path, body[1])
    assert status in (400, 413), problem
    assert problem["reason"]
    assert len(problem["message"]) < 1000
    assert server.get("/healthz")[0] == 200


@pytest.mark.parametrize("path", [path for path in POSTS if MAX_BODY[path] > 3 * bounds.VALUES])
def test_a_body_of_many_values_is_refused(server: Server, path: str) -> None:
    status, problem = sent(server, path, b"[" + b"{}," * bounds.VALUES + b"{}]")
    assert (status, problem["reason"]) == (400, "MalformedRequest")
    assert str(bounds.VALUES) in problem["message"]


def episode(**changes: Any) -> dict[str, Any]:
    return {"messages": [TURN, ANSWERED], "truncated": False, "turns": 1, "reward": 0.5, **changes}


def asked(arguments: str) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}


@pytest.mark.parametrize(
    "text",
    {
        "deep arguments": episode(messages=[asked("[" * 100_000), ANSWERED]),
        "deep and whole": episode(messages=[asked("[" * 50_000 + "]" * 50_000), ANSWERED]),
        "no JSON": episode(messages=[asked("{"), ANSWERED]),
        "endless turns": episode(turns=float("inf")),
        "no reward": episode(reward=None),
        "a reward of many digits": episode(reward=10**400),
        "no episode": [],
    }.items(),
    ids=lambda item: item[0],
)
def test_an_episode_of_a_group_out_of_bounds_is_refused(judge: Server, text: tuple[str, Any]) -> None:
    def grouped(*episodes: Any) -> tuple[int, Any]:
        body = {"row": {"prompt": "p"}, "seed": 1, "episodes": [*episodes], "judges": []}
        return sent(judge, "/group", json.dumps(body).encode())

    status, problem = grouped(episode(), text[1])
    assert (status, problem["reason"]) == (400, "MalformedRequest")
    assert "an episode of a group is not valid" in problem["message"]
    assert len(problem["message"]) < 1000
    status, judged = grouped(episode(), episode(messages=[]))
    assert [each["reward"] for each in judged["rewards"]] == [1.0, 0.0], "and the next is judged"
