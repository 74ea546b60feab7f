"""Estimators such as pass@k, and the metrics of batches and validations."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb, isclose
from typing import Any

import job_rig
import pytest
from episodes import a_group, sealed
from hypothesis import given
from hypothesis import strategies as st
from played_jobs import a_small_spec

from headway_analysis.measures import metrics
from headway_analysis.measures.episodes import pass_at_k, pass_k, pass_power_k, spread, summarize
from headway_analysis.measures.metrics import MAX_TOOLS
from headway_api.in_force import Directive
from headway_api.metrics import family
from headway_api.records import Batch, EpisodeRecord, GroupRecord, Outcome, Purpose, TurnSpan
from headway_api.spec.algorithm import ADVANTAGES, Advantage, AlgorithmSpec
from headway_api.status import decimal
from headway_coordinator import projections
from headway_coordinator.evaluation.driver import due
from headway_coordinator.metrics.steps import StepMetrics
from headway_coordinator.signals import Signals
from headway_coordinator.state import State
from headway_trainer.batch import training_batch
from headway_trainer.objective.presets import Objective

TRIES = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(TRIES)
def test_pass_at_k_and_pass_power_k_average_all_choices_of_k(
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
def test_a_spread_has_its_mean_between_minimum_and_maximum(values: list[float]) -> None:
    found = spread(values)
    assert found.min <= found.mean <= found.max
    assert 0 <= found.std <= found.max - found.min + 1e-9


def test_a_summary_leaves_failed_episodes_out_of_every_mean() -> None:
    found = summarize(10, [a_group("v0-0", [1.0, 0.0, None], purpose=Purpose.VALIDATION)], 1.0)
    assert (found.reward, found.success, found.episodes, found.failed) == (0.5, 0.5, 2, 1)


def test_every_metric_has_a_family() -> None:
    groups = [a_group("t0-000000", [1.0, 0.0, None]), a_group("t0-000001", [1.0, 1.0])]
    batch = metrics.batch(groups, 1, trained={"t0-000000"}, max_turns=2)
    validation = metrics.validation(groups, [1, 2], 1.0)
    for name in [*batch, *validation]:
        assert family(name).kind == "gauge"
    assert batch["rollout/reward/mean"] == 0.75
    assert batch["rollout/reward/valid_mean"] == 0.5
    assert batch["analysis/zero_adv_groups"] == batch["analysis/zero_adv_nonzero_reward"] == 1
    assert batch["staleness/lag_max"] == 0
    assert batch["episodes/outcome_InfraError_rate"] == 0.2
    assert validation["val/reward/num_prompts"] == 2


def test_evaluation_metrics_are_the_same_under_any_prefix() -> None:
    groups = [a_group("v0-0", [1.0, 0.0, None]), a_group("v0-1", [1.0, 1.0])]
    found = metrics.evaluation(groups, [1, 2], 1.0, "eval", max_turns=2)
    validation = metrics.validation(groups, [1, 2], 1.0, max_turns=2)
    assert all(family(name).kind == "gauge" for name in found)
    assert {name.replace("eval/", "val/", 1): value for name, value in found.items()} == {
        name: value for name, value in validation.items() if name != "timing_s/eval"
    }


def group_of(*episodes: EpisodeRecord) -> GroupRecord:
    return a_group("v0-0", [0.0]).model_copy(update={"episodes": list(episodes)})


def turned(episode: EpisodeRecord, *changes: dict[str, object]) -> EpisodeRecord:
    """The episode, with each turn's fields changed by the entry of `changes` at its index."""
    pairs = zip(episode.turns, changes, strict=True)
    return episode.model_copy(update={"turns": [turn.model_copy(update=new) for turn, new in pairs]})


