"""The length of first prompts, by the job's own chat template and tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headway_analysis.estimate import prompts
from headway_analysis.estimate.prompts import BYTES as BYTES
from headway_analysis.estimate.prompts import Size
from headway_api import logs
from headway_api.rows import Row
from headway_api.sandbox_api import ResetReply
from headway_coordinator.trajectory.render import Renderer

_log = logging.getLogger(__name__)


def lengths(
    first: ResetReply | None,
    renderer: Renderer,
    rows: Sequence[Row],
    column: str | None,
    system_prompt: str | None,
) -> list[float]:
    """Tokens of the first prompts of rows from all over the data, tools included. Blocking.

    Empty if no sandbox was asked, or if the chat template fails.

    Args:
        first: how an episode of the first row begins; None if no sandbox was asked.
        renderer: the renderer of the job's conversations.
        rows: the training rows.
        column: `spec.data.train.promptColumn`.
        system_prompt: the agent's own system prompt, which replaces the environment's.
    """
    if first is None:
        return []
    return prompts.tried(first, size_of(renderer), rows, column, system_prompt, not_measured)


def size_of(renderer: Renderer) -> Size:
    """A function that counts the tokens of a conversation with its tools."""
    return lambda messages, tools: len(renderer.render(messages, tools))


def not_measured(error: Exception) -> None:
    """Log that a template failed: its author may raise anything, and a check reports it."""
    logs.event(_log, "prompts-not-measured", level=logging.WARNING, error=str(error))
