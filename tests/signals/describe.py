"""What a run's metrics are expected to show, derived from its circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from tests.signals.circumstances import Circumstances, World
from tests.signals.series import Expected, Known, Series, Step

from headway_api.spec.training import RLTrainingJobSpec

HELD_OUT: Final = "val/external_score/mean"
MARGIN: Final = 0.1
"""How far below its best a clean run's held-out score may end."""
FALL: Final = 0.25
"""How far the held-out score may fall meanwhile. A run that collapses and recovers is not clean."""


class NeverBeginsError(Exception):
    """A run does not show the symptom that it was made for."""


def described(circumstances: Circumstances, steps: Sequence[Step]) -> Series:
    """The metrics, with the symptoms that are expected in them.

    Raises:
        NeverBeginsError: a symptom that the run should provoke never begins.
    """
    spec, world = circumstances.at(0)
    expected = []
    for symptom in circumstances.symptoms:
        begin = symptom.begin
        if not isinstance(begin, int):
            found = begin([step.metrics for step in steps if step.step])
            if found is None:
                raise NeverBeginsError(f"{symptom.signal} never begins: {symptom.why}")
            begin = found
        expected.append(Expected(symptom.signal, begin, symptom.why))
    return Series(
        name=circumstances.name,
        split=circumstances.split,
        description=circumstances.description,
        known=_known(spec),
        steps=tuple(steps),
        expected=tuple(expected),
        unclean="" if expected else unclean(steps),
        settings=_settings(circumstances, world),
    )


def unclean(steps: Sequence[Step]) -> str:
    """Why a run does not count as clean, or an empty text if it does.

    In a clean run, the held-out external score ends at most `MARGIN` below its best, and not below its start.
    At no time is it more than `FALL` below its best so far.
    """
    scores = [(step.step, step.validation[HELD_OUT]) for step in steps if step.validation]
    (_, start), (_, end), best = scores[0], scores[-1], max(score for _, score in scores)
    if end < best - MARGIN:
        return f"the held-out external score ends at {end:.2f}, its best was {best:.2f}"
    if end < start:
        return f"the held-out external score ends at {end:.2f} and began at {start:.2f}"
    best = start
    for step, score in scores:
        if score < best - FALL:
            return f"the held-out external score is {score:.2f} at step {step}, and was {best:.2f} before"
        best = max(best, score)
    return ""


def _known(spec: RLTrainingJobSpec) -> Known:
    algorithm = spec.algorithm
    low, high = spec.reward.range
    return Known(
        steps=spec.schedule.max_steps,
        max_turns=spec.agent.turn_limit,
        batch_size=algorithm.batch_size,
        group_size=algorithm.group_size,
        updates_per_batch=algorithm.updates_per_batch,
        max_steps_off_policy=algorithm.max_steps_off_policy,
        reward_range=(low, high),
        loss=algorithm.loss,
        validation_every=spec.evaluation.every_steps,
        has_tasks=spec.data.train.task_column is not None,
    )


def _settings(circumstances: Circumstances, world: World) -> dict[str, Any]:
    usual = asdict(World())
    return {
        "seed": circumstances.seed,
        "spec": circumstances.spec,
        "world": {name: value for name, value in asdict(world).items() if value != usual[name]},
        "later": {str(step): asdict(change) for step, change in circumstances.later.items()},
    }
