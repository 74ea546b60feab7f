"""Draws one panel where Grafana would put it: curves, numbers, bands of states, or a table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, NullFormatter, NullLocator

from headway_dashboards.asking import Json

WIDTH_INCHES: Final = 13.0
MAX_NAMED: Final = 5
"""Maximum number of curves that a legend names."""
MAX_SECONDS: Final = 180
"""Values and time axes above this number of seconds are shown in minutes."""
MAX_MINUTES: Final = 6
"""Maximum ticks of a time axis in minutes, besides the tick at 0."""
GAP_STEPS: Final = 2.5
"""If two points are more than this many steps apart, the line between them is interrupted."""
CELL_GAP: Final = 3
"""Characters of space between two columns of a table."""
COLORS: Final = {
    "green": "#56a64b",
    "yellow": "#e0b400",
    "red": "#e02f44",
    "text": "#8e8e8e",
    "blue": "#3274d9",
    "orange": "#ff780a",
}


@dataclass(frozen=True)
class Curve:
    """One series of a panel."""

    name: str
    labels: dict[str, str]
    at: list[float]
    values: list[float]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.values[-1]

    def with_gaps(self, step: float) -> tuple[list[float], list[float]]:
        """Times and values, with a NaN in each gap, so that no line crosses it."""
        at, values = list[float](), list[float]()
        for moment, value in zip(self.at, self.values, strict=True):
            if at and moment - at[-1] > GAP_STEPS * step:
                at.append(moment)
                values.append(math.nan)
            at.append(moment)
            values.append(value)
        return at, values

    def legend(self, unit: str) -> str:
        """The curve's name and newest value."""
        return f"{self.name}   {shown(self.last, unit)}"


@dataclass(frozen=True)
class Span:
    """The time span of the curves."""

    seconds: float
    step: float
    """Seconds between two points."""


