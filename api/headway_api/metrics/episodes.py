"""Metrics of episodes in training, validation and evaluation: behaviour, lengths, reward and score."""

from typing import Final

from headway_api.metrics.definition import STATISTICS, MetricFamily, spread


def behaviour(prefix: str, rates: str, when: str) -> tuple[MetricFamily, ...]:
    """Metrics of the agent's behaviour.

    `when` names the episodes in each description. The names of shares of episodes begin with `rates`. Only
    shares of all episodes count episodes that stayed InfraError.
    """
    return (
        *spread(f"{prefix}/turns/", f"turns of an episode {when}", only="mean min max"),
        MetricFamily(
            f"{prefix}/turns/malformed_tool_call_rate",
            f"Share of turns {when} with a tool call that could not be read.",
            "ratio",
        ),
        MetricFamily(f"{prefix}/turns/token_limit_rate", f"Share of turns {when} cut at maxTokens.", "ratio"),
        MetricFamily(
            f"{prefix}/turns/fork_rate",
            f"Share of turns {when} whose history drifted from what was sampled.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/turns/guided_share",
            f"Share of the tokens sampled {when} that a JSON schema held: they are not trained.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/forks_of/{{name}}",
            f"Share of turns {when} whose history drifted for one of the reasons of docs/operations.md.",
            "ratio",
        ),
        *spread(f"{prefix}/rows/", f"training rows of an episode {when}", only="mean max"),
        MetricFamily(
            f"{prefix}/rows/branch_share",
            f"Share of training rows {when} without an episode's first turn.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/rows/branch_token_share",
            f"Share of trained tokens {when} in training rows without an episode's first turn.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/rows/repeated_share",
            f"Share of tokens of training rows {when} that rows without an episode's first turn repeat.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/tool_calls/mean", f"Mean tool calls of an episode {when} that could be read."
        ),
        MetricFamily(f"{prefix}/tool_calls/max", f"Most tool calls of an episode {when} that could be read."),
        MetricFamily(
            f"{prefix}/tool_calls/failed_share",
            f"Share of readable tool calls {when} whose answer begins with `error:`.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/tool_calls/malformed_share",
            f"Share of all tool calls {when} that could not be read.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/tool_calls/malformed_share_of/{{name}}",
            f"Share of all tool calls {when} with one kind of fault: unclosed, no_name, not_json, arguments, "
            "structure or other.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/tool_calls_of/{{name}}",
            f"Mean calls of one tool in an episode {when}; of the 32 tools called most, and of all `other`.",
        ),
        MetricFamily(
            f"{prefix}/repetition/mean",
            f"Mean share of a turn's sampled 8-grams {when} that occurred earlier in the same turn.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/repetition/max",
            f"Largest share of a turn's sampled 8-grams {when} that occurred earlier in the same turn.",
            "ratio",
        ),
        MetricFamily(
            f"{prefix}/reward_metrics/{{name}}", f"Mean of a number the environment reported {when}."
        ),
        MetricFamily(
            f"{rates}/malformed_tool_call_rate",
            f"Share of episodes {when} with a tool call that could not be read.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/fork_rate",
            f"Share of episodes {when} with a turn whose history drifted from what was sampled.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/turn_limit_rate",
            f"Share of episodes {when} cut at maxTurns; none for an agent with a loop of its own.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/max_tokens_rate",
            f"Share of episodes {when} with a turn cut at maxTokens, or that reached episodeTokenLimit.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/episode_token_limit_rate",
            f"Share of episodes {when} that reached rollout.episodeTokenLimit.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/context_limit_rate",
            f"Share of episodes {when} that ended because the context had no room for another turn.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/time_limit_rate",
            f"Share of all episodes {when} that had not ended at rollout.timeoutSeconds.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/token_limit_rate",
            f"Share of episodes {when} with a turn cut at maxTokens, or with no room for another turn.",
            "ratio",
        ),
        MetricFamily(
            f"{rates}/outcome_{{name}}_rate", f"Share of all episodes {when} with this outcome.", "ratio"
        ),
    )


