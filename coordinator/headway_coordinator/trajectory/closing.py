"""Finds the tokens with which a chat template ends a turn. They end sampling too: they are stop tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway_coordinator.trajectory.probe import (
    ANSWER,
    ASKED,
    ASKED_AGAIN,
    KEY,
    RESULT,
    SIMPLE,
    call,
    calling,
)
from headway_coordinator.trajectory.template import decoded


def closers(tokenizer: Any, render_text: Callable[..., str], closing: str = "") -> list[int]:
    """Ids of the special tokens with which a template ends a turn, or begins the next message.

    Args:
        tokenizer: the model's tokenizer.
        render_text: the renderer's `Provable.render_text`.
        closing: the tag after a call. It does not end a turn.
    """
    special = set(tokenizer.get_added_vocab().values()) | set(tokenizer.all_special_ids)
    found: list[int] = []
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    both = calling(call(KEY), call(KEY, index=1))
    for turn, following in ((ANSWER, ASKED_AGAIN), (both, RESULT), (calling(call(KEY)), RESULT)):
        try:
            whole = render_text([*ASKED, turn], SIMPLE, generate=False).rstrip()
            after = render_text([*ASKED, turn, following], SIMPLE, generate=True)
        except Exception:  # see `prove`
            continue
        ended = [decoded(tokenizer, [token]) for token in [*found, *own]]
        if any(whole.endswith(end) for end in ended):
            continue
        tail = whole.rpartition(ANSWER["content"])[2] if turn is ANSWER else ""
        beside = [tail.lstrip(), after[len(whole) :].lstrip() if after.startswith(whole) else ""]
        firsts = [tokenizer.encode(text, add_special_tokens=False)[:1] for text in beside if text]
        last = tokenizer.encode(whole, add_special_tokens=False)[-1:]
        if (
            turn is both
            and decoded(tokenizer, last) != closing
            and _once(tokenizer, render_text, whole, last)
        ):
            firsts = [last, *firsts]
        found += next(([token for token in ids if token in special] for ids in firsts), [])
    return found


def _once(tokenizer: Any, render_text: Callable[..., str], whole: str, token: list[int]) -> bool:
    """Whether the turn with two calls in `whole` has the token only once.

    If so, the token ends the turn. Otherwise it ends each call.
    """
    turn = whole[len(render_text(ASKED, SIMPLE, generate=False)) :]
    return turn.count(decoded(tokenizer, token)) == 1
