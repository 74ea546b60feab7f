"""The recount of an evaluation: it checks every number of report, status and /metrics, and finds errors."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import finished_evaluation as job
import pytest
from recounting import SCRIPT, lines, recount_module
from scipy.special import stdtrit

from headway_analysis.billing.segments import by_name
from headway_analysis.comparison import compare_all
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.tries import Try
from headway_analysis.report.document import document
from headway_analysis.report.table import parquet, table
from headway_api.prices import DEFAULT, PriceBook
from headway_api.records import Outcome
from headway_api.spec.gate import Gate
from headway_api.status import RLEvalJobStatus
from headway_coordinator.evaluation import projections
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.ledger import costs
from headway_coordinator.ledger.usage import usage
from headway_coordinator.metrics.prometheus import Exporter, Sample
from headway_coordinator.projections import bill


@pytest.fixture(scope="module")
def recount() -> ModuleType:
    return recount_module()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return document(job.finished(), job.compared())


def state() -> EvalState:
    """The evaluation driver's state at the end."""
    candidates = {}
    for name, of in job.tries().items():
        rows: dict[int, list[Try]] = {}
        for each in of:
            rows.setdefault(each.place.row, []).append(each)
        candidates[name] = CandidateState(name, "Complete", tries=rows, days=job.days([name]) if of else {})
    return EvalState(candidates, job.ROWS)


def status() -> dict[str, Any]:
    """The job at the end, as `kubectl get -o json` prints it."""
    compared, found, spec = job.compared(), state(), job.config().spec
    job_status = RLEvalJobStatus(
        results=projections.results(found, compared, job.BOOK, date(2026, 1, 2)),
        headline=projections.headline(spec, compared),
        gate=projections.gate(compared, finished=True),
        usage=usage(job.days(), job.BOOK, date(2026, 1, 2)),
    )
    return {"status": job_status.as_object()}


def metrics() -> str:
    """The text of /metrics at the end."""
    compared, found, days = job.compared(), state(), job.days()
    cost = float(usage(days, job.BOOK, date(2026, 1, 2)).cost or 0)

    def samples() -> Iterator[Sample]:
        yield from bill(days, cost)
        yield from costs.samples(by_name(days, {}), {}, job.BOOK)
        yield from projections.samples(compared, found)

    return Exporter("ns", "judged", samples).text().decode()


