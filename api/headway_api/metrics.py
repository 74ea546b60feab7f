"""Every metric, once: its name, kind, unit and meaning.

Names under `training/`, `timing_s/`, `rollout/`, `analysis/`, `val/` and `eval/` are those of SageMaker MTRL,
so that a dashboard made for it keeps working; the others are Headway's own. MLflow gets each name unchanged,
and Prometheus gets `prometheus_name`. This module does not say how a number is computed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]
Unit = Literal["", "tokens", "seconds", "steps", "ratio", "nats", "usd"]


@dataclass(frozen=True)
class Family:
    """One metric, or several that differ in a number or name written in braces."""

    name: str
    """As MLflow shows it; `{k}` or `{name}` is the part that varies."""
    help: str
    """What the number says, in one sentence."""
    unit: Unit = ""
    kind: Kind = "gauge"
    labels: tuple[str, ...] = ()
    """Prometheus labels, besides `JOB_LABELS`. For metrics of the operator, all labels."""

    def matches(self, name: str) -> bool:
        """Whether `name` belongs to this family."""
        return re.fullmatch(_PLACEHOLDER.sub("[A-Za-z0-9_]+", re.escape(self.name)), name) is not None


_PLACEHOLDER = re.compile(r"\\\{[a-z]+\\\}")
JOB_LABELS: Final = ("namespace", "job_name")
"""Labels of every metric, except those of the operator, which list all their labels below."""
OF_JOB: Final = ("kind", *JOB_LABELS)
"""Labels of the operator's metrics of one job. Jobs of both kinds may share a name."""
OF_SERVER: Final = ("server", "purpose")
"""Labels of a rollout server. Its purpose is train, or validation for the one of spec.evaluation.servers:
Dedicated."""

STATISTICS: Final = {"mean": "Mean", "std": "Standard deviation", "min": "Smallest", "max": "Largest"}


def spread(prefix: str, what: str, *, only: str = "mean std min max", unit: Unit = "") -> Iterator[Family]:
    """The statistics `only` of one quantity."""
    for key in only.split():
        yield Family(f"{prefix}{key}", f"{STATISTICS[key]} {what}.", unit)


TRAINING: Final = (
    Family("training/epoch", "Passes over the training rows completed."),
    Family("training/global_step", "Training steps completed.", "steps"),
    Family("training/num_groups", "Groups in the step's batch."),
    Family("training/num_trajectories", "Episodes in the step's batch."),
    Family("training/total_tokens", "Tokens in the step's rows, context and action.", "tokens"),
    Family("training/num_datums", "Rows the step's episodes became."),
    Family("training/datums_per_trajectory", "Rows an episode became; 1 where no history was rewritten."),
    Family("training/action_tokens_mean", "Mean sampled tokens of an episode.", "tokens"),
    Family("training/obs_tokens_mean", "Mean prompt and tool-result tokens of an episode.", "tokens"),
    Family("training/trainable_token_positions", "Positions with a gradient in the step.", "tokens"),
    Family("training/nontrainable_token_positions", "Positions without a gradient in the step.", "tokens"),
    Family("training/trainable_token_ratio", "Share of positions with a gradient.", "ratio"),
)
TIMING: Final = (
    Family("timing_s/step", "From one batch taken to the next.", "seconds"),
    Family("timing_s/training", "All the learner does of a step once it has the batch.", "seconds"),
    Family("timing_s/policy_update", "Forward, backward and optimizer of a step.", "seconds"),
    Family("timing_s/save_checkpoint", "Writing a checkpoint.", "seconds"),
    Family(
        "timing_s/report",
        "From a step's weights to the coordinator's word that it has the report.",
        "seconds",
    ),
    Family("timing_s/prune", "Deleting checkpoints and weights that are no longer kept.", "seconds"),
    Family("timing_s/publish_weights", "Writing the weights that the servers fetch.", "seconds"),
    Family("timing_s/eval", "A validation, from its first episode's start to its last one's end.", "seconds"),
    Family(
        "timing_s/weight_sync",
        "From the learner's report of a step to the first rollout server in rotation with its weights.",
        "seconds",
    ),
    Family("timing_s/wait_for_batch", "The learner's wait for episodes.", "seconds"),
)


