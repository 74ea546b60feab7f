"""What an environment's plain and `async` methods may return, and what is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sandbox_server import Server

from headway_api.sandbox_api import FinishReply, Problem
from headway_sandbox.environment import Environment, Observation, Reward, Transcript, tool, user
from headway_sandbox.http import HttpError
from headway_sandbox.session import Session

FIELD = "spec.environment.entrypoint"
SHAPES = "return a number, one number a turn, (number, {name: number}) or Reward(...)"


class Returning(Environment):
    """An environment whose reward and score are the results of two given functions."""

    def __init__(self, reward: Callable[[], Any] = float, score: Callable[[], Any] = float) -> None:
        super().__init__({})
        self.gives, self.scores = reward, score

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        return Observation([user("?")])

    def reward(self, transcript: Transcript) -> Any:
        return self.gives()

    def score(self, transcript: Transcript) -> Any:
        return self.scores()


class Waiting(Returning):
    """The same environment with `async` methods."""

    async def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        await asyncio.sleep(0)
        self.opened = asyncio.get_running_loop()
        return Observation([user("?")])

    @tool
    async def look(self, key: str) -> dict[str, str]:
        """Look."""
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.opened, "what reset opened is there"
        return {key: "gold"}

    async def tools(self) -> Any:  # type: ignore[override]
        return super().tools()

    async def reward(self, transcript: Transcript) -> Any:
        await asyncio.sleep(0)
        return self.gives()

    async def score(self, transcript: Transcript) -> Any:
        await asyncio.sleep(0)
        return self.scores()


def begun(environment: Environment, row: Mapping[str, Any] | None = None) -> Session:
    session = Session(lambda: environment)
    session.reset({"row": dict(row or {}), "seed": 0})
    return session


def judged(environment: Environment, turns: int = 2, **row: Any) -> dict[str, Any]:
    """Play and judge an episode. Returns the answer that the coordinator gets."""
    return begun(environment, row).finish({"messages": [], "truncated": False, "turns": turns})


def refused(environment: Environment, turns: int = 2) -> Problem:
    with pytest.raises(HttpError) as caught:
        judged(environment, turns)
    return Problem.model_validate(caught.value.problem)


KINDS = pytest.mark.parametrize("kind", [Returning, Waiting])
GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "a number": (0.5, {"reward": 0.5}),
    "a whole number": (1, {"reward": 1.0}),
    "a truth": (True, {"reward": 1.0}),
    "a negative number": (-0.1, {"reward": -0.1}),
    "one a turn": ([0.25, 0.5], {"reward": 0.75, "turn_rewards": [0.25, 0.5]}),
    "one a turn, as a tuple": ((0.25, -0.5), {"reward": -0.25, "turn_rewards": [0.25, -0.5]}),
    "one for all turns": ([0.5], {"reward": 0.5}),
    "a number and fields": ((0.5, {"tier": 1}), {"reward": 0.5, "metrics": {"tier": 1.0}}),
    "turns and fields": (
        ([0.5, 0.5], {"tier": 0.0}),
        {"reward": 1.0, "turn_rewards": [0.5, 0.5], "metrics": {"tier": 0.0}},
    ),
    "a Reward": (
        Reward(0.5, {"tier": True}, [0.0, 0.5]),
        {"reward": 0.5, "metrics": {"tier": 1.0}, "turn_rewards": [0.0, 0.5]},
    ),
}


@KINDS
@pytest.mark.parametrize("name", GOOD)
def test_each_form_of_a_reward_is_accepted(kind: type[Returning], name: str) -> None:
    returned, expected = GOOD[name]
    nothing = {"metrics": {}, "turn_rewards": None, "score": 1.0}
    found = judged(kind(lambda: returned, lambda: 1))
    assert found == nothing | expected
    FinishReply.model_validate(found)


def test_a_list_of_rewards_is_summed_if_there_is_no_turn() -> None:
    for returned, reward in (([], 0.0), ([0.5], 0.5), ([0.25, 0.25], 0.5)):
        found = judged(Returning(lambda given=returned: given), turns=0)  # type: ignore[misc]
        assert (found["reward"], found["turn_rewards"]) == (reward, None)


BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "nothing": (lambda: None, "RewardFailed", f"reward returned nothing (None); {SHAPES}"),
    "text": (lambda: "good", "RewardFailed", f"reward returned the text 'good'; {SHAPES}"),
    "text that reads like a number": (lambda: "1.0", "RewardFailed", "the text '1.0'"),
    "bytes": (lambda: b"1", "RewardFailed", "the text b'1'"),
    "fields alone": (lambda: {"tier": 1.0}, "RewardFailed", f"reward returned a dict; {SHAPES}"),
    "a set": (lambda: {1.0}, "RewardFailed", f"reward returned a set; {SHAPES}"),
    "a complex number": (lambda: 1j, "RewardFailed", "reward returned a complex"),
    "a turn of text": (lambda: [0.1, "x"], "RewardFailed", "reward returned turn 1: the text 'x'"),
    "a list in a list": (lambda: [[0.1], 0.2], "RewardFailed", "reward returned turn 0: a list"),
    "three parts": (lambda: (0.1, 0.2, {}), "RewardFailed", "reward returned turn 2: a dict"),
    "a field of text": (lambda: (0.5, {"tier": "gold"}), "RewardFailed", "metric tier: the text 'gold'"),
    "a field of nothing": (lambda: Reward(0.5, {"tier": None}), "RewardFailed", "metric tier: nothing"),  # type: ignore[dict-item]
    "a Reward of text": (lambda: Reward("1"), "RewardFailed", "the text '1'"),  # type: ignore[arg-type]
    "not a number": (lambda: float("nan"), "RewardNotFinite", "reward is nan; return a finite number"),
    "1e200": (lambda: 1e200, "RewardOutOfBounds", "reward is 1e+200; beyond 1e+06"),
    "an infinite field": (lambda: (0, {"m": float("inf")}), "RewardNotFinite", "metric m is inf"),
    "a great field": (lambda: (0, {"m": 1e200}), "RewardOutOfBounds", "metric m is 1e+200"),
    "ten million fields": (
        lambda: (0.5, dict.fromkeys(range(10_000_000), 1.0)),
        "RewardOutOfBounds",
        "there are 10000000 metrics; give 1000 at most",
    ),
    "ten million turns": (
        lambda: [0.0] * 10_000_000,
        "RewardOutOfBounds",
        "there are 10000000 turn rewards; give one for each turn",
    ),
    "a long name": (lambda: (0, {"x" * 300: 0}), "RewardOutOfBounds", "a name of 300 characters"),
    "too few turns": (
        lambda: [0.1, 0.2, 0.3],
        "TurnRewardsWrong",
        "there are 3 turn rewards for 2 turns",
    ),
    "an error": (lambda: 1 / 0, "RewardFailed", "reward raised ZeroDivisionError"),
}


@KINDS
@pytest.mark.parametrize("name", BAD)
def test_any_other_reward_is_refused_with_method_and_line(kind: type[Returning], name: str) -> None:
    returns, reason, says = BAD[name]
    problem = refused(kind(returns))
    assert (problem.reason, problem.field) == (reason, FIELD)
    assert says in problem.message
    assert "test_returns.py:" in problem.message
    assert len(problem.message) < 2_000
    assert "(" in problem.message


@KINDS
@pytest.mark.parametrize(
    ("score", "says"),
    [
        (None, "score returned nothing (None); return a number"),
        ("1", "score returned the text '1'"),
        ([1.0], "score returned a list; return a number"),
        ((1.0, {"tier": 1.0}), "score returned a tuple; return a number"),
        (float("nan"), "score is nan; return a finite number"),
        (-2e6, "score is -2e+06; beyond 1e+06"),
    ],
)
def test_a_score_is_one_number(kind: type[Returning], score: object, says: str) -> None:
    problem = refused(kind(float, lambda: score))
    assert says in problem.message
    assert f"test_returns.py:{kind.score.__code__.co_firstlineno} in score" in problem.message


def test_every_method_may_be_async() -> None:
    session = begun(Waiting())
    assert session.call({"name": "look", "arguments": {"key": "x"}}) == {
        "content": '{"x": "gold"}',
        "done": False,
    }
    assert session.finish({"messages": [], "truncated": False})["reward"] == 0.0


class Accuracy:
    """A reward as a callable object, as managed services have it."""

    async def __call__(self, rollout: Transcript) -> tuple[float, dict[str, float]]:
        right = float(rollout.row["answer"] == rollout.answer)
        return right - 0.1, {"answer": right}


def negative(rollout: Transcript) -> float:
    return -1.0 * rollout.row["cost"]


class Alone(Returning):
    reward = Accuracy()  # type: ignore[assignment]
    score = staticmethod(negative)  # type: ignore[assignment]


def test_a_reward_may_be_a_callable_object() -> None:
    found = judged(Alone(), answer="", cost=2)
    assert found == {"reward": 0.9, "score": -2.0, "metrics": {"answer": 1.0}, "turn_rewards": None}
    problem = refused(Alone())  # this row has no answer
    assert "reward raised KeyError: 'answer'" in problem.message
    assert "in __call__" in problem.message


def test_a_wrong_return_of_an_object_names_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __call__(self, rollout: Transcript) -> None:
            return None

    monkeypatch.setattr(Alone, "reward", Nothing())
    line = Nothing.__call__.__code__.co_firstlineno
    assert f"test_returns.py:{line} in __call__" in refused(Alone()).message


SLEEPER = """
import asyncio
from headway_sandbox.environment import Environment, Observation, user

