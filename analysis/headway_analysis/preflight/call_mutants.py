"""Tool calls of full-scoring episodes, changed in one way at a time, for tasks that are judged by the tool
calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headway_analysis.preflight.checks.deterministic import reads
from headway_analysis.preflight.evidence import Call
from headway_analysis.preflight.mutants import MAX_FIELDS, altered, is_prose

MAX_CALLS: Final = 3
"""The most calls of an episode whose arguments are altered. These are the last calls."""


@dataclass(frozen=True)
class CallMutant:
    """An episode's calls, changed in one way."""

    label: str
    calls: tuple[Call, ...]
    rule: str
    """What the scorer does wrong if the changed calls score full, as in `Mutant.rule`."""
    harmful: bool = True


def call_mutants(calls: Sequence[Call]) -> list[CallMutant]:
    """The calls without the last one, and the calls with one altered argument each.

    Only calls that may change something are dropped or altered; if all calls only read, any of them. Prose in
    arguments is not altered.
    """
    places = [at for at, call in enumerate(calls) if not reads(call.name)] or [*range(len(calls))]
    found = []
    for at in places[-1:]:
        left = (*calls[:at], *calls[at + 1 :])
        found.append(CallMutant("last call dropped", left, "the last call may be missing"))
    for at in places[-MAX_CALLS:]:
        call = calls[at]
        names = [key for key, value in call.arguments.items() if not is_prose(key, value)]
        for name in names[:MAX_FIELDS]:
            other = Call(call.name, {**call.arguments, name: altered(call.arguments[name])})
            changed = (*calls[:at], other, *calls[at + 1 :])
            label = f"call altered: {call.name}, {name}"
            if label not in {each.label for each in found}:
                rule = f"any value of {name} of {call.name} is accepted"
                found.append(CallMutant(label, changed, rule))
    return found
