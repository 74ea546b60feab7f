"""The findings of the checks, as text for a failed test."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript


@dataclass(frozen=True)
class Report:
    """Findings about one baseline."""

    baseline: Baseline
    played: Sequence[PlayedScript]
    """The played scripts that the checks asked for."""
    findings: Sequence[Finding]

    def named(self, *verdicts: str) -> list[str]:
        """Ids of the checks with one of these verdicts, in their order."""
        return [finding.check for finding in self.findings if finding.verdict in verdicts]

    def of(self, check: str) -> Finding:
        """What one check found.

        Raises:
            KeyError: no check has this id.
        """
        for finding in self.findings:
            if finding.check == check:
                return finding
        raise KeyError(f"no check {check}; there were: {', '.join(each.check for each in self.findings)}")

    @property
    def broken(self) -> list[str]:
        """Faults of the environment itself: the row, and its own message with method, file and line."""
        places = {id(row): place for place, row in enumerate(self.baseline.facts.rows)}
        found: dict[str, list[str]] = {}
        for one in self.baseline.sampled:
            if one.record.error is not None:
                found.setdefault(one.record.error, []).append(f"row {places.get(id(one.row), '?')}")
        for played in self.played:
            if played.error is not None:
                where = f"row {places.get(id(played.script.row), '?')} ({played.script.label})"
                found.setdefault(played.error, []).append(where)
        return [f"{several(where)}: {error}" for error, where in found.items()]

    def text(self, *, without: Collection[str] = ()) -> str:
        """What to fix, the worst first; `without`: ids of checks to omit."""
        lines = [f"Fault in {what}" for what in self.broken]
        for verdict in ("Fail", "Warn", "Unknown"):
            for finding in self.findings:
                if finding.verdict == verdict and finding.check not in without:
                    lines += finding_lines(finding)
        return "\n".join(lines) or "every check passes"

    def __str__(self) -> str:
        return self.text()


def several(names: Sequence[str], limit: int = 3) -> str:
    """The first names, and how many more there are."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return ", ".join(known[:limit]) + more


def finding_lines(finding: Finding) -> list[str]:
    """A finding in a few lines."""
    lines = [f"{finding.verdict} {finding.check}: {finding.observed}"]
    if finding.advice:
        lines.append(f"    change: {finding.advice}" + (f" ({finding.field})" if finding.field else ""))
    if finding.verdict == "Unknown" and finding.needs:
        lines.append(f"    {finding.needs} episodes would be enough to tell")
    for example in finding.examples:
        lines.append(f"    {example.title}:")
        lines += [f"        {line}" for line in example.text.splitlines()]
    return lines