def lengths(prefix: str, when: str) -> tuple[MetricFamily, ...]:
    """Metrics of tokens and their log-probabilities."""
    return (
        MetricFamily(f"{prefix}/tokens/prompt_mean", f"Mean prompt tokens of an episode {when}.", "tokens"),
        *spread(f"{prefix}/tokens/response_", f"sampled tokens of a turn {when}", unit="tokens"),
        *spread(f"{prefix}/tokens/episode_", f"sampled tokens of an episode {when}", unit="tokens"),
        MetricFamily(f"{prefix}/logprob/zero_count", f"Sampled tokens {when} with log-probability 0."),
        MetricFamily(
            f"{prefix}/logprob/zero_frac", f"Share of sampled tokens {when} with log-probability 0.", "ratio"
        ),
        MetricFamily(
            f"{prefix}/logprob/zero_per_group",
            f"Sampled tokens {when} with log-probability 0, divided by the number of groups.",
        ),
        *spread(f"{prefix}/logprob/nz_", f"nonzero log-probability {when}", unit="nats"),
    )


def judged(prefix: str, value: str) -> tuple[MetricFamily, ...]:
    """Metrics of successes. A try succeeds if its `value`, reward or external score, reaches the success
    threshold."""
    return (
        MetricFamily(f"{prefix}/succeeded_rollouts", f"Tries whose {value} reached the success threshold."),
        MetricFamily(
            f"{prefix}/failed_rollouts", f"Scored tries whose {value} did not reach the success threshold."
        ),
        MetricFamily(f"{prefix}/success_threshold", f"The {value} from which a try succeeds."),
        MetricFamily(
            f"{prefix}/pass_at_{{k}}",
            f"Chance that one of k tries succeeds by its {value}, unbiased; mean over rows with k tries.",
            "ratio",
        ),
        MetricFamily(f"{prefix}/pass_k_{{k}}", "The same as pass_at_k, in MTRL's other spelling.", "ratio"),
        MetricFamily(
            f"{prefix}/pass_power_{{k}}",
            f"Chance that all of k tries succeed by their {value}, unbiased; mean over rows with k tries.",
            "ratio",
        ),
    )


def by_task(prefix: str, when: str) -> tuple[MetricFamily, ...]:
    """Metrics of each task, if a column of the dataset names tasks."""
    return (
        MetricFamily(f"{prefix}/task_reward/{{name}}", f"Mean reward of a task's episodes {when}."),
        MetricFamily(
            f"{prefix}/task_external_score/{{name}}", f"Mean external score of a task's episodes {when}."
        ),
        MetricFamily(
            f"{prefix}/task_success/{{name}}", f"Share of a task's episodes {when} that succeed.", "ratio"
        ),
        MetricFamily(f"{prefix}/task_rows/{{name}}", f"Rows of a task {when}."),
    )


def measured(prefix: str, when: str) -> tuple[MetricFamily, ...]:
    """Metrics that validation and evaluation jobs share."""
    return (
        *spread(f"{prefix}/reward/", f"reward {when}"),
        MetricFamily(f"{prefix}/reward/zero_frac", f"Share of episodes with reward 0 {when}.", "ratio"),
        *(
            MetricFamily(
                f"{prefix}/reward/{key}_within_groups", f"{text} reward of a row's tries, mean over rows."
            )
            for key, text in STATISTICS.items()
        ),
        MetricFamily(f"{prefix}/reward/rollouts_per_prompt", f"Mean scored tries on a row {when}."),
        MetricFamily(f"{prefix}/reward/num_prompts", f"Rows measured {when}."),
        *judged(f"{prefix}/reward", "reward"),
        MetricFamily(f"{prefix}/reward/pass_prompts_{{k}}", f"Rows {when} with k scored tries or more."),
        MetricFamily(
            f"{prefix}/reward/pass_tries_{{k}}", f"Scored tries {when} on rows with k scored tries or more."
        ),
        *spread(f"{prefix}/external_score/", f"external score {when}; it is never trained on"),
        *judged(f"{prefix}/external_score", "external score"),
        *behaviour(prefix, f"{prefix}/episodes", when),
        *lengths(prefix, when),
        MetricFamily(
            f"{prefix}/episodes/completion_rate",
            f"Share of scored episodes {when} in which an answer was emitted, right or wrong.",
            "ratio",
        ),
    )


