"""Asks a judge from `reward` and `score`. A sandbox has no network, so the platform sends the question.

    grade = self.judge("style", [user(f"Grade this: {transcript.answer}")], schema={"type": "number"})

A question waits here until the coordinator fetches it, over a connection that the coordinator opened with the
lease's token. The coordinator delivers the answer the same way. If a judge fails, the episode ends and is
retried. So a failed judge raises nothing here that a reward could catch and turn into 0.

It uses only the standard library. It is imported at the first question, or when a coordinator polls for one.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

from headway_sandbox import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

MAX_QUESTIONS = 64
"""Maximum questions of one episode."""
AT_ONCE = 4
"""Maximum questions in one response, of which a coordinator reads 8 MiB, 32 levels and 100,000 values."""
MAX_DEPTH = 24
MAX_VALUES = 20_000
"""Maximum values in one question."""
MAX_WAIT = 60
"""Maximum seconds that one request waits for questions; equal to
`headway_api.sandbox_api.MAX_QUESTION_WAIT`."""


class Question:
    """One question, and its answer once there is one."""

    __slots__ = ("answer", "answered", "document")

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.answered = False
        self.answer: Any = None


class Questions:
    """The questions of one episode, which may be asked only while `reward` and `score` run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all: dict[int, Question] = {}
        self._new: list[Question] = []
        self._names: tuple[str, ...] = ()
        """Judges that may be asked now."""
        self.waiting = 0
        """Number of threads that wait for an answer."""

    def ask(self, name: str, messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None) -> Any:
        """Submit a question and wait for its answer: text, or JSON that matches `schema`.

        Raises:
            TypeError: the arguments are not a question.
            ValueError: there is no such judge, the question is too large, or the episode has asked too many.
            RuntimeError: the episode is not being judged, or its job has no judges.
        """
        document = written(name, messages, schema)
        with self._changed:
            if not self._names:
                raise RuntimeError("call judge only in reward or score, with the name of one of spec.judges")
            if name not in self._names:
                raise ValueError(f"there is no judge {name}; spec.judges has {', '.join(self._names)}")
            if len(self._all) >= MAX_QUESTIONS:
                raise ValueError(f"an episode asks at most {MAX_QUESTIONS} questions")
            document["id"] = len(self._all)
            question = self._all[document["id"]] = Question(document)
            self._new.append(question)
            self.waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: question.answered)
            finally:
                self.waiting -= 1
        return question.answer

    def taken(self, seconds: float) -> list[dict[str, Any]]:
        """New questions; empty if none comes within `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._new), seconds)
            found, self._new = self._new[:AT_ONCE], self._new[AT_ONCE:]
            return [question.document for question in found]

    def answer(self, number: int, answer: Any) -> bool:
        """Answer a question; returns whether one with this number was open."""
        with self._changed:
            question = self._all.get(number)
            if question is None or question.answered or question in self._new:
                return False
            question.answer, question.answered = answer, True
            self._changed.notify_all()
            return True

    @contextmanager
    def judging(self, names: Sequence[str]) -> Iterator[None]:
        """Context in which code may ask the judges `names`."""
        self._names = tuple(names)
        try:
            yield
        finally:
            self._names = ()


QUESTIONS = Questions()
"""The episode's questions: a process serves one episode."""


def judge(name: str, messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None = None) -> Any:
    """Ask a judge, as `Environment.judge` does, for a reward that is a separate function."""
    return QUESTIONS.ask(name, messages, schema)


def written(name: object, messages: object, schema: object) -> dict[str, Any]:
    """A question in the form that is sent; raises TypeError and ValueError."""
    if not isinstance(name, str) or not name:
        raise TypeError("judge takes the name of one of spec.judges")
    given = [*messages] if isinstance(messages, list | tuple) else []
    if not given or not all(isinstance(each, dict) for each in given):
        raise TypeError('judge takes a list of messages, such as [{"role": "user", "content": "..."}]')
    if not (schema is None or isinstance(schema, dict)):
        raise TypeError("schema is a JSON schema, as a dict")
    document = {"name": name, "messages": given, "schema": schema}
    try:
        size = len(bounds.written(document, finite=True))
        text = bounds.text(json.dumps(document, ensure_ascii=False))
    except bounds.InvalidReturnError as error:
        raise ValueError(f"the question is {error}") from None
    if size > bounds.QUESTION:
        raise ValueError(f"the question has {size} bytes; shorten it to {bounds.QUESTION} bytes")
    found: dict[str, Any] = json.loads(text)  # a copy: later changes of the arguments have no effect
    if not shallow(found):
        limits = f"at most {MAX_DEPTH} levels and {MAX_VALUES} values"
        raise ValueError(f"the question is too long or nested too deeply: ask with {limits}")
    return found


def shallow(document: object) -> bool:
    """Whether a question has few enough levels and values for a coordinator."""
    level, count = [document], 0
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        count += len(level)
        if not level or count > MAX_VALUES:
            break
    return not level
