"""Estimators and figures."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb, isclose

import a_job
import pytest
from episodes import a_group
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.measures import figures
from headway_analysis.measures.episodes import pass_at_k, pass_k, pass_power_k, spread, summarize
from headway_api.metrics import family
from headway_api.records import Batch, GroupRecord, Purpose
from headway_api.spec.algorithm import ADVANTAGES, Advantage, AlgorithmSpec
from headway_api.status import decimal
from headway_coordinator import view
from headway_coordinator.evaluation.driver import due
from headway_coordinator.state import State
from headway_trainer.batch import training_batch
from headway_trainer.objective.presets import Objective

TRIES = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(TRIES)
def test_pass_at_k_and_pass_power_k_are_means_over_every_choice_of_k_tries(
    case: tuple[int, int, int],
) -> None:
    tries, successes, k = case
    outcomes = [True] * successes + [False] * (tries - successes)
    chosen = list(combinations(outcomes, k))
    assert isclose(pass_at_k(tries, successes, k), Fraction(sum(map(any, chosen)), comb(tries, k)))
    assert isclose(pass_power_k(tries, successes, k), Fraction(sum(map(all, chosen)), comb(tries, k)))


@pytest.mark.parametrize(("tries", "successes", "k"), [(4, 5, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_an_estimate_that_cannot_be_made_is_refused(tries: int, successes: int, k: int) -> None:
    with pytest.raises(ValueError, match="no estimate"):
        pass_at_k(tries, successes, k)


def test_prompts_with_too_few_scored_tries_are_left_out() -> None:
    groups = [a_group("v0-0", [1.0, 0.0]), a_group("v0-1", [1.0, None])]
    assert pass_k(groups, [1, 2], 1.0) == {
        "pass_at_1": 0.75,
        "pass_power_1": 0.75,
        "pass_at_2": 1.0,
        "pass_power_2": 0.0,
    }


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_a_spread_lies_within_its_bounds(values: list[float]) -> None:
    found = spread(values)
    assert found.min <= found.mean <= found.max
    assert 0 <= found.std <= found.max - found.min + 1e-9


def test_a_summary_leaves_failed_episodes_out_of_every_mean() -> None:
    found = summarize(10, [a_group("v0-0", [1.0, 0.0, None], purpose=Purpose.VALIDATION)], 1.0)
    assert (found.reward, found.success, found.episodes, found.failed) == (0.5, 0.5, 2, 1)


def test_every_figure_has_a_family() -> None:
    groups = [a_group("t0-000000", [1.0, 0.0, None]), a_group("t0-000001", [1.0, 1.0])]
    batch = figures.batch(groups, 1, trained={"t0-000000"}, max_turns=2)
    validation = figures.validation(groups, [1, 2], 1.0)
    for name in [*batch, *validation]:
        assert family(name).kind == "gauge"
    assert batch["rollout/reward/mean"] == 0.75
    assert batch["rollout/reward/valid_mean"] == 0.5
    assert batch["analysis/zero_adv_groups"] == batch["analysis/zero_adv_nonzero_reward"] == 1
    assert batch["analysis/batch_completion_ratio"] == 0.8
    assert batch["staleness/lag_max"] == 0
    assert batch["episodes/outcome_InfraError_rate"] == 0.2
    assert validation["val/reward/num_prompts"] == 2


TRAINED = {
    # What each method has an advantage for of [1, 1, 0], [1, 1, 1] and [0, 0, 0].
    "grpo_passk": [False, False, False],
    "monte_carlo": [True, True, False],
    "reinforce_pp": [True, True, True],
}


@pytest.mark.parametrize("method", ADVANTAGES)
def test_a_group_counts_as_without_advantage_where_the_learner_found_none(method: str) -> None:
    rewards = {"t0-000000": [1.0, 1.0, 0.0], "t0-000001": [1.0, 1.0, 1.0], "t0-000002": [0.0, 0.0, 0.0]}
    groups = [a_group(name, given) for name, given in rewards.items()]
    report = a_job.report(1).model_copy(update={"train_tokens": learned(groups, method)})
    found = figures.batch(groups, 1, trained=report.trained, max_turns=2)
    differs, ones, zeros = TRAINED.get(method, [True, False, False])
    assert found["analysis/batch_valid_ratio"] == pytest.approx(sum((differs, ones, zeros)) / 3)
    assert found["analysis/zero_adv_groups"] == 3 - sum((differs, ones, zeros))
    assert found["analysis/zero_adv_nonzero_reward"] == 2 - sum((differs, ones))
    assert found["analysis/zero_adv_zero_reward"] == 1 - zeros
    valid = [r for name, given in rewards.items() if name in report.trained for r in given]
    assert found["rollout/reward/valid_mean"] == pytest.approx(sum(valid) / max(1, len(valid)))
    shown = view.reward(State(reports=[report], last_batch=groups))
    assert shown is not None
    assert shown.valid == decimal(found["rollout/reward/valid_mean"])


def learned(groups: list[GroupRecord], method: str) -> dict[str, int]:
    """Tokens that the learner trains of each group."""
    objective = Objective.of(AlgorithmSpec(advantage=Advantage(method=method)))
    return training_batch(Batch(step=1, epoch=0, groups=groups), objective).train_tokens


def test_a_validation_lasts_from_the_first_start_to_the_last_end_tries_included() -> None:
    group = a_group("v0-0", [1.0, 0.0], purpose=Purpose.VALIDATION, retried=1)
    late = group.discarded[0].model_copy(update={"started_at": 1_699_999_990.0})
    group = group.model_copy(update={"discarded": [late]})
    assert figures.validation([group], [1], 1.0)["timing_s/eval"] == 12.0
    assert figures.validation([], [1], 1.0)["timing_s/eval"] == 0.0


def test_figures_of_nothing_are_zero() -> None:
    batch = figures.batch([a_group("t0-000000", [None, None])], 1, trained=(), max_turns=2)
    assert batch["rollout/reward/mean"] == batch["rollout/tokens/response_max"] == 0


def test_validation_is_due_at_the_start_every_n_steps_and_at_the_end() -> None:
    steps = [step for step in range(8) if due(step, every=3, at_start=True, last=step == 7)]
    assert steps == [0, 3, 6, 7]
    assert not due(0, every=3, at_start=False, last=False)
    assert not due(7, every=0, at_start=True, last=True)