def test_success_is_judged_by_reward_and_by_external_score() -> None:
    group = group_of(
        sealed("v0-0", 0, reward=1.0, score=0.0),
        sealed("v0-0", 1, reward=1.0, score=1.0),
        sealed("v0-0", 2, reward=0.5, score=0.0),
        sealed("v0-0", 3, reward=None),
    )
    found = metrics.evaluation([group], [1, 2, 4], 1.0, "val")
    for prefix, succeeded, at_1, at_2, power_2 in (
        ("val/reward", 2, 2 / 3, 1.0, 1 / 3),
        ("val/external_score", 1, 1 / 3, 2 / 3, 0.0),
    ):
        assert found[f"{prefix}/succeeded_rollouts"] == succeeded
        assert found[f"{prefix}/failed_rollouts"] == 3 - succeeded
        assert found[f"{prefix}/success_threshold"] == 1.0
        assert found[f"{prefix}/pass_at_1"] == found[f"{prefix}/pass_k_1"] == pytest.approx(at_1)
        assert found[f"{prefix}/pass_at_2"] == found[f"{prefix}/pass_k_2"] == pytest.approx(at_2)
        assert found[f"{prefix}/pass_power_2"] == pytest.approx(power_2)
        assert f"{prefix}/pass_at_4" not in found, "three tries have no estimate of four"
    assert (found["val/reward/pass_prompts_2"], found["val/reward/pass_tries_2"]) == (1, 3)
    assert (found["val/reward/pass_prompts_4"], found["val/reward/pass_tries_4"]) == (0, 0)


def test_response_length_is_per_turn_and_episode_length_the_sum() -> None:
    long = turned(sealed("v0-0", 0), {"sampled_tokens": 7}, {"sampled_tokens": 100})
    short = turned(sealed("v0-0", 1), {"sampled_tokens": 1}, {"sampled_tokens": 12})
    found = metrics.evaluation([group_of(long, short)], [1], 1.0, "val")
    assert [found[f"val/tokens/response_{name}"] for name in ("mean", "min", "max")] == [30, 1, 100]
    assert [found[f"val/tokens/episode_{name}"] for name in ("mean", "min", "max")] == [60, 13, 107]


def test_branches_are_the_rows_without_an_episodes_first_turn() -> None:
    whole = sealed("t0-0", 0)
    [row] = whole.rows
    short = row.model_copy(update={"mask": [0] * (len(row.mask) - 4) + [1] * 4})
    forked = sealed("t0-0", 1).model_copy(update={"rows": [row, short]})
    lost = sealed("t0-0", 2, reward=None)
    found = metrics.batch([group_of(whole, forked, lost)], 1, trained=(), max_turns=2)
    assert (found["rollout/rows/mean"], found["rollout/rows/max"]) == (1.5, 2)
    assert found["rollout/rows/branch_share"] == 1 / 3
    assert found["rollout/rows/branch_token_share"] == 4 / (8 + 8 + 4)
    assert found["rollout/rows/repeated_share"] == (len(row.tokens) - 4) / (3 * len(row.tokens))
    first, second = (TurnSpan(start=0, end=1, turn=turn) for turn in (1, 0))
    rows = [row.model_copy(update={"turns": [first]}), short.model_copy(update={"turns": [second]})]
    helped = sealed("t0-0", 1).model_copy(update={"rows": rows})
    helper_first = metrics.batch([group_of(helped)], 1, trained=(), max_turns=2)
    assert helper_first["rollout/rows/branch_token_share"] == 8 / (8 + 4), "a helper's row is older"
    empty = metrics.batch([group_of(lost)], 1, trained=(), max_turns=2)
    assert not any(value for name, value in empty.items() if name.startswith("rollout/rows/"))


def test_episode_rates_count_episodes_and_turn_rates_turns() -> None:
    cut = turned(
        sealed("t0-0", 0, outcome=Outcome.TRUNCATED),
        {"malformed_tool_calls": 1},
        {"finish_reason": "length"},
    )
    drifted = sealed("t0-0", 1, outcome=Outcome.TRUNCATED).model_copy(update={"forks": 2})
    episodes = [cut, drifted, sealed("t0-0", 2), sealed("t0-0", 3), sealed("t0-0", 4, reward=None)]
    found = metrics.batch([group_of(*episodes)], 1, trained=(), max_turns=2)
    assert found["episodes/token_limit_rate"] == found["episodes/malformed_tool_call_rate"] == 1 / 4
    assert found["rollout/turns/token_limit_rate"] == 1 / 8
    assert found["rollout/turns/malformed_tool_call_rate"] == 1 / 8
    assert (found["episodes/fork_rate"], found["rollout/turns/fork_rate"]) == (1 / 4, 2 / 8)
    assert found["episodes/turn_limit_rate"] == 1 / 4
    assert found["episodes/outcome_InfraError_rate"] == 1 / 5
    assert (found["episodes/max_tokens_rate"], found["episodes/time_limit_rate"]) == (1 / 4, 0.0)


