"""Draws a job's screen in a terminal, in place, until the command ends. The last screen stays visible."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from rich.console import Console, ConsoleDimensions
from rich.control import Control
from rich.live import Live
from rich.text import Text

from headway_api.document import Json
from headway_cli.pace import History
from headway_cli.screen import Screen, screen

REDRAW_SECONDS: Final = 0.25
"""Minimum seconds between two drawings of the screen."""


def utc_now() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)


class Terminal:
    """The terminal of one job. A thread redraws the screen, to update durations and to follow a new size."""

    def __init__(self, console: Console, now: Callable[[], datetime] = utc_now) -> None:
        self._console = console
        self._now = now
        self._live = Live(console=console, auto_refresh=False)
        self._job: Json | None = None
        self._history = History()
        self._lock = threading.Lock()
        """Protects the job and its history, which `show` and the thread use."""
        self._drawn: tuple[ConsoleDimensions, list[Text]] | None = None
        """Size of the terminal at the last drawing, and the lines that were drawn; None before the first."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._redraw, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Draw the last state, and restore the terminal's cursor."""
        self._over.set()
        with suppress(OSError):  # a closed terminal needs no restoring
            try:
                self._thread.join()
                self._draw()
            finally:
                self._live.stop()

    def show(self, job: Json) -> None:
        """Show the present state of the job."""
        with self._lock:
            self._job, self._history = job, self._history.seen(job, self._now())

    def _redraw(self) -> None:
        while not self._over.wait(REDRAW_SECONDS):
            try:
                self._draw()
            except OSError:  # the terminal was closed, and SIGHUP ends the command
                return

    def _draw(self) -> None:
        """Draw the screen if it or the terminal's size has changed. Draw nothing before the first `show`."""
        with self._lock:
            job, history = self._job, self._history
        if job is None:
            return
        made = screen(job, self._now(), history)
        size = self._console.size
        lines = self._lines(made)
        if self._drawn == (size, lines):
            return
        if self._drawn is not None and self._drawn[0] != size:
            # The terminal has wrapped the old lines again, so their number is unknown.
            self._console.control(Control.home(), Control.clear())
        if not self._live.is_started:
            self._live.start()
        self._live.update(made, refresh=True)
        self._drawn = size, lines

    def _lines(self, made: Screen) -> list[Text]:
        options = self._console.options
        return made.lines(options.max_width, ascii_only=options.ascii_only)
