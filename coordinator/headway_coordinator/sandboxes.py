"""Clients of the sandbox broker and of the server inside a sandbox pod."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError

from headway_api import logs
from headway_api.exits import JobError
from headway_api.record import Record, explained
from headway_api.sandbox_api import (
    NOT_OWNER,
    AgentRequest,
    AgentState,
    AgentWait,
    Destination,
    FinishReply,
    FinishRequest,
    GroupReply,
    GroupRequest,
    JudgeAnswer,
    Lease,
    LeaseRequest,
    OwnerClaim,
    PoolState,
    ProbeReply,
    ProbeRequest,
    Question,
    Questions,
    QuestionWait,
    ResetReply,
    ResetRequest,
    ToolCall,
    ToolReply,
)
from headway_coordinator.bounds import superseded
from headway_coordinator.episode_clock import EpisodeClock
from headway_coordinator.faults import Cause, InfraError, InvalidAnswerError
from headway_coordinator.http import PeerUnreachableError, UpstreamError, call

ENTRYPOINT: Final = "spec.environment.entrypoint"
RESOURCES: Final = "spec.environment.sandbox.resources"
IMAGE: Final = "spec.environment.image"
NO_JUDGES: Final = (
    "the environment's image has an old sandbox server, which cannot ask judges; build the image on the "
    "sandbox image of this version"
)
RELEASE_SECONDS = 10.0
ASK_SECONDS = 30.0
PAUSE_SECONDS = 1.0

Reply = TypeVar("Reply", bound=Record)
Timed = Callable[[float], None]
"""Called with the seconds that a call took."""

_log = logging.getLogger(__name__)


class Nothing(Record):
    """An answer without content, which only confirms the call."""


class Tools(Protocol):
    """Carries out tool calls: the episode's sandbox."""

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply: ...


class Witness(Protocol):
    """Notes what an episode's sandbox answered, for the checks of the preflight."""

    def began(self, reply: ResetReply) -> None: ...

    def called(self, name: str, arguments: dict[str, Any], reply: ToolReply, seconds: float) -> None: ...

    def asked(self, questions: Sequence[Question]) -> None: ...