def conduct(prefix: str, rates: str, when: str) -> tuple[Family, ...]:
    """Metrics of the agent's behaviour. `when` names the episodes in each description. Shares of
    episodes are under `rates`. Only the outcome rates count episodes that stayed InfraError."""
    return (
        *spread(f"{prefix}/turns/", f"turns of an episode {when}", only="mean min max"),
        Family(
            f"{prefix}/turns/malformed_tool_call_rate",
            f"Share of turns {when} with a tool call that could not be read.",
            "ratio",
        ),
        Family(f"{prefix}/turns/token_limit_rate", f"Share of turns {when} cut at maxTokens.", "ratio"),
        Family(
            f"{prefix}/turns/fork_rate",
            f"Share of turns {when} whose history drifted from what was sampled.",
            "ratio",
        ),
        Family(
            f"{prefix}/turns/guided_share",
            f"Share of the tokens sampled {when} that a JSON schema held: they are not trained.",
            "ratio",
        ),
        Family(
            f"{prefix}/forks_of/{{name}}",
            f"Share of turns {when} whose history drifted for one of the reasons of docs/operations.md.",
            "ratio",
        ),
        *spread(f"{prefix}/rows/", f"rows of an episode {when}", only="mean max"),
        Family(
            f"{prefix}/rows/branch_share", f"Share of rows {when} without an episode's first turn.", "ratio"
        ),
        Family(f"{prefix}/rows/branch_token_share", f"Share of trained tokens {when} in such rows.", "ratio"),
        Family(
            f"{prefix}/rows/repeated_share",
            f"Share of the rows' tokens {when} that such rows repeat as context.",
            "ratio",
        ),
        Family(f"{prefix}/tool_calls/mean", f"Mean tool calls of an episode {when} that could be read."),
        Family(f"{prefix}/tool_calls/max", f"Most tool calls of an episode {when} that could be read."),
        Family(
            f"{prefix}/tool_calls/failed_share",
            f"Share of those calls {when} whose answer begins with `error:`.",
            "ratio",
        ),
        Family(
            f"{prefix}/tool_calls/malformed_share",
            f"Share of all tool calls {when} that could not be read.",
            "ratio",
        ),
        Family(
            f"{prefix}/tool_calls/malformed_share_of/{{name}}",
            f"Share of all tool calls {when} with one kind of fault: unclosed, no_name, not_json, arguments, "
            "structure or other.",
            "ratio",
        ),
        Family(
            f"{prefix}/tool_calls_of/{{name}}",
            f"Mean calls of one tool in an episode {when}; of the 32 tools called most, and of all `other`.",
        ),
        Family(
            f"{prefix}/repetition/mean",
            f"Mean share of a turn's sampled 8-grams {when} that had come in the turn before.",
            "ratio",
        ),
        Family(f"{prefix}/repetition/max", f"Largest such share of a turn {when}.", "ratio"),
        Family(f"{prefix}/reward_metrics/{{name}}", f"Mean of a number the environment reported {when}."),
        Family(
            f"{rates}/malformed_tool_call_rate",
            f"Share of episodes {when} with a tool call that could not be read.",
            "ratio",
        ),
        Family(
            f"{rates}/fork_rate",
            f"Share of episodes {when} with a turn whose history drifted from what was sampled.",
            "ratio",
        ),
        Family(
            f"{rates}/turn_limit_rate",
            f"Share of episodes {when} cut at maxTurns; none for an agent with a loop of its own.",
            "ratio",
        ),
        Family(
            f"{rates}/max_tokens_rate",
            f"Share of episodes {when} with a turn cut at maxTokens, or that reached episodeTokenLimit.",
            "ratio",
        ),
        Family(
            f"{rates}/episode_token_limit_rate",
            f"Share of episodes {when} that reached rollout.episodeTokenLimit.",
            "ratio",
        ),
        Family(
            f"{rates}/context_limit_rate",
            f"Share of episodes {when} that ended since the context had no room for another turn.",
            "ratio",
        ),
        Family(
            f"{rates}/time_limit_rate",
            f"Share of all episodes {when} that had not ended at rollout.timeoutSeconds.",
            "ratio",
        ),
        Family(
            f"{rates}/token_limit_rate",
            f"Share of episodes {when} with a turn cut at maxTokens, or with no room for another turn.",
            "ratio",
        ),
        Family(f"{rates}/outcome_{{name}}_rate", f"Share of all episodes {when} with an outcome.", "ratio"),
    )