def test_the_recount_runs_over_files(tmp_path: Path, report: dict[str, Any]) -> None:
    """The files include what `kubectl get` and /metrics show."""
    files = {
        "results.parquet": parquet(table(job.tries(), priced(job.BOOK))),
        "report.json": json.dumps(report).encode(),
        "status": json.dumps(status()).encode(),
        "metrics": metrics().encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, str(SCRIPT), "results.parquet", "report.json"]
    command += ["--status", "status", "--metrics", "metrics"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 6000


@pytest.mark.parametrize(
    ("path", "wrong", "named"),
    [
        ("results.1.reward.value", "0.0001", "status tuned reward value"),
        ("results.1.externalScore.low", "0.0001", "status tuned external_score low"),
        ("results.1.success.high", "0.0001", "status tuned success high"),
        ("results.1.difference.value", "0.0001", "status tuned difference value"),
        ("results.1.difference.low", "-0.5", "status tuned difference low"),
        ("results.1.difference.high", None, "status tuned difference high"),
        ("results.2.difference.p", "0.5", "status reference difference p"),
        ("results.1.difference.baseline", "reference", "status tuned difference baseline"),
        ("results.1.difference", None, "status tuned difference value"),
        ("results.0.cost", "0.0001", "status base cost"),
        ("results.3.cost", "0", "status gone cost"),
        ("results.0.rows", 39, "status base rows"),
        ("results.3.rows", 1, "status gone rows"),
        ("results.1.tries", 160, "status tuned tries"),
        ("results.1.infraErrors", 0, "status tuned infraErrors"),
        ("results.2.score", "0.50 ± 0.01", "status reference score"),
        ("results.3.score", "0.50 ± 0.01", "status gone score"),
        ("results.3.name", "base", "status candidates"),
        ("headline.candidate", "reference", "status headline candidate"),
        ("headline.score", "0.99 ± 0.01", "status headline score"),
        ("headline", None, "status headline candidate"),
        ("usage.cost", "99999", "status cost"),
        ("usage.evaluationTokens", 7, "status usage evaluationTokens"),
        ("usage.endpointTokens", 7, "status usage endpointTokens"),
        ("usage.sandboxSeconds", "7", "status usage sandboxSeconds"),
        ("gate.result", "Error", "status gate result"),
        ("gate.message", "external_score of tuned is 9.9", "status gate message"),
        ("gate.message", "", "status gate message"),
        ("gate", None, "status gate result"),
    ],
)
def test_a_wrong_number_in_the_status_is_found(
    recount: ModuleType, report: dict[str, Any], path: str, wrong: Any, named: str
) -> None:
    job_status = status()
    counted = recount.Recount(lines(), report)
    counted.status(job_status)
    assert counted.wrong == []
    at: Any = job_status["status"]
    *above, last = path.split(".")
    for part in above:
        at = at[int(part)] if isinstance(at, list) else at[part]
    assert at.get(last) != wrong
    at[last] = wrong
    counted.status(job_status)
    assert named in {text.partition(":")[0] for text in counted.wrong}


def test_a_trailing_0_counts_among_four_digits(recount: ModuleType, report: dict[str, Any]) -> None:
    counted = recount.Recount(lines(), report)
    for printed, number in [("0.5", 0.50004), ("12", 12.00004), ("0.1234", 0.12344), (None, None)]:
        counted.rounded("right", printed, number)
    assert counted.wrong == []
    for printed, number in [("0.5", 0.5001), ("12", 12.0001), (None, 0.0), ("0", None)]:
        counted.rounded("wrong", printed, number)
    assert len(counted.wrong) == 4


@pytest.mark.parametrize(
    ("key", "wrong", "named"),
    [
        ("candidate", "reference", "headline candidate"),
        ("measure", "reward", "headline measure"),
        ("value", 0.5, "headline value"),
        ("low", 0.1, "headline low"),
        ("high", 0.9, "headline high"),
        ("rows", 39, "headline rows"),
        ("method", "wilson", "headline method"),
    ],
)
def test_a_wrong_headline_of_the_report_is_found(
    recount: ModuleType, report: dict[str, Any], key: str, wrong: Any, named: str
) -> None:
    altered = copy.deepcopy(report)
    assert altered["headline"][key] != wrong
    altered["headline"][key] = wrong
    counted = recount.Recount(lines(), altered)
    counted.headline()
    assert [text.partition(":")[0] for text in counted.wrong] == [named]


def mean_score(tries: Sequence[Try]) -> float:
    """The mean external score."""
    return fmean(each.external_score for each in tries if each.external_score is not None)


@pytest.mark.parametrize("lost", [0, 12], ids=["the best", "the best of those that lost few"])
def test_without_a_gate_the_best_candidate_is_the_headline(recount: ModuleType, lost: int) -> None:
    """A candidate that lost over 0.05 more of its tries than another is ranked last, whatever its score."""
    tries = {name: [*of] for name, of in job.tries().items()}
    *_, second, best = sorted(job.CHANCE, key=lambda name: mean_score(tries[name]))
    for at in [at for at, each in enumerate(tries[best]) if each.scored][:lost]:
        tries[best][at] = dataclasses.replace(
            tries[best][at],
            outcome=Outcome.INFRA_ERROR,
            reward=None,
            external_score=None,
            success=False,
            success_by_reward=False,
            metrics={},
        )
    ungated = without_a_gate(tries)
    assert ungated["headline"]["candidate"] == (second if lost else best)
    counted = recount.Recount(lines(tries), ungated)
    counted.headline()
    assert counted.wrong == []


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        (r'(\w*eval_rows{.*"tuned".*}) 40\.0', r"\1 39.0", "/metrics tuned rows"),
        (r"\w*eval_rows{.*\n", "", "candidates in /metrics"),
        (r"\w*eval_measure_low{.*\n", "", "samples in /metrics"),
        (r"\w*usage_tokens_total{.*\"discarded\".*\n", "", "bill in /metrics"),
        (
            r'(\w*usage_tokens_total{.*"evaluationSample".*}) \S+',
            r"\1 7.0",
            "/metrics usage_tokens_total evaluationSample",
        ),
        (r'(\w*[a-z]_cost_usd{class="evaluation".*}) \S+', r"\1 7.0", "/metrics cost_usd evaluation "),
        (r"(\w*usage_cost_usd{.*}) \S+", r"\1 7.0", "/metrics usage_cost_usd"),
        (r"\w*eval_difference_high{.*\n", "", "samples in /metrics"),
        (
            r'(\w*eval_measure{.*"base".*"reward".*"all".*}) \S+',
            r"\1 0.9",
            "/metrics measure base all reward ",
        ),
        (
            r'(\w*eval_difference{.*"tuned".*"success".*"refund".*}) \S+',
            r"\1 0.9",
            "/metrics difference tuned refund success ",
        ),
    ],
)
def test_a_wrong_number_in_metrics_is_found(
    recount: ModuleType, report: dict[str, Any], right: str, wrong: str, named: str
) -> None:
    counted = recount.Recount(lines(), report)
    counted.metrics(metrics())
    assert counted.wrong == []
    text, changed = re.subn(right, wrong, metrics(), count=1)
    assert changed == 1
    counted.metrics(text)
    assert [text.partition(":")[0] for text in counted.wrong] == [named]


