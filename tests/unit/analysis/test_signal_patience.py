"""A burst of a few odd batches raises no signal, and what lasts does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from headway_analysis.signals.evidence import EPISODES
from headway_analysis.signals.history import Job
from headway_analysis.signals.judges import behaviour, learning, stability
from headway_analysis.signals.watch import Watch
from headway_api.signals import SignalName as S

JOB = Job(reward_low=0.0, reward_high=1.0, max_steps_off_policy=0)
STEADY = [0.6, 0.64, 0.56, 0.62, 0.58]
Curve = Sequence[float | None]


def raised(signal: S, curves: Mapping[str, Curve]) -> int | None:
    """The first step, counted from 1, at which a signal is raised."""
    watch = Watch(JOB)
    for step, row in enumerate(zip(*curves.values(), strict=True), 1):
        known = zip(curves, row, strict=True)
        watch.step(step, {name: value for name, value in known if value is not None})
        states = {verdict.signal.name: verdict.standing.state for verdict in watch.verdicts()}
        if states[signal] == "Raised":
            return step
    return None


def noisy(entropy: Curve, reward: Curve) -> int | None:
    """The step at which EntropyRising is raised.

    It is counted after twenty steps at 0.05 nats and a reward of 0.6.
    """
    curves = {stability.ENTROPY: [0.05] * 20 + [*entropy], learning.REWARD: STEADY * 4 + [*reward]}
    found = raised(S.ENTROPY_RISING, curves)
    return None if found is None else found - 20


@pytest.mark.parametrize("burst", [1, 2, 3, 4])
def test_an_entropy_that_is_high_for_a_few_steps_passes(burst: int) -> None:
    assert noisy([1.4] * burst + [0.05] * (15 - burst), STEADY * 3) is None


def test_an_entropy_that_stays_high_is_raised_within_ten_steps() -> None:
    assert noisy([1.4] * 15, STEADY * 3) == 6
    assert noisy([0.45] * 15, STEADY * 3) == 7
    assert noisy([0.45] * 15, [0.6] * 4 + [0.3] * 11) == 7
    assert noisy([0.35] * 15, STEADY * 3) is None


def test_entropy_with_a_falling_reward_is_raised_at_once() -> None:
    assert noisy([1.4] * 4, [0.6, 0.4, 0.4, 0.4]) == 3
    assert noisy([1.4] * 4, [0.3, 0.3, 0.4, 0.4]) == 2
    assert noisy([1.4] * 4, [0.6, 0.55, 0.55, 0.55]) is None
    assert noisy([0.7] * 4, [0.6, 0.4, 0.4, 0.4]) is None


def test_an_entropy_that_ends_in_a_collapse_is_raised_after_it() -> None:
    """While no group has an advantage, no step is trained, and the entropy is unknown."""
    assert noisy([1.4, 3.0, *[None] * 8], [0.6, 0.6, *[0.0] * 8]) == 3
    assert noisy([1.4, 3.0, *[None] * 8], [0.6, 0.6, *[0.6] * 8]) is None
    assert noisy([1.4] * 5 + [None] * 10, STEADY * 3) is None


def test_an_entropy_that_few_steps_report_does_not_last() -> None:
    few = [1.4, None, 1.4, None, 1.4, None, 1.4, None, 1.4, None, 1.4, None, 1.4, None, 1.4]
    assert noisy(few, STEADY * 3) is None


def norms(before: Sequence[float], jump: Sequence[float]) -> int | None:
    """The step at which GradientSpiking is raised, counted from the jump."""
    found = raised(S.GRADIENT_SPIKING, {stability.NORM: [*before, *jump, *[0.2] * 8]})
    return None if found is None else found - len(before)


def test_a_norm_that_jumps_rarely_raises_no_signal() -> None:
    calm = [0.2] * 20
    twice = [0.2] * 8 + [1.5, *[0.2] * 4, 1.4, *[0.2] * 6]
    once = [0.2] * 8 + [1.5, *[0.2] * 11]
    assert norms(calm, [1.3, 1.3]) == 3
    assert norms(once, [1.3, 1.3]) == 3
    assert norms(twice, [1.3, 1.3]) is None
    assert norms(twice, [1.45, 1.45]) == 3


def share(name: str, rates: Sequence[float], count: float = 36.0) -> Mapping[str, Curve]:
    """A rate of episodes over time, after twenty steps at 0."""
    return {name: [0.0] * 20 + [*rates], EPISODES: [count] * (20 + len(rates))}


@pytest.mark.parametrize(
    "burst", [(0.47, 0.36, 0.03), (0.16, 0.31, 0.31, 0.06, 0.03), (0.33, 0.25, 0.28, 0.08), (0.6, 0.6)]
)
def test_a_burst_of_two_or_three_batches_exhausts_no_turns(burst: Sequence[float]) -> None:
    assert raised(S.TURNS_EXHAUSTED, share(behaviour.EXHAUSTED, [*burst, *[0.0] * 10])) is None


@pytest.mark.parametrize(("rate", "step"), [(1.0, 26), (0.5, 26), (0.3, 26)])
def test_turns_that_stay_exhausted_are_raised_in_ten_steps(rate: float, step: int) -> None:
    assert raised(S.TURNS_EXHAUSTED, share(behaviour.EXHAUSTED, [rate] * 15)) == step


@pytest.mark.parametrize(
    ("signal", "name", "usual", "odd"),
    [
        (S.LENGTH_EXPLODING, behaviour.LENGTH, 20.0, 60.0),
        (S.TOOL_CALLS_INFLATING, behaviour.CALLS, 3.0, 6.0),
        (S.REPETITION, behaviour.REPEATED, 0.0, 0.5),
    ],
)
def test_four_odd_batches_pass_and_what_lasts_is_raised(
    signal: S, name: str, usual: float, odd: float
) -> None:
    assert raised(signal, {name: [usual] * 20 + [odd] * 4 + [usual] * 10}) is None
    assert raised(signal, {name: [usual] * 20 + [odd] * 10}) == 26