@dataclass(frozen=True)
class Box:
    """A rectangle on a picture, as shares of the picture's size. `height` is the picture's height in
    inches."""

    left: float
    bottom: float
    wide: float
    tall: float
    height: float

    def without(self, *, left: float, right: float, top: float, bottom: float) -> tuple[float, ...]:
        """The rectangle minus margins in inches, as left, bottom, width and height of matplotlib axes."""
        x, y = left / WIDTH_INCHES, bottom / self.height
        wide = self.wide - x - right / WIDTH_INCHES
        return (self.left + x, self.bottom + y, wide, self.tall - y - top / self.height)


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A number with its Grafana unit, as text."""
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "currencyUSD":
        return f"${value:.3g}"
    if unit == "s":
        if abs(value) > MAX_SECONDS:
            return f"{value / 60:.3g} min"
        return f"{1000 * value:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    text = f"{value:.{decimals}f}" if decimals is not None else _short(value)
    return text + unit.removeprefix("suffix:") if unit.startswith("suffix:") else text


def _short(value: float) -> str:
    for size, letter in ((1e6, " Mil"), (1e3, " K")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def heading(figure: Figure, panel: Json, box: Box) -> None:
    """Draw the heading of a section."""
    text = f"{'▸' if panel['collapsed'] else '▾'} {panel['title']}"
    where = (box.left + 0.006, box.bottom + box.tall / 2)
    figure.text(*where, text, fontsize=9.5, weight="bold", va="center")


def draw(figure: Figure, panel: Json, box: Box, answers: list[list[Curve]], span: Span) -> None:
    """Draw a panel. `answers` has the curves of each of its queries."""
    frame = figure.add_axes(box.without(left=0.03, right=0.03, top=0.06, bottom=0.06))
    frame.set(xticks=[], yticks=[], facecolor="white")
    frame.spines[:].set_color("#dddddd")
    above = box.bottom + box.tall - 0.12 / box.height
    figure.text(box.left + 0.007, above, panel["title"], fontsize=8, weight="bold", va="top", zorder=5)
    curves = [curve for found in answers for curve in found]
    if not any(math.isfinite(value) for curve in curves for value in curve.values):
        frame.text(0.5, 0.45, "No data", fontsize=9, color="#888", ha="center", va="center")
    elif panel["type"] == "stat":
        _number(frame, panel, curves)
    elif panel["type"] == "table":
        _table(frame, panel, answers)
    elif panel["type"] == "state-timeline":
        _states(_axes(figure, box, span, left=1.6, bottom=0.35), panel, curves, span)
    else:
        room = 0.35 + 0.115 * min(len(curves), MAX_NAMED)
        _lines(_axes(figure, box, span, left=0.62, bottom=room), panel, curves, span)


def _axes(figure: Figure, box: Box, span: Span, *, left: float, bottom: float) -> Axes:
    axes: Axes = figure.add_axes(box.without(left=left, right=0.15, top=0.34, bottom=bottom))
    axes.tick_params(labelsize=6, length=2, color="#999")
    axes.spines[:].set_visible(False)
    axes.set_xlim(0, span.seconds)
    if span.seconds > MAX_SECONDS:
        axes.xaxis.set_major_locator(MultipleLocator(60 * math.ceil(span.seconds / 60 / MAX_MINUTES)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 60:.0f} min")
    else:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    return axes


def _lines(axes: Axes, panel: Json, curves: list[Curve], span: Span) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    custom, unit = defaults.get("custom", {}), defaults["unit"]
    axes.grid(alpha=0.25, linewidth=0.6)
    if custom.get("stacking", {}).get("mode") == "normal":
        moments = sorted({at for curve in curves for at in curve.at})
        known = [dict(zip(curve.at, curve.values, strict=True)) for curve in curves]
        stack = [[values.get(at, 0.0) for at in moments] for values in known]
        names = [curve.legend(unit) for curve in curves]
        axes.stackplot(moments, stack, labels=names, alpha=0.6, linewidth=0)
    else:
        for curve in curves:
            axes.plot(*curve.with_gaps(span.step), linewidth=1, label=curve.legend(unit))
    if custom.get("scaleDistribution", {}).get("type") == "log":
        _logarithmic(axes)
    low, high = axes.get_ylim()
    for limit in defaults.get("thresholds", {}).get("steps", []):
        if limit["value"] is not None and low <= limit["value"] <= high:
            axes.axhline(limit["value"], color=COLORS[limit["color"]], linewidth=0.8, linestyle="--")
    if not any(value for curve in curves for value in curve.values if math.isfinite(value)):
        axes.set_ylim(-0.05, 1)  # room for a line at 0
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit))
    handles, names = axes.get_legend_handles_labels()
    if len(names) > MAX_NAMED:
        names = [*names[: MAX_NAMED - 1], f"{names[MAX_NAMED - 1]}   (and {len(names) - MAX_NAMED} more)"]
    how = {"fontsize": 5.8, "frameon": False, "labelspacing": 0.15, "handlelength": 1.2, "borderaxespad": 0.2}
    axes.legend(handles[:MAX_NAMED], names, loc="upper left", bbox_to_anchor=(-0.02, -0.1), **how)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    if high < 10 * low:  # the axis has at most one power of 10, too few for ticks
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_minor_locator(NullLocator())


def _states(axes: Axes, panel: Json, curves: list[Curve], span: Span) -> None:
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    curves = sorted(curves, key=lambda curve: curve.name, reverse=True)
    for row, curve in enumerate(curves):
        colors = [COLORS[words.get(f"{value:g}", {"color": "text"})["color"]] for value in curve.values]
        bars = [(at, span.step) for at in curve.at]
        axes.broken_barh(bars, (row + 0.05, 0.9), facecolors=colors, linewidth=0)
    axes.set_yticks([row + 0.5 for row in range(len(curves))], [curve.name for curve in curves])
    axes.set_ylim(0, max(1, len(curves)))


def _number(axes: Axes, panel: Json, curves: list[Curve]) -> None:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    middle = {"ha": "center", "va": "center", "transform": axes.transAxes}
    for at, curve in enumerate(curves):
        place = (at + 0.5) / len(curves)
        if options["textMode"] == "name":
            axes.text(0.5, 0.75 - 0.6 * place, curve.name, fontsize=9, color="#333", **middle)
            continue
        color = _reached(defaults, curve.last) if options["colorMode"] == "value" else "#333"
        text = shown(curve.last, defaults["unit"], defaults.get("decimals"))
        axes.text(place, 0.42, text, fontsize=17 if len(curves) < 3 else 13, color=color, **middle)
        if len(curves) > 1:
            axes.text(place, 0.12, curve.name, fontsize=6.5, color="#666", **middle)


def _reached(defaults: Json, value: float) -> str:
    steps = defaults["thresholds"]["steps"]
    return COLORS[[step for step in steps if step["value"] is None or value >= step["value"]][-1]["color"]]


def _table(axes: Axes, panel: Json, answers: list[list[Curve]]) -> None:
    steps = {each["id"]: each["options"] for each in panel["transformations"]}
    columns = steps["filterFieldsByName"]["include"]["names"]
    heads = steps["organize"]["renameByName"]
    rows = _merged(columns, answers)
    overrides = {
        override["matcher"]["options"]: {each["id"]: each["value"] for each in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
    }
    cells, colors = [], dict[tuple[int, int], str]()
    for row in rows:
        line = []
        for column, name in enumerate(columns):
            text, color = _cell(row.get(name, ""), overrides.get(heads.get(name, name), {}))
            line.append(text)
            if color:
                colors[len(cells) + 1, column] = color
        cells.append(line)
    share = min(0.84, 0.72 * (len(cells) + 1) / panel["gridPos"]["h"])
    titles = [heads.get(name, name) for name in columns]
    drawn = axes.table(
        cells or [["" for _ in columns]],
        colLabels=titles,
        colWidths=[max(map(len, column)) + CELL_GAP for column in zip(titles, *cells, strict=True)],
        bbox=(0.01, 0.87 - share, 0.98, share),
        cellLoc="left",
        colLoc="left",
        edges="horizontal",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(6.3)
    for place, cell in drawn.get_celld().items():
        cell.set_edgecolor("#dddddd")
        cell.set_text_props(weight="bold" if place[0] == 0 else "normal", color=colors.get(place, "black"))


def _merged(columns: list[str], answers: list[list[Curve]]) -> list[dict[str, str | float]]:
    """The rows of all queries. Rows with equal labels are merged, as in Grafana."""
    keys = [name for name in columns if not name.startswith("Value")]
    rows: list[dict[str, str | float]] = []
    for number, curves in enumerate(answers):
        value = "Value" if len(answers) == 1 else f"Value #{chr(ord('A') + number)}"
        for curve in curves:
            own = {key: curve.labels[key] for key in keys if key in curve.labels}
            row = next((row for row in rows if own.items() <= row.items()), None)
            if row is None:
                rows.append(row := dict(own))
            row[value] = curve.last
    return rows


def _cell(value: str | float, how: Json) -> tuple[str, str | None]:
    if isinstance(value, str):
        return value, None
    words = how["mappings"][0]["options"] if "mappings" in how else {}
    if (known := words.get(f"{value:g}")) is not None:
        return known["text"], COLORS[known["color"]]
    return shown(value, how.get("unit", "short")), None
