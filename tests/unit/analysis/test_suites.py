"""Suites beside the job's own rows: separate from task `all`, with their own differences and gate."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import finished_evaluation as job
import pytest
from recounting import lines, recount_module

from headway_analysis.billing.segments import fold
from headway_analysis.comparison import Comparison, compare_all
from headway_analysis.gate import Bound, GateSpec, Verdict
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.tries import Rules, Try, TryPlace, tries_of
from headway_analysis.report.document import document
from headway_analysis.report.markdown import markdown
from headway_coordinator.evaluation import projections
from headway_coordinator.ledger import events
from headway_coordinator.metrics.evaluations import metrics

SUITE, SAMPLES = "sums", 30
KEPT = {"base": 0.9, "tuned": 0.3, "reference": 0.9}
"""Candidate -> share of the suite that it solves."""
GATE = {
    "candidate": "tuned",
    "mustBeat": "base",
    "noWorse": [{"metric": "success", "task": SUITE, "margin": "0.05"}],
}


def samples(candidate: str) -> list[Any]:
    return [job.group(candidate, job.ROWS + at, 1) for at in range(SAMPLES)]


def of_suite(candidate: str) -> list[Try]:
    """The tries as samples of the suite, with scores by `KEPT`."""
    found = []
    for at, group in enumerate(samples(candidate)):
        where = TryPlace(candidate, job.ROWS + at, task=SUITE, row_id=f"{SUITE}-{at}", suite=True)
        [one] = tries_of(group.model_copy(update={"suite": SUITE}), where, Rules(job.THRESHOLD))
        right = at < KEPT[candidate] * SAMPLES
        if one.scored:
            one = dataclasses.replace(one, external_score=float(right), success=right)
        found.append(one)
    return found


def everything() -> Mapping[str, list[Try]]:
    return {name: [*of, *of_suite(name)] if of else [] for name, of in job.tries().items()}


def compared(gate: GateSpec | None = None) -> Comparison:
    return compare_all(everything(), job.KS, "base", gate, priced(job.BOOK))


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    days = job.days()
    for name in KEPT:
        for group in samples(name):
            days = fold(events.of_group(group), days)
    suites = [{"name": SUITE, "image": "i", "task": "pkg/sums", "limit": SAMPLES}]
    finished = job.finished()
    standings = [dataclasses.replace(each, tries=everything()[each.name]) for each in finished.standings]
    run = dataclasses.replace(
        finished, job=job.config(suites=suites, gate=GATE), standings=standings, days=days
    )
    gate = GateSpec("tuned", must_beat="base", no_worse=[Bound("success", 0.05, SUITE)])
    return document(run, compared(gate))


def test_suites_are_in_no_measure_of_the_jobs_own_rows() -> None:
    with_them, without = compared(), job.compared()
    for name in KEPT:
        for task, measures in without.estimates[name].items():
            assert with_them.estimates[name][task] == measures
    assert with_them.differences == without.differences
    assert with_them.best() == without.best()


def test_a_suite_is_a_task_with_paired_differences() -> None:
    found = compared()
    assert found.estimates["base"][SUITE]["external_score"].n == SAMPLES - lost("base")
    difference = found.suites[SUITE]["success"]["tuned"]
    assert difference.high is not None
    assert difference.high < -0.2
    assert found.suites[SUITE]["success"].keys() == {"tuned", "reference"}


def lost(candidate: str) -> int:
    return sum(not each.scored for each in of_suite(candidate))


def test_a_loss_in_a_suite_refuses_a_winner_on_its_own_rows() -> None:
    wins = compared(GateSpec("tuned", must_beat="base")).gate
    bound = Bound("success", 0.05, SUITE)
    forgot = compared(GateSpec("tuned", must_beat="base", no_worse=[bound])).gate
    assert wins is not None
    assert forgot is not None
    assert (wins.verdict, forgot.verdict) == (Verdict.PASSED, Verdict.REFUSED)
    assert f"success in {SUITE} of tuned against base" in forgot.message
    kept = compared(GateSpec("reference", must_beat="base", no_worse=[Bound("success", 0.3, SUITE)])).gate
    assert kept is not None
    assert kept.verdict is Verdict.PASSED


def test_a_bound_without_a_task_applies_to_the_gates_task() -> None:
    own = compared(GateSpec("tuned", minimum=0.0, must_beat="base", no_worse=[Bound("success", 0.05)])).gate
    assert own is not None
    assert own.verdict is Verdict.PASSED
    asked = GateSpec("tuned", task=SUITE, must_beat="base", no_worse=[Bound("success", 0.05)])
    of_the_suite = compared(asked).gate
    assert of_the_suite is not None
    assert of_the_suite.verdict is Verdict.REFUSED


def test_a_gate_on_a_task_of_no_candidate_is_an_error() -> None:
    found = compared(GateSpec("tuned", must_beat="base", no_worse=[Bound("success", 0.0, "facts")])).gate
    assert found is not None
    assert found.verdict is Verdict.ERROR
    message = found.checks[1].message
    assert message.startswith("spec.gate.noWorse[0].task: no candidate has results in the task facts; name")
    own = compared(GateSpec("tuned", task="facts", minimum=0.5)).gate
    assert own is not None
    assert own.message.startswith("spec.gate.task: no candidate has results in the task facts")


def test_a_task_that_one_candidate_lacks_is_an_error() -> None:
    part = {name: of if name == "base" else job.tries()[name] for name, of in everything().items()}
    asked = GateSpec("tuned", must_beat="base", no_worse=[Bound("success"), Bound("success", 0.0, SUITE)])
    found = compare_all(part, job.KS, "base", asked).gate
    assert found is not None
    assert found.verdict is Verdict.ERROR
    message = found.checks[2].message
    assert message.startswith(
        f"spec.gate.noWorse[1].task: tuned has no results in the task {SUITE}, which base"
    )


def test_a_metric_that_a_task_lacks_is_named_with_it() -> None:
    asked = GateSpec("tuned", must_beat="base", no_worse=[Bound("metric_speed", 0.0, SUITE)])
    found = compared(asked).gate
    assert found is not None
    assert f"the metric metric_speed, which tuned does not report in {SUITE}" in found.checks[1].message


def test_the_report_counts_own_rows_and_bills_everything(report: dict[str, Any]) -> None:
    base = report["candidates"][0]
    assert (base["rows"], base["tries"]) == (job.ROWS, job.ROWS * job.TRIES)
    assert report["usage"]["ofNoTry"] == {}
    text = markdown(report)
    assert f"## Suites\n\n### {SUITE}" in text
    assert "external score of tuned is lower than that of base" in text
    assert text.count(f"### {SUITE}") == 1
    assert report["job"]["suites"] == {SUITE: {"task": "pkg/sums", "limit": SAMPLES, "epochs": 1}}


def test_a_suite_has_no_turn_limit(report: dict[str, Any]) -> None:
    measures = report["candidates"][0]["measures"]
    assert measures["all"].keys() - measures[SUITE].keys() >= {"turn_limit"}
    assert measures[SUITE].keys() >= {"turns", "token_limit"}
    assert report["suites"][SUITE]["differences"]["turn_limit"] == {}
    assert report["differences"]["turn_limit"].keys() == {"tuned", "reference"}
    logged = metrics(report["candidates"][0], report)
    assert "eval/turn_limit" in logged
    assert f"eval/turn_limit/{SUITE}" not in logged
    shown = {(each.labels["task"], each.labels["measure"]) for each in projections.samples(compared(), None)}
    assert ("all", "turn_limit") in shown
    assert (SUITE, "turn_limit") not in shown
    assert {line["turn_limit"] for line in lines(everything()) if line["suite"]} == {None}


def test_a_gate_on_the_turn_limit_of_a_suite_is_an_error() -> None:
    own = compared(GateSpec("tuned", metric="turn_limit", task=SUITE, must_beat="base")).gate
    bound = Bound("turn_limit", 0.0, SUITE)
    further = compared(GateSpec("tuned", must_beat="base", no_worse=[bound])).gate
    assert own is not None
    assert further is not None
    assert own.verdict is further.verdict is Verdict.ERROR
    assert "the metric turn_limit, which tuned does not report; it reports" in own.message
    assert f"the metric turn_limit, which tuned does not report in {SUITE}; it" in further.checks[1].message


def test_a_suite_has_metrics_under_its_name_in_mlflow(report: dict[str, Any]) -> None:
    found = metrics(report["candidates"][1], report)
    assert found[f"eval/success/{SUITE}"] < found[f"eval/success_high/{SUITE}"]
    assert found[f"eval/difference/success/{SUITE}"] < 0
    assert found["eval/difference/success"] > 0


def test_a_recount_finds_the_same_numbers_and_every_wrong_one(report: dict[str, Any]) -> None:
    recount, table = recount_module(), lines(everything())
    right = recount.Recount(table, report)
    right.run()
    assert right.wrong == []
    wrong = copy.deepcopy(report)
    wrong["suites"][SUITE]["differences"]["success"]["tuned"]["low"] += 1e-5
    wrong["candidates"][0]["measures"][SUITE]["success"]["value"] += 1e-5
    wrong["gate"]["verdict"] = "Passed"
    counted = recount.Recount(table, wrong)
    counted.run()
    assert len(counted.wrong) == 3
