"""Asks judges anew what baseline episodes asked them, each question twice: how far their answers vary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway_analysis.preflight.evidence import AskedTwice, JudgeQuestion
from headway_api import logs
from headway_api.bounds import OutOfBounds
from headway_api.records import Judgement
from headway_api.sandbox_api import Question
from headway_coordinator.budget.worst import of_judgements
from headway_coordinator.faults import InfraFault
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.judge import Judge
from headway_coordinator.judges.question import Asked, asked, most
from headway_coordinator.judges.schema import BadSchema, require
from headway_coordinator.preflight.scripted import ERROR_LENGTH, TRIES, Bill

_log = logging.getLogger(__name__)


@dataclass
class Asker:
    """Asks. What was answered before is not looked at, and what is answered now is not kept."""

    judges: Judges
    bill: Bill
    """Called as soon as a try has ended, with a name that no other try has."""
    whose: str
    """What those names begin with."""
    changed: Callable[[], None] = lambda: None
    """Told of another that `waiting` has."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Why a question that failed is not asked again yet."""

    async def ask(self, questions: Sequence[JudgeQuestion]) -> list[AskedTwice]:
        """Each of them twice, one after the other; as many at once as the judge's `concurrency` allows."""
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._twice(f"{self.whose}-{number}", question))
                for number, question in enumerate(questions)
            ]
        return [task.result() for task in running]

    async def _twice(self, whose: str, question: JudgeQuestion) -> AskedTwice:
        answers: list[Any] = []
        try:
            judge, put = self._put(question)
            for number in range(2):
                answers.append(await self._once_more(f"{whose}-{number}", judge, put))
        except (InfraFault, BadSchema, OutOfBounds) as error:
            logs.event(_log, "judge-not-asked-twice", level=logging.WARNING, error=str(error))
            return AskedTwice(question, tuple(answers), str(error)[:ERROR_LENGTH])
        return AskedTwice(question, tuple(answers))

    def _put(self, question: JudgeQuestion) -> tuple[Judge, Asked]:
        """Whom to ask, and what.

        Raises:
            InfraFault: the job has no such judge.
            BadSchema, OutOfBounds: the question is none that is asked.
        """
        judge = self.judges.by_name.get(question.judge)
        if judge is None:
            raise InfraFault(f"spec.judges has no judge {question.judge}")
        schema = None if question.schema is None else dict(question.schema)
        if schema is not None:
            require(schema)
        messages = [dict(message) for message in question.messages]
        put = {"id": 0, "name": question.judge, "messages": messages, "schema": schema}
        return judge, asked(Question.model_validate(put), judge.spec)

    async def _once_more(self, whose: str, judge: Judge, put: Asked) -> Any:
        """The judge's answer; asked for again where the judge failed.

        Raises:
            InfraFault: it failed `TRIES` times.
        """
        for attempt in range(TRIES):
            told: list[Judgement] = []
            try:
                async with self.judges.spending.reserved(most(judge.spec, put)) as used:
                    try:
                        return await judge.ask_anew(put, told.append)
                    finally:
                        used(of_judgements(told))
            except InfraFault as fault:
                last = fault
            finally:
                if told:
                    await self.bill(f"{whose}-{attempt}", told)
            if attempt + 1 < TRIES:
                await self._ready(whose, judge, str(last))
        raise last

    async def _ready(self, whose: str, judge: Judge, why: str) -> None:
        """Return once the judge answers. `why`: what the question failed by."""
        self.waiting[whose] = why
        self.changed()
        try:
            await judge.ready()
        finally:
            del self.waiting[whose]
            self.changed()
