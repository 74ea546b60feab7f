"""Signals about reward, external score and validation."""

from __future__ import annotations

from typing import Final

from headway_analysis.signals.catalogue.sources import GUIDE, SERIES, TRAJECTORIES
from headway_analysis.signals.definition import Signal
from headway_analysis.signals.judges import learning
from headway_api.signals import SignalName as Name

LEARNING: Final = (
    Signal(
        name=Name.REWARD_COLLAPSED,
        judge=learning.reward_collapsed,
        meaning="The reward dropped to about its lowest value after it had been higher.",
        number=f"Ratio: the median of `{learning.REWARD}` in the last {learning.LAST} steps, divided by the "
        f"highest median of any {learning.WINDOW} steps before. The lowest reward of "
        "spec.reward.range is first subtracted from both.",
        threshold=f"Bad below {learning.COLLAPSED:g}. Clear from {learning.RECOVERED:g}, or while no "
        f"earlier median was {learning.LEAST_HEIGHT:.0%} of the reward's range above the lowest "
        "reward.",
        reason="A policy that is merely unlucky keeps most of its reward; one that collapsed keeps about "
        "none.",
        source=f"{GUIDE}: reward drops to about 0 after step 40 to 80. {SERIES}.",
        advice="Set spec.algorithm.maxStepsOffPolicy to 0, and spec.algorithm.loss to ppo with its default "
        "clip (0.8 and 1.2). Start again from the best checkpoint.",
        look_at=(
            "`training/entropy`, `training/grad_norm` and `training/mismatch_kl` around the drop: which "
            "moved first?",
            "`rollout/repetition/mean` and `rollout/tokens/response_mean`: does the model still write words?",
            TRAJECTORIES,
        ),
        confirmed_by="the reward is stable, even if lower, within 25 to 50 steps.",
        severity="critical",
        raise_after=2,
    ),
    Signal(
        name=Name.NOTHING_TO_TRAIN,
        judge=learning.nothing_to_train,
        meaning="In several batches in a row, no group has an advantage, so the model learns nothing.",
        number=f"How many of the last steps in a row, up to {learning.NONE_FOR}, have an `{learning.VALID}` "
        "of 0.",
        threshold=f"Bad at {learning.NONE_FOR} steps. Clear as soon as a group has an advantage, or if the "
        "reward is near its best.",
        reason="If batches are small, one such batch may be chance; three cost money and teach nothing.",
        source=f"{GUIDE}; DAPO (arXiv 2503.14476) filters such groups for the same reason.",
        advice="Align the reward's parser with the format that the model writes. If some rows are solved, "
        "use harder rows or a larger spec.algorithm.batchSize.",
        look_at=(
            "`analysis/zero_adv_zero_reward` and `analysis/zero_adv_nonzero_reward`: too hard, or too easy?",
            "`rollout/reward/max`: does any episode earn anything?",
            TRAJECTORIES,
        ),
        confirmed_by="`analysis/zero_adv_groups` falls.",
        severity="critical",
        raise_after=1,
        clear_after=1,
    ),
    Signal(
        name=Name.VALIDATION_DIVERGED,
        judge=learning.validation_diverged,
        meaning="The training reward rises, but the reward on held-out rows does not.",
        number=f"Rise of `{learning.REWARD}` (mean of {learning.WINDOW} steps) minus the rise of "
        f"`{learning.VALIDATED}`. The newest validation is compared with up to three earlier ones. "
        f"These are the first from step {learning.WINDOW} on, and the last two that are at least "
        f"{learning.BACK} steps old. The signal takes the worst of these gaps: the largest one over "
        "the threshold, otherwise the largest one.",
        threshold="Bad if the training reward surely rises, the held-out one does not surely rise, and the "
        f"gap exceeds {learning.GENERALIZATION_GAP:.0%} of the reward's range. The gap's interval "
        "must begin above half of that. If it begins above "
        f"{learning.STRONG_EVIDENCE_FACTOR * learning.GENERALIZATION_GAP:.0%}, one validation is "
        "enough. Clear if the interval begins lower, or if either rise is missing. Also clear "
        f"if the held-out reward is within {learning.SOLVED_WITHIN:.0%} of the range from the "
        "highest reward.",
        reason="Both rewards are means of samples: a gap within their intervals is not evidence. Each "
        "validation is another test, so a single bad one may be chance. Chance seldom repeats, but "
        "a reward that is gamed stays so. The last two validations are compared, so that successive "
        "validations may agree on one gap. If validations are far apart, the second one comes late. "
        "So a gap whose interval begins above twice the threshold needs no second validation.",
        source=f"{GUIDE}: training reward rises, `val/reward/mean` stays flat. {SERIES}.",
        advice="Suspect the reward: read trajectories with a high reward, and make its parser stricter.",
        look_at=(
            "`val/external_score/mean`: does the external score of held-out rows rise?",
            "`rollout/reward_metrics/*`: which part of the reward grew?",
            TRAJECTORIES,
        ),
        confirmed_by="the reward agrees with the external score on fresh episodes of the base model.",
        severity="critical",
        clock="validation",
        raise_after=2,
        clear_after=1,
    ),
    Signal(
        name=Name.SCORE_DIVERGED,
        judge=learning.score_diverged,
        meaning="The reward rises or holds, but the external score of the same episodes does not.",
        number=f"Growth of the gap `{learning.REWARD}` minus `{learning.SCORE}`, in two comparisons. The "
        f"mean of the last {learning.WINDOW} steps is compared with that of the {learning.WINDOW} "
        f"steps that ended {learning.BACK} steps ago. The mean of the last steps, at most "
        f"{2 * learning.WINDOW}, is compared with that of the same number of first steps. The signal takes "
        "the worse of the two.",
        threshold="Bad if the reward surely rises and the score does not, or the score surely falls and "
        "the reward does not fall. The gap must surely grow, and by more than "
        f"{learning.SCORE_GAP:.0%} of the reward's range. Clear at half of that or less, or if "
        "reward and score do not move in this way.",
        reason="The external score decides whether a model is good enough. If the reward rises or "
        "holds and the score does not, the reward is being gamed. If both fall, an all-or-nothing "
        "score falls further. This follows from its scale, and is not a sign of gaming.",
        source=f"{GUIDE}: a parser more lenient than the evaluation is a hack. {SERIES}.",
        advice="Suspect the reward: read episodes with a high reward and a low score, and align the reward "
        "with the score.",
        look_at=(
            "`rollout/reward_explained/*`: which number explains the reward now?",
            "`val/external_score/mean` of the same steps.",
            TRAJECTORIES,
        ),
        confirmed_by="reward and external score rise together.",
        severity="critical",
    ),
    Signal(
        name=Name.REWARD_FLAT,
        judge=learning.reward_flat,
        meaning="The reward has not risen since step 0.",
        number=f"Mean of `{learning.REWARD}` in the last {learning.WINDOW} steps, minus its mean in the "
        f"first {learning.WINDOW} steps, with the difference's interval (Welch).",
        threshold=f"Bad from step {learning.FLAT_FOR} on if the reward has never surely risen and is not "
        f"near its best. It is not bad if a validation exceeds the first one by more than "
        f"{learning.RISEN:.0%} of the reward's range. Bad from step {learning.SAME_FOR} on if every "
        "reward so far is the same, and not near its best.",
        reason="Amazon's best practices judge a change after 25 to 50 steps. Most failures show within "
        "about 30 steps.",
        source=f"{GUIDE}.",
        advice="Align the reward's parser with the format that the model writes.",
        look_at=(
            "`rollout/reward/max`: does any episode earn anything?",
            "`analysis/batch_completion_ratio`: does the agent answer at all?",
            "`training/grad_norm`, `training/learning_rate`: does the learner change the weights at all?",
            TRAJECTORIES,
        ),
        confirmed_by="an evaluation of the base model with the new reward finds some successes.",
        raise_after=1,
        clear_after=1,
        clock="either",
    ),
    Signal(
        name=Name.GROUPS_UNIFORM,
        judge=learning.groups_uniform,
        meaning="Most groups have equal rewards and give no gradient, while the reward stalls.",
        number=f"Ratio: the sum of `{learning.UNIFORM}` divided by that of `{learning.GROUPS}`, over "
        f"{learning.WINDOW} and over {learning.BACK} steps. The signal takes the window whose 99 % "
        "interval (Clopper and Pearson) begins higher.",
        threshold=f"Bad if the share of the last {learning.WINDOW} steps is above "
        f"{learning.MAX_UNIFORM:.0%} and the interval begins above {learning.FEW_UNIFORM:.0%}. "
        f"Clear if the share of the last {learning.WINDOW} steps is {learning.FEW_UNIFORM:.0%} or "
        f"less. Also clear if the reward surely rises (over {learning.BACK} steps) or is near its "
        "best.",
        reason="Then surely more than half of the samples teach nothing. The share alone is not evidence: "
        "if half of all groups score alike, five batches of three groups exceed 60% by chance.",
        source=f"{GUIDE}: training reward flat, groups score alike. {SERIES}.",
        advice="Lower spec.algorithm.groupSize, for example from 8 to 4, and raise spec.algorithm.batchSize.",
        look_at=(
            "`analysis/zero_adv_zero_reward` and `analysis/zero_adv_nonzero_reward`: too hard, or too easy?",
            "`training/entropy`: do the episodes of a group differ at all?",
        ),
        confirmed_by="`analysis/zero_adv_groups` falls.",
    ),
    Signal(
        name=Name.TASKS_DIVERGING,
        judge=learning.tasks_diverging,
        meaning="One task's reward falls while another's rises.",
        number=f"The largest change of a `{learning.TASK_REWARD}*` minus the smallest one. A change is the "
        f"mean of the last {learning.WINDOW} steps minus that of the {learning.TASK_BEFORE} steps "
        "before.",
        threshold=f"Bad above {learning.DIVERGED:.0%} of the reward's range if one task surely falls and "
        "another rises. Clear at half of that or less, or if the tasks do not move in this way.",
        reason="Tasks that are trained together compete. A task that keeps getting worse costs its "
        "episodes and its success.",
        source=f"{GUIDE}: tasks that are trained together compete, so train one first. {SERIES}.",
        advice="Train the falling task alone before the others, or give it more weight in "
        "spec.data.taskWeights.",
        look_at=(
            "`val/task_success/*`: does the task fall on held-out rows too?",
            "`rollout/task_groups/*`: how many groups does the task get?",
        ),
        confirmed_by="every task's reward holds or rises within 25 steps.",
    ),
    Signal(
        name=Name.REWARD_ONE_SIDED,
        judge=learning.reward_one_sided,
        meaning="One of the numbers that the environment reports takes over the reward.",
        number=f"Largest median of a `{learning.EXPLAINED}*` over {learning.WINDOW} steps, if there are two "
        "or more. Each is the share of the reward's variance within groups that one number "
        f"explains. The rival is the other number that explained most in the first {learning.WINDOW} "
        "steps.",
        threshold=f"Bad above {learning.ONE_SIDED:.0%} if two things have changed since the first "
        f"{learning.WINDOW} steps. The largest share has risen by at least "
        f"{100 * learning.GROWN:.0f} percentage points, and the rival's share has fallen by as "
        f"much. Clear at {learning.MANY_SIDED:.0%} or less, or if the shares have not changed in this way.",
        reason="Within a group, the model learns the number that tells good episodes from bad ones. With "
        "few groups, each number's share is noisy, so a rise counts only if another number's share "
        "falls. A number that no longer differs within any group does not count as fallen: the "
        "model has learned it.",
        source=f"{SERIES}. {GUIDE}: an example of a reward that paid for a bare wrapper.",
        advice="Limit what the dominant number adds to the reward, or pay for it only if the other numbers "
        "are right.",
        look_at=(
            "`rollout/reward_metrics/*`: is this number the one that grows?",
            "`rollout/external_score/mean`: does the external score grow too?",
        ),
        confirmed_by="the dominant number's share falls, and the external score rises.",
    ),
)
