"""A question to a judge in the form of its endpoint, and the check of its answer. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from headway_api import bounds
from headway_api.bounds import KIB, OutOfBoundsError, json_within, shortened
from headway_api.prices import of
from headway_api.records import UsageClass
from headway_api.sandbox_api import Question
from headway_api.spec.judge import Judge
from headway_coordinator.budget.worst import TEMPLATE_TOKENS, Slot
from headway_coordinator.endpoint.reply import Reply
from headway_coordinator.endpoint.wire import LIMIT, NEW_LIMIT
from headway_coordinator.judges.schema import mismatch

MAX_QUESTION: Final = 2048 * KIB
"""The most bytes of one question and its judge, as JSON. A sandbox may send half of that."""
MAX_ANSWER: Final = 256 * KIB
"""The most bytes of one answer."""
ANSWER_DEPTH: Final = 16
FORMAT: Final = "response_format"
TRIES: Final = 3
"""The most tries of a question that may itself cause the failure."""
SHOWN: Final = 100
"""The most characters of an unusable answer in a message."""


class UnusableAnswerError(Exception):
    """The judge's text does not answer the question. Another try may give something else."""


@dataclass(frozen=True)
class PreparedQuestion:
    """One question, with the digest by which its answer is stored."""

    messages: list[dict[str, Any]]
    schema: dict[str, Any] | None
    digest: str
    """SHA-256 of judge and question, in hexadecimal."""


def prepared(question: Question, judge: Judge) -> PreparedQuestion:
    """A question in the form for `judge`.

    Raises:
        OutOfBoundsError: the question is too large.
    """
    identity = {**judge.identity, "most": judge.max_tokens}
    what = {"messages": question.messages, "schema": question.answer_schema}
    text = json.dumps({"judge": identity, **what}, sort_keys=True, allow_nan=False)
    if len(text) > MAX_QUESTION:
        raise OutOfBoundsError(f"the question has {len(text)} bytes; ask with {MAX_QUESTION} at most")
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return PreparedQuestion(question.messages, question.answer_schema, digest)


def worst_question(judge: Judge, question: PreparedQuestion) -> Counter[Slot]:
    """The most that a question may cost, over all of its tries.

    A token has at least one byte, and a chat template adds little to a message.
    """
    characters = len(json.dumps([question.messages, question.schema]))
    prompt = characters + TEMPLATE_TOKENS * (1 + len(question.messages))
    if judge.model is not None and judge.model.context_length is not None:
        prompt = min(prompt, judge.model.context_length)
    found: Counter[Slot] = Counter()
    found[(of(UsageClass.JUDGE_PROMPT, judge.priced_as),)] = TRIES * prompt
    found[(of(UsageClass.JUDGE_SAMPLE, judge.priced_as),)] = TRIES * judge.max_tokens
    return found


def body(
    judge: Judge, model: str, question: PreparedQuestion, without: Collection[str], attempt: int
) -> dict[str, Any]:
    """The request's JSON.

    The first attempt has temperature 0. After an unusable answer the temperature is 1, because otherwise the
    judge would repeat itself.

    Args:
        model: the judge's name at the endpoint.
        without: parameters that the endpoint has refused.
        attempt: number of unusable answers so far, from 0.
    """
    wanted: dict[str, Any] = {
        "model": model,
        "messages": question.messages,
        "stream": False,
        "temperature": 1.0 if attempt else 0.0,
        "seed": attempt,
        NEW_LIMIT if LIMIT in without else LIMIT: judge.max_tokens,
    }
    if question.schema is not None:
        schema = {"name": "answer", "schema": question.schema, "strict": True}
        wanted[FORMAT] = {"type": "json_schema", "json_schema": schema}
    return {name: value for name, value in wanted.items() if name not in without}


def fits(found: Any, question: PreparedQuestion) -> bool:
    """Whether a stored answer fits this question. Others who may write to the store may have written it."""
    if question.schema is None:
        return isinstance(found, str) and bool(found)
    try:
        return not mismatch(found, question.schema)
    except OutOfBoundsError:
        return False


def answer(reply: Reply, question: PreparedQuestion) -> Any:
    """The answer for the environment: text, or JSON if the question has a schema.

    Raises:
        UnusableAnswerError: the answer cannot be used. The message says why.
    """
    if reply.finish_reason == "length":
        raise UnusableAnswerError("its answer is cut off at maxTokens; raise it")
    if reply.finish_reason == "content_filter":
        raise UnusableAnswerError("it refused to answer")
    if reply.parsed.calls:
        raise UnusableAnswerError("it called a tool, but has none")
    text = reply.parsed.content.strip()
    if not text:
        raise UnusableAnswerError("its answer is empty")
    if len(text.encode()) > MAX_ANSWER:
        raise UnusableAnswerError(f"its answer has more than {MAX_ANSWER} bytes")
    if question.schema is None:
        return text
    try:
        found = json_within(text, MAX_ANSWER, depth=ANSWER_DEPTH, values=bounds.ANSWER_VALUES)
    except OutOfBoundsError as error:
        raise UnusableAnswerError(
            f"its answer is not valid JSON: {error}: {shortened(text, SHOWN)}"
        ) from error
    try:
        wrong = mismatch(found, question.schema)
    except OutOfBoundsError as error:
        raise UnusableAnswerError(
            f"its answer cannot be compared with the schema: {error}; ask for fewer values, or write fewer "
            "alternatives in anyOf and enum"
        ) from error
    if wrong:
        raise UnusableAnswerError(f"{wrong}, against the schema")
    return found
