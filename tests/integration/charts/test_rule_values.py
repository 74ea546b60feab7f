"""How the chart's values change the alerts."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from chart import FIRST_BUILD_S, render

from headway_api.document import Json

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]


def alerts(
    *, monitored: bool = False, replicas: int = 2, relabelings: list[Json] | None = None, **settings: Any
) -> dict[str, Json]:
    """Alerts by name, as the chart renders them with these settings of prometheusRule."""
    monitor: Json = {"enabled": monitored, "relabelings": relabelings or []}
    values = {"replicas": replicas, "podMonitor": monitor, "prometheusRule": {"enabled": True, **settings}}
    (made,) = render("prometheusrule.yaml", values)
    found = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in found if "alert" in rule}  # fmt: skip


def test_alerts_can_be_left_out_by_name() -> None:
    out = {"HeadwayRepetition", "HeadwayJobFailed"}
    assert set(alerts()) - set(alerts(disabled=sorted(out))) == out


def test_severity_and_patience_are_set_by_name() -> None:
    severity = {"HeadwayJobFailed": "critical", "HeadwayRepetition": "info"}
    patience = {"HeadwayJobStalled": "1h30m", "signals": "15m", "HeadwayRepetition": "1h"}
    found = alerts(severity=severity, **{"for": patience})
    usual = alerts()
    changed = {name for name, rule in found.items() if rule["labels"] != usual[name]["labels"]}
    assert changed == set(severity)
    assert {name: found[name]["labels"]["severity"] for name in severity} == severity
    assert found["HeadwayJobStalled"]["for"] == "1h30m"
    assert found["HeadwayRepetition"]["for"] == "1h"
    assert found["HeadwayRewardCollapsed"]["for"] == "15m"
    assert found["HeadwayReconcilesFail"]["for"] == usual["HeadwayReconcilesFail"]["for"]


def test_alerts_get_labels_to_be_routed_by() -> None:
    found = alerts(alertLabels={"team": "rl"})
    assert {rule["labels"]["team"] for rule in found.values()} == {"rl"}
    assert {rule["labels"]["severity"] for rule in found.values()} == {"critical", "warning", "info"}


def test_an_alert_may_keep_firing_for_a_while() -> None:
    assert not any("keep_firing_for" in rule for rule in alerts().values())
    assert {rule["keep_firing_for"] for rule in alerts(keepFiringFor="5m").values()} == {"5m"}


def test_alerts_link_to_a_runbook_only_where_an_address_is_given() -> None:
    assert not any("runbook_url" in rule["annotations"] for rule in alerts(runbookUrl="").values())
    for address in ("https://docs.example/runbooks", "https://docs.example/runbooks/"):
        found = {
            name: rule["annotations"]["runbook_url"] for name, rule in alerts(runbookUrl=address).items()
        }
        assert found == {name: f"https://docs.example/runbooks/{name}" for name in found}


def test_failures_that_are_expected_are_left_out() -> None:
    expected = alerts(expectedFailures=["GateNotPassed", "DataExhausted"])["HeadwayJobFailed"]["expr"]
    assert 'reason!~"GateNotPassed|DataExhausted"' in expected
    assert 'reason!~""' in alerts(expectedFailures=[])["HeadwayJobFailed"]["expr"]


@pytest.mark.parametrize(
    ("threshold", "names"),
    [
        ("reconcileErrorRate", {"HeadwayReconcilesFail"}),
        ("operatorSilentSeconds", {"HeadwayOperatorStuck"}),
        ("endedSeconds", {"HeadwayJobFailed", "HeadwayPreflightFailed"}),
        ("infraErrorShare", {"HeadwayInfraErrors"}),
        ("infraErrorEpisodes", {"HeadwayInfraErrors"}),
        ("storeBusySeconds", {"HeadwayStoreUnavailable"}),
        ("sandboxWaitingShare", {"HeadwaySandboxStarved"}),
        ("costPerHour", {"HeadwayCostRate"}),
    ],
)
def test_thresholds_are_set(threshold: str, names: set[str]) -> None:
    number = 0.4321 if threshold.endswith("Share") else 432.1
    thresholds = {"costPerHour": 20, threshold: number}
    assert {
        name for name, rule in alerts(thresholds=thresholds).items() if f"{number}" in rule["expr"]
    } == names


def test_a_cost_alert_exists_only_if_a_threshold_is_given() -> None:
    assert "HeadwayCostRate" not in alerts()
    assert "HeadwayCostRate" in alerts(thresholds={"costPerHour": 0.5})


OF_THE_MONITOR = {"HeadwayOperatorNotScraped", "HeadwayMetricsMissing"}


@pytest.mark.parametrize(
    "without",
    [
        {"monitored": False},
        {"replicas": 0},
        {"relabelings": [{"targetLabel": "job", "replacement": "headway"}]},
        {"relabelings": [{"action": "Drop", "sourceLabels": ["pod"], "regex": "b"}]},
    ],
    ids=["no monitor", "no operator", "another job", "no target"],
)
def test_missing_scrapes_alert_only_if_the_chart_asks_for_them(without: Json) -> None:
    assert set(alerts(monitored=True)) >= OF_THE_MONITOR
    assert not set(alerts(**{"monitored": True, **without})) & OF_THE_MONITOR
    plain = alerts(monitored=True, relabelings=[{"targetLabel": "cluster", "replacement": "eu-1"}])
    assert set(plain) >= OF_THE_MONITOR


THRESHOLDS = [
    *("reconcileErrorRate", "operatorSilentSeconds", "endedSeconds", "infraErrorShare", "infraErrorEpisodes"),
    *("storeBusySeconds", "sandboxWaitingShare"),
]


@pytest.mark.parametrize("emptied", [*THRESHOLDS, "thresholds", "runbookUrl"])
def test_a_setting_that_the_rules_need_cannot_be_null(emptied: str) -> None:
    settings: Json = {"thresholds": {emptied: None}} if emptied in THRESHOLDS else {emptied: None}
    with pytest.raises(subprocess.CalledProcessError) as refused:
        alerts(**settings)
    assert emptied in refused.value.stderr


def test_a_null_cost_threshold_makes_no_alert() -> None:
    assert "HeadwayCostRate" not in alerts(thresholds={"costPerHour": None})


@pytest.mark.parametrize(
    "wrong",
    [
        {"disabled": ["JobFailed"]},
        {"severity": {"HeadwayJobFailed": "page"}},
        {"for": {"HeadwayJobFailed": "10"}},
        {"for": {"jobFailed": "10m"}},
        {"keepFiringFor": "5"},
        {"thresholds": {"costPerHour": -1}},
        {"thresholds": {"infraErrorShare": 5}},
        {"thresholds": {"storeBusySeconds": 900}},
        {"thresholds": {"infraErrors": 0.05}},
    ],
)
def test_a_wrong_value_is_refused(wrong: Json) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        alerts(**wrong)
    assert next(iter(wrong)) in refused.value.stderr
