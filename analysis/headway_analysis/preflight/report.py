"""`preflight.json` and `preflight.md`: each check's finding, with its number, threshold and evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.definition import MAX_EXAMPLES, Example, Finding
from headway_analysis.preflight.evidence import Baseline
from headway_analysis.preflight.run import gravest_first
from headway_api.bounds import shortened

VERSION: Final = 1
"""The document's version. A field may be added under the same version; none is renamed or removed."""
TEXT: Final = 1_000
"""Maximum characters of an observation or an advice."""
TITLE: Final = 200
"""Maximum characters of an example's title, and of a number's name."""
EVIDENCE: Final = 4_000
"""Maximum characters of an example."""
NUMBERS: Final = 64
"""Maximum further numbers of a check."""
PAGE: Final = "docs/preflight.md"


def document(baseline: Baseline, found: Sequence[Finding]) -> dict[str, Any]:
    """The contents of `preflight.json`. Their size is bounded."""
    facts = baseline.facts
    counts = Counter(finding.verdict for finding in found)
    return {
        "version": VERSION,
        "definitions": PAGE,
        "episodes": {
            "wanted": baseline.wanted,
            "sampled": len(baseline.sampled),
            "scored": len(baseline.scored),
            "rows": len({one.group.row for one in baseline.sampled}),
            "seconds": round(baseline.seconds, 3),
        },
        "facts": {
            "groupSize": facts.group_size,
            "successThreshold": facts.success_threshold,
            "rewardRange": list(facts.reward_range),
            "contextLength": facts.context_length,
            "rows": len(facts.rows),
        },
        "verdicts": {name: counts[name] for name in ("Fail", "Warn", "Unknown", "Pass") if counts[name]},
        "checks": [_finding(finding) for finding in gravest_first(found)],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    made: dict[str, Any] = {
        "check": finding.check,
        "verdict": finding.verdict,
        "observed": shortened(finding.observed, TEXT),
        "value": finding.value,
        "threshold": finding.threshold,
        "low": finding.low,
        "high": finding.high,
        "advice": shortened(finding.advice, TEXT),
        "field": finding.field,
        "needs": finding.needs,
        "figures": {shortened(name, TITLE): value for name, value in finding.numbers[:NUMBERS]},
        "examples": [_example(example) for example in finding.examples[:MAX_EXAMPLES]],
    }
    return {name: value for name, value in made.items() if value not in (None, "", {}, [])}


def _example(example: Example) -> dict[str, Any]:
    lines = [shortened(line, EVIDENCE) for line in example.text[:EVIDENCE].splitlines()]
    made = {"title": shortened(example.title, TITLE), "text": "\n".join(lines), "episode": example.episode_id}
    return {name: value for name, value in made.items() if value is not None}


def markdown(found: Mapping[str, Any]) -> str:
    """The text of `preflight.md`, from the result of `document`."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    episodes = found["episodes"]
    yield from ("# Preflight", "")
    verdicts = ", ".join(f"{count} {name}" for name, count in found["verdicts"].items())
    yield f"**{verdicts or 'No checks'}.** {episodes['scored']} of {episodes['sampled']} baseline episodes on"
    yield f"{episodes['rows']} rows have a reward; {episodes['wanted']} were asked for."
    yield from ("", "| check | verdict | number | threshold | what was seen |", "|---|---|---|---|---|")
    for each in found["checks"]:
        yield (
            f"| {each['check']} | {each['verdict']} | {_number(each)} | "
            f"{_short(each.get('threshold'))} | {_cell(each['observed'])} |"
        )
    for each in found["checks"]:
        yield from _section(each)


def _section(each: Mapping[str, Any]) -> Iterator[str]:
    check = BY_ID.get(each["check"])
    yield from ("", f"## {each['check']}: {each['verdict']}", "")
    if check is not None:
        yield from (f"- **Looks for:** {check.meaning}", f"- **Threshold:** {check.threshold}")
    yield f"- **Observed:** {_plain(each['observed'])}"
    if each.get("needs"):
        yield f"- **Needs:** {each['needs']} episodes"
    if each.get("advice"):
        where = f" (`{each['field']}`)" if each.get("field") else ""
        yield f"- **First:** {_plain(each['advice'])}{where}"
    for name, value in each.get("figures", {}).items():
        yield f"- {_plain(name)}: {_short(value)}"
    for example in each.get("examples", ()):
        episode = f", episode `{example['episode']}`" if "episode" in example else ""
        yield from ("", f"{_plain(example['title'])}{episode}:", "")
        # Indented lines form a code block, which no text in them can end.
        yield from (f"    {line}" for line in example["text"].splitlines())


def _number(each: Mapping[str, Any]) -> str:
    if "value" not in each:
        return ""
    ends = f" ({_short(each['low'])} to {_short(each['high'])})" if "low" in each and "high" in each else ""
    return f"{_short(each['value'])}{ends}"


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1e4 else f"{value:.0f}"


def _plain(text: str) -> str:
    """The text, escaped so that Markdown shows it literally."""
    return "".join(f"\\{sign}" if sign in "<>[]*#|" else sign for sign in text)


def _cell(text: str) -> str:
    return _plain(text).replace("\n", " ")
