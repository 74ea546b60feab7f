"""Signals about the policy's update, such as its entropy, its gradient and its off-policy mismatch."""

from __future__ import annotations

from typing import Final

from headway_analysis.signals.catalogue.sources import SERIES
from headway_analysis.signals.definition import Signal
from headway_analysis.signals.judges import learning, stability
from headway_api.signals import SignalName as Name

STABILITY: Final = (
    Signal(
        name=Name.ENTROPY_FALLING,
        judge=stability.entropy_falling,
        meaning="The policy stops exploring before the task is solved.",
        number=f"Ratio: the median of `{stability.ENTROPY}` in the last {learning.LAST} steps, divided by "
        f"the median of the first {learning.WINDOW} steps.",
        threshold=f"Bad below {stability.ENTROPY_LOW:g}. Clear from {stability.ENTROPY_LOW_AGAIN:g}, or if "
        "the reward is near its best.",
        reason="Without entropy, the episodes of a group are alike, and the model learns nothing more. "
        "In 99 % of their steps, recorded runs without a fault keep at least a fifth of the entropy of their "
        "first steps. A policy that has solved its task needs none.",
        source=f"Cui et al. 2025 (arXiv 2505.22617): a policy pays for reward with entropy. {SERIES}.",
        advice="Raise spec.algorithm.entropy.coefficient or spec.rollout.sampling.temperature, and lower "
        "spec.optimizer.learningRate.",
        look_at=(
            "`analysis/zero_adv_groups`: do groups score alike already?",
            "`rollout/logprob/zero_frac`: how many tokens are certain?",
        ),
        confirmed_by="entropy stops falling, and the episodes of a group differ again.",
    ),
    Signal(
        name=Name.ENTROPY_RISING,
        judge=stability.entropy_rising,
        meaning="The policy becomes noise.",
        number=f"Two ratios: the medians of `{stability.ENTROPY}` in the last {learning.LAST} and "
        f"{learning.BACK} steps, each divided by the median of the first {learning.WINDOW} steps. A "
        f"step that trains nothing has no entropy, so the first ratio takes the last {learning.LAST} "
        f"values within {learning.WINDOW} steps.",
        threshold=f"Bad if a ratio exceeds {stability.ENTROPY_HIGH:g} while the reward neither surely rises "
        f"nor is near its best. One of two things must also be true. The entropy of {learning.BACK} "
        f"steps is {stability.ENTROPY_LASTS:g} nats above that of the first steps. Or the entropy "
        f"of {learning.LAST} steps is {stability.ENTROPY_MORE:g} nats above it, and the reward "
        "has fallen: then one reading is enough. The reward has fallen if its mean of "
        f"{learning.LAST} steps is {learning.RISEN:.0%} of its range below that of the "
        f"{learning.WINDOW} steps before. Clear if neither entropy is so high, or if the reward "
        "surely rises or is near its best.",
        reason="Learning sharpens a policy. A policy whose entropy grows far beyond its beginning forgets. "
        "In a solved task few tokens are uncertain, so a ratio alone says nothing. Entropy is "
        "measured on trained groups. If these are few, it may be high for two or three steps, and "
        "then falls again. A policy that becomes noise also loses its reward, or stays noise.",
        source=f"{SERIES}. The labels of these runs ask for the same fall of the reward.",
        advice="Lower spec.optimizer.learningRate; remove spec.algorithm.entropy if it is set.",
        look_at=(
            "`training/grad_norm` and `training/mismatch_kl`: which moved first?",
            "`rollout/reward/mean`: has it fallen yet?",
        ),
        confirmed_by="entropy falls, and the reward rises again.",
        severity="critical",
        raise_after=2,
    ),
    Signal(
        name=Name.GRADIENT_SPIKING,
        judge=stability.gradient_spiking,
        meaning="The gradient's norm jumps far above its usual size.",
        number=f"Ratio: the median of `{stability.NORM}` in the last {learning.LAST} steps, divided by the "
        f"median of the {stability.NORM_BEFORE} steps before.",
        threshold=f"Bad above {stability.SPIKE:g} if the norm also exceeds spec.optimizer.gradientClip and "
        f"the second largest norm of these {stability.NORM_BEFORE} steps. Clear at "
        f"{stability.SPIKE_OVER:g} or less, or if the norm does not exceed "
        "spec.optimizer.gradientClip.",
        reason="A single spike is clipped, and does not move the median. Several spikes push the policy "
        "far from where it was. Below the clip, the norm also jumps this far in good runs, as in 8 of "
        "the first 52 clean runs. Such a jump also moves the weights further, because Adam divides by "
        "a running root mean square of the gradient. It did no harm in those runs. If the norm was as "
        "large twice in the 20 steps before, its distribution is heavy-tailed. That is normal for the "
        "job, and two such steps in a row are chance.",
        source="Takase et al. 2023 (arXiv 2312.16903) on loss spikes. Kingma and Ba 2015 (arXiv 1412.6980) "
        f"on Adam's step. {SERIES}.",
        advice="Lower spec.optimizer.learningRate, and look at the batch of the first spike.",
        look_at=(
            "`rollout/advantage/max` and `training/ratio_max` of those steps.",
            "`training/mismatch_kl`: are batches off-policy?",
        ),
        confirmed_by="the norm stays at its earlier median for 10 steps.",
        raise_after=2,
    ),
    Signal(
        name=Name.POLICY_MISMATCH,
        judge=stability.policy_mismatch,
        meaning="Rollout servers and learner give the same tokens different probabilities on average.",
        number=f"Median of `training/mismatch_kl` (k3) over {learning.LAST} steps, in nats a token. "
        f"{stability.LONGER}",
        threshold=f"Bad above {stability.MISMATCH:g} {stability.IF_FRESH}. Bad above "
        f"{stability.MISMATCH_DRIFTED:g} otherwise. Clear at half of the threshold or less.",
        reason="A batch that another policy sampled teaches what that policy should do. In clean runs, "
        "fresh batches stay below 0.001, and most older ones below 0.05. A single jump of the "
        "policy shows in every batch that was sampled before it. One jump does not move the longer "
        "median. A token that the new policy would no longer sample weighs much in the mean, but "
        "hardly anything in the update. If importance weights are uneven, the update itself is "
        "wrong, so the signal does not wait. It does not wait either if the two policies are far "
        "apart. With old batches, a collapse shows first in the mismatch, and steps later in the "
        "reward.",
        source="Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training. "
        f"{SERIES}.",
        advice="Set spec.algorithm.maxStepsOffPolicy to 0. If the mismatch stays, servers and learner "
        "compute differently: give both the same dtype, and set spec.algorithm.correction to tis.",
        look_at=(
            "`staleness/lag_mean`: are the batches old?",
            "`weights/canary_error`: do the servers compute what the learner does?",
        ),
        confirmed_by="the mismatch falls within a few steps.",
        severity="critical",
    ),
    Signal(
        name=Name.MISMATCH_TAIL,
        judge=stability.mismatch_tail,
        meaning="Rollout servers and learner give a few tokens very different probabilities.",
        number=f"Median of `training/mismatch_far_share` over {learning.LAST} steps. {stability.LONGER}",
        threshold=f"Bad above {stability.FAR:.1%} {stability.IF_FRESH}. Bad above "
        f"{stability.FAR_DRIFTED:.0%} otherwise. Clear at half of the threshold or less.",
        reason="If the loss does not bound ratios, a few such tokens dominate an update long before the "
        "mean shows them.",
        source=f"Liu et al. 2025, When Speed Kills Stability. {SERIES}.",
        advice="Set spec.algorithm.correction to tis or sequence_mask.",
        look_at=(
            "`training/ratio_max`: how far apart are the probabilities?",
            "`staleness/lag_max`: are some of the tokens old?",
        ),
        confirmed_by="`training/ratio_max` falls, and the gradient's norm with it.",
    ),
    Signal(
        name=Name.TOO_FEW_EFFECTIVE_SAMPLES,
        judge=stability.too_few_effective_samples,
        meaning="A few tokens carry most of the batch's importance weight.",
        number=f"Median of `{stability.EFFECTIVE}` over {learning.LAST} steps: Kish's effective sample "
        "size, divided by the number of tokens.",
        threshold=f"Bad below {stability.EFFECTIVE_LEAST:.0%}. Clear from {stability.EFFECTIVE_AGAIN:.0%}.",
        reason="Such a step is as noisy as a step on a batch of that smaller size.",
        source=f"Kish 1965, Survey Sampling. {SERIES}.",
        advice="Lower spec.algorithm.maxStepsOffPolicy or spec.algorithm.updatesPerBatch.",
        look_at=("`training/ratio_max`, `training/mismatch_far_share`: do a few tokens carry the weight?",),
        confirmed_by="the share rises within a few steps.",
    ),
    Signal(
        name=Name.RATIOS_CLIPPED,
        judge=stability.ratios_clipped,
        meaning="Clipping takes the gradient from many tokens.",
        number=f"Median of `training/clip_fraction` over {learning.LAST} steps.",
        threshold=f"Bad above {stability.CLIPPED:.0%}, or above {stability.CLIPPED_ROWS:.0%} if ratios are "
        "of whole training rows (gspo). Clear at half of the threshold or less.",
        reason="Clipping is meant for the few tokens whose probability moved too far. If it affects many, "
        "the step is too large or the batch too old.",
        source=f"Zheng et al. 2025 (arXiv 2507.18071): GRPO clips 0.13 % of tokens, GSPO 15 %. {SERIES}.",
        advice="Lower spec.optimizer.learningRate or spec.algorithm.updatesPerBatch; if batches are old, "
        "lower spec.algorithm.maxStepsOffPolicy.",
        look_at=("`staleness/lag_mean`", "`training/ratio_max` and `training/ratio_min`"),
        confirmed_by="the clip fraction falls within a few steps.",
    ),
    Signal(
        name=Name.TOKENS_MASKED,
        judge=stability.tokens(
            "training/masked_fraction",
            "are left out by the off-policy correction",
            stability.MASKED,
            stability.MASKED_AGAIN,
        ),
        meaning="The off-policy correction leaves many tokens out.",
        number=f"Median of `training/masked_fraction` over {learning.LAST} steps.",
        threshold=f"Bad above {stability.MASKED:.0%}. Clear at {stability.MASKED_AGAIN:.0%} or less.",
        reason="Tokens that are left out cost money and teach nothing.",
        source=f"{SERIES}.",
        advice="Lower spec.algorithm.maxStepsOffPolicy, or raise spec.algorithm.correctionCap.",
        look_at=("`training/mismatch_kl`", "`staleness/lag_mean`"),
        confirmed_by="the masked fraction falls within a few steps.",
    ),
    Signal(
        name=Name.STALENESS_AT_BOUND,
        judge=stability.staleness_at_bound,
        meaning="For several steps, batches have been about as old as maxStepsOffPolicy allows.",
        number=f"Median of `{stability.LAG}` over {stability.STALE_FOR} steps, divided by "
        "spec.algorithm.maxStepsOffPolicy.",
        threshold=f"Bad above {stability.STALE:.0%} of maxStepsOffPolicy. Clear at {stability.FRESH:.0%} or "
        "less. Always clear if maxStepsOffPolicy is 0.",
        reason="At the bound, rollout servers wait for the learner: they sample more than it can train on.",
        source=f"docs/staleness.md. {SERIES}.",
        advice="Give the learner more accelerators, or lower spec.rollout.replicas.",
        look_at=("`timing_s/wait_for_batch` and `timing_s/training`: which side waits for the other?",),
        confirmed_by="`staleness/lag_mean` falls, and a step (`timing_s/step`) takes no longer than before.",
        severity="info",
    ),
)
