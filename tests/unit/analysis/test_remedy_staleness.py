"""OnPolicy against stale tokens is kept: signals, watch and policy together."""

from __future__ import annotations

from played_jobs import Story

from headway_analysis.remedies.judgement import LONGEST_WATCH
from headway_analysis.remedies.policy import decide
from headway_analysis.signals.history import Job
from headway_analysis.signals.watch import Watch
from headway_api.decisions import Decision, Kept
from headway_api.remedies import WATCH
from headway_api.signals import SignalName as S


class Watched(Story):
    """A story whose signal comes from a real watch, by the age of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch(Job(0.0, 1.0, self.spec.algorithm.max_steps_off_policy))

    def age(self, steps: int, lag: float | None) -> Watched:
        """Take steps on tokens of this age. With None, no metric has the age."""
        for _ in range(steps):
            self.train(1)
            staleness = {} if lag is None else {"staleness/lag_mean": lag, "staleness/lag_max": lag}
            self.watch.step(self.step, {"rollout/reward/mean": self.rewards[self.step], **staleness})
        self.verdicts = self.watch.verdicts()
        return self

    def act(self) -> Decision:
        """Carry out the decision."""
        found = decide(self.now(acting=frozenset({S.STALENESS_AT_BOUND})))
        assert isinstance(found, Decision), found
        self.carry_out(found)
        bound = found.in_force.max_steps_off_policy
        assert bound is not None
        self.watch.changed(self.step, Job(0.0, 1.0, bound))
        return found


def test_going_on_policy_against_stale_tokens_is_kept() -> None:
    story = Watched().age(30, 3.0)
    assert story.act().directive.remedy == "OnPolicy"
    story.age(WATCH, 0.0)
    [state] = {v.standing.state for v in story.verdicts if v.signal.name == S.STALENESS_AT_BOUND}
    assert state == "Clear"
    found = decide(story.now())
    assert isinstance(found, Kept), found
    assert "StalenessAtBound is no longer raised" in found.why


def test_an_age_that_becomes_unknown_undoes_no_remedy() -> None:
    story = Watched().age(30, 3.0)
    story.act()
    assert decide(story.age(WATCH, None).now()) is None
    found = decide(story.age(LONGEST_WATCH - WATCH, None).now())
    assert isinstance(found, Kept), found
    assert "StalenessAtBound has not been judged since" in found.why
