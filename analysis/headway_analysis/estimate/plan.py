"""How many episodes of each kind a job plays, if it completes and nothing changes meanwhile."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from headway_analysis.estimate.amounts import Range
from headway_api.field_types import Resources
from headway_api.spec.training import RLTrainingJobSpec

DEVICE: Final = re.compile(
    r"[^/]+/(?:gpu|mig-.+|tpu|neuron(?:core|device)?|gaudi|npu|xpu|i915|xe)(?:\.shared)?"
)
"""Matches the names of resources that are accelerators."""
PREFLIGHT_GROUPS: Final = 12
"""With this many groups, each on its own row, the preflight's verdict can be sure."""


@dataclass(frozen=True)
class Plan:
    """The steps, groups and episodes of a job, as planned."""

    steps: int
    """Training steps: maxSteps, or the number of batches in the epochs if that is smaller."""
    batch_size: int
    """Groups of a step."""
    group_size: int
    """Episodes of a group."""
    every_steps: int = 0
    """Steps between validations; 0 if no step is followed by a validation."""
    at_start: bool = False
    """Whether the untrained model is validated."""
    validation_rows: int = 0
    test_rows: int = 0
    tries: int = 1
    """Episodes on each row of validation and test."""
    preflight_episodes: int = 0
    replicas: int = 1
    """Rollout servers of training."""
    accelerators: int = 0
    """Accelerators that the spec asks for by name, all roles together."""
    judged: bool = False
    """Whether rewards or scores ask judges."""
    why: str = ""
    """Why nothing can be trained; empty if there is at least one step."""

    @property
    def groups(self) -> int:
        """Training groups of all steps."""
        return self.steps * self.batch_size

    @property
    def episodes(self) -> int:
        """Training episodes of all steps."""
        return self.groups * self.group_size

    @property
    def due(self) -> tuple[int, ...]:
        """Steps whose weights are validated; 0 is the untrained model."""
        if not self.validation_rows or not self.steps:
            return ()
        found = {0} if self.at_start else set[int]()
        if self.every_steps > 0:
            found |= {*range(self.every_steps, self.steps + 1, self.every_steps), self.steps}
        return tuple(sorted(found))

    @property
    def validation_episodes(self) -> int:
        """Episodes of all validations."""
        return len(self.due) * self.validation_rows * self.tries

    @property
    def test_episodes(self) -> Range:
        """Episodes on the test split. The best step's weights are tested. The untrained weights are tested
        too, if they are kept and are not the best."""
        once = float(self.test_rows * self.tries)
        return Range(once, 2 * once, 2 * once)


@dataclass(frozen=True)
class Left:
    """The part of a plan that is still to be done, as the ledger shows."""

    groups: float
    """Training groups to be played."""
    steps: float
    """Training steps to be taken."""
    validation: float
    """Episodes of validations to be played."""
    test: Range
    """Episodes of the test split to be played."""
    preflight: float = 0.0
    """Episodes of the preflight to be played."""


def everything(plan: Plan) -> Left:
    """The whole plan, for a job that has played nothing yet."""
    validation, preflight = float(plan.validation_episodes), float(plan.preflight_episodes)
    return Left(float(plan.groups), float(plan.steps), validation, plan.test_episodes, preflight)


def after_preflight(plan: Plan) -> Left:
    """The plan without the preflight, for a job whose preflight is over and that has played nothing else."""
    return Left(float(plan.groups), float(plan.steps), float(plan.validation_episodes), plan.test_episodes)


def of_training(
    spec: RLTrainingJobSpec, *, train: int, validation: int = 0, test: int = 0, preflight: int = 0
) -> Plan:
    """The plan of a training job.

    Args:
        spec: the job's spec.
        train: rows of spec.data.train.
        validation: rows of spec.data.validation that are measured, at most evaluation.maxRows.
        test: rows of spec.data.test.
        preflight: episodes that the preflight samples.
    """
    algorithm, asked = spec.algorithm, spec.evaluation
    size, train = algorithm.batch_size, max(0, train)
    steps = min(spec.schedule.max_steps, train * spec.schedule.max_epochs // size)
    return Plan(
        steps=steps,
        batch_size=size,
        group_size=algorithm.group_size,
        every_steps=asked.every_steps,
        at_start=asked.at_start,
        validation_rows=max(0, validation),
        test_rows=max(0, test),
        tries=asked.group_size,
        preflight_episodes=max(0, preflight),
        replicas=spec.rollout.replicas,
        accelerators=accelerators_asked(spec),
        judged=bool(spec.judges),
        why="" if steps else f"{train} training rows do not fill one batch of {size}",
    )


def unvalidated(plan: Plan, complete: Collection[int], begun: Mapping[int, int]) -> float:
    """Episodes of validations that are still to be played.

    Args:
        plan: the job's plan.
        complete: steps whose validations are complete.
        begun: step of an incomplete validation -> rows that have been played.
    """
    rows = sum(max(0, plan.validation_rows - begun.get(step, 0)) for step in plan.due if step not in complete)
    return float(rows * plan.tries)


def untested(plan: Plan, rows: int) -> Range:
    """Episodes of the test split that are still to be played. `rows`: rows played so far, added up over all
    weights that are tested."""
    return Range(*(max(0.0, each - rows * plan.tries) for each in plan.test_episodes))


def accelerators_asked(spec: RLTrainingJobSpec) -> int:
    """Accelerators that the spec's resources name. The operator's defaults do not count."""
    servers = spec.rollout.replicas + spec.has_validation_server
    learners = spec.learner.nodes * accelerators_of(spec.learner.resources)
    return servers * accelerators_of(spec.rollout.resources) + learners


def accelerators_of(asked: Resources | None) -> int:
    """Accelerators that one pod requests; 0 if its resources name none."""
    if asked is None:
        return 0
    named = (asked.requests or {}) | (asked.limits or {})
    return sum(int(much) for name, much in named.items() if DEVICE.fullmatch(name) and much.isdecimal())


def preflight_episodes(asked: int, group_size: int, rows: int) -> int:
    """Episodes that a preflight plays: whole groups, and enough groups that a verdict can be sure.

    Args:
        asked: `spec.preflight.episodes`.
        group_size: `spec.algorithm.groupSize`.
        rows: training rows. Every row gets one group before any row gets a second one.

    Returns:
        Episodes of whole groups: at least `asked`, and at least those of `PREFLIGHT_GROUPS` groups. With
        fewer rows than `PREFLIGHT_GROUPS`, one group a row is enough.
    """
    size = max(1, group_size)
    return max(math.ceil(asked / size), min(PREFLIGHT_GROUPS, rows)) * size
