"""The dashboards' files equal what the code generates, and are consistent."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from chart import ROOT

from headway_api.document import Json
from headway_api.metrics import FAMILIES, UnknownMetricError
from headway_dashboards import promql
from headway_dashboards.__main__ import boards, differing, main, write
from headway_dashboards.asking import named, panels, questions, sent, variables
from headway_dashboards.panels import UNITS, metric_curves

FILES = ROOT / "charts/headway/files/dashboards"
BOARDS = {board.name: board for board in boards()}


def document(name: str) -> Json:
    read: Json = json.loads(BOARDS[name].text())
    return read


def test_the_files_equal_what_the_code_generates() -> None:
    assert differing(FILES) == [], "run: make dashboards"


def test_a_file_that_was_changed_added_or_lost_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    assert main([str(tmp_path), "--check"]) == 0
    (tmp_path / "fleet.json").write_text("{}\n")
    (tmp_path / "job.json").unlink()
    (tmp_path / "mine.json").write_text("{}\n")
    assert main([str(tmp_path), "--check"]) == 1
    assert "fleet.json, job.json, mine.json differ from the code" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 0
    assert differing(tmp_path) == []


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_beside_each_other_and_say_what_they_show(name: str) -> None:
    board = document(name)
    rows, shown = [each for each in board["panels"] if each["type"] == "row"], [*panels(board)]
    assert len({each["id"] for each in (*rows, *shown)}) == len(rows) + len(shown)
    assert len({(each["type"], each["title"]) for each in shown}) == len(shown)
    assert [each["title"] for each in rows] == [section.title for section in BOARDS[name].sections]
    for panel in panels(board):
        assert panel["description"].endswith((".", ")", "`")), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    places = [each["gridPos"] for each in board["panels"]]
    assert not [(one, other) for one, other in combinations(places, 2) if overlap(one, other)]


def overlap(one: Json, other: Json) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not beside and not below


def test_boards_link_to_each_other() -> None:
    uids = {document(name)["uid"] for name in BOARDS}
    assert uids == {"headway-fleet", "headway-job", "headway-servers", "headway-sandboxes"}
    text = "".join(board.text() for board in BOARDS.values())
    assert set(re.findall(r"/d/([\w-]+)\?", text)) <= uids
    for name in BOARDS:
        assert document(name)["tags"] == [document(name)["links"][0]["tags"][0]] == ["headway"]


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_of_a_query_is_one_of_the_boards(name: str) -> None:
    board = document(name)
    for question in questions(board):
        used = set(re.findall(r"\$(\w*[a-z]\w*)", question.expr))
        assert used <= {*variables(board), "__rate_interval"}, question


def test_a_family_that_was_renamed_breaks_the_build() -> None:
    with pytest.raises(UnknownMetricError, match="rollout/rewards/mean"):
        promql.value("rollout/rewards/mean")
    with pytest.raises(UnknownMetricError, match="rollout/rewards/mean"):
        metric_curves("Reward", "It.", {"reward": "rollout/rewards/mean"})


def test_metrics_of_two_units_share_no_axis() -> None:
    with pytest.raises(AssertionError, match="one axis, one unit"):
        metric_curves("Both", "It.", {"reward": "rollout/reward/mean", "seconds": "timing_s/step"})


def test_every_unit_of_a_family_has_a_grafana_unit() -> None:
    assert {family.unit for family in FAMILIES} <= UNITS.keys()


def test_a_query_is_sent_as_grafana_sends_it() -> None:
    expr = promql.per_second(promql.of("usage/tokens"))
    chosen = {"namespace": "a", "kind": ".*", "job_name": "(b|c)"}
    found = sent(expr, chosen, scrape_seconds=30, step_seconds=60)
    matched = 'namespace=~"a", kind=~".*", job_name=~"(b|c)"'
    assert found == f"rate(headway_usage_tokens_total{{{matched}}}[120000ms])"
    assert "[90000ms]" not in sent(expr, chosen, scrape_seconds=30, step_seconds=15)
    with pytest.raises(KeyError):
        sent("x{a=~'$other'}", chosen, scrape_seconds=30, step_seconds=60)
    assert named("{{job_name}} pass@{{k}} {{none}}", {"job_name": "b", "k": "4"}) == "b pass@4"
