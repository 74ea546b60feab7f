"""With `group_reward`, a script has no reward. The score alone decides, and the rest is unknown."""

from __future__ import annotations

from dataclasses import replace

from help_desk import AnyTagDesk, Desk, GenerousDesk, LenientRewardDesk, desk_baseline
from made_up_baselines import play_all

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.definition import Finding
from headway_sandbox.environment import Environment, Reward, Transcript

NOT_KNOWN = "is not known: group_reward compares"


def found(check: str, make: type[Environment], relative: bool = True) -> Finding:
    """A check's finding about an environment, after its scripts were really played."""
    given = desk_baseline(make)
    given = replace(given, facts=replace(given.facts, relative=relative))
    return BY_ID[check].judge(given, play_all(lambda: make({}), BY_ID[check].scripts(given)))


class SilencePayingDesk(Desk):
    """An episode without an answer earns the most, and scores 0."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return 0.1 * self.right(transcript) + 0.9 * (not transcript.answer)


def test_the_reward_of_a_guess_alone_gives_no_verdict() -> None:
    assert found("constant-guess", SilencePayingDesk, relative=False).verdict == "Fail"
    finding = found("constant-guess", SilencePayingDesk)
    assert finding.verdict == "Unknown"
    assert NOT_KNOWN in finding.observed
    assert not any(name.startswith("reward of") for name, _ in finding.numbers)


def test_a_guess_that_succeeds_still_fails() -> None:
    finding = found("constant-guess", GenerousDesk)
    assert finding.verdict == "Fail"
    assert "empty answer: success 8 of 8" in finding.observed
    assert "reward" not in finding.observed


def test_mutants_are_judged_by_the_score_alone() -> None:
    assert found("scorer-mutants", LenientRewardDesk, relative=False).verdict == "Fail"
    finding = found("scorer-mutants", LenientRewardDesk)
    assert finding.verdict == "Unknown"
    assert NOT_KNOWN in finding.observed
    lenient = found("scorer-mutants", AnyTagDesk)
    assert lenient.verdict == "Fail"
    assert "(the external score)" in lenient.observed


def test_odd_answers_are_reported_as_tried_with_reward_alone() -> None:
    finding = found("reward-range", Desk)
    assert finding.verdict == "Pass"
    assert "not with group_reward" in finding.observed
