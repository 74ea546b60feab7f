"""Writes results as JSON, and makes a page with tables from the JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass
class Goal:
    """A goal with the measured value."""

    what: str
    found: str
    met: bool


@dataclass
class Table:
    """Rows with the same columns."""

    caption: str
    rows: list[Row]


@dataclass
class Section:
    """One benchmark's results."""

    title: str
    read: list[str]
    """Paragraphs that explain how to read the section."""
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    """Time, machine, commit and duration of the measurement."""
    files: dict[str, str] = field(default_factory=dict)
    """Further files beside the page: name -> text. They are not part of the JSON."""

    def numbers(self) -> dict[str, Any]:
        """The section as JSON, from which the page is made."""
        return {name: value for name, value in asdict(self).items() if name != "files"}


def prose(text: str) -> list[str]:
    """The paragraphs of an indented, wrapped text, each on one line."""
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


def merge(path: Path, found: Mapping[str, Section], order: Sequence[str]) -> dict[str, Any]:
    """The results of this run, and the earlier results of the sections that did not run."""
    old = json.loads(path.read_text()) if path.exists() else {}
    new = old | {name: section.numbers() for name, section in found.items()}
    return {name: new[name] for name in order if name in new}


def page(title: str, intro: Sequence[str], results: Mapping[str, Any]) -> str:
    """The page of the results, as Markdown."""
    lines = [f"# {title}", "", *_paragraphs(intro)]
    goals = [(name, goal) for name, section in results.items() for goal in section["goals"]]
    lines += _table(
        [
            {"goal": g["what"], "found": g["found"], "met": "yes" if g["met"] else "**no**", "section": name}
            for name, g in goals
        ]
    )
    for section in results.values():
        lines += [f"## {section['title']}", ""]
        lines += _paragraphs(section["read"])
        for table in section["tables"]:
            lines += [f"**{table['caption']}**", "", *_table(table["rows"])]
        lines += _paragraphs(_measured(section["measured"]))
    return "\n".join(lines).rstrip() + "\n"


def _measured(measured: Mapping[str, Any]) -> list[str]:
    """Two sentences about the measurement: the machine, and the other circumstances. Empty if none are
    recorded."""
    if not measured:
        return []
    machine, *rest = (f"{name} {value}" for name, value in measured.items())
    circumstances = "; ".join(rest)
    return [f"Measured {machine}. {circumstances[:1].upper()}{circumstances[1:]}."]


def _paragraphs(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in (text, "")]


def _table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows]
    return [*lines, ""]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
