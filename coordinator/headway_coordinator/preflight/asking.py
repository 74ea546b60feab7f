"""Asks judges each question of the baseline episodes twice more, to see how much their answers vary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway_analysis.preflight.evidence import AskedTwice, JudgeQuestion
from headway_api import logs
from headway_api.bounds import OutOfBoundsError
from headway_api.records import Judgement
from headway_api.sandbox_api import Question
from headway_coordinator.budget.worst import of_judgements
from headway_coordinator.faults import InfraError
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.judge import Judge
from headway_coordinator.judges.question import PreparedQuestion, prepared, worst_question
from headway_coordinator.judges.schema import InvalidSchemaError, require
from headway_coordinator.preflight.scripted import ERROR_LENGTH, TRIES, Bill

_log = logging.getLogger(__name__)


@dataclass
class Asker:
    """Asks judges without their cache: it reads no stored answers, and stores no new ones."""

    judges: Judges
    bill: Bill
    """Called at the end of each try, with a name that no other try has."""
    whose: str
    """The prefix of the names of tries."""
    changed: Callable[[], None] = lambda: None
    """Called when `waiting` has changed."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Name of a failed question -> why it is not retried yet."""

    async def ask(self, questions: Sequence[JudgeQuestion]) -> list[AskedTwice]:
        """Ask each question twice in sequence, and all questions concurrently.

        The judge's `concurrency` bounds the number of questions at once.
        """
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
        except (InfraError, InvalidSchemaError, OutOfBoundsError) as error:
            logs.event(_log, "judge-not-asked-twice", level=logging.WARNING, error=str(error))
            return AskedTwice(question, tuple(answers), str(error)[:ERROR_LENGTH])
        return AskedTwice(question, tuple(answers))

    def _put(self, question: JudgeQuestion) -> tuple[Judge, PreparedQuestion]:
        """The judge, and the question in the form that the judge takes.

        Raises:
            InfraError: the job has no such judge.
            InvalidSchemaError, OutOfBoundsError: the question's schema or size is not allowed.
        """
        judge = self.judges.by_name.get(question.judge)
        if judge is None:
            raise InfraError(f"spec.judges has no judge {question.judge}")
        schema = None if question.schema is None else dict(question.schema)
        if schema is not None:
            require(schema)
        messages = [dict(message) for message in question.messages]
        put = {"id": 0, "name": question.judge, "messages": messages, "schema": schema}
        return judge, prepared(Question.model_validate(put), judge.spec)

    async def _once_more(self, whose: str, judge: Judge, put: PreparedQuestion) -> Any:
        """The judge's answer to a question. The question is asked again if the judge fails.

        Raises:
            InfraError: the judge failed `TRIES` times.
        """
        for attempt in range(TRIES):
            judgements: list[Judgement] = []
            try:
                async with self.judges.spending.reserved(worst_question(judge.spec, put)) as used:
                    try:
                        return await judge.ask_without_cache(put, judgements.append)
                    finally:
                        used(of_judgements(judgements))
            except InfraError as fault:
                last = fault
            finally:
                if judgements:
                    await self.bill(f"{whose}-{attempt}", judgements)
            if attempt + 1 < TRIES:
                await self._ready(whose, judge, str(last))
        raise last

    async def _ready(self, whose: str, judge: Judge, why: str) -> None:
        """Return once the judge answers again. `why` says why the question failed; the status shows it."""
        self.waiting[whose] = why
        self.changed()
        try:
            await judge.ready()
        finally:
            del self.waiting[whose]
            self.changed()
