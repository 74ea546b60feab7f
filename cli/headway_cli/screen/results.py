"""What an evaluation has measured so far: rows of the screen. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from headway_api.document import Json
from headway_cli import reading
from headway_cli.reading import UNKNOWN
from headway_cli.screen.layout import Row

LOST = "red"


def candidates(job: Json) -> Iterator[Row]:
    """Each candidate: its state, its score with the interval, and how far it is ahead."""
    for each in reading.items(reading.block(job, "status").get("results")):
        state = reading.text(each.get("state")) or UNKNOWN
        pieces = [
            reading.text(each.get("name")) or UNKNOWN,
            state,
            f"{reading.whole(each.get('rows'))} rows",
            f"score {score(each)}",
            *_ahead(reading.block(each, "difference")),
        ]
        if reading.number(each.get("cost")) is not None:
            pieces.append(f"{reading.figure(each['cost'])} USD")
        pieces += [
            f"{reading.text(suite.get('name'))} {reading.text(suite.get('score')) or UNKNOWN}"
            for suite in reading.items(each.get("suites"))
        ]
        if lost := reading.count(each.get("infraErrors")):
            pieces.append(f"{lost:,} tries lost")
        if message := reading.text(each.get("message")):
            pieces.append(message)
        yield Row("candidate", tuple(pieces), LOST if state == "Failed" else "")


def score(result: Json) -> str:
    """The external score with its interval."""
    found = reading.block(result, "externalScore")
    return reading.text(result.get("score")) or _with_ends(found)


def _with_ends(found: Json) -> str:
    value, low, high = (reading.figure(found.get(key)) for key in ("value", "low", "high"))
    return value if UNKNOWN in (value, low, high) else f"{value} ({low} to {high})"


def _ahead(found: Json) -> Iterator[str]:
    if reading.number(found.get("value")) is not None:
        yield f"{_with_ends(found)} over {reading.text(found.get('baseline')) or UNKNOWN}"


def gate(job: Json) -> Row | None:
    """The decision of the gate; None if there is no gate."""
    found = reading.block(job, "status", "gate")
    result = reading.text(found.get("result"))
    if not result:
        return None
    style = {"Passed": "green", "Pending": ""}.get(result, "red")
    return Row("gate", tuple(filter(None, (result, reading.text(found.get("message"))))), style)
