"""The preflight as a whole: what stops a job, its report, and clean tasks that raise no alarm."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from help_desk import ClockedDesk, Desk, desk_baseline, desk_model, desk_rows
from made_up_baselines import of_values, play_all, sample_of

from headway_analysis.estimate.plan import preflight_episodes
from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.definition import Check, Example, Finding, Verdict
from headway_analysis.preflight.evidence import Probe
from headway_analysis.preflight.report import document, markdown
from headway_analysis.preflight.run import (
    Policy,
    certain_failure,
    findings,
    gravest_first,
    scripts_of,
    verdict,
)

SEEDS = range(10)


def with_verdicts(*verdicts: Verdict) -> list[Finding]:
    names = ("foothold", "splits", "isolated", "throughput")
    return [Finding(name, each, "seen") for name, each in zip(names, verdicts, strict=False)]


def names(found: Sequence[Finding]) -> list[str]:
    return [finding.check for finding in found]


def test_a_failure_stops_the_job_and_a_warning_does_not() -> None:
    decision = verdict(with_verdicts("Fail", "Warn", "Unknown", "Pass"), "Enforce")
    assert (names(decision.stops), names(decision.warns)) == (["foothold"], ["splits"])
    assert names(decision.unknown) == ["isolated"]
    assert not decision.goes_on


def test_policy_warn_says_failures_and_goes_on() -> None:
    decision = verdict(with_verdicts("Fail", "Warn"), "Warn")
    assert decision.goes_on
    assert names(decision.warns) == ["foothold", "splits"]


@pytest.mark.parametrize(
    ("override", "stops", "warns"),
    [("Warn", ["splits"], ["foothold"]), ("Off", ["splits"], []), ("Enforce", ["foothold", "splits"], [])],
)
def test_one_checks_own_policy_comes_first(override: Policy, stops: list[str], warns: list[str]) -> None:
    decision = verdict(with_verdicts("Fail", "Fail"), "Enforce", {"foothold": override})
    assert (names(decision.stops), names(decision.warns)) == (stops, warns)


def test_one_check_may_stop_a_job_that_only_warns() -> None:
    decision = verdict(with_verdicts("Fail", "Fail"), "Warn", {"splits": "Enforce"})
    assert (names(decision.stops), names(decision.warns)) == (["splits"], ["foothold"])


def test_a_check_that_is_off_plays_and_finds_nothing() -> None:
    baseline = desk_baseline()
    assert "deterministic" not in {script.check for script in scripts_of(baseline, {"deterministic": "Off"})}
    assert "deterministic" not in names(findings(baseline, [], {"deterministic": "Off"}))


def test_the_gravest_findings_come_first() -> None:
    assert [each.verdict for each in gravest_first(with_verdicts("Pass", "Unknown", "Warn", "Fail"))] == [
        "Fail",
        "Warn",
        "Unknown",
        "Pass",
    ]


def test_the_report_has_numbers_thresholds_and_evidence() -> None:
    baseline = desk_baseline(ClockedDesk)
    found = findings(baseline, play_all(lambda: ClockedDesk({}), scripts_of(baseline)))
    made = json.loads(json.dumps(document(baseline, found)))
    assert made["episodes"] == {"wanted": 104, "sampled": 104, "scored": 104, "rows": 13, "seconds": 52.0}
    first = made["checks"][0]
    assert (first["check"], first["verdict"], first["threshold"]) == ("deterministic", "Fail", 0.0)
    assert first["examples"][0]["episode"].startswith("preflight-")
    page = markdown(made)
    assert page.startswith("# Preflight\n")
    assert "## deterministic: Fail" in page
    assert "    --- first run" in page
    assert all(f"## {check['check']}: {check['verdict']}" in page for check in made["checks"])


def test_the_report_is_bounded_for_any_findings() -> None:
    evil = "</td>|<script>\x1b[31m\n" * 100_000
    examples = tuple(Example(evil, evil, "e") for _ in range(9))
    numbers = tuple((evil + str(at), 1.0) for at in range(500))
    finding = Finding("splits", "Fail", evil, 1.0, 0.0, advice=evil, examples=examples, numbers=numbers)
    made = document(desk_baseline(rows=1), [finding])
    assert len(json.dumps(made)) < 64 * 1024
    page = markdown(made)
    assert len(page) < 64 * 1024
    assert "\x1b" not in page
    assert not [line for line in page.splitlines() if "<script>" in line and not line.startswith("    ")]


def raising(*given: object) -> Any:
    raise KeyError("x" * 5000)


@pytest.mark.parametrize(
    "broken",
    [replace(BY_ID["foothold"], scripts=raising), replace(BY_ID["foothold"], judge=raising)],
    ids=["scripts", "judge"],
)
def test_a_check_that_raises_an_error_is_unknown(broken: Check) -> None:
    checks, baseline = (broken, BY_ID["reward-range"]), desk_baseline()
    scripts = scripts_of(baseline, checks=checks)
    assert scripts
    first, second = findings(baseline, play_all(lambda: Desk({}), scripts), checks=checks)
    assert first.verdict == "Unknown"
    assert first.observed.startswith("The check itself failed: KeyError: ")
    assert len(first.observed) < 400
    assert second.verdict == "Pass"
    assert not verdict([first]).stops


def test_a_crash_of_a_check_is_not_a_sure_failure() -> None:
    broken = replace(BY_ID["foothold"], judge=raising)
    assert certain_failure(desk_baseline(), checks=(broken,)) is None


def test_a_sure_failure_needs_no_scripts() -> None:
    reached = Probe("DNS", "10.0.0.10:53", reached=True, seconds_after_start=0.1)
    broken = replace(BY_ID["isolated"], scripts=raising)
    baseline = replace(desk_baseline(), probes=[reached])
    assert [each.verdict for each in findings(baseline, [], checks=(broken,))] == ["Fail"]


@pytest.mark.parametrize(
    ("asked", "size", "rows", "episodes"),
    [
        (100, 8, 500, 104),
        (100, 16, 500, 192),
        (100, 64, 500, 768),
        (100, 16, 5, 112),
        (7, 4, 1, 8),
        (0, 8, 0, 0),
    ],
)
def test_episodes_are_whole_groups_and_enough(asked: int, size: int, rows: int, episodes: int) -> None:
    assert preflight_episodes(asked, size, rows) == episodes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clean_desk_raises_no_alarm(seed: int) -> None:
    baseline = desk_baseline(seed=seed, skill=0.3 + seed * 0.05)
    found = findings(baseline, play_all(lambda: Desk({}), scripts_of(baseline)))
    assert {each.check: each.observed for each in found if each.verdict in ("Fail", "Warn")} == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clean_desk_of_few_episodes_raises_no_alarm(seed: int) -> None:
    rows = desk_rows(4, seed)
    baseline = sample_of(lambda: Desk({}), rows, desk_model(0.6, seed), 4)
    found = findings(baseline, play_all(lambda: Desk({}), scripts_of(baseline)))
    assert {each.check: each.observed for each in found if each.verdict in ("Fail", "Warn")} == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_rewards_drawn_at_random_raise_no_alarm(seed: int) -> None:
    drawn = random.Random(seed)
    groups = []
    for _ in range(13):
        hard = drawn.betavariate(2, 3)
        hits = [float(drawn.random() < hard) for _ in range(8)]
        groups.append([(hit if hit else drawn.choice([0.0, 0.3, 0.6]), hit) for hit in hits])
    found = findings(of_values(groups), [])
    assert {each.check: each.observed for each in found if each.verdict in ("Fail", "Warn")} == {}
