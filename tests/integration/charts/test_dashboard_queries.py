"""Every query of every dashboard returns series, from a real Prometheus that scraped a job that ran.

`whole_job` lists the real parts of that job. Prometheus evaluates the chart's alerts for it, without their
waits.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator

import pytest
from chart import FIRST_BUILD_S, ROOT
from monitored_job import SCRAPE_SECONDS, Monitored, monitored_job
from prometheus_server import Prometheus
from whole_job import JOB, NAMESPACE

from headway_api.document import Json
from headway_api.signals import SignalName
from headway_dashboards.asking import Question, panels, questions, sent, variables

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
BOARDS = [
    json.loads(path.read_text()) for path in sorted((ROOT / "charts/headway/files/dashboards").glob("*.json"))
]
ASKED = [question for board in BOARDS for question in questions(board)]
CHOSEN = {
    "namespace": f"({NAMESPACE}|elsewhere)",
    "kind": "(RLEvalJob|RLTrainingJob)",
    "job_name": f"({JOB}|another)",
    "purpose": ".*",
    "server": ".*",
}
"""The values of the dashboards' variables, in Grafana's notation for several values and for All."""
PATIENCE_S = 60
STEP_S = 0.5


def until(holds: Callable[[], bool]) -> bool:
    """Wait until the condition holds, at most `PATIENCE_S` seconds; return whether it does."""
    ends = time.monotonic() + PATIENCE_S
    while not (held := holds()) and time.monotonic() < ends:
        time.sleep(STEP_S)
    return held


class Answers:
    """The series that each query returned. A query without series is asked again."""

    def __init__(self, prometheus: Prometheus, begun: float) -> None:
        self._prometheus = prometheus
        self._begun = begun
        self.found: dict[Question, list[Json]] = {}

    def gather(self) -> None:
        """Ask until every query has returned series, or the patience ends."""
        until(self._all_answered)

    def _all_answered(self) -> bool:
        for question in [each for each in ASKED if each not in self.found]:
            if labels := self._ask(question):
                self.found[question] = labels
        return len(self.found) == len(ASKED)

    def _ask(self, question: Question) -> list[Json]:
        expr = sent(question.expr, CHOSEN, scrape_seconds=SCRAPE_SECONDS, step_seconds=STEP_S)
        if question.instant:
            return [labels for labels, value in self._prometheus.series(expr) if math.isfinite(value)]
        now = time.time()
        found = self._prometheus.ask(
            "query_range", query=expr, start=f"{self._begun}", end=f"{now}", step=f"{STEP_S}"
        )["result"]
        return [each["metric"] for each in found if any(math.isfinite(float(v)) for _, v in each["values"])]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Monitored, Answers]]:
    begun = time.time()
    with monitored_job(tmp_path_factory.mktemp("job"), steps=200, pace=0.3) as job:
        answers = Answers(job.prometheus, begun)
        answers.gather()
        yield job, answers


@pytest.mark.parametrize("board", BOARDS, ids=lambda it: it["uid"])
def test_every_query_returns_series(watched: tuple[Monitored, Answers], board: Json) -> None:
    _, answers = watched
    silent = [each for each in questions(board) if each not in answers.found]
    assert [(each.panel, each.expr) for each in silent] == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda it: it["uid"])
def test_legends_name_labels_that_the_series_have(watched: tuple[Monitored, Answers], board: Json) -> None:
    _, answers = watched
    for question in questions(board):
        wanted = set(re.findall(r"\{\{(\w+)\}\}", question.legend))
        if not question.panel.startswith("annotation"):
            assert any(wanted <= labels.keys() for labels in answers.found[question]), question


@pytest.mark.parametrize("board", BOARDS, ids=lambda it: it["uid"])
def test_variables_have_values(watched: tuple[Monitored, Answers], board: Json) -> None:
    job, _ = watched
    for name, query in variables(board).items():
        chosen = sent(query, CHOSEN, scrape_seconds=SCRAPE_SECONDS, step_seconds=STEP_S)
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", chosen).groups()  # type: ignore[union-attr]
        found = job.prometheus.ask(f"label/{label}/values", **{"match[]": series})
        assert label == name
        assert found != [], query


@pytest.mark.parametrize(
    "series",
    [
        f'headway_signal_state{{job_name="{JOB}", signal="{SignalName.GRADIENT_SPIKING}"}} == 2',
        f'headway_job_signal{{job_name="{JOB}", signal="{SignalName.GRADIENT_SPIKING}"}} == 2',
        f'headway_remedy_changes{{job_name="{JOB}", state="Watching"}} == 1',
    ],
)
def test_the_job_was_judged_and_changed_by_its_coordinator(
    watched: tuple[Monitored, Answers], series: str
) -> None:
    job, _ = watched  # still runs; the signal's first raise may be too short for a status
    assert until(lambda: len(job.prometheus.series(f"max_over_time(({series})[10m:1s])")) == 1)


def test_panels_draw_lines_at_the_signals_thresholds(watched: tuple[Monitored, Answers]) -> None:
    job, _ = watched
    known = job.prometheus.series("headway_signal_threshold")
    thresholds = {labels["signal"]: value for labels, value in known}
    (board,) = (each for each in BOARDS if each["uid"] == "headway-job")
    steps = {
        panel["title"]: panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        for panel in panels(board)
    }
    drawn = {
        title: {step["value"] for step in found} - {None}
        for title, found in steps.items()
        if len(found) > 1 and title != "Signals raised"
    }
    assert drawn == {
        "How episodes end": {thresholds[SignalName.PERMANENT_FAILURES]},
        "Truncation by kind": {
            thresholds[SignalName.TURNS_TRUNCATED],
            thresholds[SignalName.CONTEXT_FULL],
            thresholds[SignalName.EPISODES_TIMED_OUT],
            thresholds[SignalName.TURNS_EXHAUSTED],
        },
    }


def test_the_coordinators_of_both_kinds_are_scraped(watched: tuple[Monitored, Answers]) -> None:
    job, _ = watched
    billed = job.prometheus.series(f'headway_usage_cost_usd{{job_name="{JOB}"}}')
    assert {labels["kind"] for labels, _ in billed} == {"RLEvalJob", "RLTrainingJob"}
    assert until(lambda: job.prometheus.series('ALERTS{alertname="HeadwayMetricsMissing"}') == [])


def test_prometheus_evaluates_every_rule_without_an_error(watched: tuple[Monitored, Answers]) -> None:
    job, _ = watched
    judged = [rule for group in job.prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert judged != []
    assert {rule["name"]: rule.get("lastError", "") for rule in judged if rule["health"] != "ok"} == {}