def lengths(prefix: str, when: str) -> tuple[Family, ...]:
    """Metrics of tokens and their log-probabilities."""
    return (
        Family(f"{prefix}/tokens/prompt_mean", f"Mean prompt tokens of an episode {when}.", "tokens"),
        *spread(f"{prefix}/tokens/response_", f"sampled tokens of a turn {when}", unit="tokens"),
        *spread(f"{prefix}/tokens/episode_", f"sampled tokens of an episode {when}", unit="tokens"),
        Family(f"{prefix}/logprob/zero_count", f"Sampled tokens with log-probability 0 {when}."),
        Family(f"{prefix}/logprob/zero_frac", f"Their share of the sampled tokens {when}.", "ratio"),
        Family(f"{prefix}/logprob/zero_per_group", f"Their number for each group {when}."),
        *spread(f"{prefix}/logprob/nz_", f"log-probability of the others {when}", unit="nats"),
    )


def judged(prefix: str, value: str) -> tuple[Family, ...]:
    """Successes as one judgment counts them: `value` at the success threshold or above."""
    return (
        Family(f"{prefix}/succeeded_rollouts", f"Tries whose {value} reached the success threshold."),
        Family(f"{prefix}/failed_rollouts", f"Scored tries whose {value} did not."),
        Family(f"{prefix}/success_threshold", f"The {value} from which a try succeeds."),
        Family(
            f"{prefix}/pass_at_{{k}}",
            f"Chance that one of k tries succeeds by its {value}, unbiased; mean over rows with k tries.",
            "ratio",
        ),
        Family(f"{prefix}/pass_k_{{k}}", "The same as pass_at_k, in MTRL's other spelling.", "ratio"),
        Family(
            f"{prefix}/pass_power_{{k}}",
            f"Chance that all of k tries succeed by their {value}, unbiased; mean over rows with k tries.",
            "ratio",
        ),
    )


ROLLOUT: Final = (
    *spread("rollout/reward/", "reward of the batch's episodes"),
    Family("rollout/reward/valid_mean", "Mean reward of groups whose advantages are not all zero."),
    Family("rollout/reward/zero_frac", "Share of episodes with reward 0.", "ratio"),
    *spread("rollout/external_score/", "external score of the batch's episodes; it is never trained on"),
    Family(
        "rollout/reward_explained/{name}",
        "Share of the reward's variance within groups that a number of the environment explains alone.",
        "ratio",
    ),
    Family("rollout/task_reward/{name}", "Mean reward of a task's episodes in the batch."),
    Family("rollout/task_groups/{name}", "Groups of a task in the batch."),
    *conduct("rollout", "episodes", "of the batch"),
    *lengths("rollout", "of the batch"),
    *spread("rollout/advantage/", "advantage of the batch's episodes"),
    Family("rollout/advantage/n_positive", "Episodes with an advantage above 0."),
    Family("rollout/advantage/n_negative", "Episodes with an advantage below 0."),
)
GIVEN_UP: Final = (
    Family("rollout/abandoned_groups", "Groups given up.", kind="counter", labels=("reason",)),
    Family(
        "rollout/discarded_tokens",
        "Tokens computed or sampled for nothing, by why.",
        "tokens",
        "counter",
        ("reason",),
    ),
)
CONCURRENCY: Final = (
    Family("rollout/turns_in_flight", "Turns that http and sandboxed agents wait for now."),
    Family(
        "rollout/refused_turns",
        "Turns whose agent was told to come back: the servers are full.",
        kind="counter",
    ),
    Family("rollout/concurrency_limit", "Episodes that may run at once now; at most maxConcurrency."),
    Family("rollout/kv_cache_use", "Share of its KV cache that a server uses.", "ratio", labels=OF_SERVER),
    Family(
        "rollout/preemptions",
        "Requests that servers took out of a full KV cache and computed again; not those for new weights.",
        kind="counter",
    ),
    Family(
        "rollout/rerouted_requests",
        "Requests lost with their server and asked again, of another one where there is one.",
        kind="counter",
    ),
)
ANALYSIS: Final = (
    Family(
        "analysis/batch_completion_ratio",
        "Share of the batch's scored episodes in which an answer was emitted, right or wrong.",
        "ratio",
    ),
    Family("analysis/batch_valid_ratio", "Share of groups whose advantages are not all zero.", "ratio"),
    Family("analysis/zero_adv_groups", "Groups whose advantages are all zero."),
    Family("analysis/zero_adv_nonzero_reward", "Those of them with a reward other than 0: too easy."),
    Family("analysis/zero_adv_zero_reward", "Those of them with reward 0 throughout: too hard."),
    Family("analysis/reward_variance_across_groups", "Variance of the groups' mean rewards."),
    Family("analysis/mean_group_reward_spread", "Mean distance between a group's best and worst reward."),
)


