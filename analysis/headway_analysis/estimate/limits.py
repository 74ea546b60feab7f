"""What an episode may use, from prompts and the spec's limits alone, before any episode was played.

Low is an episode of one short turn. High is an episode with every turn at its longest. The likely value is
the geometric mean of both, since only their order of magnitude is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Final

from headway_analysis.estimate.amounts import Range, exactly, middle, ordered
from headway_api.records import UsageClass

OWN_TURNS: Final = 32
"""Maximum turns assumed for an agent with its own loop, whose turns the spec does not limit."""
RETRIED: Final = 0.1
"""Share of episodes that are lost and retried, at worst."""
GRADIENT_SHARE: Final = 0.5
"""The likely share of groups that have a gradient. In the others all rewards are equal."""


@dataclass(frozen=True)
class Limits:
    """The spec's limits of an episode."""

    context_length: int
    """Maximum tokens of an episode."""
    max_tokens: int
    """Maximum tokens of a turn."""
    max_turns: int | None = None
    """Maximum turns of an episode. None for an agent with its own loop."""
    token_limit: int | None = None
    """Maximum tokens sampled in an episode."""
    seconds: float = 600.0
    """Seconds that an episode may take."""
    group_size: int = 1


def prompt_of(lengths: Sequence[float], limits: Limits) -> Range:
    """Tokens of an episode's first prompt, on average over the rows.

    Args:
        lengths: tokens of each sampled row's prompt; empty if the environment's first messages are unknown.
        limits: the job's limits.
    """
    known = [min(float(limits.context_length), each) for each in lengths if isfinite(each) and each >= 0]
    if known:
        return exactly(fsum(known) / len(known))
    maximum = float(max(1, limits.context_length - limits.max_tokens))
    return ordered(1.0, middle(1.0, maximum), maximum)


def of_episode(prompt: Range, limits: Limits) -> dict[str, Range]:
    """The usage of a training episode by class of the bill, including the tokens that the learner trains."""
    context, maximum = float(max(1, limits.context_length)), float(max(1, limits.max_tokens))
    turns = float(limits.max_turns or OWN_TURNS)
    likely_turns, turn_tokens = middle(1.0, turns), middle(1.0, maximum)
    room = max(1.0, context - prompt.likely)
    allowed = float(limits.token_limit or room)
    sampled = ordered(
        1.0, min(likely_turns * turn_tokens, allowed, room), min(turns * maximum, allowed, context)
    )
    # A tool result follows each turn, and is assumed to be as long as the turn.
    grown = min(context, prompt.likely + (2 * likely_turns - 1) * turn_tokens)
    computed = max(prompt.likely, grown - turn_tokens)
    prompts = likely_turns * (prompt.likely + computed) / 2
    found = {
        UsageClass.PREFILL: ordered(prompt.low / max(1, limits.group_size), computed, turns * context),
        UsageClass.CACHED_PREFILL: ordered(0.0, prompts - computed, turns * context),
        UsageClass.SAMPLE: sampled,
        UsageClass.TRAIN: ordered(0.0, grown * GRADIENT_SHARE, context),
        UsageClass.DISCARDED: ordered(0.0, 0.0, RETRIED * (turns * context + sampled.high)),
        UsageClass.SANDBOX_SECONDS: ordered(0.0, middle(1.0, limits.seconds), limits.seconds),
    }
    return {name.value: amount for name, amount in found.items()}