ROLLOUT: Final = (
    *spread("rollout/reward/", "reward of the batch's episodes"),
    MetricFamily("rollout/reward/valid_mean", "Mean reward of groups whose advantages are not all zero."),
    MetricFamily("rollout/reward/zero_frac", "Share of episodes with reward 0.", "ratio"),
    *spread("rollout/external_score/", "external score of the batch's episodes; it is never trained on"),
    MetricFamily(
        "rollout/reward_explained/{name}",
        "Share of the reward's variance within groups that a number of the environment explains alone.",
        "ratio",
    ),
    MetricFamily("rollout/task_reward/{name}", "Mean reward of a task's episodes in the batch."),
    MetricFamily("rollout/task_groups/{name}", "Groups of a task in the batch."),
    *behaviour("rollout", "episodes", "of the batch"),
    *lengths("rollout", "of the batch"),
    *spread("rollout/advantage/", "advantage of the batch's episodes"),
    MetricFamily("rollout/advantage/n_positive", "Episodes with an advantage above 0."),
    MetricFamily("rollout/advantage/n_negative", "Episodes with an advantage below 0."),
)
GIVEN_UP: Final = (
    MetricFamily("rollout/abandoned_groups", "Abandoned groups.", kind="counter", labels=("reason",)),
    MetricFamily(
        "rollout/discarded_tokens",
        "Tokens computed or sampled for nothing, by reason.",
        "tokens",
        "counter",
        ("reason",),
    ),
)
ANALYSIS: Final = (
    MetricFamily(
        "analysis/batch_completion_ratio",
        "Share of the batch's scored episodes in which an answer was emitted, right or wrong.",
        "ratio",
    ),
    MetricFamily("analysis/batch_valid_ratio", "Share of groups whose advantages are not all zero.", "ratio"),
    MetricFamily("analysis/zero_adv_groups", "Groups whose advantages are all zero."),
    MetricFamily(
        "analysis/zero_adv_nonzero_reward",
        "Groups whose advantages are all zero, with a reward other than 0: too easy.",
    ),
    MetricFamily(
        "analysis/zero_adv_zero_reward",
        "Groups whose advantages are all zero, with reward 0 throughout: too hard.",
    ),
    MetricFamily("analysis/reward_variance_across_groups", "Variance of the groups' mean rewards."),
    MetricFamily(
        "analysis/mean_group_reward_spread", "Mean distance between a group's best and worst reward."
    ),
)
EPISODES: Final = (
    MetricFamily("episodes/finished", "Episodes that ended.", kind="counter", labels=("outcome", "purpose")),
    MetricFamily(
        "episodes/retried", "Episodes started again after an InfraError.", kind="counter", labels=("purpose",)
    ),
    MetricFamily("episodes/in_flight", "Episodes running now.", labels=("purpose",)),
    MetricFamily("episodes/seconds", "How long episodes took.", "seconds", "histogram", ("outcome",)),
)
TEST: Final = (
    MetricFamily("test/base/{name}", "Mean in the final test, of the weights that training started from."),
    MetricFamily(
        "test/difference/{name}",
        "How far the tuned weights are ahead of those that training started from, row by row.",
    ),
    MetricFamily(
        "test/difference_low/{name}", "Lower bound of the difference's 95 % interval, if it has one."
    ),
    MetricFamily("test/difference_high/{name}", "Upper bound of the difference's 95 % interval."),
)
_MEASURED_BY: Final = ("candidate", "task", "measure")
EVALUATION: Final = (
    MetricFamily("eval/measure", "A measure of docs/evaluation.md, so far.", labels=_MEASURED_BY),
    MetricFamily(
        "eval/measure_low", "Lower bound of a measure's 95 % interval, if any.", labels=_MEASURED_BY
    ),
    MetricFamily("eval/measure_high", "Upper bound of a measure's 95 % interval.", labels=_MEASURED_BY),
    MetricFamily(
        "eval/difference", "A candidate's paired difference from the baseline.", labels=_MEASURED_BY
    ),
    MetricFamily("eval/difference_low", "Lower bound of its 95 % interval, if any.", labels=_MEASURED_BY),
    MetricFamily("eval/difference_high", "Upper bound of its 95 % interval.", labels=_MEASURED_BY),
    MetricFamily("eval/rows", "Rows that a candidate was measured on.", labels=("candidate",)),
    MetricFamily("eval/in_flight", "Episodes of a candidate that run now.", labels=("candidate",)),
)