def by_task(prefix: str, when: str) -> tuple[Family, ...]:
    """Metrics of each task, if a column of the dataset names tasks."""
    return (
        Family(f"{prefix}/task_reward/{{name}}", f"Mean reward of a task's episodes {when}."),
        Family(f"{prefix}/task_external_score/{{name}}", f"Mean external score of a task's episodes {when}."),
        Family(
            f"{prefix}/task_success/{{name}}", f"Share of a task's episodes {when} that succeed.", "ratio"
        ),
        Family(f"{prefix}/task_rows/{{name}}", f"Rows of a task {when}."),
    )


def measured(prefix: str, when: str) -> tuple[Family, ...]:
    """Metrics that validation and evaluation jobs share."""
    return (
        *spread(f"{prefix}/reward/", f"reward {when}"),
        Family(f"{prefix}/reward/zero_frac", f"Share of episodes with reward 0 {when}.", "ratio"),
        *(
            Family(f"{prefix}/reward/{key}_within_groups", f"{text} reward of a row's tries, mean over rows.")
            for key, text in STATISTICS.items()
        ),
        Family(f"{prefix}/reward/rollouts_per_prompt", f"Mean scored tries on a row {when}."),
        Family(f"{prefix}/reward/num_prompts", f"Rows measured {when}."),
        *judged(f"{prefix}/reward", "reward"),
        Family(f"{prefix}/reward/pass_prompts_{{k}}", f"Rows {when} with k scored tries or more."),
        Family(f"{prefix}/reward/pass_tries_{{k}}", f"Scored tries on those rows {when}."),
        *spread(f"{prefix}/external_score/", f"external score {when}; it is never trained on"),
        *judged(f"{prefix}/external_score", "external score"),
        *conduct(prefix, f"{prefix}/episodes", when),
        *lengths(prefix, when),
        Family(
            f"{prefix}/episodes/completion_rate",
            f"Share of scored episodes {when} in which an answer was emitted, right or wrong.",
            "ratio",
        ),
    )


