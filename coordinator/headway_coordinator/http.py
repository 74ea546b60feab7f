"""Calls another process of the job by HTTP: JSON in both directions, a deadline, bounds and typed errors."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_api.sandbox_api import Problem
from headway_coordinator.faults import Cause, InfraError, PermanentInfraError
from headway_coordinator.resolving import HostsResolver, hosts_file
from headway_wire.contents import content

CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 2.0
"""How long an idle connection is kept for another request. The engine closes it after 5 s (uvicorn's
timeout_keep_alive). If a request is sent at that moment, the server looks lost, and another server computes
the turn again."""
SHOWN: Final = 2000
"""The most characters that an error quotes from another process."""
UNEXPECTED: Final = "UnexpectedAnswer"
REDIRECTED: Final = "Redirected"
INLINE_BYTES: Final = 256 * bounds.KIB
"""A thread parses longer answers, so that episodes go on meanwhile."""


@dataclass(frozen=True)
class AnswerBounds:
    """How large an answer may be."""

    size: int = bounds.ANSWER
    """Bytes."""
    values: int = bounds.ANSWER_VALUES
    depth: int = bounds.DEPTH


ANSWER: Final = AnswerBounds()


def connector() -> aiohttp.TCPConnector:
    """A connector without a limit, because the number of episodes bounds the calls in flight.

    Needs a running loop.
    """
    file = hosts_file()
    resolver = None if file is None else HostsResolver(file)
    return aiohttp.TCPConnector(
        limit=0, keepalive_timeout=KEEPALIVE_SECONDS, resolver=resolver, use_dns_cache=file is None
    )


class UpstreamError(Exception):
    """The other process answered with an error status."""

    def __init__(self, what: str, status: int, problem: Problem, retry_after: float | None) -> None:
        super().__init__(f"{what}: {status} {problem.reason}: {problem.message}")
        self.status = status
        self.problem = problem
        self.retry_after = retry_after
        """Seconds until the next try, as the answer asks: `bounds.WAIT_SECONDS` at most, None if it does not
        ask."""

    def fault(self) -> InfraError:
        """The fault of an episode, in the other process's own words."""
        found = self.problem
        if found.reason in (UNEXPECTED, REDIRECTED):
            return InfraError(str(self))
        if found.permanent:
            return PermanentInfraError(found.message, found.reason, found.field)
        if found.field is None:
            return InfraError(f"{found.reason}: {found.message}")
        return InfraError(found.message, Cause(found.reason, found.message, found.field))


class PeerUnreachableError(Exception):
    """No usable answer: the connection failed, broke or took too long, or the answer was refused."""

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered
        """Whether the server took the request, and only its answer is not JSON or exceeds its bounds."""


async def call(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    timeout: float,
    token: str | None = None,
    body: Any = None,
    within: AnswerBounds = ANSWER,
) -> Any:
    """Send `body` as JSON and return the answer's JSON, or None if the answer has no content.

    A compressed answer is refused, because it may expand to a thousand times its size.

    Raises:
        UpstreamError: an answer outside 2xx.
        PeerUnreachableError: no answer within `timeout` seconds, or an answer that is not JSON or exceeds
            the bounds `within`.
    """
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
    limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
    # A redirect would send the request to another host, or drop its body.
    asked = http.request(
        method,
        url,
        json=body,
        headers=headers,
        timeout=limit,
        allow_redirects=False,
        auto_decompress=False,
    )
    try:
        async with asked as response:
            if response.status >= 300:
                message = await _refusal(response)
                raise UpstreamError(
                    f"{method} {url}", response.status, message, _seconds(response.headers.get("Retry-After"))
                )
            return await _json(response, within) if response.status != 204 else None
    except TimeoutError as error:
        raise PeerUnreachableError(f"{method} {url}: no answer within {timeout:.1f} s") from error
    except aiohttp.ClientError as error:
        words = shortened(str(error), SHOWN)
        raise PeerUnreachableError(f"{method} {url}: {type(error).__name__}: {words}") from error
    except OutOfBoundsError as error:
        raise PeerUnreachableError(
            f"{method} {url}: the answer cannot be read: {error}", answered=True
        ) from error


async def _json(response: aiohttp.ClientResponse, within: AnswerBounds) -> Any:
    """The answer's JSON. It has only values that JSON can represent, so no NaN and no infinity."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise OutOfBoundsError(f"compressed ({shortened(encoding, 40)}), which was not asked for")
    if (response.content_length or 0) > within.size:
        raise OutOfBoundsError(f"more than {within.size} bytes")
    data = await content(response, within.size)
    if len(data) <= INLINE_BYTES:
        return json_within(data, within.size, depth=within.depth, values=within.values)
    return await asyncio.to_thread(json_within, data, within.size, depth=within.depth, values=within.values)


async def _refusal(response: aiohttp.ClientResponse) -> Problem:
    """The problem in another process's refusal, shortened for an error message."""
    where = response.headers.get("Location")
    if response.status < 400 and where is not None:
        message = f"it answers with a redirect to {shortened(where, 200)}; name that address"
        return Problem(reason=REDIRECTED, message=message)
    try:
        data = await content(response, bounds.CALL)
    except OutOfBoundsError as error:
        return Problem(reason=UNEXPECTED, message=f"the answer cannot be read: {error}")
    return problem_in(data)


def problem_in(data: bytes) -> Problem:
    """The problem in an answer's content, shortened for an error message."""
    try:
        found = Problem.model_validate(json_within(data, bounds.CALL))
    except (OutOfBoundsError, ValidationError):
        return Problem(reason=UNEXPECTED, message=shortened(data.decode(errors="replace"), 500))
    field = None if found.field is None else shortened(found.field, bounds.NAME)
    return found.model_copy(update={"message": _lines(found.message), "field": field})


def _lines(text: str) -> str:
    """A message of several lines, without control characters in any line."""
    return "\n".join(shortened(line, SHOWN) for line in text[:SHOWN].split("\n"))


def _seconds(value: str | None) -> float | None:
    try:
        found = None if value is None else float(value)
    except ValueError:
        return None
    if found is None or not math.isfinite(found):
        return None
    return min(max(found, 0.0), bounds.WAIT_SECONDS)
