"""A job's status as one screen of a terminal, at any width. Pure.

overview.py  how far it has come, what it scores, uses and costs
results.py   what an evaluation has measured
notices.py   signals, conditions, remedies and preflight findings
layout.py    rows that wrap
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
    """Rows, the most important first: a terminal with few lines shows those."""

    rows: tuple[Row, ...]

    def lines(self, width: int, *, ascii_only: bool = False) -> list[Text]:
        """The lines of the screen for this many columns."""
        return layout.lines(self.rows, width, ascii_only=ascii_only)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it. Nothing is cut or wrapped again."""
        for line in self.lines(options.max_width, ascii_only=options.ascii_only):
            line.no_wrap, line.overflow = True, "ignore"
            yield line


def screen(job: Json, now: datetime, history: History) -> Screen:
    """What a person wants to know about a job at a glance.

    Args:
        job: the custom resource, of any version: a missing field, or one of another type, is shown as "-".
        now: with its zone.
        history: what was seen before, for tokens a second and the time left.
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
