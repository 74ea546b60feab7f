"""Chooses the baseline episodes from which scripts are made, and makes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from headway_analysis.preflight.answers import parsed, tags_in
from headway_analysis.preflight.conversation import answer_of, calls_of, ending_call, prompt_text
from headway_analysis.preflight.evidence import Baseline, Call, Facts, PlayedScript, Sampled, Script
from headway_analysis.preflight.examples import names_it

MAX_CALLS: Final = 24
"""The most calls of one script. If an episode has more calls, only the first ones are replayed."""


def is_full(one: Sampled, facts: Facts) -> bool:
    """Whether the episode is a success by the external score."""
    score = one.record.score
    return score is not None and score >= facts.success_threshold


def succeeds(one: PlayedScript, facts: Facts) -> bool:
    """Whether a script is a success by the external score."""
    return one.score is not None and one.score >= facts.success_threshold


def varied(found: Iterable[Sampled], count: int) -> list[Sampled]:
    """Up to `count` episodes that differ: first those that call further tools, then those of further rows."""
    left = sorted(found, key=lambda one: one.record.episode_id)
    tools: set[str] = set()
    rows: set[int] = set()
    chosen: list[Sampled] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda one: (len(_called(one) - tools), one.group.row not in rows))
        left.remove(best)
        chosen.append(best)
        tools |= _called(best)
        rows.add(best.group.row)
    return chosen


def one_a_row(baseline: Baseline, count: int) -> list[Sampled]:
    """The episode that scored best in each of up to `count` rows, in the order of rows."""
    best: dict[int, Sampled] = {}
    for one in baseline.scored:
        other = best.get(one.group.row)
        if other is None or _standing(one) > _standing(other):
            best[one.group.row] = one
    return [best[row] for row in sorted(best)][:count]


def _standing(one: Sampled) -> tuple[float, float, int]:
    record = one.record
    return (record.score or 0.0, record.reward or 0.0, len(one.results))


def _called(one: Sampled) -> set[str]:
    return {result.name for result in one.results}


def replay(
    check: str,
    label: str,
    one: Sampled,
    *,
    answer: str | None = None,
    calls: Sequence[Call] | None = None,
    after: str | None = None,
) -> Script:
    """A script that replays a baseline episode: its row, seed, calls and answer.

    Args:
        answer: replaces the episode's answer. If a call ended the episode, an answer that is a JSON object
            becomes that call's arguments.
        calls: replaces the episode's calls.
        after: as `Script.after`.
    """
    taken = calls_of(one) if calls is None else tuple(calls)
    final = answer_of(one)
    if answer is not None:
        ending, arguments = ending_call(one), _arguments(answer)
        if ending is not None and calls is None:
            taken = taken[:-1]
        final = answer
        if ending is not None and arguments is not None:
            taken, final = (*taken[: MAX_CALLS - 1], Call(ending.name, arguments)), None
    return Script(
        check=check,
        label=label,
        row=one.row,
        environment_seed=one.environment_seed,
        calls=taken[:MAX_CALLS],
        answer=final,
        like=one.record.episode_id,
        after=after,
    )


def silenced(check: str, label: str, one: Sampled) -> Script | None:
    """A control script: the episode's calls with an empty last message.

    If the script still scores full, the task is judged by the effects of the tool calls, and not by the
    answer.

    Returns: None if no calls are left. Also None if the prompt asks for a form of answer, which shows that
        the answer is judged.
    """
    script = replay(check, label, one, answer="")
    return script if script.calls and not _asked_for(one) else None


def _asked_for(one: Sampled) -> bool:
    """Whether the prompt contains the tag of the episode's last message, or the name of one of its fields."""
    text = answer_of(one)
    if text is None or ending_call(one) is not None:
        return False
    prompt, answer = prompt_text(one), parsed(text)
    named = any(key and names_it(prompt, key) for key, _ in answer.fields)
    return named or answer.tag in tags_in(prompt)


def _arguments(answer: str) -> dict[str, Any] | None:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
