"""Signals about the agent's behaviour."""

from __future__ import annotations

from typing import Final

from headway_analysis.signals.catalogue.sources import GUIDE, SERIES, TRAJECTORIES
from headway_analysis.signals.definition import Signal
from headway_analysis.signals.judges import behaviour, learning
from headway_api.signals import SignalName as Name

LASTING: Final = 5
"""How many readings in a row must be bad. Each reading is a median of three steps, so a few odd batches make
fewer readings bad."""
PASSES: Final = (
    f"Three odd batches in a row move only {LASTING - 2} medians of three steps, so they raise nothing. "
    f"{LASTING} bad medians in a row need {LASTING} such batches."
)

BEHAVIOUR: Final = (
    Signal(
        name=Name.PERMANENT_FAILURES,
        judge=behaviour.rate(behaviour.FAILED, "failed permanently", behaviour.MAX_FAILED),
        meaning="Episodes are lost permanently, by a fault of the platform or of the environment.",
        number=behaviour.number_of(behaviour.FAILED),
        threshold=behaviour.threshold_of(behaviour.MAX_FAILED),
        reason="A lost episode failed at its first attempt and at every retry that spec.rollout.maxRetries "
        f"allows. {behaviour.BURSTS}",
        source=f"{GUIDE}: over 1 % permanent failures is a bug of the environment. {behaviour.RAO_SCOTT}.",
        advice="Correct the environment: the errors of lost episodes name the call that fails.",
        look_at=(
            "The coordinator's log, event `episode-failed`.",
            "`headway_sandbox_failures_total` by reason.",
        ),
        confirmed_by="the share falls below 1 %.",
    ),
    Signal(
        name=Name.TURNS_TRUNCATED,
        judge=behaviour.rate(behaviour.CUT, "were cut at maxTokens or episodeTokenLimit", behaviour.MAX_CUT),
        meaning="Turns are cut off at maxTokens, or episodes reach episodeTokenLimit.",
        number=behaviour.number_of(behaviour.CUT),
        threshold=behaviour.threshold_of(behaviour.MAX_CUT),
        reason=f"A turn that is cut off is judged unfinished, however good it was. {behaviour.BURSTS}",
        source=f"{GUIDE}: if over 5 % of responses reach the cap, raise the cap. The guide counts turns "
        "(`rollout/turns/token_limit_rate`). The signal counts episodes with such a turn, because "
        "an episode is rewarded as a whole. So the signal is raised sooner if episodes have several "
        f"turns. {behaviour.RAO_SCOTT}.",
        advice="Raise spec.rollout.sampling.maxTokens, or spec.rollout.episodeTokenLimit if episodes reach "
        "that limit. If answers ramble, correct the reward first.",
        look_at=(
            "`episodes/episode_token_limit_rate`: how many episodes reached episodeTokenLimit?",
            "`rollout/tokens/response_mean` and `rollout/tokens/response_max`: are all turns long, or only "
            "a few?",
            "`rollout/repetition/max`: does a turn repeat itself?",
        ),
        confirmed_by="the share falls below 5 %.",
    ),
    Signal(
        name=Name.CONTEXT_FULL,
        judge=behaviour.rate(behaviour.FULL, "ended with a full context", behaviour.MAX_FULL),
        meaning="Episodes end because the context has no room for another turn.",
        number=behaviour.number_of(behaviour.FULL),
        threshold=behaviour.threshold_of(behaviour.MAX_FULL),
        reason=f"An episode that is cut is judged unfinished, however good it was. {behaviour.BURSTS}",
        source=f"{GUIDE}: truncated rollouts teach that unfinished attempts are bad. The threshold of "
        f"5 % is the guide's for responses. {behaviour.RAO_SCOTT}.",
        advice="Raise spec.model.contextLength, or have tools answer more briefly.",
        look_at=(
            "`rollout/tokens/prompt_mean`: do prompts and tool results fill the context?",
            "`rollout/turns/mean`",
        ),
        confirmed_by="the share falls below 5 %.",
    ),
    Signal(
        name=Name.EPISODES_TIMED_OUT,
        judge=behaviour.rate(behaviour.LATE, "did not end within rollout.timeoutSeconds", behaviour.MAX_LATE),
        meaning="Episodes do not end within spec.rollout.timeoutSeconds.",
        number=behaviour.number_of(behaviour.LATE),
        threshold=behaviour.threshold_of(behaviour.MAX_LATE),
        reason="An episode that times out is cut off, and judged unfinished or lost. The longest episodes "
        f"time out first. {behaviour.BURSTS}",
        source=f"{GUIDE}: the threshold of 5 % is the guide's for truncated responses. "
        f"{behaviour.RAO_SCOTT}.",
        advice="Raise spec.rollout.timeoutSeconds, or find the slow call and make it faster.",
        look_at=(
            "The coordinator's log, event `episode-failed`: what did the lost episodes wait for?",
            "`headway_sandbox_tool_call_seconds`, `rollout/kv_cache_use`: are tools slow, or rollout "
            "servers?",
        ),
        confirmed_by="the share falls below 5 %.",
    ),
    Signal(
        name=Name.TURNS_EXHAUSTED,
        judge=behaviour.rate(behaviour.EXHAUSTED, "used up maxTurns", behaviour.MAX_EXHAUSTED),
        meaning="Episodes use up all turns of maxTurns.",
        number=behaviour.number_of(behaviour.EXHAUSTED),
        threshold=behaviour.threshold_of(behaviour.MAX_EXHAUSTED),
        reason=f"The limit is meant for the few episodes that make no progress. {behaviour.BURSTS}",
        source=f"{GUIDE}: under 10 % of episodes use up their turns. {behaviour.RAO_SCOTT}.",
        advice="Raise spec.agent.builtin.maxTurns to 1.5 times what a person needs; if the agent "
        "repeats itself, improve the tools' answers.",
        look_at=(
            "`rollout/tool_calls/failed_share`: does the agent repeat a failing call?",
            "`analysis/batch_completion_ratio`: does the agent answer at all?",
            TRAJECTORIES,
        ),
        confirmed_by="the share falls below 10 %.",
    ),
    Signal(
        name=Name.TOOL_CALLS_MALFORMED,
        judge=behaviour.rate(
            behaviour.MALFORMED, "have a tool call that cannot be read", behaviour.MAX_MALFORMED
        ),
        meaning="The parser cannot read the model's tool calls.",
        number=behaviour.number_of(behaviour.MALFORMED),
        threshold=behaviour.threshold_of(behaviour.MAX_MALFORMED),
        reason="A call that cannot be read wastes a turn. If the share stays high, the reward does not "
        f"punish such calls. {behaviour.BURSTS}",
        source=f"{GUIDE}: watch format compliance along with the reward. The threshold was chosen on "
        f"the recorded runs of tests/signals. {behaviour.RAO_SCOTT}.",
        advice="Check that the tools' schemas have the form that the model was trained on. Let the reward "
        "pay a small part (0.1) for the right format.",
        look_at=("`rollout/tool_calls/malformed_share`", TRAJECTORIES),
        confirmed_by="the share falls.",
    ),
    Signal(
        name=Name.LENGTH_EXPLODING,
        judge=behaviour.growing(behaviour.LENGTH, "sampled tokens of a turn", behaviour.LONGER, 1.0),
        meaning="Turns become much longer than before, and the episodes score no higher.",
        number=behaviour.growth_of(behaviour.LENGTH),
        threshold=behaviour.growth_threshold(behaviour.LONGER),
        reason=f"Longer turns that do not raise the score only cost tokens. {PASSES}",
        source=f"DAPO (arXiv 2503.14476) on overlong answers. {SERIES}.",
        advice="Check whether the reward pays for length. Then lower spec.rollout.sampling.maxTokens, or "
        "set spec.algorithm.reduction to sequence_mean or constant.",
        look_at=("`rollout/repetition/mean`", "`rollout/reward/mean` against length", TRAJECTORIES),
        confirmed_by="turns become shorter again, and the external score holds.",
        raise_after=LASTING,
    ),
    Signal(
        name=Name.TOOL_CALLS_INFLATING,
        judge=behaviour.growing(behaviour.CALLS, "tool calls of an episode", behaviour.MORE_CALLS, 0.5),
        meaning="Episodes make many more tool calls than before, and score no higher.",
        number=behaviour.growth_of(behaviour.CALLS),
        threshold=behaviour.growth_threshold(behaviour.MORE_CALLS),
        reason=f"Calls that do not raise the score only cost money. {PASSES}",
        source=f"{GUIDE}: an agent calls all it can if the reward pays for calls. {SERIES}.",
        advice="Check whether the reward pays for tool calls, and stop paying for them. Then limit calls "
        "in the environment.",
        look_at=("`rollout/tool_calls_of/*`: which tool?", "`rollout/external_score/mean`", TRAJECTORIES),
        confirmed_by="episodes make fewer calls again, and the external score holds.",
        raise_after=LASTING,
    ),
    Signal(
        name=Name.REPETITION,
        judge=behaviour.repetition,
        meaning="The model repeats phrases within a turn.",
        number=f"Median of `{behaviour.REPEATED}` over {learning.LAST} steps: the share of a turn's phrases "
        "of 8 tokens that had occurred earlier in the turn.",
        threshold=f"Bad above {behaviour.REPETITIVE:.0%}. Clear at {behaviour.REPETITIVE / 2:.0%} or less.",
        reason="Sound turns seldom repeat a phrase of 8 tokens; a degenerate policy does little else. "
        f"{PASSES}",
        source=f"{SERIES}.",
        advice="Lower spec.optimizer.learningRate, and check whether the reward pays for length.",
        look_at=("`training/entropy`", "`rollout/tokens/response_mean`", TRAJECTORIES),
        confirmed_by="the share falls.",
        raise_after=LASTING,
    ),
)
