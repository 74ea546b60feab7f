"""Defines a check: its number, its threshold, and its finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from headway_analysis.preflight.evidence import Baseline, PlayedScript, Script

Verdict = Literal["Pass", "Warn", "Fail", "Unknown"]
"""Unknown: too few episodes to tell, or what the check needs was not given."""

MAX_EXAMPLES: Final = 3


@dataclass(frozen=True)
class Example:
    """One episode or script that shows what a check found."""

    title: str
    """What the example is, in a few words: `row 12, second run`."""
    text: str
    """What a person should see: an answer with its reward and score, or a diff."""
    episode_id: str | None = None
    """The baseline episode that is shown, if the example is one."""


@dataclass(frozen=True)
class Finding:
    """The finding of one check."""

    check: str
    """Id of the check."""
    verdict: Verdict
    observed: str
    """What was seen, with its numbers, as one or two sentences."""
    value: float | None = None
    threshold: float | None = None
    low: float | None = None
    """Ends of the 95 % interval of `value`, if it has one."""
    high: float | None = None
    advice: str = ""
    """What to change; empty if the check passes."""
    field: str | None = None
    """Field of the spec to change, if a field is the cause."""
    needs: int | None = None
    """Episodes that are enough for a verdict, or after a warning for a sure verdict."""
    examples: tuple[Example, ...] = ()
    """At most `MAX_EXAMPLES`."""
    numbers: Annotated[tuple[tuple[str, float], ...], Field(alias="figures")] = ()
    """Further numbers by name, for the report: `pass@8`, `p99 tool tokens`. They are stored as `figures`."""


Scripts = Callable[[Baseline], Sequence[Script]]
Judge = Callable[[Baseline, Sequence[PlayedScript]], Finding]


def no_scripts(baseline: Baseline) -> Sequence[Script]:
    """The baseline alone is enough."""
    return ()


@dataclass(frozen=True)
class Check:
    """One check of the preflight. Everything but `scripts` and `judge` is for people."""

    id: str
    """Short and stable, of lower-case words with hyphens: `scorer-agrees`."""
    meaning: str
    """The problem that the check finds, in one sentence."""
    number: str
    """How the number is computed."""
    threshold: str
    """When it fails, when it warns, and when too little is known."""
    reason: str
    """Why the threshold is where it is."""
    source: str
    """The source: a publication, or the practice guide."""
    advice: str
    """The first thing to change."""
    judge: Judge
    """Judges the baseline and this check's scripts, in order, as they were played."""
    scripts: Scripts = no_scripts
    """Makes the scripts to play from the baseline alone; their number is bounded."""
    stops_early: bool = False
    """Whether a verdict Fail over part of the baseline, without scripts, is certain: no later episode would
    change it. The judge then accounts for every look that is taken."""
    needs_model: bool = True
    """Whether it judges what a model did. Without one, an author's own tests run the others."""
