"""Panels that show whether a job learns: rewards, scores, and statistics of the optimizer."""

from __future__ import annotations

from typing import Any

from headway_dashboards.panels import Query, curves, metric_curves
from headway_dashboards.promql import named, value


def panels() -> list[Any]:
    """The learning panels of the job board."""
    return [*_rewards(), *_update(), *_groups()]


def _rewards() -> list[Any]:
    return [
        metric_curves(
            "Reward and external score",
            "The reward is trained on, the external score is not. Where they part, the reward is gamed.",
            {
                "reward": "rollout/reward/mean",
                "reward of groups with an advantage": "rollout/reward/valid_mean",
                "external score": "rollout/external_score/mean",
                "validation reward": "val/reward/mean",
                "validation external score": "val/external_score/mean",
            },
            span=12,
        ),
        curves(
            "Validation: pass@k and pass^k",
            "By the external score: the chance that one of k tries succeeds, and that all of them do.",
            [
                Query(named("val/external_score/pass_at_{k}", "k"), "{{job_name}} pass@{{k}}"),
                Query(named("val/external_score/pass_power_{k}", "k"), "{{job_name}} pass^{{k}}"),
            ],
            unit="percentunit",
            span=12,
        ),
        curves(
            "Reward by task",
            "Where a column of the training rows names tasks. One that falls is being unlearned.",
            [Query(named("rollout/task_reward/{name}", "task"), "{{job_name}} {{task}}")],
        ),
        curves(
            "Validation by task",
            "External score, where a column of the held-out rows names tasks.",
            [Query(named("val/task_external_score/{name}", "task"), "{{job_name}} {{task}}")],
        ),
        curves(
            "What explains the reward",
            "Share of the reward's variance within groups that one number of the environment explains. "
            "Near 1, it alone decides what is learned.",
            [Query(named("rollout/reward_explained/{name}", "number"), "{{job_name}} {{number}}")],
            unit="percentunit",
        ),
    ]


def _update() -> list[Any]:
    return [
        metric_curves(
            "Entropy",
            "It falls slowly while a policy learns. Near 0 nothing is explored; without end it is noise.",
            {"entropy": "training/entropy"},
        ),
        metric_curves(
            "KL",
            "From the sampling to the trained policy; and to the base model, if that is penalized.",
            {"mismatch": "training/mismatch_kl", "to the base model": "training/reference_kl"},
        ),
        metric_curves(
            "Gradient",
            "A norm that jumps by an order of magnitude comes before many a collapse.",
            {"norm": "training/grad_norm", "loss": "training/loss"},
        ),
        metric_curves(
            "Ratio of probabilities",
            "Of trained to old probability. Far from 1, the batch is older than it should be.",
            {
                "mean": "training/ratio_mean",
                "smallest": "training/ratio_min",
                "largest": "training/ratio_max",
            },
            log=True,
        ),
        metric_curves(
            "Tokens that do not count",
            "Clipped, left out by the correction, or far apart; and the share that counts after weighting.",
            {
                "clipped": "training/clip_fraction",
                "masked": "training/masked_fraction",
                "far apart": "training/mismatch_far_share",
                "effective": "training/effective_sample_share",
            },
        ),
        metric_curves(
            "Learning rate", "As the schedule has it.", {"learning rate": "training/learning_rate"}
        ),
    ]


def _groups() -> list[Any]:
    return [
        metric_curves(
            "Groups without an advantage",
            "A group whose tries all score alike gives no gradient. "
            "Mostly too hard: an easier start. Mostly too easy: harder rows.",
            {
                "all": "analysis/zero_adv_groups",
                "too easy": "analysis/zero_adv_nonzero_reward",
                "too hard": "analysis/zero_adv_zero_reward",
                "groups of the batch": "training/num_groups",
            },
        ),
        metric_curves(
            "Spread within groups",
            "What there is to learn from.",
            {
                "best less worst": "analysis/mean_group_reward_spread",
                "standard deviation of rewards": "rollout/reward/std",
                "variance of the groups' means": "analysis/reward_variance_across_groups",
            },
        ),
        curves(
            "Steps",
            "Completed, and to be done.",
            [
                Query(value("job/step"), "{{job_name}} completed and checkpointed"),
                Query(value("training/global_step"), "{{job_name}} completed"),
                Query(value("job/max_steps"), "{{job_name}} to be done"),
            ],
        ),
    ]
