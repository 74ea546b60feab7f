"""Sends one sandbox's questions to judges, and delivers their answers, while the environment judges.

The coordinator opens each connection, with the token of the lease. So nobody else can ask or answer. If a
judge fails, the judgement ends here. The environment never sees the failure, so it cannot turn the failure
into a reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headway_api.bounds import OutOfBoundsError
from headway_api.records import Judgement
from headway_api.sandbox_api import Question
from headway_coordinator.budget.spending import UNBOUNDED, Spending
from headway_coordinator.budget.worst import of_judgements
from headway_coordinator.faults import Cause, InfraError
from headway_coordinator.judges.judge import Judge
from headway_coordinator.judges.question import prepared, worst_question
from headway_coordinator.judges.schema import InvalidSchemaError, require
from headway_coordinator.sandboxes import ENTRYPOINT, Sandbox

Reply = TypeVar("Reply")
LOOK_SECONDS: Final = 20.0
"""The longest that one request for new questions takes."""


@dataclass
class Judges:
    """The judges of a job."""

    by_name: Mapping[str, Judge] = field(default_factory=dict)
    spending: Spending = UNBOUNDED
    """Reserves the cost of questions that belong to no group."""

    @property
    def names(self) -> list[str]:
        return list(self.by_name)

    async def ready(self) -> None:
        """Return once each judge that failed answers again, so that a new episode is not lost to it."""
        for judge in self.by_name.values():
            await judge.ready()

    async def finished(
        self,
        sandbox: Sandbox,
        finish: Callable[[list[str]], Awaitable[Reply]],
        on_judgement: Callable[[Judgement], None] = lambda judgement: None,
        waits: Callable[[str | None], None] = lambda judge: None,
        spending: Spending | None = None,
    ) -> Reply:
        """The environment's result for an episode or a group. Its questions are answered meanwhile.

        Args:
            finish: given the judges that may be asked, asks the sandbox for the result.
            on_judgement: called with the cost of each question.
            waits: called with the judge whose answer is awaited, or None if no answer is.
            spending: reserves what each question may cost. By default `Judges.spending` does.

        Raises:
            InfraError: a judge or the sandbox failed.
        """
        if not self.by_name:
            return await finish([])
        one = _Judgement(self, sandbox, on_judgement, waits, self.spending if spending is None else spending)
        answering = asyncio.create_task(one.answer_all())
        finishing = asyncio.ensure_future(finish(self.names))
        try:
            await asyncio.wait((answering, finishing), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():  # it ends only by failing
                answering.result()
            reply = finishing.result()
            one.require_all_answered()
            return reply
        finally:
            answering.cancel()
            finishing.cancel()
            await asyncio.gather(answering, finishing, return_exceptions=True)


@dataclass
class _Judgement:
    """The questions to judges of one episode or group."""

    judges: Judges
    sandbox: Sandbox
    on_judgement: Callable[[Judgement], None]
    waits: Callable[[str | None], None]
    spending: Spending
    open: dict[int, str] = field(default_factory=dict)
    """By id: the judge of each question without an answer."""

    async def answer_all(self) -> None:
        """Take questions and deliver answers, until cancelled.

        Raises:
            InfraError: a judge failed, or the sandbox asked a question that it must not.
        """
        running: set[asyncio.Task[None]] = set()
        looking = asyncio.create_task(self.sandbox.questions(LOOK_SECONDS))
        try:
            while True:
                done, _ = await asyncio.wait({looking, *running}, return_when=asyncio.FIRST_COMPLETED)
                for task in done & running:
                    running.discard(task)
                    task.result()
                if looking in done:
                    running |= {asyncio.create_task(self._answer(one)) for one in looking.result()}
                    looking = asyncio.create_task(self.sandbox.questions(LOOK_SECONDS))
        finally:
            for task in (looking, *running):
                task.cancel()
            await asyncio.gather(looking, *running, return_exceptions=True)

    async def _answer(self, question: Question) -> None:
        judge = self.judges.by_name.get(question.name)
        if judge is None:  # a sandbox that knows its judges does not ask this
            raise _misused("JudgeUnknown", f"asks judge {question.name}, which spec.judges does not have")
        try:
            if question.answer_schema is not None:
                require(question.answer_schema)
            put = prepared(question, judge.spec)
        except (InvalidSchemaError, OutOfBoundsError) as error:
            raise _misused(
                "JudgeMisused", f"asks judge {question.name} an invalid question: {error}"
            ) from error
        self.open[question.id] = question.name
        self.waits(question.name)
        async with self.spending.reserved(worst_question(judge.spec, put)) as used:

            def on_judgement(judgement: Judgement) -> None:
                used(of_judgements([judgement]))
                self.on_judgement(judgement)

            found = await judge.ask(put, on_judgement)
        await self._bring(question.id, found)

    async def _bring(self, question: int, found: Any) -> None:
        # The question is removed first, because the environment may return before the call below ends.
        del self.open[question]
        self.waits(next(iter(self.open.values()), None))
        await self.sandbox.answer(question, found)

    def require_all_answered(self) -> None:
        """Raise InfraError if the environment did not wait for its answers."""
        if self.open:
            names = ", ".join(sorted({*self.open.values()}))
            raise _misused("JudgeNotAwaited", f"returned before judge {names} had answered; wait for it")


def _misused(reason: str, message: str) -> InfraError:
    message = f"the environment {message}"
    return InfraError(message, Cause(reason, message, ENTRYPOINT))
