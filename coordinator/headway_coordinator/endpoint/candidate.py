"""Makes the client that samples at an endpoint: for a candidate, or the baseline of `headway doctor`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from headway_api.records import EpisodeRecord
from headway_api.spec.candidate import CandidateEndpoint
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.endpoint.owner import OfCandidate, Owner
from headway_coordinator.endpoint.token import InvalidTokenError, read_token
from headway_coordinator.episode import Task
from headway_coordinator.faults import CandidateError
from headway_coordinator.group import Run
from headway_coordinator.http import connector

JobSpec = RLTrainingJobSpec | RLEvalJobSpec

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks for an endpoint's bearer token that is not there yet."""
TURNS = 8
"""Assumed turns of an episode, if the agent is not the built-in one."""


@asynccontextmanager
async def connected(
    owner: Owner,
    endpoint: CandidateEndpoint,
    token: str | None,
    *,
    timeout: float,
    patience: float,
    answered: bool = False,
) -> AsyncIterator[EndpointChat]:
    """A client that answers turns at an endpoint, with its own connections.

    `EndpointChat` explains the arguments.
    """
    async with aiohttp.ClientSession(connector=connector(), cookie_jar=aiohttp.DummyCookieJar()) as http:
        yield EndpointChat(
            http, owner, endpoint, token, timeout=timeout, patience=patience, answered=answered
        )


async def once_ready(chat: EndpointChat, play: Run, task: Task) -> EpisodeRecord:
    """Run an episode once the endpoint no longer asks to wait.

    If the episode began earlier, its sandbox would be idle and its deadline would run during the wait.
    """
    await chat.ready()
    return await play(task)


def token_of(candidate: str, spec: CandidateEndpoint, folder: Path) -> str | None:
    """The bearer token; None if the spec names no Secret.

    Args:
        folder: has each candidate's token in a folder of the candidate's name.

    Raises:
        CandidateError: the token is missing or empty, or has characters that a header cannot have.
    """
    if spec.secret_ref is None:
        return None
    try:
        return read_token(folder / candidate)
    except InvalidTokenError as wrong:
        field = OfCandidate(candidate).field("secretRef")
        raise CandidateError(
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
        CandidateError: there is no valid token after that time.
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            return token_of(candidate, spec, folder)
        except CandidateError as fault:
            if time.monotonic() > ends or not still(fault.sentence):
                raise
        await asyncio.sleep(LOOK_SECONDS)


def patience(job: JobSpec) -> float:
    """Seconds without one success after which an endpoint's fault is final.

    It equals `spec.pendingDeadlineSeconds`, but at most the length of one episode with its retries. With more
    patience each row would be lost before the fault is final.
    """
    tried = job.rollout.timeout_seconds * (1 + job.rollout.max_retries)
    return float(min(job.pending_deadline_seconds, tried))


def episodes_at_once(job: JobSpec, spec: CandidateEndpoint) -> int:
    """Episodes that may run at the same time at an endpoint.

    At most maxConcurrency. With requestsPerMinute there are fewer: their requests, one after another, may
    take half of an episode's time. n episodes of t turns wait n * t * 60 / requestsPerMinute s.
    """
    if spec.requests_per_minute is None:
        return spec.max_concurrency
    turns = job.agent.effective_builtin.max_turns if job.agent.is_builtin else TURNS
    fit = spec.requests_per_minute * job.rollout.timeout_seconds / (2 * 60 * turns)
    return max(1, min(spec.max_concurrency, int(fit)))
