"""Rows of the screen about an evaluation's results so far. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from headway_api.document import Json
from headway_cli import status_values
from headway_cli.screen.layout import Row
from headway_cli.status_values import UNKNOWN

LOST = "red"


def candidates(job: Json) -> Iterator[Row]:
    """A row for each candidate: its state, its score with the interval, and its lead over the baseline."""
    for each in status_values.items(status_values.block(job, "status").get("results")):
        state = status_values.text(each.get("state")) or UNKNOWN
        pieces = [
            status_values.text(each.get("name")) or UNKNOWN,
            state,
            f"{status_values.whole(each.get('rows'))} rows",
            f"score {score(each)}",
            *_ahead(status_values.block(each, "difference")),
        ]
        if status_values.number(each.get("cost")) is not None:
            pieces.append(f"{status_values.number_text(each['cost'])} USD")
        pieces += [
            f"{status_values.text(suite.get('name'))} {status_values.text(suite.get('score')) or UNKNOWN}"
            for suite in status_values.items(each.get("suites"))
        ]
        if lost := status_values.count(each.get("infraErrors")):
            pieces.append(f"{lost:,} tries lost")
        if message := status_values.text(each.get("message")):
            pieces.append(message)
        yield Row("candidate", tuple(pieces), LOST if state == "Failed" else "")


def score(result: Json) -> str:
    """A candidate's external score with its interval, as text."""
    found = status_values.block(result, "externalScore")
    return status_values.text(result.get("score")) or _with_ends(found)


def _with_ends(found: Json) -> str:
    value, low, high = (status_values.number_text(found.get(key)) for key in ("value", "low", "high"))
    return value if UNKNOWN in (value, low, high) else f"{value} ({low} to {high})"


def _ahead(found: Json) -> Iterator[str]:
    if status_values.number(found.get("value")) is not None:
        yield f"{_with_ends(found)} over {status_values.text(found.get('baseline')) or UNKNOWN}"


def gate(job: Json) -> Row | None:
    """The row with the gate's decision; None if there is no gate."""
    found = status_values.block(job, "status", "gate")
    result = status_values.text(found.get("result"))
    if not result:
        return None
    style = {"Passed": "green", "Pending": ""}.get(result, "red")
    return Row("gate", tuple(filter(None, (result, status_values.text(found.get("message"))))), style)
