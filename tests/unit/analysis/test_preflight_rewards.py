"""Checks of reward and success: a foothold, the range, variance, and agreement with the external score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from help_desk import BigDesk, Desk, LenientRewardDesk, RaisingDesk, desk_baseline
from made_up_baselines import a_baseline, a_sample, an_episode, of_values, play_all

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Probe
from headway_analysis.preflight.run import certain_failure

Values = Sequence[tuple[float, float]]


def judged(check: str, baseline: Baseline) -> Finding:
    """A check's finding about a baseline alone."""
    return BY_ID[check].judge(baseline, ())


def binary(successes: Sequence[int], size: int = 8) -> Baseline:
    """A baseline with so many successes in each group, whose rewards equal the scores."""
    return of_values([[(float(at < good),) * 2 for at in range(size)] for good in successes])


def test_success_now_and_then_is_a_foothold() -> None:
    finding = judged("foothold", binary([3] * 13))
    assert finding.verdict == "Pass"
    assert finding.value == pytest.approx(3 / 8)
    assert finding.low is not None
    assert finding.low < 3 / 8
    numbers = dict(finding.numbers)
    assert numbers["pass@1"] == pytest.approx(3 / 8)
    assert numbers["pass@8"] == 1.0
    assert numbers["groups_that_would_teach"] == 1.0


def test_pass_at_the_groups_size_is_the_unbiased_one() -> None:
    baseline = binary([1, 0, 2, 0])
    finding = judged("foothold", replace(baseline, facts=replace(baseline.facts, group_size=4)))
    expected = [1 - math.comb(8 - good, 4) / math.comb(8, 4) for good in (1, 0, 2, 0)]
    assert dict(finding.numbers)["pass@4"] == pytest.approx(sum(expected) / 4)


def test_a_model_that_never_succeeds_fails() -> None:
    finding = judged("foothold", binary([0] * 13))
    assert finding.verdict == "Fail"
    assert finding.value == 0.0
    assert "Simplify" in finding.advice
    assert len(finding.examples) == 3


def test_few_failures_alone_are_a_warning() -> None:
    finding = judged("foothold", binary([0] * 4))
    assert finding.verdict == "Warn"


def test_any_number_of_failures_of_few_rows_is_a_warning() -> None:
    assert judged("foothold", binary([0] * 7, size=32)).verdict == "Warn"


def test_a_model_that_always_succeeds_fails() -> None:
    assert judged("foothold", binary([8] * 13)).verdict == "Fail"
    assert judged("foothold", binary([8] * 12 + [6])).verdict == "Fail"
    assert judged("foothold", binary([8] * 10 + [4] * 3)).verdict == "Pass"


def test_any_number_of_successes_of_few_rows_is_a_warning() -> None:
    assert judged("foothold", binary([32] * 11, size=32)).verdict == "Warn"
    assert judged("foothold", binary([32] * 12, size=32)).verdict == "Fail"


def test_sixteen_successes_alone_raise_no_alarm() -> None:
    assert judged("foothold", binary([8, 8])).verdict == "Pass"
    assert judged("foothold", binary([8, 8, 8])).verdict == "Warn"


def test_fewer_than_sixteen_episodes_are_too_few() -> None:
    finding = judged("foothold", binary([0]))
    assert (finding.verdict, finding.needs) == ("Unknown", 59)


def test_rare_success_is_a_warning() -> None:
    assert judged("foothold", binary([1] + [0] * 24)).verdict == "Warn"


def test_a_failure_is_certain_at_the_fifty_ninth_episode() -> None:
    sampled = binary([0] * 13).sampled
    looks = [a_baseline(sampled[:count], group_size=8) for count in range(len(sampled))]
    certain = [count for count, look in enumerate(looks) if certain_failure(look)]
    assert certain[0] == 59
    assert certain == list(range(59, len(sampled)))


def test_a_reward_out_of_range_is_certain_at_once() -> None:
    found = certain_failure(of_values([[(1.0, 1.0), (7.0, 1.0)]]))
    assert found is not None
    assert found.check == "reward-range"


def test_a_reached_destination_is_certain_before_any_episode() -> None:
    baseline = replace(a_baseline([]), probes=[Probe("DNS", "10.0.0.10", True, 0.4)])
    found = certain_failure(baseline)
    assert found is not None
    assert found.check == "isolated"
    assert certain_failure(baseline, {"isolated": "Off"}) is None


def test_one_success_ends_the_certainty() -> None:
    assert certain_failure(binary([1] + [0] * 12)) is None


def test_finite_rewards_in_range_pass() -> None:
    baseline = desk_baseline()
    played = play_all(lambda: Desk({}), BY_ID["reward-range"].scripts(baseline))
    assert BY_ID["reward-range"].judge(baseline, played).verdict == "Pass"


def test_a_reward_out_of_range_fails() -> None:
    baseline = desk_baseline(BigDesk)
    finding = judged("reward-range", baseline)
    assert finding.verdict == "Fail"
    assert "[0, 1]" in finding.observed
    assert finding.examples[0].text.startswith("reward 2.5")


def test_a_reward_that_raises_on_an_empty_answer_fails() -> None:
    baseline = desk_baseline(RaisingDesk)
    played = play_all(lambda: RaisingDesk({}), BY_ID["reward-range"].scripts(baseline))
    finding = BY_ID["reward-range"].judge(baseline, played)
    assert finding.verdict == "Fail"
    assert "IndexError" in finding.examples[0].text


def test_a_lost_episode_that_blames_the_reward_fails() -> None:
    lost = an_episode(reward=None, error="the environment's reward is nan", cause="RewardOutOfRange")
    assert judged("reward-range", a_baseline([a_sample(lost)])).verdict == "Fail"


