"""Tasks of Inspect AI in which the candidate would grade itself are refused."""

from __future__ import annotations

from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import Scorer, match, model_graded_fact, model_graded_qa
from odd_tasks import asks

from headway_sandbox.suites.grading import own_grader


def task(*scorers: Scorer, **more: Any) -> Task:
    return Task(dataset=MemoryDataset([Sample(input="Say a.", target="a")]), scorer=[*scorers], **more)


@pytest.mark.parametrize(
    "scorers",
    [
        [model_graded_qa()],
        [match(), model_graded_qa(model_role=None)],
        [model_graded_qa(model_role="critic")],
        [model_graded_qa(model="openai/gpt-4o")],
        [model_graded_qa(model=["anthropic/claude", "openai-api/openai/x"])],
    ],
)
def test_a_grader_that_is_the_candidate_is_found(scorers: list[Scorer]) -> None:
    assert own_grader(task(*scorers)) == "inspect_ai/model_graded_qa"


def test_the_fact_grader_is_named_in_the_refusal() -> None:
    assert own_grader(task(model_graded_fact())) == "inspect_ai/model_graded_fact"


@pytest.mark.parametrize(
    "scorers",
    [
        [match()],
        [asks("role")],
        [model_graded_qa(model="anthropic/claude")],
        [model_graded_qa(model=["anthropic/claude", "openai-api/judge/x"])],
        [model_graded_qa(model=get_model("mockllm/model"))],
    ],
    ids=["no model", "a scorer of the task", "another model", "other models", "a model object"],
)
def test_other_scorers_are_not_refused_before_they_run(scorers: list[Scorer]) -> None:
    assert own_grader(task(*scorers)) is None


@pytest.mark.parametrize(("role", "refused"), [("grader", False), ("critic", True)])
def test_a_role_that_the_task_fills_is_another_model(role: str, refused: bool) -> None:
    found = own_grader(task(model_graded_qa(), model_roles={role: "mockllm/model"}))
    assert (found is not None) == refused