class Sandbox:
    """One episode's sandbox."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        lease: Lease,
        timeout: float,
        on_tool: Timed = lambda seconds: None,
        witness: Witness | None = None,
    ) -> None:
        self._http = http
        self._on_tool = on_tool
        self._witness = witness
        self.lease = lease
        self._timeout = timeout
        self.calling: str | None = None
        """The tool that is being called."""
        self.clock = EpisodeClock()
        """Notes how long tools take. The episode's clock replaces it."""

    async def reset(self, row: dict[str, Any], seed: int) -> ResetReply:
        """Put the environment in its first state."""
        body = ResetRequest(row=row, seed=seed)
        reply = await self._post("reset", body, ResetReply)
        if self._witness is not None:
            self._witness.began(reply)
        return reply

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        """Carry out one tool call."""
        body, started = ToolCall(name=name, arguments=arguments), time.monotonic()
        self.calling = name
        with self.clock.timed("tool", name):
            reply = await self._post("tool", body, ToolReply)
        self.calling, seconds = None, time.monotonic() - started
        self._on_tool(seconds)
        if self._witness is not None:
            self._witness.called(name, arguments, reply, seconds)
        return reply

    async def agent(
        self, command: Sequence[str], episode: dict[str, Any], environment: dict[str, str]
    ) -> AgentState:
        """Start the episode's agent beside its environment."""
        body = AgentRequest(command=list(command), episode=episode, environment=environment)
        return await self._post("agent", body, AgentState)

    async def agent_wait(self, seconds: float) -> AgentState:
        """The agent's state, once it has ended or after `seconds`."""
        body = AgentWait(seconds=seconds)
        return await self._post("agent/wait", body, AgentState)

    async def finish(
        self,
        messages: list[dict[str, Any]],
        truncated: bool,
        reported: list[float] | None = None,
        metrics: dict[str, float] | None = None,
        turns: int = 0,
        judges: Sequence[str] = (),
    ) -> FinishReply:
        """Have the environment judge the episode, including what its agent reported.

        The environment may ask the `judges` that are named. While this call runs, fetch its questions with
        `questions` and answer them with `answer`.
        """
        body = FinishRequest(
            messages=messages,
            truncated=truncated,
            reported=reported,
            reported_metrics=metrics or {},
            turns=turns,
            judges=[*judges],
        )
        return await self._post("finish", body, FinishReply)

    async def probe(self, destinations: Sequence[Destination]) -> ProbeReply:
        """Which of these destinations the sandbox can reach."""
        places = [each.model_dump(include={"address", "port", "protocol"}) for each in destinations]
        return await self._post("probe", ProbeRequest(destinations=places), ProbeReply)

    async def group(self, body: GroupRequest) -> GroupReply:
        """Have the environment reward the episodes of a group relative to each other."""
        return await self._post("group", body, GroupReply)

    async def questions(self, seconds: float) -> list[Question]:
        """New questions of the environment to judges; none if it asks none within `seconds`."""
        try:
            found = await self._post("judge/questions", QuestionWait(seconds=seconds), Questions)
        except InfraError as fault:
            refused = fault.__cause__
            if not isinstance(refused, UpstreamError) or refused.status != 404:
                raise
            raise InfraError(NO_JUDGES, Cause("JudgesUnsupported", NO_JUDGES, IMAGE)) from fault
        if self._witness is not None:
            self._witness.asked(found.questions)
        return found.questions

    async def answer(self, question: int, answer: Any) -> None:
        """Send the environment the answer to a question."""
        await self._post("judge/answer", JudgeAnswer(id=question, answer=answer), Nothing)

    async def _post(self, path: str, body: Record, kind: type[Reply]) -> Reply:
        try:
            answer = await call(
                self._http,
                "POST",
                f"{self.lease.url.rstrip('/')}/{path}",
                timeout=self._timeout,
                token=self.lease.token,
                body=body.model_dump(mode="json"),
            )
            return kind.model_validate(answer)
        except ValidationError as error:
            what = f"answered /{path} with an invalid reply: {explained(error)}"
            cause = Cause("AnswerUnusable", f"the environment {what}", ENTRYPOINT)
            raise InvalidAnswerError(f"sandbox {self.lease.pod} {what}", cause) from error
        except UpstreamError as error:
            raise error.fault() from error
        except PeerUnreachableError as error:
            fault = InvalidAnswerError if error.answered else InfraError
            raise fault(f"sandbox {self.lease.pod}: {error}", self._lost(path, error)) from error

    def _lost(self, path: str, error: PeerUnreachableError) -> Cause | None:
        """Why a sandbox may have been lost while a tool ran: the tool's memory use, or its node."""
        if path != "tool" or error.answered or isinstance(error.__cause__, TimeoutError):
            return None
        message = f"the sandbox ended while tool {self.calling} ran: it may have used up its memory"
        return Cause("SandboxLost", message, RESOURCES)


async def pool_of(brokers: Sequence[Broker]) -> PoolState:
    """The pools of several brokers, added up, with the first problem that any of them has."""
    pools = [await broker.pool() for broker in brokers]
    return PoolState(
        ready=sum(pool.ready for pool in pools),
        starting=sum(pool.starting for pool in pools),
        leased=sum(pool.leased for pool in pools),
        problem=next((pool.problem for pool in pools if pool.problem is not None), None),
    )


