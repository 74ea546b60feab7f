"""Makes one HTML page about a run of a training job or an evaluation."""

from __future__ import annotations

from headway_analysis.report.page import evaluation, reading, training
from headway_analysis.report.page.episodes import Decode
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun, readable


def page(found: StoredRun, decode: Decode | None) -> str:
    """The HTML page about a run.

    Args:
        found: the run.
        decode: turns token ids into text; None if the page should show no tokens.

    Raises:
        RunNotFoundError: a record cannot be read, or an evaluation has not ended.
    """
    with readable(found.layout.root):
        if not found.evaluates:
            return training.page(reading.training(found.files, decode))
        ended = reading.evaluation(found.files, decode)
        if ended is None:
            raise RunNotFoundError(
                f"{found.layout.root}: the evaluation has not ended, and its report is written at its end"
            )
        return evaluation.page(ended)
