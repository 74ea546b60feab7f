"""Signals of what the agent does."""

from __future__ import annotations

from typing import Final

from headway_analysis.signals.catalogue.sources import GUIDE, SERIES, TRAJECTORIES
from headway_analysis.signals.definition import Signal
from headway_analysis.signals.judges import conduct, learning
from headway_api.signals import SignalName as Name

LASTING: Final = 5
"""Readings of a median of three that show more than a few odd batches."""
PASSES: Final = (
    f"Three odd batches move {LASTING - 2} medians of three, and pass: {LASTING} in a row take as many "
    "batches."
)

CONDUCT: Final = (
    Signal(
        name=Name.PERMANENT_FAILURES,
        judge=conduct.rate(conduct.FAILED, "failed permanently", conduct.MOST_FAILED),
        meaning="Episodes are lost permanently, by a fault of the platform or of the environment.",
        number=conduct.number_of(conduct.FAILED),
        threshold=conduct.threshold_of(conduct.MOST_FAILED),
        reason=f"Such an episode was tried again, and failed each time. {conduct.BURSTS}",
        source=f"{GUIDE}: over 1 % permanent failures is a bug of the environment; {conduct.RAO_SCOTT}.",
        advice="Correct the environment: the errors of its episodes name the call that fails.",
        look_at=(
            "The coordinator's log, event `episode-failed`.",
            "`headway_sandbox_failures_total` by reason.",
        ),
        confirmed_by="the share falls below 1 %.",
    ),
    Signal(
        name=Name.TURNS_TRUNCATED,
        judge=conduct.rate(conduct.CUT, "have a turn that was cut at maxTokens", conduct.MOST_CUT),
        meaning="Turns are cut at maxTokens.",
        number=conduct.number_of(conduct.CUT),
        threshold=conduct.threshold_of(conduct.MOST_CUT),
        reason=f"A cut turn teaches that unfinished attempts are bad. {conduct.BURSTS}",
        source=f"{GUIDE}: over 5 % of responses at the cap, raise it. That counts turns, whose share is "
        "`rollout/turns/token_limit_rate`. The signal counts episodes with such a turn, because an "
        "episode is rewarded as a whole. With several turns it is raised sooner. "
        f"{conduct.RAO_SCOTT}.",
        advice="Raise spec.rollout.sampling.maxTokens, or spec.rollout.episodeTokenLimit if episodes "
        "reach that; if answers ramble, correct the reward first.",
        look_at=(
            "`rollout/tokens/response_mean` and `_max`: are all long, or a few?",
            "`rollout/repetition/max`: does it repeat itself?",
        ),
        confirmed_by="the share falls below 5 %.",
    ),
    Signal(
        name=Name.CONTEXT_FULL,
        judge=conduct.rate(conduct.FULL, "ended with a full context", conduct.MOST_FULL),
        meaning="Episodes end because the context has no room for another turn.",
        number=conduct.number_of(conduct.FULL),
        threshold=conduct.threshold_of(conduct.MOST_FULL),
        reason=f"An episode that is cut is judged unfinished, however good it was. {conduct.BURSTS}",
        source=f"{GUIDE}: truncated rollouts teach that unfinished attempts are bad; its 5 %; "
        f"{conduct.RAO_SCOTT}.",
        advice="Raise spec.model.contextLength, or have tools answer more briefly.",
        look_at=("`rollout/tokens/prompt_mean`: who fills it, tools or the model?", "`rollout/turns/mean`"),
        confirmed_by="the share falls below 5 %.",
    ),
    Signal(
        name=Name.EPISODES_TIMED_OUT,
        judge=conduct.rate(conduct.LATE, "did not end within rollout.timeoutSeconds", conduct.MOST_LATE),
        meaning="Episodes do not end within rollout.timeoutSeconds.",
        number=conduct.number_of(conduct.LATE),
        threshold=conduct.threshold_of(conduct.MOST_LATE),
        reason="They are cut off, and judged unfinished or lost; the longest ones come first. "
        f"{conduct.BURSTS}",
        source=f"{GUIDE}: its 5 % for truncation; {conduct.RAO_SCOTT}.",
        advice="Raise spec.rollout.timeoutSeconds, or find the call that is slow.",
        look_at=(
            "The coordinator's log, event `episode-failed`, of those that were lost: what did they wait for?",
            "`headway_sandbox_tool_call_seconds`, `rollout/kv_cache_use`: tools, or servers?",
        ),
        confirmed_by="the share falls below 5 %.",
    ),
    Signal(
        name=Name.TURNS_EXHAUSTED,
        judge=conduct.rate(conduct.EXHAUSTED, "used up maxTurns", conduct.MOST_EXHAUSTED),
        meaning="Episodes use up maxTurns.",
        number=conduct.number_of(conduct.EXHAUSTED),
        threshold=conduct.threshold_of(conduct.MOST_EXHAUSTED),
        reason=f"A limit is there for the few that wander. {conduct.BURSTS}",
        source=f"{GUIDE}: under 10 % of episodes use up their turns; {conduct.RAO_SCOTT}.",
        advice="Raise spec.agent.builtin.maxTurns to 1.5 times what a person needs; if the agent goes "
        "round in circles, improve the tools' answers.",
        look_at=(
            "`rollout/tool_calls/failed_share`: does it try the same failing call?",
            "`analysis/batch_completion_ratio`: does it answer at all?",
            TRAJECTORIES,
        ),
        confirmed_by="the share falls below 10 %.",
    ),
    Signal(
        name=Name.TOOL_CALLS_MALFORMED,
        judge=conduct.rate(conduct.MALFORMED, "have a tool call that cannot be read", conduct.MOST_MALFORMED),
        meaning="Tool calls cannot be read.",
        number=conduct.number_of(conduct.MALFORMED),
        threshold=conduct.threshold_of(conduct.MOST_MALFORMED),
        reason="A call that cannot be read loses a turn; a share that stays shows that nothing punishes "
        f"it. {conduct.BURSTS}",
        source=f"{GUIDE}: watch format compliance along with the reward; the share is chosen from "
        f"{SERIES}; {conduct.RAO_SCOTT}.",
        advice="Check that the tools' schemas are those the model was trained on; give the reward a small "
        "part "
        "for format (0.1).",
        look_at=("`rollout/tool_calls/malformed_share`", TRAJECTORIES),
        confirmed_by="the share falls.",
    ),
    Signal(
        name=Name.LENGTH_EXPLODING,
        judge=conduct.growing(conduct.LENGTH, "sampled tokens of a turn", conduct.LONGER, 1.0),
        meaning="Answers become much longer than they were, and no better.",
        number=conduct.growth_of(conduct.LENGTH),
        threshold=conduct.growth_threshold(conduct.LONGER),
        reason=f"Longer answers that do not score better only cost tokens. {PASSES}",
        source=f"DAPO (arXiv 2503.14476) on overlong answers; {SERIES}.",
        advice="See whether the reward pays for length; then lower spec.rollout.sampling.maxTokens or use "
        "reduction sequence_mean or constant.",
        look_at=("`rollout/repetition/mean`", "`rollout/reward/mean` against length", TRAJECTORIES),
        confirmed_by="length falls back, and the external score holds.",
        raise_after=LASTING,
    ),
    Signal(
        name=Name.TOOL_CALLS_INFLATING,
        judge=conduct.growing(conduct.CALLS, "tool calls of an episode", conduct.MORE_CALLS, 0.5),
        meaning="Episodes make many more tool calls than they did, and are no better.",
        number=conduct.growth_of(conduct.CALLS),
        threshold=conduct.growth_threshold(conduct.MORE_CALLS),
        reason=f"Calls that do not raise the score only cost money. {PASSES}",
        source=f"{GUIDE}: pay for tool calls, and the agent calls all it can; {SERIES}.",
        advice="See whether the reward pays for calls, and stop that; then limit them in the environment.",
        look_at=("`rollout/tool_calls_of/*`: which tool?", "`rollout/external_score/mean`", TRAJECTORIES),
        confirmed_by="calls fall back, and the external score holds.",
        raise_after=LASTING,
    ),
    Signal(
        name=Name.REPETITION,
        judge=conduct.repetition,
        meaning="Turns repeat themselves.",
        number=f"Median of `{conduct.REPEATED}` over {learning.LAST} steps: the share of a turn's phrases "
        "of 8 tokens that it "
        "had said before.",
        threshold=f"Bad above {conduct.REPETITIVE:.0%}; clear at {conduct.REPETITIVE / 2:.0%}.",
        reason="Answers that work seldom repeat eight tokens; a degenerate policy does little else. "
        f"{PASSES}",
        source=f"{SERIES}.",
        advice="Lower spec.optimizer.learningRate, and see whether the reward pays for length.",
        look_at=("`training/entropy`", "`rollout/tokens/response_mean`", TRAJECTORIES),
        confirmed_by="the share falls.",
        raise_after=LASTING,
    ),
)