OBJECTIVE: Final = (
    Family("training/loss", "Loss of the step as it is minimized; of several updates, weighed by tokens."),
    Family("training/grad_norm", "Largest norm of a gradient of the step, before clipping."),
    Family("training/learning_rate", "Step size of the optimizer."),
    Family("training/ratio_mean", "Mean ratio of trained to old probability, by the correction."),
    Family("training/ratio_min", "Smallest such ratio."),
    Family("training/ratio_max", "Largest such ratio."),
    Family("training/clip_fraction", "Share of action tokens whose ratio was clipped.", "ratio"),
    Family("training/entropy", "Mean entropy of the policy at action tokens.", "nats"),
    Family("training/correction_weight_mean", "Mean weight that the correction gave an action token."),
    Family("training/masked_fraction", "Share of action tokens the correction left out.", "ratio"),
    Family("training/reference_kl", "KL from the trained to the base model, where it is penalized.", "nats"),
    Family("training/mismatch_kl", "KL from the sampling to the trained policy, estimated by k3.", "nats"),
    Family(
        "training/mismatch_far_share",
        "Share of action tokens whose sampling and trained probability differ by a factor above 2.",
        "ratio",
    ),
    Family(
        "training/effective_sample_share",
        "Share of action tokens that count after weighting by trained over sampling probability (Kish).",
        "ratio",
    ),
    Family("training/logprob_gap_mean", "Mean sampling less trained log-probability of a token.", "nats"),
    Family("training/logprob_gap_max", "Largest distance between the two.", "nats"),
    Family("training/num_trained_groups", "Groups of the batch that had a gradient."),
    Family("training/updates", "Optimizer steps of the training step."),
    Family("training/micro_batches", "Passes forward and backward they were made of."),
    Family("training/lag_mean", "Mean age of trained tokens, as the learner saw it.", "steps"),
    Family("training/lag_max", "Age of the oldest trained token, as the learner saw it.", "steps"),
)
SIGNALS: Final = (
    Family("signal/state", "0 clear, 1 suspect, 2 raised; absent while unknown.", labels=("signal",)),
    Family("signal/value", "The number that a signal of collapse is judged by.", labels=("signal",)),
    Family("signal/threshold", "What that number is held against.", labels=("signal",)),
)
REMEDIES: Final = (
    Family("remedy/changes", "Changes made to the running job, by what became of them.", labels=("state",)),
)
PREFLIGHT: Final = (
    Family("preflight/episodes", "Baseline episodes that the preflight has sampled or read back."),
    Family("preflight/wanted_episodes", "Baseline episodes that the job asks for, in whole groups."),
    Family(
        "preflight/verdict",
        "1 for the verdict of a check of baseline episodes, 0 for the others it might have had.",
        labels=("check", "verdict"),
    ),
    Family("preflight/value", "The number that such a check judges.", labels=("check",)),
)
STALENESS: Final = (
    Family("staleness/lag_mean", "Mean age of the batch's tokens when it was cut.", "steps"),
    Family("staleness/lag_max", "Age of its oldest token.", "steps"),
)
EPISODES: Final = (
    Family("episodes/finished", "Episodes that ended.", kind="counter", labels=("outcome", "purpose")),
    Family(
        "episodes/retried", "Episodes started again after an InfraError.", kind="counter", labels=("purpose",)
    ),
    Family("episodes/in_flight", "Episodes running now.", labels=("purpose",)),
    Family("episodes/seconds", "How long episodes took.", "seconds", "histogram", ("outcome",)),
)
USAGE: Final = (
    Family("usage/tokens", "Tokens, by class of the bill.", "tokens", "counter", ("class",)),
    Family("usage/sandbox_seconds", "Seconds sandboxes were in use.", "seconds", "counter"),
    Family(
        "usage/accelerator_seconds",
        "Seconds accelerators were held, by the role whose pods held them and by product.",
        "seconds",
        "counter",
        ("role", "product"),
    ),
    Family("usage/cost_usd", "Cost so far by the price book.", "usd"),
    Family("usage/cost_at_step_usd", "Cost of the whole job when its newest step was taken.", "usd"),
    Family(
        "cost/usd",
        "The same in parts, by what was paid for, and by model where it is not the job's own.",
        "usd",
        labels=("class", "model"),
    ),
    Family(
        "estimate/cost_usd",
        "Cost of the whole job, as it is estimated now: low, likely and high.",
        "usd",
        labels=("bound",),
    ),
    Family("budget/limit_usd", "The most that spec.budget lets the job cost.", "usd"),
    Family("budget/spent_usd", "What of that is spent.", "usd"),
    Family("budget/reserved_usd", "What runs may cost beyond that, at worst.", "usd"),
    Family("budget/limit_tokens", "The most tokens of a class that spec.budget allows.", labels=("class",)),
    Family("budget/spent_tokens", "What of that is used.", labels=("class",)),
    Family("budget/reserved_tokens", "What runs may use beyond that, at worst.", labels=("class",)),
    Family("budget/exhausted", "1 where nothing runs and nothing more fits spec.budget."),
)
SANDBOX: Final = (
    Family("sandbox/pool_size", "Sandboxes, by state.", labels=("state",)),
    Family(
        "sandbox/lease_seconds",
        "From asking for a sandbox to having one.",
        "seconds",
        "histogram",
        ("start",),
    ),
    Family("sandbox/start_seconds", "From creating a sandbox to its first answer.", "seconds", "histogram"),
    Family("sandbox/created", "Sandboxes created.", kind="counter"),
    Family("sandbox/destroyed", "Sandboxes destroyed.", kind="counter", labels=("reason",)),
    Family(
        "sandbox/tool_call_seconds",
        "From sending a tool call to its answer, as the coordinator sees it.",
        "seconds",
        "histogram",
    ),
    Family("sandbox/failures", "Sandboxes lost.", kind="counter", labels=("reason",)),
    Family("sandbox/waiting", "Episodes waiting for a sandbox."),
)
WEIGHTS: Final = (
    Family("weights/version", "Training step of the weights a server holds.", "steps", labels=OF_SERVER),
    Family(
        "weights/sync_seconds",
        "From a server told of new weights to it holding them, verified.",
        "seconds",
        "histogram",
    ),
    Family(
        "weights/servers", "Rollout servers, by whether they are in rotation.", labels=("state", "purpose")
    ),
    Family(
        "weights/verification_failures",
        "Loads of weights that were not those described: a digest, a shape or the canary differed.",
        kind="counter",
    ),
    Family(
        "weights/canary_error",
        "Mean difference of a fixed sequence's log-probabilities, learner's to server's, at the last load.",
        "nats",
        labels=OF_SERVER,
    ),
)
SPOOL: Final = (
    Family("spool/groups", "Finished groups that no checkpoint has acknowledged."),
    Family(
        "store/busy_seconds",
        "How long the write to the artifact store that is under way has taken; 0 while there is none.",
        "seconds",
    ),
)
OPERATOR: Final = (
    Family("operator/reconcile_seconds", "Time of one reconcile of one job.", "seconds", "histogram"),
    Family("operator/reconcile_errors", "Reconciles tried again.", kind="counter", labels=("reason",)),
    Family("operator/applies", "Objects held against the plan.", kind="counter", labels=("kind", "result")),
    Family("operator/last_success_age_seconds", "Time since a reconcile last succeeded.", "seconds"),
    Family("operator/queue_depth", "Jobs that wait for a worker or have one."),
    Family("operator/leader", "1 while this replica holds the Lease."),
    Family("operator/jobs", "Jobs by kind, namespace and state.", labels=("kind", "namespace", "state")),
)


