"""The length of first prompts, by the job's own chat template and tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from headway_analysis.estimate import prompts
from headway_analysis.estimate.candidates import Opening
from headway_analysis.estimate.prompts import BYTES as BYTES
from headway_analysis.estimate.prompts import Known, Size
from headway_analysis.estimate.prompts import unknown as unknown
from headway_api import logs
from headway_api.config import EvalConfig
from headway_api.rows import Row
from headway_api.sandbox_api import ResetReply
from headway_coordinator.evaluation.candidates import Readable
from headway_coordinator.trajectory.render import Renderer

_log = logging.getLogger(__name__)


def lengths(
    first: ResetReply | None,
    renderer: Renderer,
    rows: Sequence[Row],
    column: str | None,
    system_prompt: str | None,
) -> list[float]:
    """As `headway_analysis.estimate.prompts.lengths`; empty if no sandbox was asked. Blocking.

    Args:
        first: how an episode of the first row begins; None if no sandbox was asked.
        renderer: the job's.
        rows: the training rows.
        column: `spec.data.train.promptColumn`.
        system_prompt: the agent's own, which replaces the environment's.
    """
    if first is None:
        return []
    return prompts.tried(first, _size(renderer), rows, column, system_prompt, _failed)


def openings(
    job: EvalConfig, first: ResetReply, models: Mapping[str, Readable], rows: Sequence[Row]
) -> dict[str, Opening]:
    """What is known of each candidate of an evaluation before it has played. Blocking.

    Args:
        job: its candidates resolved.
        first: how an episode of the first row begins.
        models: the loaded models, by candidate.
        rows: those that are measured.
    """
    sizes = {id(model.renderer): _size(model.renderer) for model in models.values()}
    known = {name: Known(sizes[id(model.renderer)], model.context_length) for name, model in models.items()}
    return prompts.openings(job, first, known, rows, _failed)


def _size(renderer: Renderer) -> Size:
    return lambda messages, tools: len(renderer.render(messages, tools))


def _failed(error: Exception) -> None:
    """Log that a template failed: its author may raise anything, and a check reports it."""
    logs.event(_log, "prompts-not-measured", level=logging.WARNING, error=str(error))
