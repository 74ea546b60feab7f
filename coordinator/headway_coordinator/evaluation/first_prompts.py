"""Measures the length of each candidate's first prompts, with its own chat template and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway_analysis.estimate import prompts
from headway_analysis.estimate.candidates import Opening
from headway_analysis.estimate.prompts import Known
from headway_api.config import EvalConfig
from headway_api.rows import Row
from headway_api.sandbox_api import ResetReply
from headway_coordinator.estimate.prompts import not_measured, size_of
from headway_coordinator.evaluation.candidates import Readable


def openings(
    job: EvalConfig, first: ResetReply, models: Mapping[str, Readable], rows: Sequence[Row]
) -> dict[str, Opening]:
    """Candidate -> what is known about the beginning of its episodes before it has played. Blocking.

    Args:
        job: the job, with resolved candidates.
        first: how the environment begins an episode of the first row.
        models: candidate -> its loaded model.
        rows: the rows that are measured.
    """
    sizes = {id(model.renderer): size_of(model.renderer) for model in models.values()}
    known = {name: Known(sizes[id(model.renderer)], model.context_length) for name, model in models.items()}
    return prompts.openings(job, first, known, rows, not_measured)
