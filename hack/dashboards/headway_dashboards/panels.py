"""Builds the panels of these dashboards: each has a title, a description, and queries with legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimeline
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from headway_api.metrics import family, prometheus_name
from headway_dashboards.promql import value

WIDTH: Final = 24
"""Number of columns of a dashboard's grid."""
UNITS: Final = {
    "": "short",
    "tokens": "short",
    "seconds": "s",
    "steps": "none",
    "ratio": "percentunit",
    "nats": "suffix: nat",
    "usd": "currencyUSD",
}
"""Unit of a metric family -> Grafana's unit."""
PER_MINUTE: Final = "suffix: /min"
GREEN, YELLOW, RED, GREY = "green", "yellow", "red", "text"
DATASOURCE: Final = "${datasource}"
"""Uid of the data source that the variable `datasource` selects."""


@dataclass(frozen=True)
class Query:
    """A PromQL expression with its legend. In a table, the legend is the name of the column."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Limit:
    """A threshold: from `value` on, a panel shows its value in `color`."""

    value: float
    color: str = RED


def metric_curves(
    title: str,
    what: str,
    names: Mapping[str, str],
    *,
    limits: Sequence[Limit] = (),
    span: int = 8,
    log: bool = False,
) -> Timeseries:
    """Curves of metric families, with the families' help texts and unit. `names` maps legends to families."""
    known = {legend: family(name) for legend, name in names.items()}
    units = {each.unit for each in known.values()}
    assert len(units) == 1, f"{title}: one axis, one unit, not {units}"
    (unit,) = units
    lines = [f"- {legend}: {each.help} `{prometheus_name(each.name)}`" for legend, each in known.items()]
    queries = [Query(value(name), f"{{{{job_name}}}} {legend}") for legend, name in names.items()]
    return curves(
        title, "\n".join([what, "", *lines]), queries, unit=UNITS[unit], limits=limits, span=span, log=log
    )


def curves(
    title: str,
    what: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    limits: Sequence[Limit] = (),
    span: int = 8,
    stacked: bool = False,
    log: bool = False,
    lowest: float | None = None,
) -> Timeseries:
    """A panel with curves over time."""
    panel = _framed(Timeseries(), title, what, span, unit)
    panel = panel.fill_opacity(30 if stacked else 0).line_width(1).show_points(common.VisibilityMode.AUTO)
    panel = panel.legend(_legend()).tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if log:
        scale = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel = panel.scale_distribution(scale)
    if lowest is not None:
        panel = panel.min(lowest)
    panel = panel.thresholds(_thresholds(limits))
    if limits:
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds_style(style)
    for ref, query in zip(_refs(), queries, strict=False):
        panel = panel.with_target(_target(query, ref))
    return panel


def number(
    title: str,
    what: str,
    *queries: Query,
    unit: str = "short",
    limits: Sequence[Limit] = (),
    span: int = 4,
    decimals: int | None = None,
    names: bool = False,
) -> Stat:
    """A panel with the newest values as large numbers. With `names`, it shows the legends instead."""
    panel = _framed(Stat(), title, what, span, unit, height=4)
    panel = panel.graph_mode(common.BigValueGraphMode.NONE).color_mode(
        common.BigValueColorMode.VALUE if limits else common.BigValueColorMode.NONE
    )
    panel = panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel = panel.thresholds(_thresholds(limits))
    if names:
        panel = panel.text_mode(common.BigValueTextMode.NAME)
    if decimals is not None:
        panel = panel.decimals(decimals)
    for ref, query in zip(_refs(), queries, strict=False):
        panel = panel.with_target(_target(query, ref).instant())
    return panel


