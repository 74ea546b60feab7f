"""Writes `report.html` beside a job's files. An error here fails no job: the page only shows other files."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headway_analysis.report.page import evaluation, reading, training
from headway_analysis.report.page.episodes import Decode
from headway_api import logs, names
from headway_api.artifacts import Layout
from headway_api.finishing import PAGE_SECONDS
from headway_api.run_files import RunFiles
from headway_api.store import Store
from headway_coordinator.left_call import within

_log = logging.getLogger(__name__)


async def write_in_time(store: Store, layout: Layout, kind: str, decode: Callable[[], Decode | None]) -> bool:
    """Write the page with `write`, for up to `PAGE_SECONDS`. Returns whether it was written in time."""
    try:
        return await within(PAGE_SECONDS, write, store, layout, kind, decode)
    except TimeoutError:
        text = f"it was not written within {PAGE_SECONDS:g} s"
        logs.event(_log, "page-not-written", level=logging.WARNING, error=text)
        return False


def write(store: Store, layout: Layout, kind: str, decode: Callable[[], Decode | None]) -> bool:
    """Write the page of a job from its current files. Returns whether it was written. Blocking.

    Args:
        kind: `RLTrainingJob` or `RLEvalJob`.
        decode: loads the function from token ids to text. If it returns None, the page shows no tokens.
    """
    try:
        html = page(RunFiles(store, layout), kind, decode())
        if html is None:
            return False
        store.put(layout.page, html.encode())
    except Exception as error:  # the job's results are valid without the page, whatever the error is
        text = f"{type(error).__name__}: {error}"
        logs.event(_log, "page-not-written", level=logging.WARNING, error=text)
        return False
    return True


def page(files: RunFiles, kind: str, decode: Decode | None) -> str | None:
    """The page; None for an evaluation that has no report yet."""
    if kind == names.EVAL_KIND:
        found = reading.evaluation(files, decode)
        return None if found is None else evaluation.page(found)
    return training.page(reading.training(files, decode))
