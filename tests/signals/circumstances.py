"""What a recorded run is: its spec, what goes on around it, and what changes at which step."""

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
"""Metrics of the steps from 1 on -> the step at which a symptom begins; None where it never does. A rule
knows raw metrics alone, and no threshold of a signal."""

SMALL: Mapping[str, Any] = {
    "agent": {"builtin": {"maxTurns": 6}},
    "algorithm": {"batchSize": 4, "groupSize": 6, "maxStepsOffPolicy": 0},
    "optimizer": {"learningRate": 1e-3},
    "rollout": {"maxRetries": 0},
    "evaluation": {"everySteps": 5, "maxRows": 32},
    "output": {"uri": "s3://headway/runs"},
    "preflight": {"episodes": 0},
}
"""Laid over the demo's job: a step takes a second or two on one core."""


@dataclass(frozen=True)
class World:
    """What goes on around the learner, and its spec does not say."""

    judge: str = "own"
    """How episodes are rewarded: a name of `judges.JUDGES`. The external score stays the desk's own."""
    measured_by: str | None = None
    """How those of held-out rows are; None: as the others."""
    down: str | None = None
    """A tool that fails whatever it is asked."""
    lags: tuple[int, ...] = (0,)
    """How many steps old the weights are that sample a batch's groups: the groups take them in turn."""
    lost: float = 0.0
    """Share of episodes whose sandbox fails permanently."""
    late: float = 0.0
    """Share of episodes that do not end in time."""
    garbled: float = 0.0
    """Share of turns with a tool call whose closing tag the servers lose."""
    weight_noise: float = 0.0
    """Relative error of every weight that the servers hold, such as a coarse number format makes."""
    odd_tokens: float = 0.0
    """Error of the embeddings of a tenth of the words, relative to their size; the servers' alone."""
    heat: float = 1.0
    """The servers sample at so many times the temperature that the learner knows of."""


@dataclass(frozen=True)
class Change:
    """What is otherwise from a step on."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    world: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Symptom:
    """A signal that a run is to raise."""

    signal: SignalName
    begin: int | Rule
    """First step whose metrics show it."""
    why: str
    """What makes that step the one."""


@dataclass(frozen=True)
class Circumstances:
    """One run."""

    name: str
    split: Split
    description: str
    steps: int = 30
    seed: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the demo's spec and `SMALL`."""
    world: World = World()
    later: Mapping[int, Change] = field(default_factory=dict)
    """By step: what changes before its batch is sampled."""
    symptoms: tuple[Symptom, ...] = ()
    """Empty for a run that is to be clean."""

    @cached_property
    def _from(self) -> dict[int, tuple[RLTrainingJobSpec, World]]:
        """Spec and world by the step from which they hold."""
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
        """Spec and world as they are at a step."""
        return self._from[max(begun for begun in self._from if begun <= step)]

    @property
    def longest_lag(self) -> int:
        """How many steps old the oldest weights are that sample anything."""
        return max(lag for _, world in self._from.values() for lag in world.lags)