class Sleeper(Environment):
    async def reset(self, row, seed):
        return Observation([user("?")])

    async def reward(self, transcript):
        await self.rest()
        return 0.0

    async def rest(self):
        await asyncio.sleep(1000)

    async def score(self, transcript):
        return 0.0
"""


def test_an_async_method_that_hangs_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    server = Server(tmp_path, "sleeper:Sleeper").start()
    try:
        body = {"lease": "e", "token": "secret", "deadline": time.time() + 300, "seconds": 1.0}
        assert server.post("/lease", body, None)[0] == 204
        assert server.post("/reset", {"row": {}, "seed": 0})[0] == 200
        status, found = server.finish()
    finally:
        server.close()
    assert (status, found["reason"]) == (504, "EnvironmentHangs")
    assert "sleeper.py:14 in rest" in found["message"]


def test_an_episode_without_async_imports_no_event_loop(tmp_path: Path) -> None:
    """Modules for `async` methods and for judges are imported only where they are used."""
    code = "import sys; import headway_sandbox.server as server"
    code += "; server.load('headway_sandbox.reported:ReportedReward', {})"
    code += "; print(sorted({'asyncio', 'threading', 'headway_sandbox.judges'} & sys.modules.keys()))"
    root = Path(__file__).resolve().parents[3] / "sandbox"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(root)}, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "[]", ran.stderr
