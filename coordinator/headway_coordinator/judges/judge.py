"""Asks one judge. A question is repeated after a failure; a question with a stored answer is not asked again.

    429, 503, 529, no connection   every question waits as long as asked, or longer each time
    500, a broken answer, HTML     asked again, `TRIES` times in all
    no answer to the question      asked again likewise: prose instead of JSON, nothing, a refusal, a cut-off
                                   answer
    a parameter is refused         the parameter is omitted from then on
    anything else that is refused  not asked again: the fault names the field to change
    no answer within its time      the question is given up

A question that is given up is an InfraError. Its episode is retried, and no episode begins before the
judge answers. Waiting episodes cost no tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp

from headway_api import logs
from headway_api.bounds import shortened
from headway_api.records import Judgement
from headway_api.spec.judge import Judge as JudgeSpec
from headway_api.spec.judge import field_of
from headway_coordinator.endpoint.caller import Caller, ModelEndpoint
from headway_coordinator.endpoint.pace import Pace, backoff, pause
from headway_coordinator.endpoint.refused import RefusalKind, Verdict
from headway_coordinator.endpoint.reply import Reply
from headway_coordinator.endpoint.token import InvalidTokenError
from headway_coordinator.endpoint.wire import LIMIT, NEW_LIMIT
from headway_coordinator.faults import Cause, InfraError
from headway_coordinator.judges.kept import Kept
from headway_coordinator.judges.question import (
    TRIES,
    PreparedQuestion,
    UnusableAnswerError,
    answer,
    body,
    fits,
)

PROBE: Final = PreparedQuestion([{"role": "user", "content": "Say ok."}], None, "0" * 64)
PROBE_TOKENS: Final = 16
SHOWN: Final = 400
FIELDS: Final = {
    "url": "endpoint.url",
    "model": "endpoint.model",
    "secretRef": "secretRef",
    "requestsPerMinute": "concurrency",
    "timeoutSeconds": "timeoutSeconds",
}
"""The field in a verdict -> the judge's field."""
OF_A_MODEL: Final = dict.fromkeys(("url", "model", "secretRef"), "model")
"""The field in a verdict -> the judge's field, if the job serves the judge's model."""
WAITS: Final = (RefusalKind.BUSY, RefusalKind.BROKEN, RefusalKind.UNREADABLE)
PASSING: Final = ("JudgeBusy", "JudgeFailing", "JudgeSlow", "JudgeUnreachable", "JudgeUnreadable")
"""Failures that may end without a change of the job."""

_log = logging.getLogger(__name__)