def states(
    title: str,
    what: str,
    query: Query,
    known: Mapping[str, tuple[str, str]],
    *,
    span: int = WIDTH,
    height: int = 8,
) -> StateTimeline:
    """A panel with a band for each series. `known` maps each value to its word and color."""
    panel = _framed(StateTimeline(), title, what, span, "none", height=height)
    panel = panel.mappings([_mapping(known)]).show_value(common.VisibilityMode.NEVER).merge_values(True)
    panel = panel.legend(_legend(common.LegendDisplayMode.LIST)).row_height(0.9)
    return panel.with_target(_target(query, "A"))


def table(
    title: str,
    what: str,
    columns: Sequence[Query],
    *,
    keys: Sequence[str],
    more: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
    words: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    links: Mapping[str, tuple[str, str]] | None = None,
    span: int = WIDTH,
    height: int = 9,
) -> Table:
    """A table with a row for each combination of the labels `keys`, and a column for each query.

    Args:
        more: labels that only the first query has. They are shown instead of that query's value.
        words: column -> value -> (word, color).
        links: column -> (title, address).
    """
    panel = _framed(Table(), title, what, span, "short", height=height)
    values = {}
    for ref, query in zip(_refs(), columns, strict=False):
        by = [*keys, *(more if ref == "A" else ())]
        target = _target(Query(f"max by ({', '.join(by)}) ({query.expr})", query.legend), ref)
        panel = panel.with_target(target.instant().format(PromQueryFormat.TABLE))
        if query.legend:
            values["Value" if len(columns) == 1 else f"Value #{ref}"] = query.legend
    # Grafana merges rows with equal labels, so only the key labels may remain.
    panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    shown = [*keys, *more, *values]
    options = {
        "include": {},
        "excludeByName": {},
        "indexByName": {name: at for at, name in enumerate(shown)},
        "renameByName": values,
    }
    keep = {"include": {"names": shown}}
    panel = panel.with_transformation(
        dashboard.DataTransformerConfig(id_val="filterFieldsByName", options=keep)
    )
    panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=options))
    for column, unit in (units or {}).items():
        panel = _override(panel, column, {"unit": unit})
    for column, known in (words or {}).items():
        properties = {"mappings": [_mapping(known).to_json()], "custom.cellOptions": {"type": "color-text"}}
        panel = _override(panel, column, properties)
    for column, (text, address) in (links or {}).items():
        panel = _override(panel, column, {"links": [{"title": text, "url": address}]})
    return panel


def _framed(panel: Any, title: str, what: str, span: int, unit: str, height: int = 8) -> Any:
    source = common.DataSourceRef(type_val="prometheus", uid=DATASOURCE)
    return panel.title(title).description(what).datasource(source).span(span).height(height).unit(unit)


def _override(panel: Table, column: str, properties: Mapping[str, object]) -> Table:
    matcher = dashboard.MatcherConfig(id_val="byName", options=column)
    values = [dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in properties.items()]
    return panel.with_override(matcher, values)


def _target(query: Query, ref: str) -> Dataquery:
    return Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref)


def _refs() -> Sequence[str]:
    return [chr(ord("A") + at) for at in range(26)]


def _legend(
    how: common.LegendDisplayMode = common.LegendDisplayMode.TABLE,
) -> common_builders.VizLegendOptions:
    legend = common_builders.VizLegendOptions().display_mode(how).placement(common.LegendPlacement.BOTTOM)
    legend = legend.show_legend(True)
    return legend.calcs(["lastNotNull"]) if how is common.LegendDisplayMode.TABLE else legend


def _thresholds(limits: Sequence[Limit]) -> dashboards.ThresholdsConfig:
    steps = [dashboard.Threshold(color=GREEN if limits else GREY, value=None)]
    steps += [dashboard.Threshold(color=limit.color, value=limit.value) for limit in limits]
    return dashboards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _mapping(known: Mapping[str, tuple[str, str]]) -> dashboard.ValueMap:
    options = {
        value: dashboard.ValueMappingResult(text=word, color=color, index=at)
        for at, (value, (word, color)) in enumerate(known.items())
    }
    return dashboard.ValueMap(options=options)
