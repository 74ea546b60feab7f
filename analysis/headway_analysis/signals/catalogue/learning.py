"""Signals of reward, score and validation."""

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
        number=f"Ratio: the median of `{learning.REWARD}` in the last {learning.LAST} steps, divided by "
        "its best "
        f"median of {learning.WINDOW} steps. Both are less the lowest reward of spec.reward.range.",
        threshold=f"Bad below {learning.COLLAPSED:g}; clear again from {learning.RECOVERED:g}.",
        reason="A policy that is merely unlucky keeps most of its reward; one that collapsed keeps about "
        "none.",
        source=f"{GUIDE}: reward drops to about 0 after step 40 to 80; {SERIES}.",
        advice="Set spec.algorithm.maxStepsOffPolicy to 0 and spec.algorithm.loss to ppo (0.8, 1.2); "
        "start from "
        "the best checkpoint.",
        look_at=(
            "`training/entropy`, `training/grad_norm` and `training/mismatch_kl` around the drop: which "
            "moved "
            "first?",
            "`rollout/repetition/mean` and `rollout/tokens/response_mean`: does it still say words?",
            TRAJECTORIES,
        ),
        confirmed_by="the reward is stable, even if lower, within 25 to 50 steps.",
        severity="critical",
        raise_after=2,
    ),
    Signal(
        name=Name.NOTHING_TO_TRAIN,
        judge=learning.nothing_to_train,
        meaning="No group of several batches in a row has an advantage, so the model learns nothing.",
        number=f"Steps in a row, up to {learning.NONE_FOR}, in which `{learning.VALID}` is 0. Batches whose "
        "rewards are nearly all the best one do not count.",
        threshold=f"Bad at {learning.NONE_FOR} steps; clear as soon as a group has an advantage.",
        reason="One such batch is chance where batches are small; three cost money and teach nothing.",
        source=f"{GUIDE}; DAPO (arXiv 2503.14476) filters such groups for the same reason.",
        advice="Align the reward with the format that the model writes; if some rows are solved, use "
        "harder rows, a larger spec.algorithm.batchSize or more groups.",
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
        name=Name.VALIDATION_PARTED,
        judge=learning.validation_parted,
        meaning="The training reward rises, and that of held-out rows does not.",
        number=f"Rise of `{learning.REWARD}` (mean of {learning.WINDOW} steps) less that of "
        f"`{learning.VALIDATED}`. It is measured since the first validation after step {learning.WINDOW}, "
        f"and since each of the last two at least {learning.BACK} steps ago. A gap over the threshold counts "
        "first, then the largest one.",
        threshold="Bad if the training reward surely rises and the held-out one does not. They must "
        f"differ by more than {learning.PARTED:.0%} of the reward's range, and surely by half of "
        f"that. If they surely differ by more than {learning.SURELY * learning.PARTED:.0%}, one "
        "validation is enough.",
        reason="Both are means of a sample: a gap within their intervals is not evidence. Every "
        "validation is another chance to be outside of them, so one alone may be luck. Luck seldom "
        "comes twice in a row, but gaming stays. The last two validations are compared, so that "
        "validations in a row may agree on one gap. If validations are far apart, the second one "
        "comes late. So a gap whose interval begins above twice the threshold needs no second one.",
        source=f"{GUIDE}: training reward rises, `val/reward/mean` flat; {SERIES}.",
        advice="Suspect the reward: read trajectories that it likes, and tighten its parser.",
        look_at=(
            "`val/external_score/mean`: does it differ too?",
            "`rollout/reward_metrics/*`: which part of the reward grew?",
            TRAJECTORIES,
        ),
        confirmed_by="the reward's parser scores fresh episodes of the base model as the strict one does.",
        severity="critical",
        clock="validation",
        raise_after=2,
        clear_after=1,
    ),
    Signal(
        name=Name.SCORE_PARTED,
        judge=learning.score_parted,
        meaning="The reward rises or holds, and the external score of the same episodes does not.",
        number=f"`{learning.REWARD}` less `{learning.SCORE}`: mean of {learning.WINDOW} steps, compared with "
        f"that of {learning.BACK} steps ago; and of up to {2 * learning.WINDOW} steps, with the first ones.",
        threshold="Bad if the reward surely rises and the score does not, or the score surely falls "
        f"and the reward does not. They must differ by more than {learning.PARTED:.0%} of the "
        "reward's range, and surely by more than 0; clear below half of that.",
        reason="The score is what ships. A reward that grows or holds without it is being gamed. If both "
        "fall, a score that is all or nothing falls further: that is its scale, not a sign.",
        source=f"{GUIDE}: a parser more lenient than the evaluation is a hack; {SERIES}.",
        advice="Suspect the reward: read episodes with a high reward and a low score, and align the "
        "reward with the score.",
        look_at=(
            "`rollout/reward_explained/*`: which number makes the reward now?",
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
        number=f"Mean of `{learning.REWARD}` in the last {learning.WINDOW} steps, less its mean in the first "
        f"{learning.WINDOW} steps, with its interval (Welch).",
        threshold=f"Bad from step {learning.FLAT_FOR} on where it never surely rose, and no validation was "
        f"{learning.RISEN:.0%} of the reward's range above the first. From step {learning.SAME_FOR} on "
        "where every "
        "reward so far is the same.",
        reason="Amazon's best practices judge a change after 25 to 50 steps. Most failures show within "
        "about 30.",
        source=f"{GUIDE}.",
        advice="Align the reward with the format that the model writes.",
        look_at=(
            "`rollout/reward/max`: does any episode earn anything?",
            "`analysis/batch_completion_ratio`: does it answer at all?",
            "`training/grad_norm`, `training/learning_rate`: are steps taken at all?",
            TRAJECTORIES,
        ),
        confirmed_by="an evaluation of the base model with the new reward finds some success, not none.",
        raise_after=1,
        clear_after=1,
        clock="either",
    ),
    Signal(
        name=Name.GROUPS_UNIFORM,
        judge=learning.groups_uniform,
        meaning="Most groups score alike and give no gradient, while the reward stalls.",
        number=f"Sum of `{learning.UNIFORM}` over that of `{learning.GROUPS}`, over {learning.WINDOW} and "
        f"{learning.BACK} steps: the one whose interval (Clopper and Pearson, 99 %) begins higher.",
        threshold=f"Bad if the last {learning.WINDOW} steps are above {learning.MOST_UNIFORM:.0%} and "
        f"the interval begins above {learning.FEW_UNIFORM:.0%}. The reward must neither surely rise (over "
        f"{learning.BACK} steps) nor be within {learning.SOLVED_WITHIN:.0%} of its best. Clear when the last "
        f"{learning.WINDOW} steps are at {learning.FEW_UNIFORM:.0%} or below.",
        reason="More than half of the samples then surely teach nothing. Five batches of three groups are "
        "above 60% by chance where half of the groups score alike, so the share alone is no "
        "evidence.",
        source=f"{GUIDE}: training reward flat, groups score alike; {SERIES}.",
        advice="Lower spec.algorithm.groupSize from 8 to 4 and raise spec.algorithm.batchSize.",
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
        number=f"Largest less smallest move of `{learning.TASK_REWARD}*`: mean of {learning.WINDOW} steps, "
        f"compared with the {learning.TASK_BEFORE} steps before.",
        threshold=f"Bad above {learning.DIVERGED:.0%} of the reward's range where one surely falls and "
        "another rises; clear below half of that.",
        reason="Tasks that are trained together compete; a task that gets worse permanently costs twice.",
        source=f"{GUIDE}: all tasks trained together compete, one task first; {SERIES}.",
        advice="Train the task that falls alone first, or give it more weight in spec.data.taskWeights.",
        look_at=(
            "`val/task_success/*`: does it fall on held-out rows too?",
            "`rollout/task_groups/*`: how many groups does it get?",
        ),
        confirmed_by="every task's reward holds or rises within 25 steps.",
    ),
    Signal(
        name=Name.REWARD_ONE_SIDED,
        judge=learning.reward_one_sided,
        meaning="One number of the environment takes over the reward.",
        number=f"Largest `{learning.EXPLAINED}*`, median of {learning.WINDOW} steps, where there are two or "
        "more of them. Its rival is the one of the others that explained most in the first "
        f"{learning.WINDOW} steps.",
        threshold=f"Bad above {learning.ONE_SIDED:.0%} where that is {learning.GROWN:.0%} more than the "
        f"largest in the first {learning.WINDOW} steps, and the rival explains {learning.GROWN:.0%} less "
        f"than then. Clear at {learning.MANY_SIDED:.0%}.",
        reason="Within a group, the model learns the number that tells good episodes from bad ones. With few "
        "groups, each number's share is noisy, so a rise counts only if another number's share falls. A "
        "number that no longer differs within any group is not that other number: the model has learned it.",
        source=f"{SERIES}; {GUIDE}: an example of a reward that paid for a bare wrapper.",
        advice="Bound what that number may earn, or pay for it only where the others are right.",
        look_at=(
            "`rollout/reward_metrics/*`: is it the one that grows?",
            "`rollout/external_score/mean`: does what ships grow too?",
        ),
        confirmed_by="its share falls, and the external score rises.",
    ),
)
