"""Reads what agents send, within bounds on bytes, seconds, and the shape of the JSON."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from aiohttp import web

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within
from headway_coordinator.gateway.asks import Ask
from headway_coordinator.gateway.dialect import Read, TurnRequest
from headway_coordinator.gateway.refusals import GatewayError, bad
from headway_wire import contents
from headway_wire.contents import BodyTimeoutError

CALL_SECONDS: Final = 10.0
"""Seconds that the body of one of MTRL's own calls, of a few hundred bytes, may take to arrive."""
CALL_DEPTH: Final = 8
CALL_VALUES: Final = 20_000
"""JSON values in such a call: enough for a reward for each turn, and metrics."""
INLINE_BYTES: Final = 64 * bounds.KIB
"""Bytes of the largest body that is parsed on the event loop. A thread parses larger ones, in some
milliseconds, so that other episodes can continue."""


async def call(request: web.Request, limit: int) -> dict[str, Any]:
    """The JSON object of one of MTRL's own calls.

    Raises:
        GatewayError: the body is not an object, or did not arrive in time.
        BodyTooLargeError: the body has more than `limit` bytes.
    """
    raw = await _received(request, limit, CALL_SECONDS)
    # `rewards.py` refuses a number that is not finite, with its own error code.
    found = document(raw, limit, CALL_DEPTH, CALL_VALUES, finite=False)
    if not isinstance(found, dict):
        raise bad("body", "must be a JSON object")
    return found


async def arguments(request: web.Request) -> dict[str, Any]:
    """A tool's arguments. Raises the same errors as `call`."""
    raw = await _received(request, bounds.ARGUMENTS, contents.BODY_SECONDS)
    if len(raw) <= INLINE_BYTES:
        found = document(raw, bounds.ARGUMENTS)
    else:
        found = await asyncio.to_thread(document, raw, bounds.ARGUMENTS)
    if not isinstance(found, dict):
        raise bad("body", "must be a JSON object, the tool's arguments")
    return found


async def turn_request(
    request: web.Request,
    limit: int,
    big: asyncio.Lock,
    parsing: asyncio.Lock,
    read: Read,
    values: int = bounds.CONVERSATION_VALUES,
) -> TurnRequest:
    """A request for a turn, as its protocol's `read` returns it. Raises the same errors as `call`.

    To receive and parse a large request takes many times its size in memory. So a large request holds the
    episode's lock `big` throughout, and while it is parsed also `parsing`, the lock of all episodes.
    """
    size = request.content_length
    small = size is not None and size <= INLINE_BYTES and "Content-Encoding" not in request.headers
    async with nullcontext() if small else big:
        raw = await _received(request, limit, contents.BODY_SECONDS)
        if len(raw) <= INLINE_BYTES:
            return _parsed(raw, limit, values, read)
        async with parsing:
            return await asyncio.to_thread(_parsed, raw, limit, values, partial(read, large=True))


def _parsed(raw: bytes, limit: int, values: int, read: Read) -> TurnRequest:
    found = read(document(raw, limit, depth=bounds.CONVERSATION_DEPTH, values=values))
    _ = found.ask.size  # compute the cached size here: for a large request, this runs in a thread
    if len(raw) > INLINE_BYTES:  # a small request has few values in all
        _require_few_arguments(found.ask)
    return found


def _require_few_arguments(ask: Ask) -> None:
    """Refuse a request whose tool calls have arguments with very many JSON values.

    The check of the body counts each call's arguments as one value, because they are one string. Chat
    templates get the parsed values, which take many times the memory of that string.
    """
    calls = (call for message in ask.messages for call in message.get("tool_calls") or ())
    texts = "\n".join(call["function"]["arguments"] for call in calls)
    try:
        bounds.require_few_values(texts.encode(), bounds.CONVERSATION_VALUES)
    except OutOfBoundsError as error:
        raise bad(ask.names.conversation, f"the arguments of its calls have {error}; send fewer") from error


def document(
    raw: bytes,
    limit: int,
    depth: int = bounds.DEPTH,
    values: int = bounds.ANSWER_VALUES,
    *,
    finite: bool = True,
) -> Any:
    """A body's parsed JSON. It has only values that can be written as JSON again.

    Raises:
        GatewayError: 400, naming the bound that the body exceeds.
    """
    try:
        return json_within(raw, limit, depth=depth, values=values, finite=finite)
    except OutOfBoundsError as error:
        raise bad("body", f"cannot be read: {error}") from error


async def _received(request: web.Request, limit: int, seconds: float) -> bytes:
    try:
        return await contents.body(request, limit, seconds)
    except BodyTimeoutError as error:
        raise GatewayError(408, "request_too_slow", f"{error}; send it at once") from error
    except web.RequestPayloadError as error:
        raise bad("body", f"does not match its headers: {bounds.shortened(str(error), 200)}") from error
