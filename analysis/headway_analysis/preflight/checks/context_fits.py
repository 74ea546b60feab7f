"""Checks that episodes fit the limits of context, turns and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headway_analysis.measures.tries import at_context_limit, at_max_tokens, at_turn_limit
from headway_analysis.preflight.conversation import answer_of, excerpt, results_text
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Facts, PlayedScript, Sampled
from headway_analysis.preflight.shares import Share, enough_without, quantile, share
from headway_analysis.preflight.sources import EXACT, GUIDE
from headway_analysis.signals.judges.behaviour import MAX_CUT, MAX_EXHAUSTED, MAX_FULL

ID: Final = "context-fits"
SOME: Final = 16
ENOUGH: Final = enough_without(MAX_CUT)
TAIL: Final = 0.99


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on the shares of episodes that were cut off, and on the longest possible episode."""
    facts, found = baseline.facts, baseline.scored
    if len(found) < SOME:
        observed = f"{len(found)} episodes are too few to tell."
        return Finding(ID, "Unknown", observed, threshold=MAX_CUT, needs=ENOUGH)
    limits: list[tuple[str, str, float, Callable[[Sampled], bool]]] = [
        (
            "have a turn cut at maxTokens",
            TOKENS,
            MAX_CUT,
            lambda one: at_max_tokens(one.record) and not one.record.token_limited,
        ),
        (
            "end with a full context",
            LENGTH,
            MAX_FULL,
            lambda one: _full(one, facts),
        ),
        ("use up maxTurns", TURNS, MAX_EXHAUSTED, lambda one: at_turn_limit(one.record, facts.max_turns)),
    ]
    if any(one.record.token_limited for one in found):
        limits.append(("reach episodeTokenLimit", EPISODE, MAX_CUT, lambda one: one.record.token_limited))
    cut = []
    for what, field, limit, hit in limits:
        hits = [one for one in found if hit(one)]
        cut.append((share(len(hits), len(found)), what, field, limit, hits))
    numbers, need = _sums(baseline, facts)
    numbers += tuple((f"share that {what}", part.value) for part, what, *_ in cut)
    over = [each for each in cut if each[0].low > each[3]]
    near = [each for each in cut if each[0].value > each[3] and each[0].low > each[3] / 2]
    part, what, field, limit, hits = max(over or near or cut, key=lambda each: each[0].value - each[3])
    observed = f"{part} episodes {what}."
    if over or near:
        shown = tuple(map(_example, hits[:MAX_EXAMPLES]))
        return Finding(
            ID,
            "Fail" if over else "Warn",
            observed,
            part.value,
            limit,
            part.low,
            part.high,
            ADVICE[field],
            field,
            examples=shown,
            numbers=numbers,
        )
    if need is not None and need > facts.context_length:
        return _too_long(facts, need, numbers, part)
    return Finding(ID, "Pass", observed, part.value, limit, part.low, part.high, numbers=numbers)


def _full(one: Sampled, facts: Facts) -> bool:
    """Whether the episode fills the context of the job's model. An endpoint may have another context."""
    if one.conversation_tokens is not None:
        return one.conversation_tokens > facts.context_length
    return at_context_limit(one.record, facts.max_turns)


TOKENS: Final = "spec.rollout.sampling.maxTokens"
EPISODE: Final = "spec.rollout.episodeTokenLimit"
LENGTH: Final = "spec.model.contextLength"
TURNS: Final = "spec.agent.builtin.maxTurns"
ADVICE: Final = {
    TOKENS: "Raise spec.rollout.sampling.maxTokens: a cut turn teaches that unfinished attempts are bad.",
    EPISODE: "Raise spec.rollout.episodeTokenLimit: a cut turn teaches that unfinished attempts are bad.",
    LENGTH: "Raise spec.model.contextLength, or have tools answer more briefly.",
    TURNS: "Raise spec.agent.builtin.maxTurns to 1.5 times what a person needs.",
}


def _too_long(facts: Facts, need: int, numbers: tuple[tuple[str, float], ...], part: Share) -> Finding:
    observed = (
        f"At its longest an episode needs {need} tokens, of {facts.context_length}: prompt, "
        f"{facts.max_turns} turns "
        f"of {facts.max_tokens}, and tool output."
    )
    return Finding(
        ID,
        "Warn",
        observed,
        float(need),
        float(facts.context_length),
        advice=ADVICE[LENGTH],
        field=LENGTH,
        numbers=numbers,
    )


def _sums(baseline: Baseline, facts: Facts) -> tuple[tuple[tuple[str, float], ...], int | None]:
    """Numbers on lengths, and the tokens of the longest possible episode; None if turns are not limited."""
    prompt = max((one.prompt_tokens for one in baseline.sampled), default=0)
    results = [float(tokens) for one in baseline.sampled for tokens in one.tool_tokens]
    output = quantile(results, TAIL)
    turns = quantile([float(len(one.record.turns)) for one in baseline.scored], TAIL)
    numbers = (
        ("prompt_tokens", float(prompt)),
        ("p99_tool_tokens", output),
        ("p99_turns", turns),
        ("context_length", float(facts.context_length)),
    )
    if facts.max_turns is None:
        return numbers, None
    need = int(prompt + facts.max_turns * facts.max_tokens + (facts.max_turns - 1) * output)
    return (*numbers, ("longest_episode_tokens", float(need))), need


def _example(one: Sampled) -> Example:
    turns = ", ".join(f"{turn.sampled_tokens} {turn.finish_reason}" for turn in one.record.turns[-6:])
    text = f"last turns: {turns}\n{results_text(one.results[-3:])}\n{answer_of(one) or '(no answer)'}"
    return Example(f"row {one.group.row}: {one.record.outcome.value}", excerpt(text), one.record.episode_id)


CHECK: Final = Check(
    id=ID,
    meaning="Episodes are cut off by maxTokens, the context or maxTurns, or might be.",
    number="Three shares of baseline episodes: those with a turn cut at maxTokens, with a full context, "
    "and with all of maxTurns used. Also the tokens of the longest possible episode: prompt with "
    "tools + maxTurns x maxTokens + (maxTurns - 1) x tool output (its 99th percentile).",
    threshold=f"Fails if one of these shares is surely above {MAX_CUT:.0%}, {MAX_FULL:.0%} and "
    f"{MAX_EXHAUSTED:.0%}, respectively. Warns if a share is above its threshold, and surely "
    "above half of it. Also warns if the longest possible episode exceeds contextLength. Unknown "
    f"below {SOME} episodes.",
    reason="An episode that is cut off is judged unfinished, however good it was. The signals "
    "TurnsTruncated, ContextFull and TurnsExhausted have the same thresholds.",
    source=f"{GUIDE}: if over 5 % of responses reach the cap, raise the cap. Under 10 % of episodes use up "
    f"their turns. {EXACT}.",
    advice="Raise the limit that cuts episodes off, or have tools answer more briefly.",
    judge=judge,
)
