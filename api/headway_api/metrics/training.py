"""Metrics of the learner's steps, and of what is judged from them: signals, remedies, the preflight."""

from typing import Final

from headway_api.metrics.definition import MetricFamily

TRAINING: Final = (
    MetricFamily("training/epoch", "Completed epochs of the training rows."),
    MetricFamily("training/global_step", "Training steps completed.", "steps"),
    MetricFamily("training/num_groups", "Groups in the step's batch."),
    MetricFamily("training/num_trajectories", "Episodes in the step's batch."),
    MetricFamily(
        "training/total_tokens", "Tokens in the step's training rows, context and action.", "tokens"
    ),
    MetricFamily("training/num_datums", "Training rows that the step's episodes became."),
    MetricFamily(
        "training/datums_per_trajectory",
        "Training rows that an episode became; 1 where no history was rewritten.",
    ),
    MetricFamily("training/action_tokens_mean", "Mean sampled tokens of an episode.", "tokens"),
    MetricFamily("training/obs_tokens_mean", "Mean prompt and tool-result tokens of an episode.", "tokens"),
    MetricFamily("training/trainable_token_positions", "Positions with a gradient in the step.", "tokens"),
    MetricFamily(
        "training/nontrainable_token_positions", "Positions without a gradient in the step.", "tokens"
    ),
    MetricFamily("training/trainable_token_ratio", "Share of positions with a gradient.", "ratio"),
)
TIMING: Final = (
    MetricFamily("timing_s/step", "From one batch taken to the next.", "seconds"),
    MetricFamily(
        "timing_s/training", "All that the learner does in a step once it has the batch.", "seconds"
    ),
    MetricFamily("timing_s/policy_update", "Forward, backward and optimizer of a step.", "seconds"),
    MetricFamily("timing_s/save_checkpoint", "Writing a checkpoint.", "seconds"),
    MetricFamily(
        "timing_s/report",
        "From a step's weights to the coordinator's answer to the report.",
        "seconds",
    ),
    MetricFamily("timing_s/prune", "Deleting checkpoints and weights that are no longer kept.", "seconds"),
    MetricFamily("timing_s/publish_weights", "Writing the weights that the servers fetch.", "seconds"),
    MetricFamily(
        "timing_s/eval", "A validation, from its first episode's start to its last one's end.", "seconds"
    ),
    MetricFamily(
        "timing_s/weight_sync",
        "From the learner's report of a step to the first rollout server in rotation with its weights.",
        "seconds",
    ),
    MetricFamily("timing_s/wait_for_batch", "The learner's wait for episodes.", "seconds"),
    MetricFamily(
        "timing_s/start",
        "From a learner's start to its first request. No part of timing_s/step.",
        "seconds",
    ),
    MetricFamily(
        "timing_s/other", "Time of a step that none of the learner's timed parts covers.", "seconds"
    ),
)
OBJECTIVE: Final = (
    MetricFamily(
        "training/loss", "Loss of the step as it is minimized; of several updates, weighed by tokens."
    ),
    MetricFamily("training/grad_norm", "Largest norm of a gradient of the step, before clipping."),
    MetricFamily("training/learning_rate", "Step size of the optimizer."),
    MetricFamily("training/ratio_mean", "Mean ratio of trained to old probability, by the correction."),
    MetricFamily("training/ratio_min", "Smallest ratio of trained to old probability."),
    MetricFamily("training/ratio_max", "Largest ratio of trained to old probability."),
    MetricFamily("training/clip_fraction", "Share of action tokens whose ratio was clipped.", "ratio"),
    MetricFamily("training/entropy", "Mean entropy of the policy at action tokens.", "nats"),
    MetricFamily("training/correction_weight_mean", "Mean weight that the correction gave an action token."),
    MetricFamily("training/masked_fraction", "Share of action tokens the correction left out.", "ratio"),
    MetricFamily(
        "training/reference_kl", "KL from the trained to the base model, if it is penalized.", "nats"
    ),
    MetricFamily(
        "training/mismatch_kl", "KL from the sampling to the trained policy, estimated by k3.", "nats"
    ),
    MetricFamily(
        "training/mismatch_far_share",
        "Share of action tokens whose sampling and trained probability differ by a factor above 2.",
        "ratio",
    ),
    MetricFamily(
        "training/effective_sample_share",
        "Share of action tokens that count after weighting by trained over sampling probability (Kish).",
        "ratio",
    ),
    MetricFamily(
        "training/logprob_gap_mean", "Mean sampling less trained log-probability of a token.", "nats"
    ),
    MetricFamily(
        "training/logprob_gap_max",
        "Largest distance between the sampling and the trained log-probability of a token.",
        "nats",
    ),
    MetricFamily("training/num_trained_groups", "Groups of the batch that had a gradient."),
    MetricFamily("training/updates", "Optimizer steps of the training step."),
    MetricFamily("training/micro_batches", "Forward and backward passes of the training step."),
    MetricFamily("training/lag_mean", "Mean staleness of trained tokens, measured by the learner.", "steps"),
    MetricFamily(
        "training/lag_max", "Largest staleness of a trained token, measured by the learner.", "steps"
    ),
)
STALENESS: Final = (
    MetricFamily("staleness/lag_mean", "Mean staleness of the batch's tokens when it was formed.", "steps"),
    MetricFamily("staleness/lag_max", "Largest staleness of a batch's token when it was formed.", "steps"),
)
SIGNALS: Final = (
    MetricFamily("signal/state", "0 clear, 1 suspect, 2 raised; absent while unknown.", labels=("signal",)),
    MetricFamily("signal/value", "The number that a signal is judged by.", labels=("signal",)),
    MetricFamily("signal/threshold", "The threshold of a signal.", labels=("signal",)),
)
REMEDIES: Final = (
    MetricFamily("remedy/changes", "Changes made to the running job, by result.", labels=("state",)),
)
PREFLIGHT: Final = (
    MetricFamily("preflight/episodes", "Baseline episodes that the preflight has sampled or read back."),
    MetricFamily("preflight/wanted_episodes", "Baseline episodes that the job asks for, in whole groups."),
    MetricFamily(
        "preflight/verdict",
        "1 for the verdict of a check of baseline episodes, 0 for the others it might have had.",
        labels=("check", "verdict"),
    ),
    MetricFamily(
        "preflight/value", "The number that a check of baseline episodes judges.", labels=("check",)
    ),
)
