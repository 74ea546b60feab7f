"""Makes what answers the turns of an endpoint candidate, from its spec."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from headway_api.config import EvalConfig
from headway_api.spec.evaluation import Candidate, CandidateEndpoint
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.endpoint.token import TokenWrong, read_token
from headway_coordinator.faults import CandidateFault
from headway_coordinator.http import connector

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks for a token that is not there yet."""
TURNS = 8
"""Assumed turns of an episode, if the agent is not the built-in one."""


@asynccontextmanager
async def connected(
    job: EvalConfig, candidate: Candidate, token: str | None, *, answered: bool = False
) -> AsyncIterator[EndpointChat]:
    """Answers an endpoint candidate's turns, with connections of its own.

    Args:
        token: bearer token; None if the spec names no Secret.
        answered: whether an earlier process had answers from it.
    """
    spec = candidate.endpoint
    assert spec is not None
    timeout = float(job.spec.rollout.timeout_seconds)
    async with aiohttp.ClientSession(connector=connector(), cookie_jar=aiohttp.DummyCookieJar()) as http:
        yield EndpointChat(
            http,
            candidate.name,
            spec,
            token,
            timeout=timeout,
            patience=patience(job),
            answered=answered,
        )


def token_of(candidate: str, spec: CandidateEndpoint, folder: Path) -> str | None:
    """The bearer token; None if the spec names no Secret.

    Args:
        folder: where each candidate's token lies, as `names.ENDPOINTS_DIR`.

    Raises:
        CandidateFault: it is missing, empty, or holds what no header can.
    """
    if spec.secret_ref is None:
        return None
    try:
        return read_token(folder / candidate)
    except TokenWrong as wrong:
        field = f"spec.candidates[{candidate}].endpoint.secretRef"
        raise CandidateFault(
            "EndpointDenied",
            f"candidate {candidate}: the key `token` of the Secret {spec.secret_ref.name} {wrong}; write the "
            f"endpoint's token there, or another Secret in {field}",
            field,
        ) from wrong


async def token_in_time(
    candidate: str, spec: CandidateEndpoint, folder: Path, seconds: float, still: Callable[[str], bool]
) -> str | None:
    """The bearer token, after waiting for it.

    A Secret may be created after the job, and its file follows within two minutes.

    Args:
        seconds: longest wait.
        still: called at each look with the reason why there is no token yet; returns whether to go on.

    Raises:
        CandidateFault: as `token_of`, after that time.
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            return token_of(candidate, spec, folder)
        except CandidateFault as fault:
            if time.monotonic() > ends or not still(fault.sentence):
                raise
        await asyncio.sleep(LOOK_SECONDS)


def patience(job: EvalConfig) -> float:
    """Seconds without one success after which an endpoint candidate ends.

    It equals the job's patience with any candidate, but at most the length of one episode with its retries.
    With more patience each row would be lost before the candidate ends.
    """
    rollout = job.spec.rollout
    tried = rollout.timeout_seconds * (1 + rollout.max_retries)
    return float(min(job.spec.pending_deadline_seconds, tried))


def episodes_at_once(job: EvalConfig, spec: CandidateEndpoint) -> int:
    """Episodes of an endpoint candidate that may run at the same time.

    At most maxConcurrency. With requestsPerMinute there are fewer: their requests, one after another, may
    take half of an episode's time. n episodes of t turns wait n * t * 60 / requestsPerMinute s.
    """
    if spec.requests_per_minute is None:
        return spec.max_concurrency
    agent = job.spec.agent
    turns = agent.effective_builtin.max_turns if agent.is_builtin else TURNS
    fit = spec.requests_per_minute * job.spec.rollout.timeout_seconds / (2 * 60 * turns)
    return max(1, min(spec.max_concurrency, int(fit)))
