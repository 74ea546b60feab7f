"""Reads a sandbox server's answers within bounds, since the image is the user's and runs the model's code.

This module decompresses nothing, follows no redirect, and reads no more than an answer may contain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from headway_api.bounds import KIB, OutOfBoundsError, json_within
from headway_api.sandbox_api import MAX_LEASE_SECONDS, Challenge, Health, Proof
from headway_sandbox.broker import proof
from headway_wire.contents import content

MAX_ANSWER: Final = 16 * KIB
"""Maximum bytes of an answer to the broker."""
DEPTH: Final = 4
VALUES: Final = 64
PROBE_SECONDS: Final = 2.0
CLOCKS_APART_SECONDS: Final = 300.0
"""Seconds by which the clocks of two nodes may differ."""


async def health(http: aiohttp.ClientSession, url: str, token_of: Callable[[str], str]) -> Health:
    """Ask the pod at `url` which lease holds it. The pod has to prove that the lease was granted.

    Args:
        token_of: lease -> the token that this pod has if it was granted that lease.

    Raises:
        ValueError: the answer is not a sandbox's, or claims a lease that was not granted.
        aiohttp.ClientError, TimeoutError: there is no answer yet.
    """
    status, document = await asked(http, "GET", f"{url}/healthz", PROBE_SECONDS)
    if status != 200:
        raise aiohttp.ClientError(f"/healthz answers {status}")
    found = Health.model_validate(document)
    if found.lease is None and found.deadline is None:
        return found
    if found.lease is None or found.deadline is None:
        raise ValueError("a lease and its deadline come together")
    if found.deadline > time.time() + MAX_LEASE_SECONDS + CLOCKS_APART_SECONDS:
        raise ValueError(f"the deadline {found.deadline:g} is later than that of any lease")
    challenge = Challenge(challenge=proof.challenge())
    _, document = await asked(http, "POST", f"{url}/proof", PROBE_SECONDS, challenge.model_dump())
    shown = Proof.model_validate(document)
    if not proof.proves(token_of(found.lease), challenge.challenge, shown.proof):
        raise ValueError(f"the lease {found.lease} was not given to this pod")
    return found


async def asked(
    http: aiohttp.ClientSession, method: str, url: str, seconds: float, body: Any = None
) -> tuple[int, Any]:
    """Send a request; returns status and JSON of the answer, with None as JSON if it has no body.

    Raises:
        OutOfBoundsError: the answer is not JSON, is compressed, or is larger or deeper than a sandbox's may
            be.
        aiohttp.ClientError, TimeoutError: there is no answer.
    """
    async with http.request(
        method,
        url,
        json=body,
        headers={"Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=seconds),
        allow_redirects=False,
        auto_decompress=False,
    ) as response:
        if "Content-Encoding" in response.headers:
            raise OutOfBoundsError("is compressed")
        answer = await content(response, MAX_ANSWER)
        if not answer:
            return response.status, None
        return response.status, json_within(answer, MAX_ANSWER, depth=DEPTH, values=VALUES)
