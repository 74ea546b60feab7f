"""Questions to a judge pass through the sandbox's server: who may fetch and answer them, and how many."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import judge_rig
import pytest
from sandbox_server import Server

from headway_api import sandbox_api
from headway_api.sandbox_api import Problem, Questions
from headway_sandbox import judges

ASK = "self.judge('style', [user('Nice?')], {'type': 'number'})"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = judge_rig.grader(tmp_path)
    yield running
    running.close()


class Finishing:
    """A call of /finish in a thread, so that the test can answer its questions."""

    def __init__(self, server: Server, *names: str) -> None:
        self.found: tuple[int, Any] = (0, None)

        def run() -> None:
            self.found = server.finish(judges=list(names))

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def ended(self) -> tuple[int, Any]:
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.found


def questions(server: Server, seconds: float = 20.0) -> Questions:
    status, body = server.post("/judge/questions", {"seconds": seconds})
    assert status == 200, body
    return Questions.model_validate(body)


def answer(server: Server, identity: int, answer: Any) -> int:
    return server.post("/judge/answer", {"id": identity, "answer": answer})[0]


def test_a_question_waits_for_its_answer(server: Server) -> None:
    server.begin(reward=ASK)
    finishing = Finishing(server, "style")
    [asked] = questions(server).questions
    assert (asked.name, asked.messages) == ("style", [{"role": "user", "content": "Nice?"}])
    assert asked.answer_schema == {"type": "number"}
    assert questions(server, 0.0).questions == [], "each is told once"
    assert finishing.thread.is_alive()
    assert answer(server, asked.id, 0.75) == 200
    status, body = finishing.ended()
    assert (status, body["reward"]) == (200, 0.75)


def test_several_questions_may_be_asked_at_once(server: Server) -> None:
    server.begin(score="self.both()")
    finishing = Finishing(server, "style")
    open_ones = []
    while len(open_ones) < 2:
        open_ones += questions(server).questions
    for one in reversed(open_ones):
        answer(server, one.id, {"a": 1, "b": 2}[one.messages[0]["content"]])
    assert finishing.ended()[1]["score"] == 3.0


def test_nobody_without_the_leases_token_asks_or_answers(server: Server) -> None:
    """Code that the model runs in the container beside the server could try this."""
    server.begin(reward=ASK)
    finishing = Finishing(server, "style")
    for token in (None, "another", "secretsecret"):
        assert server.post("/judge/questions", {"seconds": 0.0}, token)[0] == 401
        assert server.post("/judge/answer", {"id": 0, "answer": 1.0}, token)[0] == 401
    [asked] = questions(server).questions
    answer(server, asked.id, 0.25)
    assert finishing.ended()[1]["reward"] == 0.25


def test_an_answer_is_kept_and_needs_a_fetched_question(server: Server) -> None:
    server.begin(reward=ASK, score=ASK)
    finishing = Finishing(server, "style")
    [first] = questions(server).questions
    assert answer(server, 7, 1.0) == 409
    assert answer(server, first.id, 0.5) == 200
    assert answer(server, first.id, 1.0) == 409
    [second] = questions(server).questions
    assert answer(server, second.id, 1.0) == 200
    body = finishing.ended()[1]
    assert (body["reward"], body["score"]) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"reward": "self.judge('taste', [user('?')])"}, "there is no judge taste; spec.judges has style"),
        ({"reward": "self.judge('', [user('?')])"}, "takes the name of one of spec.judges"),
        ({"reward": "self.judge('style', 'Nice?')"}, "takes a list of messages"),
        ({"reward": "self.judge('style', ['Nice?'])"}, "takes a list of messages"),
        ({"reward": "self.judge('style', [])"}, "takes a list of messages"),
        ({"reward": "self.judge('style', [user('?')], 'number')"}, "schema is a JSON schema"),
        ({"reward": "self.judge('style', [user({1})])"}, "the question is a value that is not JSON"),
        ({"reward": "self.judge('style', [user(float('nan'))])"}, "the question is a value that is not JSON"),
        ({"reward": "self.judge('style', [user('x' * 2_000_000)])"}, "shorten it to 1048576 bytes"),
        ({"reward": "self.judge('style', [user('\U0001f600' * 90_000)])"}, "the question has 1080"),
        ({"reward": "self.judge('style', [user([0] * 30_000)])"}, "at most 24 levels and 20000 values"),
        ({"reward": "self.judge('style', [user(self.deep(40))])"}, "at most 24 levels and 20000 values"),
        ({"reward": "self.judge('style', [user(self.deep(400))])"}, "nested more than 96 levels deep"),
    ],
)
def test_an_invalid_question_is_a_fault_of_the_environment(
    server: Server, row: dict[str, str], says: str
) -> None:
    server.begin(**row)
    status, body = server.finish(judges=["style"])
    problem = Problem.model_validate(body)
    assert (status, problem.reason, problem.field) == (500, "RewardFailed", "spec.environment.entrypoint")
    assert says in problem.message
    assert "grader.py:" in problem.message


def test_an_episode_asks_a_bounded_number_of_questions(server: Server) -> None:
    server.begin(reward="self.many(70)")
    finishing = Finishing(server, "style")
    answered = 0
    while finishing.thread.is_alive() and answered < judges.MAX_QUESTIONS:
        for one in questions(server, 5.0).questions:
            answer(server, one.id, 0.0)
            answered += 1
    status, body = finishing.ended()
    assert (status, "at most 64 questions" in body["message"]) == (500, True), body


def test_only_reward_and_score_may_ask_a_judge(server: Server) -> None:
    server.begin(reward=ASK)
    status, body = server.post("/tool", {"name": "ask", "arguments": {}})
    assert (status, "only in reward or score" in body["message"]) == (500, True)
    status, body = server.finish()
    assert (status, "with the name of one of spec.judges" in body["message"]) == (500, True), "it has none"


def test_a_wait_for_a_judge_does_not_count_as_a_hang(server: Server) -> None:
    body = {"lease": "e", "token": "secret", "deadline": time.time() + 300, "seconds": 1.0}
    assert server.post("/lease", body, None)[0] == 204
    assert server.post("/reset", {"row": {"reward": ASK}, "seed": 0})[0] == 200
    finishing = Finishing(server, "style")
    [asked] = questions(server).questions
    finishing.thread.join(2.0)  # this is longer than the episode's time
    assert finishing.thread.is_alive()
    answer(server, asked.id, 0.5)
    assert finishing.ended()[1]["reward"] == 0.5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/judge/questions", {}),
        ("/judge/questions", {"seconds": -1}),
        ("/judge/questions", {"seconds": 1e9}),
        ("/judge/answer", {"answer": 1}),
        ("/judge/answer", {"id": 0}),
        ("/judge/answer", {"id": "0", "answer": 1}),
        ("/judge/answer", {"id": True, "answer": 1}),
        ("/finish", {"messages": [], "truncated": False, "judges": "style"}),
        ("/finish", {"messages": [], "truncated": False, "judges": [1]}),
    ],
)
def test_malformed_requests_about_questions_are_refused(server: Server, path: str, body: Any) -> None:
    server.begin()
    status, found = server.post(path, body)
    assert (status, Problem.model_validate(found).reason) == (400, "MalformedRequest")


def test_half_a_surrogate_pair_is_sent_as_a_question_mark() -> None:
    found = judges.written("style", [{"role": "user", "content": "a\udcffb"}], None)
    assert found["messages"] == [{"role": "user", "content": "a?b"}]
    json.dumps(found, ensure_ascii=False).encode()


def test_both_sides_have_the_same_bounds() -> None:
    assert judges.MAX_WAIT == sandbox_api.MAX_QUESTION_WAIT
    assert judges.MAX_QUESTIONS == sandbox_api.MAX_QUESTIONS