def of_job(name: str, text: str, unit: Unit = "", *labels: str, kind: Kind = "gauge") -> Family:
    """Metrics of each job that the operator takes from its status, while the custom resource exists."""
    return Family(f"job/{name}", text, unit, kind, (*OF_JOB, *labels))


OF_SHARED: Final = ("namespace", "limit")
SHARED_BUDGETS: Final = (
    Family(
        "namespace_budget/limit",
        "The most that the jobs of a namespace may use together: US dollars, or tokens of the limit's class.",
        labels=OF_SHARED,
    ),
    Family("namespace_budget/spent", "What of that its jobs have used.", labels=OF_SHARED),
    Family("namespace_budget/left", "What of it is neither used nor granted to a job.", labels=OF_SHARED),
    Family(
        "namespace_budget/exhausted", "1 where a job needs more than is left of it.", labels=("namespace",)
    ),
    Family(
        "namespace_budget/low",
        "1 where less than a fifth of a limit has not been used.",
        labels=("namespace",),
    ),
)
"""The operator's metrics of each RLBudget."""

JOBS: Final = (
    of_job(
        "info",
        "1 for each job: state, reason, loss, base model and manager as they are now, to join on.",
        "",
        *("state", "reason", "loss", "base_model", "manager"),
    ),
    of_job("active", "1 while the job is to work: neither suspended, paused or deleted, nor at its end."),
    of_job(
        "condition",
        "1 for each condition of a job, with the status (True, False or Unknown) and reason that it has.",
        "",
        *("type", "status", "reason"),
    ),
    of_job(
        "signal",
        "State of a sign of collapse, of a job's 16 worst: 0 clear, 1 suspect, 2 raised.",
        "",
        "signal",
    ),
    of_job("step", "Training steps completed and checkpointed.", "steps"),
    of_job("max_steps", "Training steps after which the job is done.", "steps"),
    of_job("groups", "Rows that an evaluation has done, over all candidates."),
    of_job("max_groups", "Rows that an evaluation has to do, over all candidates."),
    of_job("episodes", "Training episodes that were scored."),
    of_job("reward", "Mean reward of the last trained batch."),
    of_job("external_score", "Mean external score of the last validation; it is never trained on."),
    of_job("best_external_score", "Mean external score of the best validation so far."),
    of_job("baseline_external_score", "Mean external score of the validation before training."),
    of_job(
        "candidate_external_score",
        "Mean external score of a candidate of an evaluation, so far.",
        "",
        "candidate",
    ),
    of_job("cost", "Cost so far in US dollars by the price book, without what has no price.", "usd"),
    of_job("restarts", "Restarts of a role after failures.", "", "role", kind="counter"),
    of_job("pods_desired", "Pods that a role is to have.", "", "role"),
    of_job("pods_ready", "Pods of a role that are ready.", "", "role"),
    of_job("created_timestamp_seconds", "When the job was created, in Unix time.", "seconds"),
    of_job("started_timestamp_seconds", "When the operator first took the job up.", "seconds"),
    of_job("updated_timestamp_seconds", "When anything of the job last went forward.", "seconds"),
    of_job("completed_timestamp_seconds", "When the job ended, well or badly.", "seconds"),
)

