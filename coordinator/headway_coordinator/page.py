"""Writes `report.html` beside what a job has left. No fault of it fails a job: it shows other files."""

from __future__ import annotations

import logging

from headway_analysis.report.page import evaluation, reading, training
from headway_analysis.report.page.episodes import Decode
from headway_api import logs, names
from headway_api.artifacts import Layout
from headway_api.run_files import RunFiles
from headway_api.store import Store

_log = logging.getLogger(__name__)


def write(store: Store, layout: Layout, kind: str, decode: Decode | None) -> bool:
    """Write the page of a job as its files are now; whether it could be. Blocking.

    Args:
        kind: `RLTrainingJob` or `RLEvalJob`.
        decode: text of token ids; None: tokens are not shown.
    """
    try:
        html = page(RunFiles(store, layout), kind, decode)
        if html is None:
            return False
        store.put(layout.page, html.encode())
    except Exception as error:  # whatever it is, the job's results stand without it
        text = f"{type(error).__name__}: {error}"
        logs.event(_log, "page-not-written", level=logging.WARNING, error=text)
        return False
    return True


def page(files: RunFiles, kind: str, decode: Decode | None) -> str | None:
    """The page; None of an evaluation that has no report yet."""
    if kind == names.EVAL_KIND:
        found = reading.evaluation(files, decode)
        return None if found is None else evaluation.page(found)
    return training.page(reading.training(files, decode))
