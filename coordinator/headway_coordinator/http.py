"""One way to call another process of the job (JSON both ways, a deadline, typed failures), and to listen."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from headway_api.sandbox_api import Problem
from headway_coordinator.faults import InfraFault, PermanentFault

CONNECT_SECONDS = 5.0
KEPT_SECONDS = 2.0
"""An idle connection is used again for so long. The engine closes it after 5 s (uvicorn's
timeout_keep_alive), and a request that meets the close looks like a lost server: its turn would be computed
again elsewhere."""


def connector() -> aiohttp.TCPConnector:
    """For as many connections as are asked for: episodes bound the calls in flight. Needs a running loop."""
    return aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS)


class Refused(Exception):
    """The other process answered with an error status."""

    def __init__(self, what: str, status: int, problem: Problem, retry_after: float | None) -> None:
        super().__init__(f"{what}: {status} {problem.reason}: {problem.message}")
        self.status = status
        self.problem = problem
        self.retry_after = retry_after

    def fault(self) -> InfraFault:
        """As the fault of an episode."""
        if self.problem.permanent:
            return PermanentFault(str(self), self.problem.reason, self.problem.field)
        return InfraFault(str(self))


class Unreachable(Exception):
    """No answer: the connection failed, broke, took longer than allowed, or brought no JSON."""

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered
        """It was taken: only the answer is not JSON."""


async def call(
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    timeout: float,
    token: str | None = None,
    body: Any = None,
) -> Any:
    """Send `body` as JSON and return the answer's JSON, or None where it has no content.

    Raises:
        Refused: an answer outside 2xx.
        Unreachable: no answer within `timeout` seconds, or none that is JSON.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
    # A redirect would carry what is sent to another host, or leave the body behind.
    asked = http.request(method, url, json=body, headers=headers, timeout=limit, allow_redirects=False)
    try:
        async with asked as response:
            if response.status >= 300:
                raise Refused(
                    f"{method} {url}",
                    response.status,
                    _redirected(response) or _problem(await response.text()),
                    _seconds(response.headers.get("Retry-After")),
                )
            return await _json(response) if response.status != 204 else None
    except TimeoutError as error:
        raise Unreachable(f"{method} {url}: no answer within {timeout:.1f} s") from error
    except aiohttp.ClientError as error:
        raise Unreachable(f"{method} {url}: {type(error).__name__}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Unreachable(f"{method} {url}: the answer is not JSON: {error}", answered=True) from error


async def listen(
    stack: AsyncExitStack, app: web.Application, port: int, *, leave_with_client: bool = False
) -> None:
    """Serve on every address until `stack` ends. With `leave_with_client` a request ends when its client has
    gone; without, it is carried through."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, handler_cancellation=leave_with_client)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, port=port).start()


async def _json(response: aiohttp.ClientResponse) -> Any:
    """The answer, all of which can be written down again."""
    answer = await response.json(content_type=None)  # what it is called does not matter
    if b"\\ud" in (await response.read()).lower():
        # Half a surrogate pair is valid JSON and no text: nothing that holds it could be stored.
        json.dumps(answer, ensure_ascii=False).encode()
    return answer


def _redirected(response: aiohttp.ClientResponse) -> Problem | None:
    """That redirects are not followed, where it is one."""
    where = response.headers.get("Location")
    if response.status >= 400 or where is None:
        return None
    return Problem(reason="Redirected", message=f"it answers with a redirect to {where}; name that address")


def _problem(text: str) -> Problem:
    try:
        return Problem.model_validate_json(text)
    except ValidationError:
        return Problem(reason="UnexpectedAnswer", message=text[:500])


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
