"""Converts the findings on baseline episodes to the form of the status and of metrics. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.run import GRAVEST_FIRST, gravest_first
from headway_api import status as st
from headway_coordinator.metrics.prometheus import Sample

MAX_LINES: Final = 16
TEXT_LIMIT: Final = 1024
WORD_LIMIT: Final = 128
WORDS: Final = {"Fail": "failed", "Warn": "warned", "Unknown": "not known", "Pass": "passed"}


def lines(findings: Sequence[Finding]) -> list[st.PreflightFinding]:
    """The gravest findings, as many as a status has room for."""
    return [_line(found) for found in gravest_first(findings)[:MAX_LINES]]


def _line(found: Finding) -> st.PreflightFinding:
    return st.PreflightFinding(
        check=found.check[:WORD_LIMIT],
        verdict=found.verdict,
        value=_number(found),
        threshold=None if found.threshold is None else st.decimal(found.threshold),
        message=sentence(found)[:TEXT_LIMIT],
        field=None if found.field is None else found.field[:256],
    )


def sentence(found: Finding) -> str:
    """A finding as text: what was observed, what to change, and how many episodes are needed to tell."""
    parts = [found.observed, found.advice]
    if found.needs is not None:
        parts.append(f"{found.needs} episodes would be enough to tell")
    return "; ".join(part.rstrip(".") for part in parts if part)


def _number(found: Finding) -> str | None:
    if found.value is None:
        return None
    value = st.decimal(found.value)
    if found.low is None or found.high is None:
        return value[:WORD_LIMIT]
    return f"{value} ({st.decimal(found.low)} to {st.decimal(found.high)})"[:WORD_LIMIT]


def summary(findings: Sequence[Finding], *more: str | None) -> str:
    """The number of checks with each verdict, followed by the remarks in `more`."""
    counts = Counter(found.verdict for found in findings)
    parts = [f"{counts[verdict]} {WORDS[verdict]}" for verdict in GRAVEST_FIRST if counts[verdict]]
    return "; ".join([", ".join(parts) or "nothing was judged", *filter(None, more)])[:WORD_LIMIT]


def samples(findings: Sequence[Finding], episodes: int, wanted: int) -> Iterator[Sample]:
    """The findings, and the number of episodes so far and in all, as samples for Prometheus."""
    yield Sample("preflight/episodes", episodes)
    yield Sample("preflight/wanted_episodes", wanted)
    for found in findings:
        for verdict in GRAVEST_FIRST:
            labels = {"check": found.check, "verdict": verdict}
            yield Sample("preflight/verdict", float(found.verdict == verdict), labels)
        if found.value is not None:
            yield Sample("preflight/value", found.value, {"check": found.check})
