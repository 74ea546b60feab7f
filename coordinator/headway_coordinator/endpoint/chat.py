"""Chat completions of a candidate that is served elsewhere.

A turn is one POST to `<url>/chat/completions`, without a stream and without log-probabilities. The failures:

    429, 503, 529, no connection  all requests wait as long as asked, else longer each time; up to `patience`
    500, a broken connection      the request is retried, `TRIES` times in all; then the episode is lost
    HTML, no JSON, no choices     retried likewise; if nothing was ever answered, the candidate ends instead
    a parameter is refused        later requests omit it, and `Notes.dropped` lists it
    the conversation is too long  tried once without a bound on the answer; then the episode is truncated
    401, 403, 404, a redirect     the candidate ends: a `CandidateError` names the field to change
    any other refusal             before a first answer, the candidate ends. Later the episode is lost at its
                                  first turn, and at a later turn it is the agent's error

The endpoint reports the number of tokens, not their ids. So a turn is recorded with its cost, and makes no
training row.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from headway_api import logs
from headway_api.prices import of
from headway_api.records import PolicyVersion, Turn, UsageClass
from headway_api.spec.candidate import CandidateEndpoint
from headway_coordinator.budget.worst import TEMPLATE_TOKENS, Slot
from headway_coordinator.endpoint.caller import Caller
from headway_coordinator.endpoint.owner import Owner
from headway_coordinator.endpoint.pace import Pace, backoff, pause
from headway_coordinator.endpoint.refused import RefusalKind, Verdict
from headway_coordinator.endpoint.reply import Reply
from headway_coordinator.endpoint.wire import Dialect
from headway_coordinator.faults import CandidateError, InfraError
from headway_coordinator.gateway.asks import (
    Ask,
    Completion,
    ContextFullError,
    ForcedCallError,
    RenderError,
    Sampling,
    Session,
)
from headway_coordinator.gateway.core import assistant
from headway_coordinator.gateway.refusals import UNSUPPORTED, bad
from headway_coordinator.trajectory.call_ids import identified
from headway_coordinator.trajectory.calls import Parsed, kinds

TRIES = 5
"""The most tries of a request that may itself cause the failure."""
LIST_SECONDS = 10.0
"""The longest wait for a list of models."""
PROBE_TOKENS = 16
"""Tokens of the answer that a probe asks for. Reasoning models refuse to be given fewer."""
ENDPOINT_VERSION = PolicyVersion(incarnation=0, step=0)
"""The policy version in the records of an endpoint's turns, because the job never sees the weights."""

_log = logging.getLogger(__name__)


@dataclass
class Notes:
    """What this process has learned about an endpoint."""

    dropped: dict[str, str] = field(default_factory=dict)
    """Parameter that the endpoint refused -> its replacement, or an empty string."""
    requests: int = 0
    """Requests for a turn, including failed ones."""
    busy: int = 0
    """Refusals after which all requests had to wait."""


class FirstTurnRefusedError(InfraError):
    """An endpoint that answered before refuses the first turn of a conversation."""


