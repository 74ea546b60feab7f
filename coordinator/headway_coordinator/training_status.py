"""The status of a training job, from what its coordinator knows."""

from __future__ import annotations

from collections.abc import Sequence

from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.conditions import Condition
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import projections
from headway_coordinator.remedies import shown
from headway_coordinator.signals import Signals
from headway_coordinator.training import Training


def known(
    previous: st.RLTrainingJobStatus,
    spec: RLTrainingJobSpec,
    layout: Layout,
    *,
    conditions: Sequence[Condition],
    preflight: st.Preflight,
    pause: st.Pause | None,
    estimate: st.Estimate | None,
    budget: st.Budget | None,
    reported: bool,
    paged: bool,
) -> st.RLTrainingJobStatus:
    """The fields that a coordinator knows from its start. All others are copied from the predecessor."""
    return previous.model_copy(
        update={
            "conditions": conditions,
            "preflight": preflight,
            "algorithm": previous.algorithm or projections.algorithm(spec),
            "artifacts": projections.artifacts(layout, reported=reported, paged=paged),
            "pause": pause,
            "resumed_pause": None,  # the operator writes it
            "accelerators": None,  # the operator writes it too
            "estimate": estimate,
            "budget": budget,
        }
    )


def add_training(
    found: st.RLTrainingJobStatus,
    training: Training,
    spec: RLTrainingJobSpec,
    layout: Layout,
    signals: Signals,
) -> None:
    """Add what is known once the predecessor's state is restored: results, signals and remedies."""
    evaluations = projections.curve(training.state)
    found.reward = projections.reward(training.state)
    found.signals = signals.status()
    found.algorithm = projections.algorithm(training.remedies.now)
    found.remediations = shown.remediations(training.remedies.course, spec)
    found.remedy_order = shown.order(training.remedies)
    found.validation = projections.validation(evaluations, training.state.score)
    found.test = projections.test(training.state)
    found.checkpoints = projections.checkpoints(layout, training.state, evaluations)
