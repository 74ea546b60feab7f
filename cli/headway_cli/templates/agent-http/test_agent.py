"""Tests the agent against a small platform, with real HTTP and the environment's tools.

A script replaces the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import agent
import pytest
from environment import LendingDesk, expected, written
from generate import splits

from headway_sandbox.environment import Call, Transcript
from headway_sandbox.tools import ToolError, declared

Json = dict[str, Any]
ROW = splits()["train"][0]
FULL = {"error": {"message": "it is full", "code": "context_length_exceeded"}}


class Platform(ThreadingHTTPServer):
    """The platform of one episode: answers turns from a script, runs tools, records the agent's report."""

    daemon_threads = True

    def __init__(self, *turns: Json | tuple[int, Json]) -> None:
        super().__init__(("127.0.0.1", 0), Desk)
        self.turns = list(turns)
        """The model's remaining turns: each is a message, or a status code and an error."""
        self.desk = LendingDesk({})
        self.desk.reset(ROW, 0)
        self.calls: list[Call] = []
        self.messages: list[Json] = []
        """The messages that the agent sent last, with the model's answer."""
        self.word: Json = {}
        self.ended = Event()
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def task(self) -> Json:
        """The body of the POST request with which the platform sends the prompt to the agent."""
        about = {"jobArn": "arn", "rolloutId": "t0", "endpoint": f"http://127.0.0.1:{self.server_port}/e"}
        return {"prompt": ROW["prompt"], "instance": ROW, "metadata": about}

    def call(self, name: str, arguments: Json) -> Json:
        """Carry out a tool call."""
        tools = {tool.name: tool for tool in declared(self.desk)}
        try:
            content, failed = tools[name](arguments)[0], False
        except ToolError as error:
            content, failed = f"error: {error}", True
        self.calls.append(Call(name, arguments, content, failed))
        return {"content": content, "done": False}

    def judged(self) -> tuple[float, float]:
        """Reward and external score of the episode so far."""
        transcript = Transcript(self.messages, self.calls, truncated=False)
        return self.desk.reward(transcript).value, self.desk.score(transcript)


class Desk(BaseHTTPRequestHandler):
    """Handles requests to the episode's endpoint."""

    server: Platform

    def do_GET(self) -> None:
        assert self.path == "/e/v1/tools"
        self._answer(200, {"tools": [tool.spec for tool in declared(self.server.desk)]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/e/v1/chat/completions":
            turn = self.server.turns.pop(0)
            if isinstance(turn, tuple):
                self._answer(*turn)
                return
            self.server.messages = [*body["messages"], turn]
            self._answer(200, {"choices": [{"message": turn}]})
        elif self.path.startswith("/e/v1/tools/"):
            self._answer(200, self.server.call(self.path.rpartition("/")[2], body))
        else:
            assert self.path == "/e/complete-rollout"
            self.server.word = body
            self._answer(200, {})
            self.server.ended.set()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _answer(self, status: int, document: Json) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def platform() -> Iterator[Callable[..., Platform]]:
    """A function that starts a platform. All platforms are ended after the test."""
    started: list[Platform] = []

    def start(*turns: Json | tuple[int, Json]) -> Platform:
        started.append(Platform(*turns))
        return started[-1]

    yield start
    for one in started:
        one.shutdown()
        one.server_close()


def says(text: str) -> Json:
    return {"role": "assistant", "content": text}


def calls(name: str, arguments: Json) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": name, "function": function}]}


MEMBER, BOOK = calls("get_member", {"name": ROW["member"]}), calls("get_book", {"title": ROW["book"]})
ANSWER = says(written(expected(ROW)))


def test_an_episode_that_goes_well_earns_everything(platform: Callable[..., Platform]) -> None:
    there = platform(MEMBER, BOOK, ANSWER)
    agent.play(there.task())
    assert there.word == {"JobArn": "arn", "TrajectoryId": "t0", "Status": "ready"}
    assert there.judged() == (1.0, 1.0)


def test_the_conversation_only_grows(platform: Callable[..., Platform]) -> None:
    there = platform(MEMBER, calls("get_book", {"title": "none"}), ANSWER)
    agent.play(there.task())
    assert [message["role"] for message in there.messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert there.messages[5]["content"] == "error: no such book"
    assert there.judged()[1] == 0.0


def test_a_platform_that_is_busy_is_asked_again(platform: Callable[..., Platform]) -> None:
    there = platform(MEMBER, (429, {"error": {"code": "servers_full"}}), BOOK, ANSWER)
    agent.play(there.task())
    assert there.judged() == (1.0, 1.0)


def test_a_context_that_is_full_ends_the_episode_well(platform: Callable[..., Platform]) -> None:
    there = platform(MEMBER, (400, FULL))
    agent.play(there.task())
    assert there.word["Status"] == "ready"


def test_a_model_that_never_answers_is_cut_off(platform: Callable[..., Platform]) -> None:
    there = platform(*[MEMBER] * 9)
    agent.play(there.task())
    assert (there.word["Status"], len(there.turns)) == ("ready", 9 - agent.MAX_TURNS)


def test_a_platform_that_refuses_learns_of_the_failed_episode(platform: Callable[..., Platform]) -> None:
    there = platform((403, {"error": {"message": "no"}}))
    agent.play(there.task())
    assert there.word["Status"] == "failed"
    assert there.word["ErrorMessage"].startswith("EpisodeEndedError: 403")


def test_the_service_takes_a_prompt_at_once_and_plays_it(platform: Callable[..., Platform]) -> None:
    there = platform(MEMBER, BOOK, ANSWER)
    service = ThreadingHTTPServer(("127.0.0.1", 0), agent.Handler)
    Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
    try:
        url = f"http://127.0.0.1:{service.server_port}/"
        assert agent.ask(url) == {"status": "healthy"}
        assert agent.ask(url, there.task()) == {"status": "accepted"}
        assert there.ended.wait(10)
    finally:
        service.shutdown()
        service.server_close()
    assert there.judged() == (1.0, 1.0)
