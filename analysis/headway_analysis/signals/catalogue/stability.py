"""Signals of the policy's update."""

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
        number=f"Ratio: the median of `{stability.ENTROPY}` in the last {learning.LAST} steps, divided "
        "by the "
        f"median of the first {learning.WINDOW} steps.",
        threshold=f"Bad below {stability.ENTROPY_LOW:g}, unless the reward is near its best; clear from "
        f"{stability.ENTROPY_LOW_AGAIN:g}.",
        reason="Without entropy the episodes of a group are alike, so that nothing more is learnt. Clean "
        "runs keep "
        "a fifth of it; a policy that has solved its task needs none.",
        source=f"Cui et al. 2025 (arXiv 2505.22617): reward is bought with entropy; {SERIES}.",
        advice="Raise spec.algorithm.entropy.coefficient or the sampling temperature, and lower the learning "
        "rate.",
        look_at=(
            "`analysis/zero_adv_groups`: do groups score alike already?",
            "`rollout/logprob/zero_frac`: how many tokens are certain?",
        ),
        confirmed_by="entropy holds, and groups differ again.",
    ),
    Signal(
        name=Name.ENTROPY_RISING,
        judge=stability.entropy_rising,
        meaning="The policy becomes noise.",
        number=f"Two ratios: the medians of `{stability.ENTROPY}` in the last {learning.LAST} and "
        f"{learning.BACK} steps, each divided by the median of the first {learning.WINDOW} steps. If "
        "training "
        f"has stopped, the last {learning.LAST} ones of {learning.WINDOW} steps count.",
        threshold=f"Bad above {stability.ENTROPY_HIGH:g} where the reward neither rises nor is near its "
        f"best. One reading is enough if that is {stability.ENTROPY_MORE:g} nats more, and the reward has "
        f"fallen. It has if its mean of {learning.LAST} steps is {learning.RISEN:.0%} of its range below "
        f"that of the {learning.WINDOW} before. Otherwise the median of {learning.BACK} steps must be "
        f"{stability.ENTROPY_LASTS:g} nats more. Clear if neither ratio is so high.",
        reason="Learning sharpens a policy; one that spreads far beyond its beginning forgets. Few tokens "
        "of a solved task are uncertain, so a multiple alone says nothing. Entropy is measured on "
        "trained groups. If these are few, it is high for two or three steps, and passes. A policy "
        "that becomes noise also loses its reward, or remains noise.",
        source=f"{SERIES}; their labels ask for the same fall of the reward.",
        advice="Lower spec.optimizer.learningRate; remove spec.algorithm.entropy if it is set.",
        look_at=(
            "`training/grad_norm` and `training/mismatch_kl`: which moved first?",
            "`rollout/reward/mean`: has it fallen yet?",
        ),
        confirmed_by="entropy falls back, and the reward with it rises.",
        severity="critical",
        raise_after=2,
    ),
    Signal(
        name=Name.GRADIENT_SPIKING,
        judge=stability.gradient_spiking,
        meaning="The gradient's norm jumps far above what it was.",
        number=f"Ratio: the median of `{stability.NORM}` in the last {learning.LAST} steps, divided by "
        "the median "
        f"of the {stability.NORM_BEFORE} steps before.",
        threshold=f"Bad above {stability.SPIKE:g} where the norm is above spec.optimizer.gradientClip, and "
        f"above the largest but one of these {stability.NORM_BEFORE} steps; clear at "
        f"{stability.SPIKE_OVER:g}.",
        reason="One spike is clipped and passes, and does not move a median; several push the policy "
        "away. Below the clip the norm jumps as far in good runs: in 8 of the first 52 clean ones. "
        "A jump moves weights further there too, as Adam divides by a running root mean square of "
        "the gradient. It did no harm in them. A norm that was as large twice in those steps is "
        "heavy-tailed. That is normal for the job, and two such steps side by side are chance.",
        source="Takase et al. 2023 (arXiv 2312.16903) on loss spikes; Kingma and Ba 2015 (arXiv 1412.6980) "
        f"on Adam's step; {SERIES}.",
        advice="Lower spec.optimizer.learningRate, and look at the batch of the first spike.",
        look_at=(
            "`rollout/advantage/max` and `training/ratio_max` of those steps.",
            "`training/mismatch_kl`: are batches off-policy?",
        ),
        confirmed_by="the norm is back at its median for 10 steps.",
        raise_after=2,
    ),
    Signal(
        name=Name.POLICY_MISMATCH,
        judge=stability.policy_mismatch,
        meaning="Servers and learner give the same tokens different probabilities on average.",
        number=f"Median of `training/mismatch_kl` (k3) over {learning.LAST} steps, in nats a token. "
        f"{stability.LONGER}",
        threshold=f"Bad above {stability.MISMATCH:g} where the batch is fresh: up to "
        f"{stability.FRESH_LAG:g} steps old, "
        f"and trained on once. Else above {stability.MISMATCH_DRIFTED:g}; clear at half of that.",
        reason="A batch that another policy sampled teaches what that policy should do. Of fresh batches "
        "clean runs stay below 0.001, of older ones most stay below 0.05. A single jump of the "
        "policy shows in every batch that was sampled before it. A median of so many more steps is "
        "not moved by that. A token that the new policy would no longer say has a large part in "
        "the mean, but hardly any in the update. If the importance weights are uneven, the update "
        "itself is wrong, and the signal does not wait. It does not wait either if the two are far "
        "apart. In old batches a collapse shows in the mismatch first, and steps later in the "
        "reward.",
        source="Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training; "
        f"{SERIES}.",
        advice="Set spec.algorithm.maxStepsOffPolicy to 0; if it stays, servers and learner compute "
        "differently: give both the same dtype, and spec.algorithm.correction tis.",
        look_at=(
            "`staleness/lag_mean`: is it age?",
            "`weights/canary_error`: do the servers compute what the learner does?",
            "Sampling with top_p below 1, which the learner does not know.",
        ),
        confirmed_by="it falls within a few steps.",
        severity="critical",
    ),
    Signal(
        name=Name.MISMATCH_TAIL,
        judge=stability.mismatch_tail,
        meaning="Servers and learner give a few tokens very different probabilities.",
        number=f"Median of `training/mismatch_far_share` over {learning.LAST} steps. {stability.LONGER}",
        threshold=f"Bad above {stability.FAR:.1%} where the batch is fresh (as PolicyMismatch has it), else "
        f"above {stability.FAR_DRIFTED:.0%}; clear at half of that.",
        reason="A few such tokens carry most of an update that does not bound ratios, long before the mean "
        "shows it.",
        source=f"Liu et al. 2025, When Speed Kills Stability; {SERIES}.",
        advice="Set spec.algorithm.correction to tis or sequence_mask.",
        look_at=(
            "`training/ratio_max`: how far do they differ?",
            "`staleness/lag_max`: are some of them old?",
        ),
        confirmed_by="`training/ratio_max` falls, and the gradient's norm with it.",
    ),
    Signal(
        name=Name.TOO_FEW_EFFECTIVE_SAMPLES,
        judge=stability.too_few_effective_samples,
        meaning="A few tokens carry most of the batch's importance weight.",
        number=f"Median of `{stability.EFFECTIVE}` over {learning.LAST} steps: Kish's effective sample size "
        "over the number of tokens.",
        threshold=f"Bad below {stability.EFFECTIVE_LEAST:.0%}; clear from {stability.EFFECTIVE_AGAIN:.0%}.",
        reason="A step is then as noisy as one of so much smaller a batch.",
        source=f"Kish 1965, Survey Sampling; {SERIES}.",
        advice="Lower spec.algorithm.maxStepsOffPolicy or spec.algorithm.updatesPerBatch.",
        look_at=("`training/ratio_max`, `training/mismatch_far_share`: is it a few tokens?",),
        confirmed_by="the share rises within a few steps.",
    ),
    Signal(
        name=Name.RATIOS_CLIPPED,
        judge=stability.ratios_clipped,
        meaning="Clipping takes the gradient from many tokens.",
        number=f"Median of `training/clip_fraction` over {learning.LAST} steps.",
        threshold=f"Bad above {stability.CLIPPED:.0%}, of ratios of whole rows (gspo) above "
        f"{stability.CLIPPED_ROWS:.0%}; clear at half of that.",
        reason="Clipping is there for the few tokens that moved too far. Of many, the step is too large "
        "or the "
        "batch too old.",
        source=f"Zheng et al. 2025 (arXiv 2507.18071): 0.13 % of tokens with GRPO, 15 % with GSPO; {SERIES}.",
        advice="Lower spec.optimizer.learningRate or spec.algorithm.updatesPerBatch; with old batches, "
        "spec.algorithm.maxStepsOffPolicy.",
        look_at=("`staleness/lag_mean`", "`training/ratio_max` and `training/ratio_min`"),
        confirmed_by="it falls within a few steps.",
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
        threshold=f"Bad above {stability.MASKED:.0%}; clear at {stability.MASKED_AGAIN:.0%}.",
        reason="Tokens that are left out cost money and teach nothing.",
        source=f"{SERIES}.",
        advice="Lower spec.algorithm.maxStepsOffPolicy, or raise spec.algorithm.correctionCap.",
        look_at=("`training/mismatch_kl`", "`staleness/lag_mean`"),
        confirmed_by="it falls within a few steps.",
    ),
    Signal(
        name=Name.STALENESS_AT_BOUND,
        judge=stability.staleness_at_bound,
        meaning="Batches are as old as maxStepsOffPolicy allows for long.",
        number=f"Median of `{stability.LAG}` over {stability.STALE_FOR} steps, over "
        "spec.algorithm.maxStepsOffPolicy.",
        threshold=f"Bad above {stability.STALE:.0%}; clear at {stability.FRESH:.0%}, and where the bound "
        "is 0.",
        reason="At the bound the servers wait for the learner: they are more than it can use.",
        source=f"docs/staleness.md; {SERIES}.",
        advice="Give the learner more accelerators, or lower spec.rollout.replicas.",
        look_at=("`timing_s/wait_for_batch` and `timing_s/training`: who waits for whom?",),
        confirmed_by="tokens are younger, and `timing_s/step` is no longer.",
        severity="info",
    ),
)
