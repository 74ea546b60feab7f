"""Every query of every dashboard, asked of a real Prometheus that scraped real jobs on a cluster.

These are jobs that other tests run anyway: one that trained, and one that evaluated its checkpoints. `SILENT`
lists queries whose series need a fault or a field that these jobs lack. A job of tests/integration/charts
produces those series.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from chart import ROOT
from judged_job import JUDGED, Outcome
from watched_cluster import Watched

from headway_api.document import Json
from headway_dashboards.asking import Question, questions
from headway_demo.settings import NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.timeout(900)]
Key = tuple[str, str, str]
BOARDS: list[Json] = [
    json.loads(path.read_text()) for path in sorted((ROOT / "charts/headway/files/dashboards").glob("*.json"))
]
PATIENCE_S = 30
"""Seconds to wait, after the evaluation has ended, for the last scrape and the last evaluation of alert
rules."""
SILENT = {
    ("headway-job", "annotation Remedies", "Remedy: {{state}}"): (
        "the job may not change itself (spec.collapse.policy: Remediate)"
    ),
    ("headway-job", "Accelerators held", "{{job_name}} {{role}} {{product}}"): (
        "no node of the cluster has an accelerator"
    ),
}
"""Board, panel and query -> why these jobs produce no series for it."""
BY_CHANCE = {("headway-fleet", "Signals that are not clear", "state"): " > 0"}
"""Board, panel and query -> a condition that these jobs meet only by chance. The query is asked without
it."""


@pytest.mark.parametrize("board", BOARDS, ids=lambda it: it["uid"])
def test_every_query_returns_series_of_real_jobs(
    watched: Watched, shared_job: str, judged: Outcome, board: Json
) -> None:
    chosen = {
        "namespace": f"({NAMESPACE})",
        "kind": "(RLEvalJob|RLTrainingJob)",
        "job_name": f"({shared_job}|{JUDGED})",
        "purpose": ".*",
        "server": ".*",
    }
    expected = {key for key in SILENT if key[0] == board["uid"]}
    ends = time.monotonic() + PATIENCE_S
    while (found := silent(watched, board, chosen)) != expected and time.monotonic() < ends:
        time.sleep(1)
    assert sorted(found - expected) == [], "these return nothing"
    assert sorted(expected - found) == [], "these do return series: take them out of SILENT"


def silent(watched: Watched, board: Json, chosen: dict[str, str]) -> set[Key]:
    """The queries of a board that have returned nothing since the watch began."""
    asked = [replace(each, expr=certain(each)) for each in questions(board)]
    return {key(each) for each in asked if not watched.returns_series(each, chosen)}


def key(question: Question) -> Key:
    """The key of a question in `SILENT` and `BY_CHANCE`."""
    return question.board, question.panel, question.legend or question.ref


def certain(question: Question) -> str:
    """The query's expression without a condition that is met by chance."""
    condition = BY_CHANCE.get(key(question), "")
    assert condition in question.expr, "its condition has changed"
    return question.expr.replace(condition, "") if condition else question.expr
