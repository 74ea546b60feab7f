"""The share of a turn that repeats earlier parts of the turn."""

from __future__ import annotations

from typing import Final

import numpy as np

from headway_api.records import EpisodeRecord, TurnSpan

LENGTH: Final = 8
"""Tokens of a phrase. Names of fields and tools recur in any answer; eight tokens in a row seldom do."""


def repetition(episode: EpisodeRecord) -> list[float]:
    """For each sampled turn: the share of its phrases of `LENGTH` tokens that came earlier in the turn.

    The share is 0 if the turn is too short to repeat a phrase.
    """
    found = []
    for row in episode.rows:
        if not row.action_tokens:
            continue
        tokens = np.asarray(row.tokens)
        spans = row.turns or _as_one(row.mask)
        found += [_share(tokens[span.start : span.end]) for span in spans]
    return found


def _as_one(mask: list[int]) -> list[TurnSpan]:
    """One span from the first to the last sampled token, for a row that does not record its turns."""
    sampled = np.flatnonzero(mask)
    return [TurnSpan(start=int(sampled[0]), end=int(sampled[-1]) + 1, turn=0)]


def _share(tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    if len(tokens) <= LENGTH:
        return 0.0
    phrases = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH)
    return 1.0 - len(np.unique(phrases, axis=0)) / len(phrases)