def test_a_wrong_number_is_found_wherever_it_is(recount: ModuleType, report: dict[str, Any]) -> None:
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
    check = wrong["gate"]["checks"][0]
    check["verdict"], check["message"] = "Error", check["message"].replace("0.", "9.")
    check["numbers"] = {name: number and number + 1e-4 for name, number in check["numbers"].items()}
    wrong["usage"]["byModel"]["other"] = {}
    differences = wrong["differences"]
    differences["external_score"]["tuned"]["low"] += 1e-5
    differences["success"]["tuned"]["smallest"] += 1e-5
    differences["reward"]["reference"]["p_holm"] += 1e-5
    differences["completion"]["tuned"]["p"] = 0.6
    differences["turns"]["tuned"]["finding"] = "Higher"
    wrong["tasks"]["refund"]["differences"]["success"]["tuned"]["low"] += 1e-5
    wrong["tasks"]["order"]["differences"]["reward"]["reference"]["p_holm"] += 1e-5
    del differences["sampled_tokens"]["tuned"], wrong["tasks"]["refund"]["differences"]["reward"]
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
        "gate checks",
        "gate check 0 value",
        "gate check 0 low",
        "gate check 0 shown",
        "gate check 0 message",
        "models",
        "differences",
        "differences of refund",
        "tuned against the baseline, external_score low",
        "tuned against the baseline, success of refund low",
        "reference reward of order p after Holm",
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


def without_a_gate(tries: Mapping[str, Sequence[Try]], book: PriceBook = job.BOOK) -> dict[str, Any]:
    """The report on these tries in a job that has no gate."""
    run = job.finished()
    found = run.job.model_copy(update={"spec": run.job.spec.model_copy(update={"gate": None})})
    standings = [dataclasses.replace(each, tries=tries[each.name]) for each in run.standings]
    run = dataclasses.replace(run, job=found, standings=standings, book=book)
    return document(run, compare_all(tries, job.KS, "base", None, priced(book)))


def of(keep: Any, **place: Any) -> dict[str, list[Try]]:
    """Some of the tries, moved to other places."""
    return {
        name: [
            dataclasses.replace(each, place=dataclasses.replace(each.place, **place))
            for each in of
            if keep(each)
        ]
        for name, of in job.tries().items()
    }


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
def test_the_recount_agrees_on_jobs_of_every_shape(
    recount: ModuleType, keep: Any, place: dict[str, Any]
) -> None:
    tries = of(keep, **place)
    counted = recount.Recount(lines(tries), without_a_gate(tries))
    counted.run()
    assert counted.wrong == []
    assert counted.checked > 100


@pytest.mark.ci
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
def test_the_recount_judges_as_the_gate_does(
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
    compared = compare_all(
        job.tries(), job.KS, "base", projections.gate_of(spec), priced(job.BOOK), failed=failed
    )
    assert compared.gate is not None
    assert verdict in (None, compared.gate.verdict.value)
    counted = recount.Recount(lines(), document(run, compared))
    counted.run()
    assert [wrong for wrong in counted.wrong if wrong.startswith("gate")] == []


def test_the_recount_counts_usage_of_no_try_and_of_other_models(recount: ModuleType) -> None:
    """This usage is billed on a day with other prices, and by another model."""
    more = {"discarded": 5_000.0, "endpointSample:frontier": 700.0, "acceleratorSeconds:gpu": 30.0}
    run = dataclasses.replace(job.finished(), book=job.BOOK.of("frontier"))
    days = {**run.days, date(2026, 1, 1): {**run.days.get(date(2026, 1, 1), {}), **more}}
    found = document(dataclasses.replace(run, days=days), job.compared())
    counted = recount.Recount(lines(book=run.book), found)
    counted.usage()
    assert counted.wrong == []
    assert found["usage"]["byModel"]["frontier"]["endpointSample"] > 700
    found["usage"]["byModel"]["frontier"]["endpointSample"] += 1
    line = next(each for each in found["usage"]["ofNoTryByDay"] if each["class"] == "endpointSample")
    line["quantity"] += 2
    counted = recount.Recount(lines(book=run.book), found)
    counted.usage()
    assert {text.partition(":")[0] for text in counted.wrong} >= {
        "cost",
        "usage of frontier endpointSample",
        "usage of no try endpointSample",
    }


@pytest.mark.ci
@pytest.mark.parametrize("book", [job.BOOK, DEFAULT], ids=["priced", "unpriced"])
def test_the_recount_agrees_where_costs_are_unknown(recount: ModuleType, book: PriceBook) -> None:
    """One answer has no token count, and some classes have no price."""
    one, *others = job.tries()["reference"]
    tries = {**job.tries(), "reference": [dataclasses.replace(one, uncounted_turns=1), *others]}
    counted = recount.Recount(lines(tries, book), without_a_gate(tries, book))
    counted.run()
    assert counted.wrong == []
    assert counted.report["candidates"][2]["cost"] is None


@pytest.mark.parametrize(("df", "p"), [(1, 0.975), (7.5, 0.975), (200, 0.8), (3000, 0.975)])
def test_the_recount_uses_students_t_quantiles(recount: ModuleType, df: float, p: float) -> None:
    assert sys.modules["recount_statistics"].student(df, p) == pytest.approx(float(stdtrit(df, p)), rel=1e-9)