@dataclass
class Spent:
    """The cost of one question, over all of its tries."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    counted: bool = True

    def add(self, reply: Reply) -> None:
        self.prompt_tokens += reply.prompt_tokens
        self.sampled_tokens += reply.sampled_tokens
        self.counted &= reply.counted


@dataclass
class _Open:
    """A question in flight, and how many callers wait for its answer."""

    task: asyncio.Task[Any]
    spent: Spent = field(default_factory=Spent)
    waiting: int = 0


class Judge:
    """Asks one judge. All of its state changes on the event loop only."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        spec: JudgeSpec,
        place: ModelEndpoint,
        token: Callable[[], str | None],
        kept: Kept,
    ) -> None:
        """Sends nothing yet.

        Args:
            http: a session for endpoints, without cookies.
            spec: the judge's model and limits.
            place: the address where the model is served.
            token: reads the judge's bearer token; None if it has none. Raises InvalidTokenError.
            kept: the stored answers.
        """
        self.spec = spec
        self._place = place
        self._http = http
        self._token = token
        self._kept = kept
        self._pace = Pace(spec.concurrency, None)
        self._without: set[str] = set()
        self._open: dict[str, _Open] = {}
        # A job's own servers start after this process, so the first question waits for them.
        self._down: str | None = None if spec.model is None else "it has not answered yet"
        """Why the judge does not answer; None once it answers."""
        self._probing = asyncio.Lock()

    @property
    def shown(self) -> str:
        """The judge's URL as messages show it, without secrets."""
        return Caller(self._http, self._place, None).shown

    async def ask(self, question: PreparedQuestion, on_judgement: Callable[[Judgement], None]) -> Any:
        """The answer to a question.

        Args:
            on_judgement: called once with the cost, whatever the result.

        Raises:
            InfraError: the judge gave no usable answer. The cause names the judge and the field to change.
        """
        if not self.spec.cache:
            return await self._shared(self._begun(question), question, on_judgement)
        known = await self._kept.answer(question.digest)
        if known is not None and fits(known.answer, question):
            on_judgement(Judgement(judge=self.spec.name, question=question.digest, cached=True))
            return known.answer
        one = self._open.get(question.digest)
        if one is None:
            one = self._open[question.digest] = self._begun(question)
        return await self._shared(one, question, on_judgement)

    async def ask_without_cache(
        self, question: PreparedQuestion, on_judgement: Callable[[Judgement], None]
    ) -> Any:
        """The answer to a question, without looking at stored answers. The new answer is not stored."""
        return await self._shared(self._begun(question, keep=False), question, on_judgement)

    def _begun(self, question: PreparedQuestion, *, keep: bool = True) -> _Open:
        spent = Spent()
        return _Open(asyncio.create_task(self._answered(question, spent, keep=keep)), spent)

    async def _shared(
        self, one: _Open, question: PreparedQuestion, on_judgement: Callable[[Judgement], None]
    ) -> Any:
        """Wait for an answer that other callers may also wait for. The last caller to leave gets the bill."""
        one.waiting += 1
        try:
            return await asyncio.shield(one.task)
        finally:
            one.waiting -= 1
            last = not one.waiting
            if last and self._open.get(question.digest) is one:
                del self._open[question.digest]
            on_judgement(self._judgement(question, one.spent if last else None))
            if last and not one.task.done():
                one.task.cancel()
                await asyncio.gather(one.task, return_exceptions=True)

    def _judgement(self, question: PreparedQuestion, spent: Spent | None) -> Judgement:
        if spent is None:
            return Judgement(judge=self.spec.name, question=question.digest, cached=True)
        return Judgement(
            judge=self.spec.name,
            question=question.digest,
            prompt_tokens=spent.prompt_tokens,
            sampled_tokens=spent.sampled_tokens,
            counted=spent.counted,
            model=self.spec.priced_as,
        )

    async def ready(self) -> None:
        """Return once a judge that failed answers again, so that new work does not fail with it."""
        if self._down is None:
            return
        tries = 0
        async with self._probing:
            while self._down is not None:
                tries += 1
                await asyncio.sleep(backoff(tries))
                await self.probe()

    async def probe(self) -> InfraError | None:
        """Send a tiny request once. Returns why the judge does not answer, or None if it does."""
        short = self.spec.model_copy(update={"max_tokens": PROBE_TOKENS})
        try:
            async with asyncio.timeout(self.spec.timeout_seconds):
                await self._pace.ready()
                found = await self._once(PROBE, 0, short)
        except TimeoutError:
            found = Verdict(
                RefusalKind.BROKEN, f"no answer within {self.spec.timeout_seconds} s", reason="JudgeSlow"
            )
        if isinstance(found, Verdict) and found.kind is not RefusalKind.DROP:
            return self._fault(found)
        self._down = None
        return None

    async def _answered(self, question: PreparedQuestion, spent: Spent, *, keep: bool) -> Any:
        """The answer, after as many tries as it takes."""
        last: list[Verdict] = []
        try:
            async with self._pace.request(), asyncio.timeout(self.spec.timeout_seconds):
                value = await self._insisted(question, spent, last)
        except TimeoutError:
            message = f"no answer within {self.spec.timeout_seconds} s"
            message += f"; last: {last[-1].message}" if last else ""
            raise self._given_up(
                Verdict(RefusalKind.BROKEN, message, "timeoutSeconds", "JudgeSlow")
            ) from None
        self._down = None
        if keep and self.spec.cache:
            await self._kept.keep(question.digest, value)
        return value

    async def _insisted(self, question: PreparedQuestion, spent: Spent, last: list[Verdict]) -> Any:
        attempt, tries = 0, 0
        while True:
            found = await self._once(question, attempt)
            if isinstance(found, Reply):
                spent.add(found)
                try:
                    return answer(found, question)
                except UnusableAnswerError as error:
                    attempt += 1
                    found = Verdict(RefusalKind.UNREADABLE, str(error), "answer", "JudgeAnswerUnusable")
            if found.kind is RefusalKind.DROP:
                self._drop(found)
                continue
            last.append(found)
            tries += found.kind is not RefusalKind.BUSY
            if found.kind not in WAITS or tries >= TRIES:
                raise self._given_up(found)
            await self._wait(found, len(last))

    async def _once(
        self, question: PreparedQuestion, attempt: int, spec: JudgeSpec | None = None
    ) -> Reply | Verdict:
        try:
            caller = Caller(self._http, self._place, self._token())
        except InvalidTokenError as wrong:
            return Verdict(RefusalKind.FAULT, str(wrong), "secretRef", "JudgeDenied")
        wanted = body(spec or self.spec, self._place.model, question, self._without, attempt)
        return await caller.complete(wanted)

    async def _wait(self, verdict: Verdict, tries: int) -> None:
        """Wait before the question is sent again. If the judge is busy, all of its questions wait."""
        self._event("judge-failed", error=verdict.message)
        if verdict.kind is RefusalKind.BUSY:
            self._pace.pause(pause(verdict.wait, tries))
            await self._pace.ready()
        elif verdict.name != "answer":
            await asyncio.sleep(verdict.wait or backoff(tries))

    def _drop(self, verdict: Verdict) -> None:
        """Omit a parameter from now on."""
        name = verdict.name
        if name == LIMIT and LIMIT in self._without:
            name = NEW_LIMIT
        if name in self._without:
            refused = replace(verdict, kind=RefusalKind.REFUSED, reason="JudgeRefused")
            raise self._given_up(refused)
        self._without.add(name)
        self._event("judge-dropped", parameter=name, error=verdict.message)

    def _given_up(self, verdict: Verdict) -> InfraError:
        fault = self._fault(verdict)
        if verdict.kind in (*WAITS, RefusalKind.FAULT) and verdict.name != "answer":
            self._down = str(fault)
        self._event("judge-given-up", error=str(fault))
        return fault

    def _fault(self, verdict: Verdict) -> InfraError:
        reason = verdict.reason.replace("Endpoint", "Judge") or _reason(verdict.kind)
        fields = FIELDS if self.spec.model is None else FIELDS | OF_A_MODEL
        where = field_of(self.spec.name, fields.get(verdict.name, ""))
        message = f"judge {self.spec.name}: {shortened(verdict.message, SHOWN)} ({self.shown})"
        message += f"; {_remedy(reason, where, served=self.spec.model is not None)}"
        return InfraError(message, Cause(reason, message, where))

    def _event(self, name: str, **fields: Any) -> None:
        logs.event(_log, name, level=logging.WARNING, judge=self.spec.name, **fields)


def _reason(kind: RefusalKind) -> str:
    return {RefusalKind.FULL: "JudgeQuestionTooLong", RefusalKind.FILTERED: "JudgeRefused"}.get(
        kind, "JudgeFailing"
    )


def _remedy(reason: str, where: str, *, served: bool) -> str:
    """What a person has to change. `served`: whether the job itself serves the judge."""
    match reason:
        case "JudgeDenied" if served:
            return "delete the job and create it again; it then gets new keys"
        case "JudgeDenied":
            return f"write a token that it accepts into the key `token` of the Secret of {where}"
        case "JudgeNotFound":
            return f"correct {where}"
        case "JudgeAnswerUnusable":
            return "simplify the question, raise maxTokens, or name a judge that follows a schema"
        case "JudgeQuestionTooLong":
            return "ask with fewer words, or name a judge with a longer context"
        case "JudgeRefused":
            return "ask in another way, or name another judge"
        case "JudgeSlow":
            return f"raise {where}, or have the judge answer sooner"
    if served:
        return (
            "the job restarts its servers, and episodes wait until it answers; "
            "status.roles shows what is missing"
        )
    return "make it answer again: episodes wait for it"
