"""Defines a check: its number, its threshold, and its finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from headway_analysis.preflight.evidence import Baseline, PlayedScript, Script

Verdict = Literal["Pass", "Warn", "Fail", "Unknown"]
"""Unknown: there are too few episodes for a verdict, or an input that the check needs is missing."""

MAX_EXAMPLES: Final = 3


@dataclass(frozen=True)
class Example:
    """One episode or script that shows what a check found."""

    title: str
    """A few words that identify the example: `row 12, second run`."""
    text: str
    """The evidence for a person: an answer with its reward and score, or a diff."""
    episode_id: str | None = None
    """Id of the baseline episode that is shown; None if the example is none."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    """Id of the check."""
    verdict: Verdict
    observed: str
    """The observation with its numbers, as one or two sentences."""
    value: float | None = None
    threshold: float | None = None
    low: float | None = None
    """Lower bound of the 95 % interval of `value`; None if it has no interval."""
    high: float | None = None
    """Upper bound of the same interval."""
    advice: str = ""
    """What to change; empty if the check passes."""
    field: str | None = None
    """Field of the spec to change; None if no field is the cause."""
    needs: int | None = None
    """Episodes that would be enough for a verdict. After a warning: enough for a sure verdict."""
    examples: tuple[Example, ...] = ()
    """Examples of the finding, at most `MAX_EXAMPLES`."""
    numbers: Annotated[tuple[tuple[str, float], ...], Field(alias="figures")] = ()
    """Further numbers by name, for the report: `pass@8`, `p99 tool tokens`. They are stored as `figures`."""


Scripts = Callable[[Baseline], Sequence[Script]]
Judge = Callable[[Baseline, Sequence[PlayedScript]], Finding]


def no_scripts(baseline: Baseline) -> Sequence[Script]:
    """No scripts, for a check that needs only the baseline."""
    return ()


@dataclass(frozen=True)
class Check:
    """One check of the preflight. Its texts are for people: docs/preflight.md has them."""

    id: str
    """A short and stable name of lower-case words with hyphens: `scorer-agrees`."""
    meaning: str
    """The problem that the check finds, in one sentence."""
    number: str
    """How the number is computed."""
    threshold: str
    """When the check fails, when it warns, and when it is Unknown."""
    reason: str
    """Why the threshold has this value."""
    source: str
    """The source of the threshold: a publication, or the practice guide."""
    advice: str
    """The first thing to change."""
    judge: Judge
    """Judges the baseline, and the results of this check's scripts in the order of `scripts`."""
    scripts: Scripts = no_scripts
    """Makes a bounded number of scripts to play, from the baseline alone."""
    stops_early: bool = False
    """Whether the verdict Fail is final even if it comes from a part of the baseline, without scripts. The
    judge of such a check allows for being asked after every episode."""
    needs_model: bool = True
    """Whether the check judges a model's behaviour. An author's own tests run the other checks, without a
    model."""