def test_a_lost_sandbox_says_nothing_of_the_reward() -> None:
    lost = an_episode(reward=None, error="the sandbox did not answer")
    assert judged("reward-range", a_baseline([a_sample(lost)])).verdict == "Unknown"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("tool get_score raised KeyError: 'reward'", "ToolFailed"),
        ("the judge did not answer reward within 30 s", "JudgeSlow"),
        ("ConnectionError: http://scores/reward", None),
    ],
)
def test_errors_of_other_parts_do_not_blame_the_reward(error: str, cause: str | None) -> None:
    lost = a_sample(an_episode(reward=None, error=error, cause=cause))
    good = [a_sample(an_episode(group=group)) for group in range(1, 3)]
    baseline = a_baseline([lost, *good])
    assert certain_failure(baseline) is None
    scripts = BY_ID["reward-range"].scripts(baseline)
    played = [PlayedScript(script, error=error, cause=cause) for script in scripts]
    assert BY_ID["reward-range"].judge(baseline, played).verdict == "Pass"


@pytest.mark.parametrize("size", [15, 16, 32, 64])
def test_a_warning_of_few_groups_says_how_many_suffice(size: int) -> None:
    groups = 100 // size
    rows = [{"prompt": f"question {number}"} for number in range(50)]
    for check, values in (
        ("foothold", (0.0, 0.0)),
        ("foothold", (1.0, 1.0)),
        ("reward-variance", (0.5, 0.5)),
    ):
        finding = judged(check, of_values([[values] * size] * groups, rows=rows))
        if finding.verdict == "Unknown":
            assert groups < 4
            continue
        assert finding.verdict == "Warn"
        assert finding.needs is not None
        assert f"A sure verdict takes {finding.needs} episodes" in finding.observed
        enough = of_values([[values] * size] * (finding.needs // size), rows=rows)
        assert judged(check, enough).verdict == "Fail"


def test_few_rows_never_make_a_verdict_sure() -> None:
    rows = [{"prompt": f"question {number}"} for number in range(4)]
    finding = judged("foothold", of_values([[(0.0, 0.0)] * 32] * 4, rows=rows))
    assert (finding.verdict, finding.needs) == ("Warn", None)
    assert "takes 8 training rows, and there are 4" in finding.observed


def test_groups_that_differ_have_variance() -> None:
    assert judged("reward-variance", binary([3] * 13)).verdict == "Pass"


def test_a_constant_reward_fails() -> None:
    finding = judged("reward-variance", of_values([[(0.5, 0.0)] * 8] * 13))
    assert finding.verdict == "Fail"
    assert "All 104 episodes have the reward 0.5" in finding.observed


def test_a_constant_reward_of_few_groups_is_a_warning() -> None:
    assert judged("reward-variance", of_values([[(0.5, 0.0)] * 8] * 5)).verdict == "Warn"


def test_many_uniform_groups_are_a_warning() -> None:
    finding = judged("reward-variance", binary([0] * 6 + [8] * 6 + [4]))
    assert finding.verdict == "Warn"
    assert finding.value == pytest.approx(12 / 13)


def test_few_groups_are_too_few() -> None:
    finding = judged("reward-variance", binary([0, 0]))
    assert finding.verdict == "Unknown"
    assert finding.needs is not None
    assert finding.needs > 8


def test_a_reward_that_pays_success_agrees() -> None:
    finding = judged("scorer-agrees", desk_baseline())
    assert finding.verdict == "Pass"
    assert dict(finding.numbers)["rank_correlation"] > 0.5


def test_partial_credit_is_not_a_disagreement() -> None:
    values: Values = [(0.9, 0.0), (0.8, 0.0), (1.0, 1.0), (0.9, 0.0)]
    assert judged("scorer-agrees", of_values([values] * 13)).verdict == "Pass"


def test_full_pay_for_failure_fails_with_the_worst() -> None:
    finding = judged("scorer-agrees", desk_baseline(LenientRewardDesk))
    assert finding.verdict == "Fail"
    assert finding.low is not None
    assert finding.low > 0.1
    assert "reward 1 | score 0" in finding.examples[0].text
    assert len({example.episode_id for example in finding.examples}) == 3


def test_full_pay_without_any_success_fails() -> None:
    assert judged("scorer-agrees", of_values([[(1.0, 0.0), (0.2, 0.0)] * 4] * 13)).verdict == "Fail"


def test_a_reward_that_is_turned_round_fails() -> None:
    values: Values = [(0.0, 1.0), (0.6, 0.0), (0.7, 0.0), (0.1, 1.0)]
    finding = judged("scorer-agrees", of_values([values] * 13))
    assert finding.verdict == "Fail"
    assert "Failures surely earn more than successes" in finding.observed
    lowest = judged("scorer-agrees", of_values([[(0.0, 1.0), (0.6, 0.0)] * 4] * 13))
    assert (lowest.verdict, lowest.value) == ("Fail", 0.0)  # no episode has the full reward


def test_two_odd_episodes_of_many_are_not_a_failure() -> None:
    values: Values = [(1.0, 1.0), (0.0, 0.0)] * 4
    odd: Values = [(1.0, 0.0), (1.0, 0.0), *values[2:]]
    assert judged("scorer-agrees", of_values([values] * 12 + [odd])).verdict == "Pass"


def test_no_full_reward_in_few_episodes_is_unknown() -> None:
    finding = judged("scorer-agrees", of_values([[(0.1, 0.0), (0.2, 0.0)]] * 4))
    assert finding.verdict == "Unknown"
    assert finding.needs == 29
