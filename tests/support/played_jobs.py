"""Made-up jobs in which remedies changed something: reports, signals, and what is known at a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from job_rig import report, spec
from watched import a_signal

from headway_analysis.remedies.context import RemedyContext, Validated
from headway_analysis.remedies.course import course
from headway_analysis.signals.definition import Level, Reading
from headway_analysis.signals.standing import SignalTrack
from headway_analysis.signals.watch import Verdict
from headway_api.decisions import Decision, Kept
from headway_api.in_force import DirectiveRefusal, InForce
from headway_api.records import StepReport
from headway_api.signals import SignalName, SignalState
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.trust import CollapseSpec

EVERY = frozenset(SignalName)


def acting(of: RLTrainingJobSpec, **collapse: Any) -> RLTrainingJobSpec:
    """The spec `of` with the policy Remediate."""
    block = CollapseSpec().model_copy(update={"policy": "Remediate", **collapse})
    return of.model_copy(update={"collapse": block})


def a_spec(**algorithm: Any) -> RLTrainingJobSpec:
    """A job of 200 steps whose policy allows remedies."""
    of = spec(loss="cispo", groupSize=8, maxStepsOffPolicy=3, **algorithm)
    return acting(of.model_copy(update={"schedule": of.schedule.model_copy(update={"max_steps": 200})}))


def a_small_spec(steps: int = 8, **algorithm: Any) -> RLTrainingJobSpec:
    """A short job with enough slots for a remedy, whose validations do not delay it."""
    of = spec(**{"groupSize": 4, "maxStepsOffPolicy": 2} | algorithm)
    schedule = of.schedule.model_copy(update={"max_steps": steps, "max_epochs": 40})
    rollout = of.rollout.model_copy(update={"max_concurrency": 64})
    return of.model_copy(update={"schedule": schedule, "rollout": rollout})


def verdict(
    name: SignalName,
    state: SignalState = "Raised",
    *,
    since: int = 1,
    level: Level = Level.OVER,
    clock: str = "step",
    read: int = 1,
) -> Verdict:
    """The verdict that a signal has a state. `read`: the step that was judged last."""
    reading = Reading(level, 0.5, 0.4, "it is 0.5")
    standing = SignalTrack(state=state, since=since, reading=reading, read=read)
    return Verdict(a_signal(name=name, clock=clock), standing)


def validated(step: int, score: float, rows: int = 12) -> Validated:
    """A validation whose rows all score about the same."""
    return Validated(step, score, {row: [score + 0.001 * (row % 3)] for row in range(rows)})


class Story:
    """A job that a test continues step by step."""

    def __init__(self, of: RLTrainingJobSpec | None = None) -> None:
        self.spec = of or a_spec()
        self.reports: list[StepReport] = [report(0)]
        self.decisions: list[Decision] = []
        self.kept: dict[int, Kept] = {}
        self.rewards: dict[int, float] = {}
        self.verdicts: list[Verdict] = []
        self.validations: list[Validated] = []
        self.groups_left = 10_000

    @property
    def step(self) -> int:
        return self.reports[-1].step

    def train(self, steps: int, reward: float = 0.5) -> Story:
        """Take steps with groups."""
        for step in range(self.step + 1, self.step + 1 + steps):
            self.rewards[step] = reward + 0.01 * (step % 3)
            taken = report(step).model_copy(
                update={"groups": ["t0-1"], "in_force": self.reports[-1].in_force}
            )
            self.reports.append(taken)
        self._judge("step")
        return self

    def validate(self, score: float) -> Story:
        """Validate the newest step."""
        self.validations.append(validated(self.step, score))
        self.validations.sort(key=lambda each: (-each.score, each.step))
        self._judge("validation")
        return self

    def _judge(self, clock: str) -> None:
        """Judge the signals again, with the same result as before."""
        either = "validation" if self.spec.evaluation.every_steps else "step"
        clocks = (clock, "either" if clock == either else clock)
        self.verdicts = [
            replace(v, standing=replace(v.standing, read=self.step)) if v.signal.clock in clocks else v
            for v in self.verdicts
        ]

    def raise_(self, *names: SignalName, since: int | None = None, **how: Any) -> Story:
        """Raise these signals, and clear all others."""
        at = self.step if since is None else since
        self.verdicts = [verdict(name, since=at, read=self.step, **how) for name in names]
        return self

    def calm(self) -> Story:
        """Clear all signals."""
        self.verdicts = [replace(v, standing=replace(v.standing, state="Clear")) for v in self.verdicts]
        return self

    def now(self, **changes: Any) -> RemedyContext:
        """What is known before the next step is made."""
        return replace(
            RemedyContext(
                spec=self.spec,
                reports=tuple(self.reports),
                course=course(self.decisions, self.kept, self.reports),
                verdicts=tuple(self.verdicts),
                acting=EVERY,
                rewards=dict(self.rewards),
                validations=tuple(self.validations),
                steps=self.spec.schedule.max_steps,
                groups_left=self.groups_left,
            ),
            **changes,
        )

    def carry_out(self, found: object, *, refused: str | None = None) -> Story:
        """Carry out a decision; with `refused`, let the learner refuse it."""
        if isinstance(found, Kept):
            self.kept[found.number] = found
            return self
        assert isinstance(found, Decision), found
        self.decisions.append(found)
        before: InForce = self.reports[-1].in_force
        directive = found.directive
        self.reports.append(
            report(found.step).model_copy(
                update={
                    "directive": directive,
                    "in_force": before if refused else found.in_force,
                    "restored": directive.restore[0] if directive.restore and not refused else None,
                    "refused": DirectiveRefusal(reason="NotApplicable", message=refused) if refused else None,
                }
            )
        )
        return self