class Broker:
    """Leases sandboxes for one coordinator process.

    `on_tool` is called after each answered tool call, with the seconds that it took.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        token: str,
        owner: str,
        on_tool: Timed = lambda seconds: None,
    ) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._token = token
        self._owner = owner
        self._on_tool = on_tool
        self._witness: Callable[[str], Witness | None] = lambda episode_id: None

    def witnessed(self, by: Callable[[str], Witness]) -> Broker:
        """A copy of this broker with a witness that notes what the sandbox of each episode answers."""
        seen = copy.copy(self)
        seen._witness = by
        return seen

    async def claim(self, deadline: float) -> None:
        """Announce this process, so that the broker frees its predecessor's sandboxes.

        A broker that does not accept the announcement is asked again for `deadline` seconds.

        Raises:
            JobError: `BrokerUnavailable`, retriable.
        """
        error: Exception | None = None
        try:
            async with asyncio.timeout(deadline):
                while True:
                    try:
                        await self._call("POST", "owners", OwnerClaim(owner=self._owner).model_dump())
                        return
                    except (PeerUnreachableError, UpstreamError) as found:
                        error = found
                        logs.event(_log, "broker-not-ready", level=logging.WARNING, error=str(error))
                        await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            message = f"no sandbox broker within {deadline:g} s: {error}"
            raise JobError("BrokerUnavailable", message, permanent=False) from error

    async def pool(self) -> PoolState:
        """The pool as the broker sees it.

        Raises:
            UpstreamError: the broker refuses.
            PeerUnreachableError: the broker does not answer, or its answer is not a pool.
        """
        return self._understood(await self._call("GET", "pool"), PoolState)

    @asynccontextmanager
    async def lease(self, episode_id: str, deadline_seconds: float, timeout: float) -> AsyncIterator[Sandbox]:
        """A sandbox for one episode, released whatever happens.

        `timeout` bounds each later call to the sandbox. The caller bounds the wait for the lease: this asks
        again while the broker does not answer, or answers with a temporary 503.

        Raises:
            InfraError: the broker refuses for another reason.
            JobError: `Superseded`: another coordinator has claimed the sandboxes.
        """
        request = LeaseRequest(lease=episode_id, owner=self._owner, deadline_seconds=deadline_seconds)
        try:
            leased, witness = await self._acquire(request), self._witness(episode_id)
            yield Sandbox(self._http, leased, timeout, self._on_tool, witness)
        finally:
            await asyncio.shield(self._release(episode_id))

    async def _acquire(self, request: LeaseRequest) -> Lease:
        while True:
            try:
                answer = await self._call("POST", "leases", request.model_dump(mode="json"))
                return self._understood(answer, Lease)
            except UpstreamError as error:
                if error.problem.reason == NOT_OWNER:
                    raise superseded(error.problem.message) from error
                if error.status != 503 or error.problem.permanent:
                    raise error.fault() from error
                await asyncio.sleep(error.retry_after or PAUSE_SECONDS)
            except PeerUnreachableError as error:
                logs.event(_log, "broker-unreachable", level=logging.WARNING, error=str(error))
                await asyncio.sleep(PAUSE_SECONDS)

    async def _release(self, episode_id: str) -> None:
        """Release a sandbox. A failure is only logged, because the sandbox ends at its deadline anyway."""
        try:
            await self._call("DELETE", f"leases/{quote(episode_id, safe='')}", timeout=RELEASE_SECONDS)
        except (UpstreamError, PeerUnreachableError) as error:
            logs.event(_log, "release-failed", level=logging.WARNING, lease=episode_id, error=str(error))

    def _understood(self, answer: Any, kind: type[Reply]) -> Reply:
        try:
            return kind.model_validate(answer)
        except ValidationError as error:
            message = f"{self._url} answered with an invalid {kind.__name__}: {explained(error)}"
            raise PeerUnreachableError(message, answered=True) from error

    async def _call(self, method: str, path: str, body: Any = None, timeout: float = ASK_SECONDS) -> Any:
        return await call(
            self._http, method, f"{self._url}/v1/{path}", timeout=timeout, token=self._token, body=body
        )
