"""The parts that all boards share: variables, links to other boards, and alerts drawn over the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from headway_api.metrics import prometheus_name
from headway_dashboards.panels import DATASOURCE
from headway_dashboards.promql import FLEET, JOB

TAG: Final = "headway"
FIRING: Final = 'alertname=~"Headway.+", alertstate="firing"'
EVERYTHING: Final = ".*"
"""The regular expression for the choice "All". It also matches series without the label."""


@dataclass(frozen=True)
class Section:
    """Panels under a heading. A folded section sends no queries until it is opened."""

    title: str
    panels: Sequence[Any]
    folded: bool = False


@dataclass(frozen=True)
class Mark:
    """An annotation: a line over the curves of a board at each time when `expr` has a value."""

    name: str
    expr: str
    color: str
    title: str
    tags: str = "state"
    """Names of the labels that Grafana shows with the mark."""

    def built(self) -> builders.AnnotationQuery:
        """The mark as an annotation of the dashboard."""
        source = common.DataSourceRef(type_val="prometheus", uid=DATASOURCE)
        made = builders.AnnotationQuery().name(self.name).datasource(source).enable(True)
        made = made.icon_color(self.color).expr(self.expr).step("60s").title_format(self.title)
        return made.text_format("{{namespace}} {{job_name}}").tag_keys(self.tags)


@dataclass(frozen=True)
class Board:
    """One dashboard, in the file `<name>.json`."""

    name: str
    title: str
    what: str
    variables: Sequence[builders.QueryVariable]
    sections: Sequence[Section]
    marks: Sequence[Mark] = ()
    """Marks besides the firing alerts, which every board shows."""

    @property
    def uid(self) -> str:
        """Id of the board in its address, `/d/<uid>`."""
        return f"headway-{self.name}"

    def text(self) -> str:
        """The content of the board's file."""
        return JSONEncoder(sort_keys=True, indent=1).encode(self._built()) + "\n"

    def _built(self) -> dashboard.Dashboard:
        made = builders.Dashboard(self.title).uid(self.uid).description(self.what).tags([TAG])
        made = made.refresh("30s").time("now-6h", "now").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        made = made.link(_others())
        for mark in (self._alerts(), *self.marks):
            made = made.annotation(mark.built())
        made = made.with_variable(
            builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        for variable in self.variables:
            made = made.with_variable(variable)
        number = 0
        for section in self.sections:
            row = builders.Row(section.title).collapsed(section.folded).id(number := number + 1)
            panels = [panel.id(number := number + 1) for panel in section.panels]
            if section.folded:
                for panel in panels:
                    row = row.with_panel(panel)
            made = made.with_row(row)
            for panel in panels if not section.folded else ():
                made = made.with_panel(panel)
        return made.build()

    def _alerts(self) -> Mark:
        """The mark for firing alerts of Headway. Every board shows alerts without a job or namespace."""
        named = {variable.build().name for variable in self.variables}
        chosen = [f'{label}=~"${label}|"' for label in ("namespace", "job_name") if label in named]
        expr = f"ALERTS{{{', '.join([FIRING, *chosen])}}}"
        return Mark("Alerts", expr, "red", "{{alertname}}", "severity")


def namespace() -> builders.QueryVariable:
    """The variable that chooses namespaces of jobs."""
    return _variable("namespace", "Namespace", f"label_values({prometheus_name('job/info')}, namespace)")


def kind() -> builders.QueryVariable:
    """The variable that chooses kinds of jobs: RLTrainingJob and RLEvalJob."""
    asked = f'{prometheus_name("job/info")}{{namespace=~"$namespace"}}'
    return _variable("kind", "Kind", f"label_values({asked}, kind)")


def job_name(*, all_at_first: bool = True) -> builders.QueryVariable:
    """The variable that chooses jobs of the chosen namespaces and kinds.

    Its default is the first job, or all jobs if `all_at_first`.
    """
    query = f"label_values({prometheus_name('job/info')}{{{FLEET}}}, job_name)"
    return _variable("job_name", "Job", query, everything=all_at_first)


def purpose() -> builders.QueryVariable:
    """The variable that chooses the purposes for which servers sample."""
    names = f"{prometheus_name('weights/servers')}|vllm:num_requests_running"
    return _variable("purpose", "Purpose", f'label_values({{__name__=~"{names}", {JOB}}}, purpose)')


def server() -> builders.QueryVariable:
    """The variable that chooses rollout servers."""
    names = f"{prometheus_name('weights/version')}|vllm:num_requests_running"
    asked = f'{{__name__=~"{names}", {JOB}, purpose=~"$purpose"}}'
    return _variable("server", "Server", f"label_values({asked}, server)")


def _variable(name: str, label: str, query: str, *, everything: bool = True) -> builders.QueryVariable:
    source = common.DataSourceRef(type_val="prometheus", uid=DATASOURCE)
    made = builders.QueryVariable(name).label(label).datasource(source).query({"query": query, "refId": name})
    made = made.multi(True)
    if everything:
        chosen = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
        made = made.include_all(True).all_value(EVERYTHING).current(chosen)
    made = made.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return made.sort(dashboard.VariableSort.ALPHABETICAL_ASC)


def _others() -> builders.DashboardLink:
    link = builders.DashboardLink("Headway").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).include_vars(True).keep_time(True)
