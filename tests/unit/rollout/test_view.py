"""What status says of checkpoints: one to resume from, and weights that anybody can load."""

from __future__ import annotations

from typing import Any

import pytest
from episodes import version

from headway_api.artifacts import Layout
from headway_api.records import Canary, StepReport, WeightsManifest
from headway_api.status import Checkpoints
from headway_rollout import view
from headway_rollout.evaluation.measures import Evaluation
from headway_rollout.state import State

LAYOUT = Layout("s3://b/runs", "team", "refunds", "u-1")
CANARY = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=0.1)


def report(step: int, **described: Any) -> StepReport:
    """As the learner writes it."""
    content = {"version": version(step), "kind": "lora", "uri": LAYOUT.weights(step), "files": []}
    weights = WeightsManifest.model_validate({**content, "canary": CANARY, **described})
    return StepReport(
        step=step,
        version=version(step),
        groups=[],
        train_tokens={},
        weights=weights,
        durable=step,
        metrics={},
    )


def shown(steps: int, scores: dict[int, float]) -> Checkpoints | None:
    """The status after so many steps, with validations of these external scores."""
    evaluations = [Evaluation(step, 0.0, score, 0.0, 8, 0) for step, score in scores.items()]
    return view.checkpoints(LAYOUT, State(reports=[report(step) for step in range(steps + 1)]), evaluations)


def test_the_newest_is_resumed_from_and_the_best_is_weights_to_load() -> None:
    found = shown(10, {0: 0.2, 5: 0.6, 10: 0.4})
    assert found is not None
    assert found.as_object() == {
        "latest": {"step": 10, "uri": "s3://b/runs/team/refunds/u-1/checkpoints/000010"},
        "best": {"step": 5, "uri": "s3://b/runs/team/refunds/u-1/weights/000005"},
        "adapter": {"step": 10, "uri": "s3://b/runs/team/refunds/u-1/weights/000010"},
    }


def test_there_is_no_best_where_nothing_was_validated() -> None:
    found = shown(3, {})
    assert found is not None
    assert (found.best, found.adapter and found.adapter.step) == (None, 3)


LINK = {"version": version(0), "uri": "s3://b/w", "files": []}
SOURCE = {"host": "learner", "port": 8310, "header": "0" * 64}


@pytest.mark.parametrize(
    "described", [{"kind": "delta", "chain": [LINK]}, {"kind": "direct", "direct": SOURCE}]
)
def test_weights_to_load_are_those_of_the_newest_whole_version_and_in_the_end_of_the_last(
    described: dict[str, Any],
) -> None:
    reports = [report(0, kind="full"), report(1, kind="full", direct=SOURCE), report(2, **described)]
    for state, step in (State(reports=reports), 1), (State(reports=reports, finished="MaxSteps"), 2):
        found = view.checkpoints(LAYOUT, state, [])
        assert found is not None
        assert found.adapter is not None
        assert found.adapter.step == step


def test_there_is_none_before_the_learner_has_spoken() -> None:
    assert view.checkpoints(LAYOUT, State(), []) is None
