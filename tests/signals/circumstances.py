"""What a recorded run is: its spec, its surroundings, and what changes at which step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from tests.signals.demo import quickstart

from headway_api.signals import SignalName
from headway_api.spec.training import RLTrainingJobSpec

Split = Literal["chosen_on", "held_out", "fresh", "unseen", "untouched", "sealed"]
Metrics = Mapping[str, float]
Rule = Callable[[Sequence[Metrics]], int | None]
"""Metrics of the steps from 1 on -> the step at which a symptom begins, or None if it never does. A rule
knows only raw metrics, and no threshold of a signal."""

SMALL: Mapping[str, Any] = {
    "agent": {"builtin": {"maxTurns": 6}},
    "algorithm": {"batchSize": 4, "groupSize": 6, "maxStepsOffPolicy": 0},
    "optimizer": {"learningRate": 1e-3},
    "rollout": {"maxRetries": 0},
    "evaluation": {"everySteps": 5, "maxRows": 32},
    "output": {"uri": "s3://headway/runs"},
    "preflight": {"episodes": 0},
}
"""Merged over the demo's job, so that a step takes a second or two on one core."""


@dataclass(frozen=True)
class World:
    """The surroundings of the learner, which its spec does not describe."""

    judge: str = "own"
    """How episodes are rewarded: a name of `judges.JUDGES`. The desk always computes the external score."""
    measured_by: str | None = None
    """How episodes on held-out rows are rewarded. None: by `judge`."""
    down: str | None = None
    """Name of a tool that always fails."""
    lags: tuple[int, ...] = (0,)
    """Ages in steps of the weights that sample a batch. The groups of a batch take these ages in turn."""
    lost: float = 0.0
    """Share of episodes whose sandbox fails permanently."""
    late: float = 0.0
    """Share of episodes that do not end in time."""
    garbled: float = 0.0
    """Share of turns whose tool call loses its closing tag in the server."""
    weight_noise: float = 0.0
    """Relative error of every weight of the servers, such as a coarse number format causes."""
    odd_tokens: float = 0.0
    """Relative error of the embeddings of a tenth of the tokens, on the servers only."""
    heat: float = 1.0
    """Factor by which the servers' temperature exceeds the one that the learner knows."""


@dataclass(frozen=True)
class Change:
    """The parts of spec and world that differ from a step on."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    world: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Symptom:
    """A signal that a run must raise."""

    signal: SignalName
    begin: int | Rule
    """First step whose metrics show it."""
    why: str
    """The reason why the symptom begins at that step."""


@dataclass(frozen=True)
class Circumstances:
    """All that determines one run."""

    name: str
    split: Split
    description: str
    steps: int = 30
    seed: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Merged over the demo's spec and `SMALL`."""
    world: World = World()
    later: Mapping[int, Change] = field(default_factory=dict)
    """Step -> what changes before its batch is sampled."""
    symptoms: tuple[Symptom, ...] = ()
    """The symptoms that the run provokes. Empty for a run that must be clean."""

    @cached_property
    def _from(self) -> dict[int, tuple[RLTrainingJobSpec, World]]:
        """Spec and world by the first step for which they apply."""
        document = quickstart.merged(quickstart.job("desk")["spec"], SMALL)
        document = quickstart.merged(document, {"seed": self.seed, "schedule": {"maxSteps": self.steps}})
        document = quickstart.merged(document, self.spec)
        world = self.world
        found = {0: (RLTrainingJobSpec.model_validate(document), world)}
        for step in sorted(self.later):
            document = quickstart.merged(document, self.later[step].spec)
            world = replace(world, **self.later[step].world)
            found[step] = (RLTrainingJobSpec.model_validate(document), world)
        return found

    def at(self, step: int) -> tuple[RLTrainingJobSpec, World]:
        """The spec and the world at a step."""
        return self._from[max(begun for begun in self._from if begun <= step)]

    @property
    def longest_lag(self) -> int:
        """Age in steps of the oldest weights that sample a group."""
        return max(lag for _, world in self._from.values() for lag in world.lags)