def test_kinds_of_truncation_are_counted_separately() -> None:
    cut = turned(sealed("t0-0", 0, outcome=Outcome.TRUNCATED, turns=1), {"finish_reason": "length"})
    full = sealed("t0-0", 1, outcome=Outcome.TRUNCATED, turns=1)
    exhausted = sealed("t0-0", 2, outcome=Outcome.TRUNCATED, turns=3)
    late = sealed("t0-0", 3, reward=None).model_copy(update={"timed_out": True})
    found = metrics.batch([group_of(cut, full, exhausted, late)], 1, trained=(), max_turns=3)
    assert found["episodes/max_tokens_rate"] == pytest.approx(1 / 3)
    assert found["episodes/context_limit_rate"] == pytest.approx(1 / 3)
    assert found["episodes/turn_limit_rate"] == pytest.approx(1 / 3)
    assert found["episodes/time_limit_rate"] == 1 / 4


def test_a_timeout_is_not_counted_as_a_context_limit() -> None:
    slow = sealed("t0-0", 0, outcome=Outcome.TRUNCATED, turns=1).model_copy(update={"timed_out": True})
    full = sealed("t0-0", 1, outcome=Outcome.TRUNCATED, turns=1)
    found = metrics.batch([group_of(slow, full)], 1, trained=(), max_turns=3)
    assert found["episodes/context_limit_rate"] == 1 / 2
    assert found["episodes/token_limit_rate"] == 1 / 2
    assert found["episodes/time_limit_rate"] == 1 / 2


def test_batch_shows_external_score_and_what_explains_reward() -> None:
    episodes = [sealed("t0-0", n, reward=n / 3, score=float(n == 3)) for n in range(4)]
    found = metrics.batch([group_of(*episodes)], 1, trained=(), max_turns=3)
    assert found["rollout/external_score/mean"] == 1 / 4
    assert found["rollout/reward_explained/accuracy"] == pytest.approx(1.0)
    assert found["rollout/repetition/max"] == 0.0


def test_agent_with_its_own_loop_has_no_turn_limit_rate() -> None:
    groups = [group_of(sealed("t0-0", 0, outcome=Outcome.TRUNCATED))]
    assert "episodes/turn_limit_rate" not in metrics.batch(groups, 1, trained=(), max_turns=None)
    assert "val/episodes/turn_limit_rate" not in metrics.validation(groups, [1], 1.0)


