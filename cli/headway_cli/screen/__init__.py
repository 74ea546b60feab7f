"""Formats a job's status as one screen of a terminal, at any width. Pure.

overview.py  the job's progress, scores, usage and cost
results.py   results of an evaluation
notices.py   signals, conditions, remedies and preflight findings
layout.py    wraps rows at any width
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from headway_api.document import Json
from headway_cli.pace import History
from headway_cli.screen import layout, notices, overview, results
from headway_cli.screen.layout import Row


@dataclass(frozen=True)
class Screen:
    """Rows, the most important first. A terminal with few lines shows only the first rows."""

    rows: tuple[Row, ...]

    def lines(self, width: int, *, ascii_only: bool = False) -> list[Text]:
        """The lines of the screen for this many columns."""
        return layout.lines(self.rows, width, ascii_only=ascii_only)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the screen's lines to Rich, which must not cut or wrap them again."""
        for line in self.lines(options.max_width, ascii_only=options.ascii_only):
            line.no_wrap, line.overflow = True, "ignore"
            yield line


def screen(job: Json, now: datetime, history: History) -> Screen:
    """The screen about a job.

    Args:
        job: the custom resource, from any version of Headway. A field that is missing or has another type is
            shown
            as "-".
        now: the present time, with its zone.
        history: the observed progress, for tokens per second and the time left.
    """
    of_kind = _evaluation(job, now, history) if overview.is_evaluation(job) else _training(job, now, history)
    notes = (
        *notices.signals(job),
        *notices.holds(job),
        *notices.remedies(job),
        overview.pods(job),
        *notices.preflight(job),
    )
    rows = (overview.title(job), overview.state(job, now), *of_kind, *notes)
    return Screen(tuple(row for row in rows if row is not None))


def _training(job: Json, now: datetime, history: History) -> list[Row | None]:
    return [
        overview.done(job),
        overview.time_left(job, now, history),
        overview.reward(job),
        overview.held_out(job),
        overview.tested(job),
        overview.tokens(job, now, history),
        overview.cost(job),
        overview.budget(job),
    ]


def _evaluation(job: Json, now: datetime, history: History) -> list[Row | None]:
    return [
        overview.done(job),
        overview.time_left(job, now, history),
        *results.candidates(job),
        results.gate(job),
        overview.tokens(job, now, history),
        overview.cost(job),
        overview.budget(job),
    ]
