"""A chart as SVG, by matplotlib. Its colours are CSS variables, so one picture fits light and dark."""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from headway_analysis.report.page.curves import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = tuple(f"#0000{number:02x}" for number in range(0x11, 0x19))
"""Placeholders for the page's CSS variables `--c1` to `--c8`, since matplotlib knows no CSS variables."""
INK, GRID, SHADE = "#000021", "#000022", "#000023"
VARIABLES: Final = {
    **{colour: f"var(--c{number})" for number, colour in enumerate(COLOURS, 1)},
    INK: "var(--ink-2)",
    GRID: "var(--line)",
    SHADE: "var(--shade)",
}
INCHES: Final = (5.2, 2.5)
_HEAD: Final = re.compile(r"\A.*?(?=<svg)", re.DOTALL)
_METADATA: Final = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_SIZE: Final = re.compile(r'(<svg[^>]*?) width="[^"]*"( height="[^"]*")?')
_NAMED: Final = re.compile(r'(\bid="|url\(#|href="#)')


@dataclass(frozen=True)
class Span:
    """Steps `first` to `last` in which a signal was raised."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Mark:
    """A step at which something was changed."""

    name: str
    step: int


def svg(chart: Chart, key: str, spans: Sequence[Span] = (), marks: Sequence[Mark] = ()) -> str:
    """The chart as an `svg` element.

    Args:
        key: a name that no other picture of the page has.
        spans: ranges of steps to shade.
        marks: steps to mark with a dashed line.
    """

    def draw(axes: Axes) -> None:
        for span in spans:
            axes.axvspan(span.first - 0.5, span.last + 0.5, color=SHADE, linewidth=0)
        for mark in marks:
            axes.axvline(mark.step, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        for line, colour in zip(chart.lines, COLOURS, strict=False):
            steps, values = zip(*line.points, strict=True)
            if line.band:
                at, low, high = zip(*line.band, strict=True)
                axes.vlines(at, low, high, color=colour, linewidth=3, alpha=0.35)
            marker = "o" if line.dots or len(steps) == 1 else None
            axes.plot(steps, values, color=colour, linewidth=1.6, marker=marker, markersize=4)
        axes.set_xlabel("step", color=INK)
        axes.xaxis.set_major_locator(_integers())

    return _drawn(draw, INCHES, key, f"{chart.title} by step")


def _integers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def bars(
    names: Sequence[str], values: Sequence[tuple[float, float | None, float | None]], key: str, label: str
) -> str:
    """Values with their intervals, one below the other, as an `svg` element.

    Args:
        values: for each name, its value and both ends of its 95 % interval; None if there is no interval.
        key: a name that no other picture of the page has.
        label: description of the picture for screen readers.
    """

    def draw(axes: Axes) -> None:
        for place, (value, low, high) in enumerate(values):
            colour = COLOURS[place % len(COLOURS)]
            if low is not None and high is not None:
                axes.plot(
                    [low, high], [place, place], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.5
                )
            axes.plot([value], [place], color=colour, marker="o", markersize=6)
        axes.set_yticks(range(len(names)), [*names])
        axes.set_ylim(len(names) - 0.5, -0.5)

    return _drawn(draw, (5.2, 0.9 + 0.32 * len(names)), key, label)


def _drawn(draw: Any, inches: tuple[float, float], key: str, label: str) -> str:
    with _library() as drawing_of:
        figure = drawing_of(inches)
        axes = figure.subplots()
        draw(axes)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK, labelsize=9, length=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(GRID)
        target = io.StringIO()
        figure.savefig(target, format="svg", transparent=True)
    return _embedded(target.getvalue(), key, label)


@contextmanager
def _library() -> Iterator[Any]:
    """Yields a function that makes matplotlib's `Figure` of a size in inches.

    The folder of matplotlib's font cache is temporary, unless MPLCONFIGDIR names one.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = os.environ.setdefault("MPLCONFIGDIR", folder)
        try:
            import matplotlib
            from matplotlib.figure import Figure

            # Names come from users and environments: a dollar sign in them must not begin a formula.
            with matplotlib.rc_context(
                {"svg.fonttype": "none", "svg.hashsalt": "headway", "text.parse_math": False}
            ):
                yield lambda inches: Figure(figsize=inches, layout="constrained")
        finally:
            if given == folder:
                del os.environ["MPLCONFIGDIR"]


def _embedded(text: str, key: str, label: str) -> str:
    """The picture as an element of a page, with a label, and with ids that no other picture has."""
    text = _METADATA.sub("", _HEAD.sub("", text))
    text = _SIZE.sub(rf'\1 role="img" aria-label="{escape(label)}"', text, count=1)
    text = _NAMED.sub(rf"\g<1>{key}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return text.strip()