def called(*names: str, first: str = "") -> dict[str, Any]:
    calls = [{"id": f"{first}{i}", "function": {"name": name}} for i, name in enumerate(names)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answered(identity: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def test_tool_calls_count_in_all_by_tool_failed_and_malformed() -> None:
    shown = [called("look_up", first="x"), answered("x0", "error: an example of the environment's own")]
    played = [
        called("look_up", "refund"),
        answered("1", "error: no such order"),
        answered("0", "gold"),
        called("look up!", first="0"),
        answered("00", "silver"),
    ]
    one = turned(
        sealed("t0-0", 0, messages=shown + played),
        {},
        {"malformed_tool_calls": 1, "malformed_kinds": {"not_json": 1}},
    )
    found = metrics.batch([group_of(one, sealed("t0-0", 1))], 1, trained=(), max_turns=2)
    assert (found["rollout/tool_calls/mean"], found["rollout/tool_calls/max"]) == (1.5, 3)
    assert found["rollout/tool_calls/failed_share"] == pytest.approx(1 / 3)
    assert found["rollout/tool_calls/malformed_share"] == pytest.approx(1 / 4)
    assert found["rollout/tool_calls/malformed_share_of/not_json"] == pytest.approx(1 / 4)
    by_tool = {name: value for name, value in found.items() if "tool_calls_of" in name}
    assert by_tool == dict.fromkeys(
        (f"rollout/tool_calls_of/{name}" for name in ("look_up", "refund", "look_up_")), 0.5
    )


def test_tools_beyond_the_most_called_are_added_up() -> None:
    names = [f"tool_{i:02}" for i in range(MAX_TOOLS + 3)]
    one = sealed("t0-0", 0, turns=1, messages=[called("tool_05", *names)])
    found = metrics.evaluation([group_of(one)], [1], 1.0, "val")
    by_tool = {name.rpartition("/")[2]: value for name, value in found.items() if "tool_calls_of" in name}
    assert by_tool.pop("tool_05") == 2
    assert by_tool.pop("other") == 3
    assert by_tool == dict.fromkeys(set(names[:MAX_TOOLS]) - {"tool_05"}, 1)


ANSWER = {"role": "assistant", "content": "It is gold."}


@pytest.mark.parametrize(
    ("reported", "outcome", "messages", "completed"),
    [
        (None, Outcome.COMPLETED, [ANSWER], 1),
        (None, Outcome.COMPLETED, [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}], 1),
        (None, Outcome.COMPLETED, [{"role": "assistant", "content": " \n"}], 0),
        (None, Outcome.COMPLETED, [{"role": "assistant", "content": None}], 0),
        (None, Outcome.COMPLETED, [called("submit"), answered("0", "thanks")], 1),
        (None, Outcome.COMPLETED, [], 0),
        (None, Outcome.TRUNCATED, [ANSWER], 0),
        (None, Outcome.AGENT_ERROR, [ANSWER], 0),
        (0.0, Outcome.COMPLETED, [ANSWER], 0),
        (1.0, Outcome.TRUNCATED, [ANSWER], 1),
        (0.5, Outcome.COMPLETED, [ANSWER], 0.5),
    ],
)
def test_an_episode_with_an_emitted_answer_is_complete(
    reported: float | None, outcome: Outcome, messages: list[dict[str, Any]], completed: float
) -> None:
    one = sealed("v0-0", 0, outcome=outcome, messages=messages, turns=1)
    if reported is not None:
        one = one.model_copy(update={"metrics": {"completion": reported}})
    groups = [group_of(one, sealed("v0-0", 1, reward=None))]
    assert metrics.validation(groups, [1], 1.0)["val/episodes/completion_rate"] == completed
    batch = metrics.batch(groups, 1, trained=(), max_turns=2)
    assert batch["analysis/batch_completion_ratio"] == completed


def test_environment_metrics_are_reported_for_validations_too() -> None:
    found = metrics.validation([a_group("v0-0", [1.0, 0.0])], [1], 1.0)
    assert found["val/reward_metrics/accuracy"] == 0.5


@pytest.mark.parametrize(
    ("idle", "oldest", "mean"),
    [((), 4, 2.0), ((3,), 3, 1.5), ((3, 4), 2, 1.0), ((1, 6), 4, 2.0), ((5,), 3, 1.5)],
)
def test_no_group_ages_by_a_step_without_groups(idle: tuple[int, ...], oldest: int, mean: float) -> None:
    groups = [a_group("t0-000000", [1.0], step=1), a_group("t0-000001", [0.0], step=5)]
    found = metrics.batch(groups, 6, trained=(), max_turns=2, idle=idle)
    assert (found["staleness/lag_max"], found["staleness/lag_mean"]) == (oldest, mean)


def test_staleness_counts_only_steps_that_trained() -> None:
    spec = a_small_spec()
    shown = StepMetrics(spec, Signals(spec))
    changed = job_rig.report(2).model_copy(update={"directive": Directive(remedy="OnPolicy")})
    groups = [a_group("t0-000000", [1.0, 0.0], step=0)]
    state = State(
        reports=[job_rig.report(0), job_rig.report(1), changed, job_rig.report(3)], last_batch=groups
    )
    shown.batch(state, again=False)
    assert shown.shown()["staleness/lag_max"] == 1


TRAINED = {
    # Whether each method gives groups with rewards [1, 1, 0], [1, 1, 1] and [0, 0, 0] a non-zero advantage.
    "grpo_passk": [False, False, False],
    "monte_carlo": [True, True, False],
    "reinforce_pp": [True, True, True],
}


@pytest.mark.parametrize("method", ADVANTAGES)
def test_group_has_no_advantage_if_the_learner_found_none(method: str) -> None:
    rewards = {"t0-000000": [1.0, 1.0, 0.0], "t0-000001": [1.0, 1.0, 1.0], "t0-000002": [0.0, 0.0, 0.0]}
    groups = [a_group(name, given) for name, given in rewards.items()]
    report = job_rig.report(1).model_copy(update={"train_tokens": learned(groups, method)})
    found = metrics.batch(groups, 1, trained=report.trained, max_turns=2)
    differs, ones, zeros = TRAINED.get(method, [True, False, False])
    assert found["analysis/batch_valid_ratio"] == pytest.approx(sum((differs, ones, zeros)) / 3)
    assert found["analysis/zero_adv_groups"] == 3 - sum((differs, ones, zeros))
    assert found["analysis/zero_adv_nonzero_reward"] == 2 - sum((differs, ones))
    assert found["analysis/zero_adv_zero_reward"] == 1 - zeros
    valid = [r for name, given in rewards.items() if name in report.trained for r in given]
    assert found["rollout/reward/valid_mean"] == pytest.approx(sum(valid) / max(1, len(valid)))
    shown = projections.reward(State(reports=[report], last_batch=groups))
    assert shown is not None
    assert shown.valid == decimal(found["rollout/reward/valid_mean"])


def learned(groups: list[GroupRecord], method: str) -> dict[str, int]:
    """The number of tokens that the learner trains in each group."""
    objective = Objective.of(AlgorithmSpec(advantage=Advantage(method=method)))
    return training_batch(Batch(step=1, epoch=0, groups=groups), objective).train_tokens


def test_validation_time_spans_first_start_to_last_end_of_tries() -> None:
    group = a_group("v0-0", [1.0, 0.0], purpose=Purpose.VALIDATION, retried=1)
    late = group.discarded[0].model_copy(update={"started_at": 1_699_999_990.0})
    group = group.model_copy(update={"discarded": [late]})
    assert metrics.validation([group], [1], 1.0)["timing_s/eval"] == 12.0
    assert metrics.validation([], [1], 1.0)["timing_s/eval"] == 0.0


def test_metrics_without_scored_episodes_are_zero() -> None:
    batch = metrics.batch([a_group("t0-000000", [None, None])], 1, trained=(), max_turns=2)
    assert batch["rollout/reward/mean"] == batch["rollout/tokens/response_max"] == 0


def test_validation_is_due_at_start_every_n_steps_and_at_end() -> None:
    steps = [step for step in range(8) if due(step, every=3, at_start=True, last=step == 7)]
    assert steps == [0, 3, 6, 7]
    assert not due(0, every=3, at_start=False, last=False)
    assert not due(7, every=0, at_start=True, last=True)


@pytest.mark.parametrize(
    ("again", "cost", "shown_cost"), [(False, "1.25", 1.25), (True, "1.25", None), (False, None, None)]
)
def test_a_step_has_the_jobs_cost_unless_it_is_reported_again(
    again: bool, cost: str | None, shown_cost: float | None
) -> None:
    spec = a_small_spec()
    shown = StepMetrics(spec, Signals(spec))
    groups = [a_group("t0-000000", [1.0, 0.0], step=0)]
    state = State(reports=[job_rig.report(0), job_rig.report(1)], last_batch=groups)
    found = shown.batch(state, again=again, cost=lambda: cost)
    assert found is not None
    assert found.metrics.get("usage/cost_at_step_usd") == shown_cost