TEST: Final = (
    Family("test/base/{name}", "Mean of the weights from before training in the final test."),
    Family("test/difference/{name}", "How far the tuned weights are ahead of these, row by row."),
    Family("test/difference_low/{name}", "Lower end of its 95 % interval, where it has one."),
    Family("test/difference_high/{name}", "Upper end of its 95 % interval."),
)
_MEASURED_BY: Final = ("candidate", "task", "measure")
EVALUATION: Final = (
    Family("eval/measure", "A measure of docs/evaluation.md, so far.", labels=_MEASURED_BY),
    Family("eval/measure_low", "Lower end of its 95 % interval, where it has one.", labels=_MEASURED_BY),
    Family("eval/measure_high", "Upper end of its 95 % interval.", labels=_MEASURED_BY),
    Family("eval/rows", "Rows that a candidate was measured on.", labels=("candidate",)),
    Family("eval/in_flight", "Episodes of a candidate that run now.", labels=("candidate",)),
)

FAMILIES: Final = (
    *TRAINING,
    *TIMING,
    *ROLLOUT,
    *GIVEN_UP,
    *CONCURRENCY,
    *ANALYSIS,
    *measured("val", "in validation"),
    *by_task("val", "in validation"),
    *measured("test", "in the final test"),
    *by_task("test", "in the final test"),
    *TEST,
    *measured("eval", "in evaluation"),
    *EVALUATION,
    *OBJECTIVE,
    *STALENESS,
    *SIGNALS,
    *REMEDIES,
    *PREFLIGHT,
    *EPISODES,
    *USAGE,
    *SANDBOX,
    *WEIGHTS,
    *SPOOL,
    *OPERATOR,
    *SHARED_BUDGETS,
    *JOBS,
)


class UnknownMetricError(KeyError):
    """A name that belongs to no family: add the family before the number."""


def family(name: str) -> Family:
    """The family of a metric's name, such as `val/reward/pass_at_4`."""
    exact = _BY_NAME.get(name) or next((known for known in _PATTERNS if known.matches(name)), None)
    if exact is None:
        raise UnknownMetricError(f"no metric family is called {name!r}; define it in headway_api.metrics")
    return exact


def prometheus_name(name: str) -> str:
    """The name in Prometheus: `/` becomes `_`, prefixed `headway_`; a counter ends in `_total`."""
    suffix = "_total" if family(name).kind == "counter" else ""
    return "headway_" + name.replace("/", "_") + suffix


_BY_NAME: Final = {known.name: known for known in FAMILIES}
_PATTERNS: Final = tuple(known for known in FAMILIES if "{" in known.name)
