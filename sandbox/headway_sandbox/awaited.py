"""Waits for the results of an environment's `async` methods.

One event loop lasts as long as the process, so a tool and the reward can use what `reset` opened. The loop
runs only while such a method is awaited. Environments without `async` never pay for the import of asyncio.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from types import CodeType
    from typing import Any

_loop: AbstractEventLoop | None = None
_now: object = None
"""The awaitable that `awaited_result` waits for now; None if there is none."""


def awaited_result(value: Any) -> Any:
    """`value`, or the result of awaiting it. One thread at a time may call this."""
    global _loop, _now
    if not hasattr(type(value), "__await__"):
        return value
    import asyncio

    if _loop is None:
        _loop = asyncio.new_event_loop()
    _now = value
    try:
        return _loop.run_until_complete(_result(value))
    finally:
        _now = None


async def _result(value: Any) -> Any:
    return await value


def waiting_frames() -> list[tuple[CodeType, int]]:
    """Code and line of each `await` in which a method waits now, the innermost last."""
    found: list[tuple[CodeType, int]] = []
    inner: Any = _now
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        found.append((frame.f_code, frame.f_lineno))
        inner = inner.cr_await
    return found
