"""Reads the queries in a dashboard's file, and writes them as Grafana would send them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One query of one panel."""

    board: str
    panel: str
    ref: str
    expr: str
    legend: str
    instant: bool


def panels(document: Json) -> Iterator[Json]:
    """All panels of a board except headings, including those in folded sections."""
    for panel in document["panels"]:
        yield from panel.get("panels", ())
        if panel["type"] != "row":
            yield panel


def questions(document: Json) -> Iterator[Question]:
    """The queries of every panel of a board, and of the annotations over its curves."""
    for panel in panels(document):
        for target in panel["targets"]:
            yield Question(
                document["uid"],
                panel["title"],
                target["refId"],
                target["expr"],
                target.get("legendFormat", ""),
                target.get("instant", False),
            )
    for mark in document["annotations"]["list"]:
        yield Question(
            document["uid"], f"annotation {mark['name']}", "", mark["expr"], mark["titleFormat"], False
        )


def variables(document: Json) -> dict[str, str]:
    """The queries of a board's variables, by the variables' names."""
    listed = document["templating"]["list"]
    return {each["name"]: each["query"]["query"] for each in listed if each["type"] == "query"}


def sent(expr: str, chosen: Mapping[str, str], *, scrape_seconds: float, step_seconds: float) -> str:
    """An expression with its variables replaced, as Grafana sends it.

    Args:
        chosen: variable -> regular expression of the chosen values.
        scrape_seconds: interval between two scrapes, as set in the data source.
        step_seconds: interval between two points of a curve.
    """
    window = max(step_seconds + scrape_seconds, 4 * scrape_seconds)
    known = {**chosen, "__rate_interval": _duration(window), "__interval": _duration(step_seconds)}

    def replaced(found: re.Match[str]) -> str:
        return known[found["name"]]

    # $1 is not a variable: it refers to a group of a regular expression.
    return re.sub(r"\$\{?(?P<name>[a-z_]\w*)\}?", replaced, expr)


def named(legend: str, labels: Mapping[str, str]) -> str:
    """A legend with its `{{label}}` placeholders replaced by the labels of one series."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend).strip()


def _duration(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"
