"""How much a sandbox's server takes in and gives out. Numbers with a counterpart are equal to it.

Of its own, and not `headway_api.bounds`: the image holds the standard library alone, and every import is paid
once an episode.
"""

from __future__ import annotations

import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCORE = 1e6
"""Of a reward, of a turn's reward and of a score; equal to `headway_api.bounds.SCORE`."""
MAGNITUDE = 1e12
"""Of a metric; equal to `headway_api.bounds.MAGNITUDE`."""
VALUES = 1_000_000
"""Lists, objects and values of one request; equal to `headway_api.bounds.VALUES`."""
DEPTH = 96
"""Levels of a request or an answer: a conversation has 64 at most, and lies in a document."""
METRICS = 1_000
NAME = 200
"""Characters of a metric's name."""
MESSAGES = 10_000
TOOLS = 512
CONTENT = 4 * 1024 * 1024
"""Characters of what one tool call shows the agent."""
ANSWER = 7 * 1024 * 1024
"""Bytes of an answer: a coordinator reads 8 MiB at most."""
QUESTION = 1024 * 1024
"""Bytes of one question to a judge, as JSON."""
ERROR = 2_000
"""Characters of an error's own words that are repeated."""
SMALL = 64 * 1024
BODIES = {
    "/reset": 8 * 1024 * 1024,
    "/tool": 4 * 1024 * 1024,
    "/agent": 16 * 1024 * 1024,
    "/finish": 32 * 1024 * 1024,
    "/group": 64 * 1024 * 1024,
    "/judge/answer": 8 * 1024 * 1024,
}
"""Bytes of a request's body by its path; `SMALL` for any other."""


class OutOfBounds(ValueError):
    """A document that is read here is larger or deeper than any."""


class NotGiven(ValueError):
    """What an environment returned cannot be handed on; the words follow `returned`."""


def parsed(body: bytes) -> Any:
    """The JSON of a body whose size is known to be within bounds.

    Raises:
        OutOfBounds: it holds more, or is deeper.
        ValueError: it is no JSON.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES:
        raise OutOfBounds(f"more than {VALUES} values")
    try:
        document = json.loads(body)
        if deeper(document):
            raise RecursionError
    except RecursionError:
        raise OutOfBounds(f"nested more than {DEPTH} levels deep") from None
    return document


def written(value: object, *, finite: bool = True) -> str:
    """The JSON of what an environment returned.

    Raises:
        NotGiven: it is none, or deeper than any that is read.
    """
    try:
        text = json.dumps(value, allow_nan=not finite)
        if deeper(value):
            raise RecursionError
    except RecursionError:
        raise NotGiven(f"what is nested more than {DEPTH} levels deep") from None
    except (TypeError, ValueError) as error:
        raise NotGiven(f"what is no JSON: {error}") from None
    return text


def deeper(value: object) -> bool:
    """Whether a value has more than `DEPTH` levels; found without recursion."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list | tuple)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def within(number: float, most: float) -> bool:
    """Whether a number is finite, as a float too, and at most `most` from 0."""
    try:
        return math.isfinite(number) and abs(number) <= most
    except OverflowError:
        return False


def text(value: str) -> str:
    """A string that UTF-8 can hold: halves of surrogate pairs, as undecodable bytes leave them, become ?."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="replace").decode()
    return value


def shortened(value: str, most: int = ERROR) -> str:
    """The beginning of a text."""
    return value if len(value) <= most else f"{value[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
