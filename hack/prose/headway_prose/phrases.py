"""Retired phrases, which readers stumble over, each with what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Phrase:
    """A retired phrase, as a case-insensitive pattern, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


def _phrase(pattern: str, instead: str) -> Phrase:
    return Phrase(re.compile(pattern, re.IGNORECASE), instead)


_AUXILIARY = "is|are|was|were|do|does|did|has|have|can|may|will"

PHRASES = (
    # Inverted sentences.
    _phrase(
        rf"^(?:so|nor|neither) (?:{_AUXILIARY})\b", 'the subject first: "X also ...", "X does not ... either"'
    ),
    _phrase(r"^(?:not|never) (?:until|only|so|before)\b", "the subject first"),
    _phrase(r"\b(?:it is|became|is it) so\b", "what is true, in full"),
    _phrase(r"\bthe one,? and (?:then )?the other\b", "the names of both"),
    # Private idioms.
    _phrase(r"\bheed(?:s|ed)?\b", '"used" or "applied"'),
    _phrase(r"\b(?:is|are|was|were|be|been) told\b(?! apart)", '"receives", "learns" or "shows"'),
    _phrase(r"\btells? of\b", '"reports" or "shows"'),
    _phrase(r"\bhas it that\b", '"says that"'),
    _phrase(r"\bstands\b(?! for\b)", '"remains", "applies" or "is"'),
    _phrase(r"\bstood\b(?! for\b)", '"remained", "applied" or "was"'),
    _phrase(
        r"\b(?:comes?|came) (?:to(?! an? \w+\b.*\bend)|of) (?:it|that|this|them|nothing)\b",
        '"is", "results in"',
    ),
    _phrase(r"\bwhat (?:\S+ )+?(?:comes?|came) to\b", '"the result of ..."'),
    _phrase(r"\b(?:is|are|was|were|be) taken for\b", '"is treated as" or "is mistaken for"'),
    _phrase(r"\bgo(?:es)? by\b", '"use" or "follow"'),
    _phrase(r"\bat hand\b", '"available"'),
    _phrase(r"\bheld against\b", '"compared with"'),
    _phrase(r"\bdear(?:er|est)?\b", '"expensive"'),
    _phrase(r"\bpass(?:es|ed) over\b", '"skipped" or "ignored"'),
    _phrase(r"\b(?:take|takes|took|taken) (?:it|them|that) up\b", '"applies"'),
    _phrase(r"\bends? well\b|\bended well\b", '"succeeds" or "completes"'),
    _phrase(r"\bfor good\b", '"permanently"'),
    _phrase(r"\bunless given\b", '"by default"'),
    _phrase(r"\bon record\b", '"recorded"'),
    _phrase(
        r"\b(?:is|are|was|were|be|been|stays?) away\b(?! from)",
        '"unavailable", "unreachable" or "not running"',
    ),
    _phrase(r"\bat work\b", '"running" or "busy"'),
    _phrase(r"\bparted\b", '"diverged" or "differ"'),
    _phrase(r"\bdoes without\b", '"needs no"'),
    _phrase(r"\bgravity\b", '"severity"'),
    _phrase(r"\bsays? (?:why|so) in (?:words|a word)\b", '"explains"'),
    _phrase(r"\bare? (?:meant|said) of\b", '"describes"'),
    _phrase(r"\b(?:is|are) held to\b", '"must follow" or "is compared with"'),
    _phrase(r"\bspeaks? (?:for|of)\b", '"describes" or "suggests"'),
    # Old or long words.
    _phrase(r"\bbut for\b", '"except for"'),
    _phrase(r"\bnothing but\b", '"only"'),
    _phrase(r"\banew\b", '"again"'),
    _phrase(r"\btill\b", '"until"'),
    _phrase(r"\bupon\b", '"on"'),
    _phrase(r"\blest\b", '"so that ... not"'),
    _phrase(
        r"\b(?:whereof|thereof|whereby|wherein|therein|thereby|hereby|hence|thence|whence)\b", "a plain word"
    ),
    _phrase(r"\b(?:in order|so as) to\b", '"to"'),
    _phrase(r"\bin place of\b", '"instead of"'),
    _phrase(r"\bprior to\b", '"before"'),
    _phrase(r"\bowing to\b", '"because of"'),
    _phrase(r"\b(?:utili[sz]e|leverage)[sd]?\b", '"use"'),
    _phrase(r"\ball the same\b", '"still"'),
    _phrase(r"\bforthwith\b", '"at once"'),
)

EVERYWHERE = (_phrase(r"\bfigures?\b(?![:/])", '"metric", or "number", "value", "measure", "amount"'),)
"""Words that are also retired in strings of benchmarks and tests, and in the pages that these write."""

NAMES = (
    _phrase(r"^most\b|(?<!\bat )\bmost$", '"limit" or "maximum"'),
    _phrase(r"^beat\b|^beats$", '"probe" or "record_progress"'),
    _phrase(r"^away\b|\bstore away\b", '"unavailable"'),
    _phrase(r"^mind\b", '"maintain"'),
    _phrase(r"\bse(?:e|en) off\b", '"drain"'),
    _phrase(r"\bacted upon\b", '"acted_on"'),
    _phrase(r"\bconduct\b", '"behaviour"'),
    _phrase(r"\bdoomed\b", '"untrainable", or what will happen to it'),
    _phrase(r"\bfigures?\b", '"metrics", or "numbers", "values", "measures", "amounts"'),
    _phrase(r"\bhopeless\b", '"failing" or "fatal"'),
    _phrase(r"\blower end\b", '"lower_bound"'),
    _phrase(r"\bnews\b", '"changes" or "events"'),
    _phrase(r"\broomy\b", '"has_capacity"'),
    _phrase(r"\bsalvaged?\b", '"read_partly"'),
    _phrase(r"\bsightings?\b", '"identity"'),
    _phrase(r"\bstretches\b", '"sections"'),
    _phrase(r"\btried again\b", '"retried"'),
    _phrase(r"\bunheard\b", '"not_reporting"'),
    _phrase(r"\bwishes\b", '"wished" or "requested"'),
)
"""Words that are retired in names. Each pattern applies to a name's words. In prose these words may be
right."""
