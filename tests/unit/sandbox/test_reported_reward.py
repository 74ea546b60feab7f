"""`ReportedReward`, the environment for agents with their own reward, and how the reward reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandbox_server import Server

from headway_api.sandbox_api import FinishReply, Problem
from headway_sandbox.environment import Transcript
from headway_sandbox.reported import ReportedReward
from headway_sandbox.server import EnvironmentLoadError, load


def test_reported_reward_asks_the_rows_question_without_tools() -> None:
    environment = ReportedReward({})
    observation = environment.reset({"prompt": "Why?", "answer": "because"}, 3)
    assert observation.messages == [{"role": "user", "content": "Why?"}]
    assert observation.tools is None
    assert environment.tools() == []


def test_the_question_column_and_system_message_can_be_set() -> None:
    observation = ReportedReward({"prompt": "question", "system": "Be brief."}).reset({"question": "Why?"}, 0)
    assert observation.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]


@pytest.mark.parametrize("row", [{"question": "Why?"}, {"prompt": 3, "question": "Why?"}])
def test_a_row_without_the_question_is_refused_with_its_columns(row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"column prompt; name one of .*question in spec\.environment"):
        ReportedReward({}).reset(row, 0)


@pytest.mark.parametrize(
    ("config", "says"),
    [({"column": "question"}, "column is not a setting"), ({"prompt": 3}, "prompt must be a string")],
)
def test_unknown_settings_of_the_environment_are_refused(config: dict[str, object], says: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=says):
        load("headway_sandbox.reported:ReportedReward", config)


def test_reward_and_score_are_the_sum_of_reported_rewards() -> None:
    transcript = Transcript([], [], False, [0.25, 0.5], {"fields": 3.0})
    judged = ReportedReward({}).reward(transcript)
    assert (judged.value, judged.metrics) == (0.75, {"fields": 3.0})
    assert ReportedReward({}).score(transcript) == 0.75


@pytest.mark.parametrize(("turns", "expected"), [(2, [0.25, 0.5]), (3, None), (1, None), (0, None)])
def test_rewards_reported_by_turn_are_kept_by_turn(turns: int, expected: list[float] | None) -> None:
    transcript = Transcript([], [], False, [0.25, 0.5], turns=turns)
    assert ReportedReward({}).reward(transcript).turns == expected


def test_a_reported_reward_arrives_and_a_missing_one_is_not_zero(tmp_path: Path) -> None:
    server = Server(tmp_path, "headway_sandbox.reported:ReportedReward").start()
    try:
        server.begin()
        status, body = server.finish()
        problem = Problem.model_validate(body)
        assert (status, problem.reason, problem.permanent) == (500, "RewardFailed", False)
        assert "the agent reported no reward" in problem.message
        status, body = server.finish(reported=[1.0, 0.5], reported_metrics={"fields": 2})
        assert FinishReply.model_validate(body) == FinishReply(reward=1.5, score=1.5, metrics={"fields": 2.0})
        status, body = server.finish(reported=[1.0, 0.5], turns=2)
        assert FinishReply.model_validate(body).turn_rewards == [1.0, 0.5]
    finally:
        server.close()
