"""A page's contents, and the template that makes them one HTML file without network access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from headway_analysis.report.page.curves import Chart
from headway_analysis.report.page.episodes import View

LARGEST: Final = 5_000_000
"""Maximum bytes of a page, so that a browser opens it without delay."""
MAX_NUMBERS: Final = 200
"""Maximum steps in the table of a picture. If the run has more, the table has evenly spread steps."""
Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows of text."""

    title: str
    columns: Row
    rows: Sequence[Row]
    note: str = ""
    folded: bool = False
    """Whether the table is collapsed until the reader opens it."""


@dataclass(frozen=True)
class Picture:
    """A chart with its numbers as a table, for those who cannot see it and those who want to copy them."""

    title: str
    about: str
    unit: str
    lines: Sequence[str]
    svg: Markup
    columns: Row
    rows: Sequence[Row]

    @classmethod
    def of(cls, chart: Chart, svg: str) -> Picture:
        """The picture of a chart that was drawn as `svg`. Its table has a row a step, up to `MAX_NUMBERS`."""
        names = [line.name for line in chart.lines]
        values = [dict(line.points) for line in chart.lines]
        steps = sorted({step for of_line in values for step in of_line})
        steps = steps[:: -(-len(steps) // MAX_NUMBERS)] if steps else []
        rows = [
            (f"{step:.0f}", *(short(of_line[step]) if step in of_line else "" for of_line in values))
            for step in steps
        ]
        # Safe as markup: matplotlib has escaped the picture's texts.
        return cls(chart.title, chart.about, chart.unit, names, Markup(svg), ("step", *names), rows)


@dataclass(frozen=True)
class Page:
    """Everything on a page."""

    title: str
    kind: str
    state: str
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str] = ()
    heading: str = "Curves"
    """The heading of the pictures."""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    shaded: bool = False
    marked: bool = False
    timeline: str | None = None
    """A `data:` address that contains the packed trace of some steps. A reader saves it and opens it in
    Perfetto."""
    episodes: Sequence[View] = ()
    tokens: bool = False
    """Whether the episodes show their tokens."""


def dollars(amount: object) -> str:
    """A cost in US dollars, to a hundredth of a cent."""
    return f"{Decimal(str(amount)):.4f} USD"


def short(value: float) -> str:
    """A number with four significant digits, or with all digits of its whole part if these are more."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"


def rendered(page: Page) -> str:
    """The page as HTML of at most `LARGEST` bytes. To fit, it omits tokens and then the last episodes."""
    html = _template().render(page=page)
    if len(html.encode()) <= LARGEST:
        return html
    if page.tokens:
        bare = [replace(each, pieces=()) for each in page.episodes]
        note = "The tokens of episodes are left out: the page would be too large."
        return rendered(replace(page, episodes=bare, tokens=False, notes=[*page.notes, note]))
    if page.episodes:
        kept = page.episodes[: len(page.episodes) // 2]
        note = f"{len(page.episodes) - len(kept)} episodes are left out: the page would be too large."
        return rendered(replace(page, episodes=kept, notes=[*page.notes, note]))
    return html


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["short"] = short
    return environment.from_string(files(__package__).joinpath("page.html.j2").read_text("utf-8"))
