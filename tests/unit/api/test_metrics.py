"""Metric names are unique and valid for Prometheus and MLflow, and equal MTRL's where it has the metric."""

from __future__ import annotations

import re

import pytest

from headway_api.metrics import FAMILIES, JOB_LABELS, UnknownMetricError, family, prometheus_name

MTRL = """
training/epoch training/global_step training/num_groups training/num_trajectories training/total_tokens
training/num_datums training/datums_per_trajectory training/action_tokens_mean training/obs_tokens_mean
training/trainable_token_positions training/nontrainable_token_positions training/trainable_token_ratio
timing_s/step timing_s/training timing_s/policy_update timing_s/save_checkpoint timing_s/eval
rollout/reward/mean rollout/reward/valid_mean rollout/reward/std rollout/reward/min rollout/reward/max
rollout/reward/zero_frac rollout/turns/mean rollout/turns/min rollout/turns/max
rollout/tokens/prompt_mean rollout/tokens/response_mean rollout/tokens/response_std
rollout/tokens/response_min rollout/tokens/response_max rollout/logprob/zero_count
rollout/logprob/zero_frac rollout/logprob/zero_per_group rollout/logprob/nz_mean rollout/logprob/nz_std
rollout/logprob/nz_min rollout/logprob/nz_max rollout/advantage/mean rollout/advantage/std
rollout/advantage/min rollout/advantage/max rollout/advantage/n_positive rollout/advantage/n_negative
analysis/batch_completion_ratio analysis/batch_valid_ratio analysis/zero_adv_groups
analysis/zero_adv_nonzero_reward analysis/zero_adv_zero_reward analysis/reward_variance_across_groups
analysis/mean_group_reward_spread val/reward/mean val/reward/std val/reward/min val/reward/max
val/reward/zero_frac val/reward/min_within_groups val/reward/mean_within_groups
val/reward/max_within_groups val/reward/std_within_groups val/reward/rollouts_per_prompt
val/reward/num_prompts val/reward/succeeded_rollouts val/reward/failed_rollouts
val/reward/success_threshold val/reward/pass_at_4 val/reward/pass_power_32 val/turns/mean
val/tokens/response_max val/logprob/nz_mean eval/reward/pass_at_1
"""


@pytest.mark.parametrize("name", MTRL.split())
def test_names_of_mtrl_are_kept(name: str) -> None:
    assert prometheus_name(name) == "headway_" + name.replace("/", "_")


def test_each_metric_is_defined_once() -> None:
    names = [known.name for known in FAMILIES]
    assert len(names) == len(set(names))
    concrete = [re.sub(r"\{\w+\}", "4", name) for name in names]
    assert all(sum(other.matches(name) for other in FAMILIES) == 1 for name in concrete)
    mapped = [prometheus_name(name) for name in concrete]
    assert len(mapped) == len(set(mapped))


@pytest.mark.parametrize("known", FAMILIES, ids=lambda it: it.name)
def test_each_metric_has_a_valid_name_for_prometheus_and_mlflow(known: object) -> None:
    name = re.sub(r"\{\w+\}", "4", known.name)  # type: ignore[attr-defined]
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", prometheus_name(name))
    assert re.fullmatch(r"[A-Za-z0-9_./ -]{1,250}", name), "MLflow takes these"
    assert known.help.endswith(".")  # type: ignore[attr-defined]


def test_no_label_is_one_that_prometheus_gives_a_target() -> None:
    labels = {*JOB_LABELS, *(label for known in FAMILIES for label in known.labels)}
    assert not labels & {"job", "instance", "pod", "container", "endpoint"}, "the scrape would rename it"


def test_counters_end_as_prometheus_expects() -> None:
    assert prometheus_name("usage/tokens") == "headway_usage_tokens_total"


@pytest.mark.parametrize("name", ["val/reward/pass_at_", "training/nothing", "val/reward/pass_at_4/x"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownMetricError, match="define it in"):
        family(name)
