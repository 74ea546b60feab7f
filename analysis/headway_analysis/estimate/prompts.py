"""Estimates the length of first prompts, with the caller's function that counts a conversation's tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

from headway_analysis.estimate.amounts import Range, exactly, ordered
from headway_analysis.estimate.candidates import Opening
from headway_api.config import EvalConfig
from headway_api.document import Json
from headway_api.opening import opening
from headway_api.sandbox_api import ResetReply

Size = Callable[[Sequence[Json], Sequence[Json]], int]
"""Counts the tokens of a prompt that consists of these messages and tools."""
Failed = Callable[[Exception], None]
MAX_ROWS: Final = 256
"""Rows whose prompts are measured, spread over the data."""
PROMPT: Final = "prompt"
"""The default column of prompts."""
BYTES: Final = 4.0
"""The likely number of bytes of a token. A token is assumed to have at least one byte, and at most twice this
number."""
OTHER_TOKENIZER: Final = 1.5
"""How many times more or fewer tokens another model may make of the same text."""


@dataclass(frozen=True)
class Known:
    """A model whose tokenizer is available."""

    size: Size
    context_length: int
    """Maximum tokens of an episode."""


def lengths(
    first: ResetReply, size: Size, rows: Sequence[Json], column: str | None, system_prompt: str | None
) -> list[float]:
    """Tokens of the first prompts of rows sampled across the data, tools included.

    The first row's prompt is known from its reset. Another row's prompt is assumed to differ only by the text
    in the column of prompts.

    Args:
        first: the environment's reply when an episode of the first row begins.
        size: counts tokens as the model does.
        rows: the training rows.
        column: `spec.data.train.promptColumn`.
        system_prompt: the agent's own system prompt, which replaces the environment's.
    """
    if not rows:
        return []
    own = size(opening(first.messages, system_prompt), first.tools)
    texts = [str(row.get(column or PROMPT) or "") for row in _spread(rows)]
    sizes = [size([{"role": "user", "content": text}], []) for text in texts]
    return [float(max(1, own + each - sizes[0])) for each in sizes]


def tried(
    first: ResetReply,
    size: Size,
    rows: Sequence[Json],
    column: str | None,
    system_prompt: str | None,
    failed: Failed,
) -> list[float]:
    """The same as `lengths`; empty if the chat template fails, which is a program of the model's author."""
    try:
        return lengths(first, size, rows, column, system_prompt)
    except Exception as error:
        failed(error)
        return []


def openings(
    job: EvalConfig, first: ResetReply, models: Mapping[str, Known], rows: Sequence[Json], failed: Failed
) -> dict[str, Opening]:
    """What is known of each candidate of an evaluation before it has played.

    A model without an available tokenizer is assumed to make as many tokens of a text as the other models do.
    If no tokenizer is available, one token per four bytes is assumed.

    Args:
        job: the job, with its candidates resolved.
        first: the environment's reply when an episode of the first row begins.
        models: candidate -> its model, for the models whose tokenizers are available.
        rows: the rows that are measured.
        failed: receives the exception if a chat template fails.
    """
    column, system = job.spec.data.prompt_column, job.spec.agent.effective_builtin.system_prompt
    means: dict[int, float] = {}
    known: dict[str, Opening] = {}
    for name, model in models.items():
        if (one := id(model.size)) not in means:  # candidates share the tokenizer of their base model
            means[one] = mean(tried(first, model.size, rows, column, system, failed))
        prompt = exactly(means[one]) if means[one] else None
        known[name] = Opening(prompt, model.context_length)
    measured = sorted(value for value in means.values() if value)
    others = (
        ordered(measured[0] / OTHER_TOKENIZER, mean(measured), measured[-1] * OTHER_TOKENIZER)
        if measured
        else _by_bytes(mean(lengths(first, _bytes, rows, column, system)))
    )
    return {
        each.name: found
        if (found := known.get(each.name, Opening())).prompt
        else replace(found, prompt=others)
        for each in job.candidates
    }


def unknown(job: EvalConfig, models: Mapping[str, object]) -> str:
    """Why the lengths of prompts are only guessed for some candidates with rollout servers; empty if none is.

    Args:
        job: the job, with its candidates resolved.
        models: candidate -> its model, for the models whose tokenizers are available.
    """
    names = [each.name for each in job.candidates if each.base is not None and each.name not in models]
    return f"the tokenizer of {', '.join(names)} is not available" if names else ""


def mean(values: Sequence[float]) -> float:
    """The mean of the values; 0 if there are none."""
    return fsum(values) / len(values) if values else 0.0


def _bytes(messages: Sequence[Json], tools: Sequence[Json]) -> int:
    return len(json.dumps([*messages, *tools], ensure_ascii=False).encode(errors="replace"))


def _by_bytes(much: float) -> Range | None:
    """Tokens in `much` bytes of text; None if the number of bytes is unknown (0)."""
    return ordered(much / (2 * BYTES), much / BYTES, much) if much else None


def _spread(rows: Sequence[Json]) -> Sequence[Json]:
    """The first row, and further rows at equal distances, at most `MAX_ROWS` together."""
    return rows[:: max(1, -(-len(rows) // MAX_ROWS))]
