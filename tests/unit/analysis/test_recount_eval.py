"""The recount of an evaluation: it finds every number of report, status and /metrics, and every wrong one."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import a_finished_evaluation as job
import pytest
from recounting import SCRIPT, lines, recount_module
from scipy.special import stdtrit

from headway_analysis.comparison import Comparison, compare_all
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.tries import Try
from headway_analysis.report.document import document
from headway_analysis.report.table import parquet, table
from headway_api.prices import DEFAULT, PriceBook
from headway_api.spec.gate import Gate
from headway_coordinator.evaluation import view
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.metrics.prometheus import Exporter


@pytest.fixture(scope="module")
def recount() -> ModuleType:
    return recount_module()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return document(job.finished(), job.compared())


def state() -> EvalState:
    """The driver's state at the end."""
    candidates = {}
    for name, of in job.tries().items():
        rows: dict[int, list[Try]] = {}
        for each in of:
            rows.setdefault(each.place.row, []).append(each)
        candidates[name] = CandidateState(name, "Complete", tries=rows, days=job.days([name]) if of else {})
    return EvalState(candidates, job.ROWS)


def test_a_person_can_run_it_over_files(tmp_path: Path, report: dict[str, Any]) -> None:
    """With what `kubectl get` and /metrics show."""
    compared, found = job.compared(), state()
    exporter = Exporter("ns", "judged", lambda: view.samples(compared, found))
    results = view.results(found, compared, job.BOOK, date(2026, 1, 2))
    files = {
        "results.parquet": parquet(table(job.tries(), priced(job.BOOK))),
        "report.json": json.dumps(report).encode(),
        "status": json.dumps(
            {
                "status": {
                    "results": [r.model_dump(mode="json", by_alias=True, exclude_none=True) for r in results]
                }
            }
        ).encode(),
        "metrics": exporter.text(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, str(SCRIPT), "results.parquet", "report.json"]
    command += ["--status", "status", "--metrics", "metrics"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 6000


def test_a_wrong_number_is_found_wherever_it_stands(recount: ModuleType, report: dict[str, Any]) -> None:
    wrong = copy.deepcopy(report)
    base, tuned = wrong["candidates"][0], wrong["candidates"][1]
    base["measures"]["all"]["external_score"]["value"] += 1e-5
    base["measures"]["refund"]["success"]["low"] += 1e-5
    base["measures"]["all"]["cost"]["high"] *= 1.001
    base["measures"]["all"]["pass_at_2"]["floor"] += 1e-5
    base["measures"]["all"]["turns"]["clusters"] += 1
    base["measures"]["all"]["reward"]["method"] = "wilson"
    base["measures"]["order"].pop("pass_power_4")
    tuned["usage"]["evaluationSample"] += 1
    tuned["cost"] = str(float(tuned["cost"]) * 1.001)
    tuned["outcomes"]["Completed"] += 1
    wrong["usage"]["total"]["discarded"] += 1
    wrong["usage"]["cost"] = "0.1"
    wrong["gate"]["verdict"] = "Refused"
    differences = wrong["differences"]
    differences["external_score"]["tuned"]["low"] += 1e-5
    differences["success"]["tuned"]["smallest"] += 1e-5
    differences["reward"]["reference"]["p_holm"] += 1e-5
    differences["completion"]["tuned"]["p"] = 0.6
    differences["turns"]["tuned"]["finding"] = "Higher"
    counted = recount.Recount(lines(), wrong)
    counted.run()
    found = {text.partition(":")[0] for text in counted.wrong}
    assert found >= {
        "base all external_score value",
        "base refund success low",
        "base all cost high",
        "base all pass_at_2 floor",
        "base all turns clusters",
        "base all reward method",
        "base order measures",
        "tuned evaluationSample",
        "tuned cost",
        "tuned outcomes",
        "usage discarded",
        "cost",
        "gate",
        "tuned against the baseline, external_score low",
        "tuned against the baseline, success smallest",
        "reference reward p after Holm",
        "tuned against the baseline, completion p",
        "tuned against the baseline, turns finding",
    }


def test_a_wrong_try_is_found(recount: ModuleType, report: dict[str, Any]) -> None:
    table_ = lines()
    at = next(n for n, line in enumerate(table_) if line["candidate"] == "base" and line["success"])
    table_[at] |= {"external_score": 0.5, "cost": 1.0}
    counted = recount.Recount(table_, report)
    counted.run()
    assert {f"{table_[at]['episode_id']} {column}" for column in ("success", "cost")} <= {
        text.partition(":")[0] for text in counted.wrong
    }
    assert any(text.startswith("base all external_score value") for text in counted.wrong)


def of(keep: Any, **place: Any) -> tuple[dict[str, list[Try]], Comparison]:
    """Some of the tries, with other places."""
    tries = {
        name: [
            dataclasses.replace(each, place=dataclasses.replace(each.place, **place))
            for each in of
            if keep(each)
        ]
        for name, of in job.tries().items()
    }
    return tries, compare_all(tries, job.KS, "base", None, priced(job.BOOK))


@pytest.mark.parametrize(
    ("keep", "place"),
    [
        (lambda t: t.index == 0, {"cluster": None, "task": ""}),
        (lambda t: t.place.row < 12, {"cluster": None}),
        (lambda t: t.place.row < 5, {"cluster": None}),
        (lambda t: t.place.row == 0, {}),
        (lambda t: not t.success, {"cluster": None, "task": "one"}),
        (lambda t: t.place.candidate != "tuned" or t.place.row > 20, {}),
    ],
    ids=["one try a row", "few rows", "too few rows", "one row", "no success", "other rows"],
)
def test_it_agrees_on_jobs_of_every_shape(recount: ModuleType, keep: Any, place: dict[str, Any]) -> None:
    tries, compared = of(keep, **place)
    run = job.finished()
    standings = [dataclasses.replace(each, tries=tries[each.name]) for each in run.standings]
    report = document(dataclasses.replace(run, standings=standings), compared)
    counted = recount.Recount(lines(tries), report)
    counted.run()
    assert counted.wrong == []
    assert counted.checked > 100


@pytest.mark.parametrize(
    ("gate", "failed", "verdict"),
    [
        ({"minimum": "0.3", "minimumOf": "LowerBound"}, [], None),
        ({"minimum": "0.3", "minimumOf": "Value"}, [], None),
        ({"mustBeat": "base", "metric": "success", "maxLost": "0.2"}, [], None),
        ({"mustBeat": "base", "metric": "success", "maxLost": "0"}, [], None),
        ({"mustBeat": "base", "noWorse": [{"metric": "malformed_tool_calls", "margin": "0.3"}]}, [], None),
        ({"mustBeat": "base", "noWorse": [{"metric": "cost_per_success", "margin": "1"}]}, [], None),
        ({"mustBeat": "base", "maxLost": "1"}, ["base"], "Error"),
        ({"minimum": "0"}, ["base"], "Passed"),
    ],
)
def test_it_judges_as_the_gate_does(
    recount: ModuleType, gate: dict[str, Any], failed: list[str], verdict: str | None
) -> None:
    asked = Gate.model_validate({"candidate": "tuned", **gate})
    run = job.finished()
    spec = run.job.spec.model_copy(update={"gate": asked})
    standings = [
        dataclasses.replace(each, stage="Failed" if each.name in failed else each.stage)
        for each in run.standings
    ]
    run = dataclasses.replace(run, job=run.job.model_copy(update={"spec": spec}), standings=standings)
    compared = compare_all(job.tries(), job.KS, "base", view.gate_of(spec), priced(job.BOOK), failed=failed)
    assert compared.gate is not None
    assert verdict in (None, compared.gate.verdict.value)
    counted = recount.Recount(lines(), document(run, compared))
    counted.run()
    assert [wrong for wrong in counted.wrong if wrong.startswith("gate")] == []


@pytest.mark.parametrize("book", [job.BOOK, DEFAULT], ids=["priced", "unpriced"])
def test_it_agrees_where_costs_are_not_known(recount: ModuleType, book: PriceBook) -> None:
    """An answer that was not counted, and classes without a price."""
    one, *others = job.tries()["reference"]
    tries = {**job.tries(), "reference": [dataclasses.replace(one, uncounted_turns=1), *others]}
    compared = compare_all(tries, job.KS, "base", None, priced(book))
    standings = [dataclasses.replace(each, tries=tries[each.name]) for each in job.finished().standings]
    report = document(dataclasses.replace(job.finished(), standings=standings, book=book), compared)
    counted = recount.Recount(lines(tries, book), report)
    counted.run()
    assert counted.wrong == []
    assert counted.report["candidates"][2]["cost"] is None


@pytest.mark.parametrize(("df", "p"), [(1, 0.975), (7.5, 0.975), (200, 0.8), (3000, 0.975)])
def test_its_quantiles_are_students(recount: ModuleType, df: float, p: float) -> None:
    assert sys.modules["recount_statistics"].student(df, p) == pytest.approx(float(stdtrit(df, p)), rel=1e-9)
