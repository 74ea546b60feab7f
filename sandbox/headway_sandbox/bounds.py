"""Limits on what a sandbox's server reads and sends. Some must equal a limit of `headway_api`.

This module does not use `headway_api.bounds`: the image has only the standard library, and every episode pays
for each import.
"""

from __future__ import annotations

import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCORE = 1e6
"""Largest magnitude of a reward, of a turn's reward and of a score; equal to `headway_api.bounds.SCORE`."""
MAGNITUDE = 1e12
"""Largest magnitude of a metric; equal to `headway_api.bounds.MAGNITUDE`."""
VALUES = 1_000_000
"""Maximum lists, objects and values of one request; equal to `headway_api.bounds.VALUES`."""
DEPTH = 96
"""Maximum levels of nesting in a request or an answer. A conversation, which has at most 64, is inside it."""
METRICS = 1_000
NAME = 200
"""Maximum characters of a metric's name."""
MESSAGES = 10_000
TOOLS = 512
CONTENT = 4 * 1024 * 1024
"""Maximum characters of a tool call's result, which the agent sees."""
ANSWER = 7 * 1024 * 1024
"""Maximum bytes of an answer. A coordinator reads at most 8 MiB."""
QUESTION = 1024 * 1024
"""Maximum bytes of one question to a judge, as JSON."""
ERROR = 2_000
"""Maximum characters of an error's own message that another message repeats."""
SMALL = 64 * 1024
BODIES = {
    "/reset": 8 * 1024 * 1024,
    "/tool": 4 * 1024 * 1024,
    "/agent": 16 * 1024 * 1024,
    "/finish": 32 * 1024 * 1024,
    "/group": 64 * 1024 * 1024,
    "/judge/answer": 8 * 1024 * 1024,
}
"""Maximum bytes of a request's body, by path; `SMALL` for any other path."""


class DocumentTooLargeError(ValueError):
    """A received document is larger or deeper than allowed."""


class InvalidReturnError(ValueError):
    """A value that an environment returned cannot be sent; the message continues after `returned`."""


def parsed(body: bytes) -> Any:
    """Parse the JSON of a body. The caller has checked its size.

    Raises:
        DocumentTooLargeError: the document has too many values, or is too deep.
        ValueError: the body is not JSON.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES:
        raise DocumentTooLargeError(f"more than {VALUES} values")
    try:
        document = json.loads(body)
        if deeper(document):
            raise RecursionError
    except RecursionError:
        raise DocumentTooLargeError(f"nested more than {DEPTH} levels deep") from None
    return document


def written(value: object, *, finite: bool = True) -> str:
    """The JSON of what an environment returned.

    Raises:
        InvalidReturnError: the value is not JSON, or deeper than a reader accepts.
    """
    try:
        text = json.dumps(value, allow_nan=not finite)
        if deeper(value):
            raise RecursionError
    except RecursionError:
        raise InvalidReturnError(f"a value nested more than {DEPTH} levels deep") from None
    except (TypeError, ValueError) as error:
        raise InvalidReturnError(f"a value that is not JSON: {error}") from None
    return text


def deeper(value: object) -> bool:
    """Whether a value has more than `DEPTH` levels, without recursion."""
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


def within(number: float, limit: float) -> bool:
    """Whether a number is finite, also as a float, and at most `limit` from 0."""
    try:
        return math.isfinite(number) and abs(number) <= limit
    except OverflowError:
        return False


def text(value: str) -> str:
    """A string that UTF-8 can encode: lone surrogates, which undecodable bytes leave, become ?."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="replace").decode()
    return value


def shortened(value: str, limit: int = ERROR) -> str:
    """A text, cut to at most `limit` characters."""
    return value if len(value) <= limit else f"{value[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
