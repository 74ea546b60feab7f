"""Metrics of the learner's steps, and of what is judged from them: signals, remedies, the preflight."""

from typing import Final

from headway_api.metrics.definition import Family

TRAINING: Final = (
    Family("training/epoch", "Completed epochs of the training rows."),
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
    Family("timing_s/training", "All that the learner does in a step once it has the batch.", "seconds"),
    Family("timing_s/policy_update", "Forward, backward and optimizer of a step.", "seconds"),
    Family("timing_s/save_checkpoint", "Writing a checkpoint.", "seconds"),
    Family(
        "timing_s/report",
        "From a step's weights to the coordinator's answer to the report.",
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
    Family(
        "timing_s/start",
        "From a learner's start to its first request. No part of timing_s/step.",
        "seconds",
    ),
    Family("timing_s/other", "Time of a step that none of the learner's timed parts covers.", "seconds"),
)
OBJECTIVE: Final = (
    Family("training/loss", "Loss of the step as it is minimized; of several updates, weighed by tokens."),
    Family("training/grad_norm", "Largest norm of a gradient of the step, before clipping."),
    Family("training/learning_rate", "Step size of the optimizer."),
    Family("training/ratio_mean", "Mean ratio of trained to old probability, by the correction."),
    Family("training/ratio_min", "Smallest ratio of trained to old probability."),
    Family("training/ratio_max", "Largest ratio of trained to old probability."),
    Family("training/clip_fraction", "Share of action tokens whose ratio was clipped.", "ratio"),
    Family("training/entropy", "Mean entropy of the policy at action tokens.", "nats"),
    Family("training/correction_weight_mean", "Mean weight that the correction gave an action token."),
    Family("training/masked_fraction", "Share of action tokens the correction left out.", "ratio"),
    Family("training/reference_kl", "KL from the trained to the base model, if it is penalized.", "nats"),
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
    Family(
        "training/logprob_gap_max",
        "Largest distance between the sampling and the trained log-probability of a token.",
        "nats",
    ),
    Family("training/num_trained_groups", "Groups of the batch that had a gradient."),
    Family("training/updates", "Optimizer steps of the training step."),
    Family("training/micro_batches", "Forward and backward passes of the training step."),
    Family("training/lag_mean", "Mean staleness of trained tokens, measured by the learner.", "steps"),
    Family("training/lag_max", "Largest staleness of a trained token, measured by the learner.", "steps"),
)
STALENESS: Final = (
    Family("staleness/lag_mean", "Mean staleness of the batch's tokens when it was formed.", "steps"),
    Family("staleness/lag_max", "Largest staleness of a batch's token when it was formed.", "steps"),
)
SIGNALS: Final = (
    Family("signal/state", "0 clear, 1 suspect, 2 raised; absent while unknown.", labels=("signal",)),
    Family("signal/value", "The number that a signal of collapse is judged by.", labels=("signal",)),
    Family("signal/threshold", "The threshold of a signal of collapse.", labels=("signal",)),
)
REMEDIES: Final = (
    Family("remedy/changes", "Changes made to the running job, by result.", labels=("state",)),
)
PREFLIGHT: Final = (
    Family("preflight/episodes", "Baseline episodes that the preflight has sampled or read back."),
    Family("preflight/wanted_episodes", "Baseline episodes that the job asks for, in whole groups."),
    Family(
        "preflight/verdict",
        "1 for the verdict of a check of baseline episodes, 0 for the others it might have had.",
        labels=("check", "verdict"),
    ),
    Family("preflight/value", "The number that a check of baseline episodes judges.", labels=("check",)),
)
