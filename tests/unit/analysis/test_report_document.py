"""`report.json` and `report.md` have every number, and no statement without a number."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from typing import Any

import finished_evaluation as job
import pytest

from headway_analysis.comparison import compare_all
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.tries import Try
from headway_analysis.report.document import TOO_FEW, document, remainder
from headway_analysis.report.markdown import difference_text, interval, markdown, number
from headway_api.prices import DEFAULT


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return document(job.finished(), job.compared())


def candidate(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in report["candidates"] if each["name"] == name)


def test_the_report_is_json_and_the_same_twice(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert document(job.finished(), job.compared()) == report


def test_the_report_has_the_estimated_cost(report: dict[str, Any]) -> None:
    assert report["estimate"] is None, "nobody has said it"
    estimate = {
        "actual": "1.00",
        "made": [{"basis": "Data", "cost": ["0.10", "0.90", "9.00"], "inside": True}],
    }
    found = document(dataclasses.replace(job.finished(), estimate=estimate), job.compared())
    assert found["estimate"] == estimate
    assert markdown(found) == markdown(report)


def test_the_report_has_every_estimate_and_difference(report: dict[str, Any]) -> None:
    found = job.compared()
    for name, tasks in found.estimates.items():
        measures = candidate(report, name)["measures"]
        for task, of in tasks.items():
            assert measures[task].keys() == of.keys()
            for measure, each in of.items():
                line = measures[task][measure]
                assert (line["value"], line["low"], line["high"]) == (each.value, each.low, each.high)
                assert (line["rows"], line["clusters"], line["tries"]) == (each.n, each.clusters, each.tries)
                assert (line["method"], line["floor"]) == (each.method, each.floor)
    for measure, differing in found.differences.items():
        for name, difference in differing.items():
            line = report["differences"][measure][name]
            assert (line["value"], line["low"], line["high"]) == (
                difference.value,
                difference.low,
                difference.high,
            )
            assert (line["p"], line["p_holm"], line["smallest"]) == (
                difference.p,
                difference.p_holm,
                difference.smallest,
            )


def test_the_report_names_each_candidates_model_and_no_secret(report: dict[str, Any]) -> None:
    tuned = candidate(report, "tuned")["model"]
    assert (tuned["kind"], tuned["job"], tuned["step"]) == ("Adapter", "train", 12)
    assert tuned["uri"].endswith("weights/000012")
    assert candidate(report, "reference")["model"]["url"] == "https://api.example/v1"
    assert "secret" not in json.dumps(report)


def test_a_candidate_that_failed_says_why(report: dict[str, Any]) -> None:
    gone = candidate(report, "gone")
    assert (gone["state"], gone["reason"], gone["tries"], gone["measures"]) == (
        "Failed",
        "CandidateMissing",
        0,
        {},
    )
    assert gone["message"].replace("[", "\\[").replace("]", "\\]") in markdown(report)


def test_the_bill_is_the_ledgers_and_adds_up(report: dict[str, Any]) -> None:
    usage = report["usage"]
    assert usage["ofNoTry"] == {}
    assert usage["ofNoTryByDay"] == []
    for name, amount in usage["total"].items():
        parts = [each["usage"].get(name, 0) for each in report["candidates"]]
        assert sum(parts) == pytest.approx(amount)
    assert sum(float(each["cost"]) for each in report["candidates"]) == pytest.approx(float(usage["cost"]))
    assert "belong to no try" not in markdown(report)


COSTS = {"cost", "cost_total", "cost_per_success"}
TOKENS = {"prompt_tokens", "cached_tokens", "sampled_tokens"}


def test_the_cost_without_prices_is_unknown_not_0() -> None:
    run = dataclasses.replace(job.finished(), book=DEFAULT)
    report = document(run, compare_all(job.tries(), job.KS, "base", None, priced(DEFAULT)))
    reference, base = candidate(report, "reference"), candidate(report, "base")
    assert reference["cost"] is None
    assert reference["unpriced"] == ["endpointPrompt:frontier", "endpointSample:frontier"]
    assert not COSTS & reference["measures"]["all"].keys()
    assert reference["measures"]["all"].keys() > TOKENS
    assert (base["unpriced"], base["measures"]["all"].keys() >= COSTS) == ([], True)
    assert "reference" not in report["differences"]["cost"]
    assert report["usage"]["unpriced"] == reference["unpriced"]
    text = markdown(report)
    assert "| reference | unpriced | - | - |" in text
    assert "Without endpointPrompt:frontier, endpointSample:frontier, for which it has no price." in text


def uncounted() -> dict[str, list[Try]]:
    """An answer whose tokens the endpoint did not report."""
    one, *others = job.tries()["reference"]
    return {**job.tries(), "reference": [dataclasses.replace(one, uncounted_turns=2), *others]}


def test_what_an_endpoint_refused_or_did_not_count_is_reported() -> None:
    tries, run = uncounted(), job.finished()
    dropped = {"seed": "", "max_tokens": "max_completion_tokens"}
    standings = [
        dataclasses.replace(each, tries=tries[each.name], dropped=dropped if each.name == "reference" else {})
        for each in run.standings
    ]
    found = compare_all(tries, job.KS, "base", None, priced(job.BOOK))
    report = document(dataclasses.replace(run, standings=standings), found)
    reference = candidate(report, "reference")
    assert (reference["dropped"], reference["uncounted"], reference["cost"]) == (dropped, 2, None)
    assert not (COSTS | TOKENS) & reference["measures"]["all"].keys()
    assert candidate(report, "base")["measures"]["all"].keys() >= (COSTS | TOKENS)
    text = markdown(report)
    assert "refused max\\_tokens (max\\_completion\\_tokens is sent instead), seed" in text
    assert "did not count 2 answers" in text
    assert "| reference | uncounted | - | - | uncounted |" in text


def test_tool_answers_that_differ_from_those_of_a_run_are_noted() -> None:
    one, *others = job.tries()["tuned"]
    tries = {**job.tries(), "tuned": [dataclasses.replace(one, differing_answers=3), *others]}
    standings = [dataclasses.replace(each, tries=tries[each.name]) for each in job.finished().standings]
    report = document(dataclasses.replace(job.finished(), standings=standings), job.compared())
    assert [each["differingAnswers"] for each in report["candidates"]] == [0, 3, 0, 0]
    text = markdown(report)
    assert "## Scored again\n\n- tuned: calls that the tools answered otherwise than in the run: 3; " in text
    assert "write spec.seed and spec.data as in the run" in text
    assert "Scored again" not in markdown(document(job.finished(), job.compared()))


def test_usage_of_no_try_is_reported_separately() -> None:
    run = job.finished()
    days = {**run.days, date(2026, 1, 1): {**run.days[date(2026, 1, 1)], "discarded": 10_000.0}}
    report = document(dataclasses.replace(run, days=days), job.compared())
    usage = report["usage"]
    (line,) = usage["ofNoTryByDay"]
    assert (line["day"], line["class"], line["model"]) == ("2026-01-01", "discarded", None)
    assert usage["ofNoTry"] == {"discarded": pytest.approx(line["quantity"])}
    assert line["quantity"] > 1000
    assert "belong to no try" in markdown(report)


def test_a_remainder_leaves_out_rounding() -> None:
    assert remainder({"a": 0.1 + 0.2, "b": 3}, {"a": 0.3}) == {"b": 3}
    assert remainder({}, {"a": 1}) == {"a": -1}


def test_too_few_rows_are_noted_and_no_interval_is_claimed() -> None:
    tries = {
        name: [each for each in of if each.place.row == 0 and each.scored] for name, of in job.tries().items()
    }
    found = compare_all(tries, job.KS, "base", None, priced(job.BOOK))
    report = document(job.finished(), found)
    score = candidate(report, "tuned")["measures"]["all"]["external_score"]
    assert (score["low"], score["note"]) == (None, TOO_FEW)
    assert report["differences"]["external_score"]["tuned"]["note"] == TOO_FEW
    text = markdown(report)
    assert f"({TOO_FEW})" in text
    assert "is higher" not in text
    assert "is lower" not in text
    assert report["gate"] is None
    assert "## Gate" not in text


def test_the_text_holds_each_headline_number(report: dict[str, Any]) -> None:
    text = markdown(report)
    for each in report["candidates"]:
        for task, of in each["measures"].items():
            assert interval(of["external_score"]) in text, (each["name"], task)
    for name, of in report["differences"]["external_score"].items():
        assert difference_text("external_score", name, "base", of) in text
    assert report["tasks"].keys() == report["candidates"][0]["measures"].keys() - {"all"}
    for task, of in report["tasks"].items():
        section = text.split(f"### {task}\n")[1].split("###")[0]
        for name, found in of["differences"]["external_score"].items():
            assert difference_text("external_score", name, "base", found) in section
    for check in report["gate"]["checks"]:
        assert check["message"].replace("_", "\\_") in text


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        ("Higher", "is higher than that of base"),
        ("Lower", "is lower than that of base"),
        ("NotShown", "no diff"),
    ],
)
def test_a_difference_is_worded_as_its_interval_allows(finding: str, words: str) -> None:
    found = {
        "value": 0.1,
        "low": 0.02,
        "high": 0.2,
        "p_holm": 0.03,
        "smallest": 0.15,
        "rows": 30,
        "tries": 30,
        "finding": finding,
    }
    assert words in difference_text("success", "tuned", "base", found)


def test_names_cannot_break_a_table() -> None:
    report = document(job.finished(), job.compared())
    measures = report["candidates"][0]["measures"]
    measures["a|b\nc"] = measures["refund"]
    assert "### a\\|b c" in markdown(report)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.12345, "0.123"), (1234.5, "1,234"), (0.00012345, "0.00012"), (-2.5, "-2.5")],
)
def test_a_number_has_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_job_without_measurements_has_a_report() -> None:
    run = job.finished()
    standings = [dataclasses.replace(each, tries=[]) for each in run.standings]
    empty = dataclasses.replace(run, standings=standings, days={})
    report = document(empty, compare_all({}, job.KS, "base", None))
    assert report["headline"] is None
    assert markdown(report).startswith("# Evaluation ns/judged")
    assert "0 of 4 candidates were measured" in markdown(report)


def test_the_bill_of_another_model_is_listed_by_model() -> None:
    run = dataclasses.replace(job.finished(), book=job.BOOK.of("frontier"))
    report = document(run, job.compared())
    usage, reference = report["usage"], candidate(report, "reference")
    assert usage["byModel"] == {
        "frontier": {name: usage["total"][name] for name in ("endpointPrompt", "endpointSample")}
    }
    assert reference["usage"]["endpointSample"] == usage["total"]["endpointSample"]
    first, second = usage["priceBook"]["entries"]
    assert (first["prices"]["endpointSample"], first["own"]["endpointSample"]) == ("10", "99")
    assert first["models"]["frontier"] == {"endpointSample": "10"}
    assert "own" not in second, "that entry has one price for all models"