class EndpointChat:
    """Answers the turns of one owner. Shared by all of its episodes."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        owner: Owner,
        spec: CandidateEndpoint,
        token: str | None,
        *,
        timeout: float,
        patience: float,
        answered: bool = False,
    ) -> None:
        """Sends nothing yet.

        Args:
            http: for this endpoint alone, without cookies.
            owner: who asks.
            spec: where the endpoint is, and its limits.
            token: bearer token; None if it needs none.
            timeout: longest a turn may take, in seconds, including every try and wait.
            patience: longest time without one success, in seconds, before a fault is final.
            answered: whether an earlier process had answers from the endpoint.
        """
        self._owner = owner
        self._spec = spec
        self._timeout = timeout
        self._patience = patience
        self._caller = Caller(http, spec, token)
        self._pace = Pace(spec.max_concurrency, spec.requests_per_minute)
        self._dialect = Dialect()
        self._answered = answered
        """Whether a turn of an episode succeeded. A probe does not count, because it has no tools."""
        self._failing: tuple[float, Verdict] | None = None
        """Since when nothing has succeeded, and the last failure. None after a success."""
        self.fault: CandidateError | None = None
        """Why the candidate cannot go on; every later turn raises it at once."""
        self.notes = Notes(dropped=self._dialect.dropped)

    @property
    def problem(self) -> str | None:
        """The last failure, as long as nothing has succeeded since."""
        return None if self._failing is None else f"{self._at}: {self._failing[1].message}"

    async def ready(self) -> None:
        """Return once the endpoint's own pause is over, so that no new episode holds an idle sandbox."""
        await self._pace.ready()

    def forget(self, session: str) -> None:
        """Do nothing, because an endpoint receives whole conversations.

        `Episodes` calls it on every sampler.
        """

    async def chat(self, session: Session, ask: Ask) -> Completion:
        """Have the endpoint answer one turn.

        Raises:
            ContextFullError: the endpoint says that the conversation is too long.
            ForcedCallError: the endpoint refuses `tool_choice`.
            GatewayError: the request has no conversation.
            RenderError: the endpoint refuses a conversation that continues from its own answer.
            InfraError: the endpoint failed; the episode may be retried.
            CandidateError: the endpoint will not answer before a person changes a setting.
        """
        if ask.text is not None:
            raise bad("prompt", "an endpoint answers conversations; use /v1/chat/completions", UNSUPPORTED)
        number, session.begun = session.begun, session.begun + 1
        async with session.spending.reserved(self._worst_call(session, ask)) as used:
            with session.clock.timed("turn", str(number)):
                reply = await self._in_time(session, ask, number)
            used(self._amounts(reply.prompt_tokens, reply.sampled_tokens))
        self._answered = True
        if ask.logprobs:  # an endpoint answers with text only
            session.ignore(["logprobs"])
        return _recorded(session, ask, number, reply)

    def _worst_call(self, session: Session, ask: Ask) -> dict[Slot, int]:
        """The most that a turn may cost: a token has at least one byte, and a template adds little."""
        characters = len(json.dumps([ask.messages, ask.tools], default=str))
        prompt = characters + TEMPLATE_TOKENS * (1 + len(ask.messages) + len(ask.tools))
        sampled = min(session.sampling.max_tokens, ask.max_tokens or session.sampling.max_tokens)
        return self._amounts(prompt, sampled)

    def _amounts(self, prompt: int, sampled: int) -> dict[Slot, int]:
        model = self._spec.model
        asked, answered = of(UsageClass.ENDPOINT_PROMPT, model), of(UsageClass.ENDPOINT_SAMPLE, model)
        return {(asked,): prompt, (answered,): sampled}

    async def probe(self) -> None:
        """Find out early whether the endpoint answers, for the price of at most one short answer.

        A list of models with the candidate's name is enough. If the name is missing or the list is refused, a
        chat decides, because a token may be valid for chats alone. An endpoint that is not up yet gets time
        to start. No record has the cost of a probe.

        Raises:
            CandidateError: the endpoint refuses the probe, or does not answer within `patience`.
        """
        session = Session("probe", 0, Sampling(temperature=1.0, top_p=1.0, max_tokens=PROBE_TOKENS))
        tries = 0
        while not await self._listed():
            try:
                await self._in_time(session, Ask([{"role": "user", "content": "Say ok."}]), 0)
                return
            except FirstTurnRefusedError:  # it has answered episodes, which have tools, and is up
                return
            except InfraError as fault:
                tries += 1
                wait = backoff(tries)
                self._failed(Verdict(RefusalKind.BROKEN, str(fault), reason="EndpointFailing"), wait)
                await asyncio.sleep(wait)
            except ContextFullError as error:
                raise self._end("EndpointRefused", "url", str(error)) from error

    async def _listed(self) -> bool:
        try:
            async with asyncio.timeout(min(self._timeout, LIST_SECONDS)):
                return await self._caller.listed()
        except TimeoutError:
            return False

    async def _in_time(self, session: Session, ask: Ask, number: int) -> Reply:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._reply(session, ask, number)
        except TimeoutError as error:
            message = f"no answer within {self._timeout:g} s"
            last = (
                self._failing[1]
                if self._failing
                else Verdict(RefusalKind.BROKEN, message, reason="EndpointFailing")
            )
            self._failed(last, 0.0)
            raise InfraError(f"{self._at}: {message}; last: {last.message}") from error

    async def _reply(self, session: Session, ask: Ask, number: int) -> Reply:
        """The answer, after as many tries as it takes."""
        bounded, tries = True, Counter[RefusalKind]()
        while True:
            found = await self._once(session, ask, number, bounded=bounded)
            if isinstance(found, Reply):
                return found
            if found.kind is RefusalKind.FULL and bounded:
                bounded = False  # the rest of the context may hold an answer
                continue
            tries[found.kind] += 1
            await self._meet(found, session, ask, tries[found.kind])

    async def _once(self, session: Session, ask: Ask, number: int, *, bounded: bool) -> Reply | Verdict:
        async with self._pace.request():
            self._require()
            body = self._dialect.body(self._spec.model, session, ask, number, bounded=bounded)
            self.notes.requests += 1
            found = await self._caller.complete(body)
        if isinstance(found, Verdict) and found.kind is RefusalKind.FILTERED:
            found = Reply(Parsed(""), "content_filter")
        if isinstance(found, Reply):
            self._dialect.reasoning = found.reasoning or self._dialect.reasoning
            self._failing = None
        return found

    async def _meet(self, verdict: Verdict, session: Session, ask: Ask, tries: int) -> None:
        """Return if the request should be sent again after an error; otherwise raise."""
        match verdict.kind:
            case RefusalKind.DROP if verdict.name == "tool_choice" and ask.force is not None:
                raise ForcedCallError(f"{self._at} refuses tool_choice: {verdict.message}")
            case RefusalKind.DROP:
                self._drop(verdict)
            case RefusalKind.FULL:
                raise ContextFullError(
                    f"{self._at} says that the conversation is too long: {verdict.message}"
                )
            case RefusalKind.FAULT:
                raise self._end(verdict.reason, verdict.name, verdict.message)
            case RefusalKind.REFUSED:
                raise self._refused(verdict, session)
            case RefusalKind.BUSY:
                self._pause(verdict, tries)
            case _:
                await self._again(verdict, tries)

    def _refused(self, verdict: Verdict, session: Session) -> Exception:
        """The exception for a request that can never succeed: who caused it decides its type."""
        if not self._answered:
            return self._end(verdict.reason, verdict.name, verdict.message)
        if session.turns:
            return RenderError(f"{self._at} does not accept this conversation: {verdict.message}")
        return FirstTurnRefusedError(f"{self._at} refuses the episode's first turn: {verdict.message}")

    def _pause(self, verdict: Verdict, tries: int) -> None:
        """Make every request wait: at least as long as asked, and not all for the same time."""
        wait = pause(verdict.wait, tries)
        self.notes.busy += 1
        self._failed(verdict, wait)
        self._pace.pause(wait)

    async def _again(self, verdict: Verdict, tries: int) -> None:
        """Wait before the request is sent again, unless it has failed too often."""
        wait = verdict.wait or backoff(tries)
        self._failed(verdict, wait)
        if tries >= TRIES and verdict.kind is RefusalKind.UNREADABLE and not self._answered:
            raise self._end(verdict.reason, "url", verdict.message)
        if tries >= TRIES:
            raise InfraError(f"{self._at} failed {tries} times, last: {verdict.message}")
        await asyncio.sleep(wait)

    def _failed(self, verdict: Verdict, wait: float) -> None:
        """Note a failure after which the endpoint rests for `wait` seconds.

        Raises:
            CandidateError: with this wait, failures would last longer than `patience`.
        """
        now = time.monotonic()
        since = self._failing[0] if self._failing else now
        self._failing = (since, verdict)
        self._event("endpoint-failed", error=verdict.message, wait=round(wait, 3))
        if now - since + wait <= self._patience:
            return
        name = "requestsPerMinute" if verdict.reason == "EndpointBusy" else "url"
        asks = f"; it asks to wait for {verdict.wait:.0f} s" if verdict.wait is not None else ""
        raise self._end(
            verdict.reason, name, f"no usable answer for {now - since:.0f} s, last: {verdict.message}{asks}"
        )

    def _drop(self, verdict: Verdict) -> None:
        if self._dialect.learn(verdict.name, verdict.message):
            instead = self._dialect.dropped[verdict.name]
            self._event("endpoint-dropped", parameter=verdict.name, instead=instead, error=verdict.message)

    def _event(self, name: str, **fields: Any) -> None:
        logs.event(_log, name, level=logging.WARNING, owner=self._owner.shown, **fields)

    def _require(self) -> None:
        if self.fault is not None:
            raise CandidateError(self.fault.reason, str(self.fault), self.fault.field)

    def _end(self, reason: str, name: str, message: str) -> CandidateError:
        """The error that ends the candidate. It says what a person has to change."""
        self.fault = CandidateError(
            reason, f"{self._at}: {message}; {self._remedy(reason, name)}", self._owner.field(name)
        )
        return self.fault

    @property
    def _at(self) -> str:
        return f"{self._owner.shown}: {self._caller.shown}"

    def _remedy(self, reason: str, name: str) -> str:
        """What a person has to change to resolve a fault."""
        where, other = self._owner.field(name), self._owner.other
        if reason == "EndpointDenied":
            return self._owner.token(self._spec)
        if name == "model":
            return f"{where} is {self._spec.model!r}; write the name of a model that the endpoint serves"
        if reason == "EndpointBusy":
            return f"lower {where} or {other('maxConcurrency')}, or have the endpoint's limit raised"
        if reason == "EndpointRefused":
            return f"name an OpenAI-compatible endpoint in {where} that takes chat completions with tools"
        return f"write the base URL of an OpenAI-compatible endpoint in {where}, up to and including /v1"


def _recorded(session: Session, ask: Ask, number: int, reply: Reply) -> Completion:
    """An answer as a turn of the session, without tokens."""
    parsed = identified(reply.parsed, number, ask.messages)
    message = assistant(parsed, ask.may_call)
    turn = Turn(
        index=len(session.turns),
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        sampled_tokens=reply.sampled_tokens,
        finish_reason=reply.finish_reason,
        malformed_tool_calls=sum(call.problem is not None for call in parsed.calls),
        malformed_kinds=kinds(parsed.calls),
        policy_version=ENDPOINT_VERSION,
        counted=reply.counted,
    )
    node = len(session.nodes)
    session.turns.append(turn)
    session.answered_at.append(time.monotonic())
    session.nodes.append(node)
    called = "tool_calls" in message and reply.finish_reason == "stop"
    finish = "tool_calls" if called else reply.finish_reason
    return Completion(number, message, parsed.calls, finish, turn, node)
