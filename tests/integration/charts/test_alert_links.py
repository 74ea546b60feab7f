"""Each alert links to the dashboard that shows the job that the alert is about."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from chart import FIRST_BUILD_S, ROOT, cluster_command, render

from headway_api.document import Json
from headway_dashboards.asking import variables

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
CASES = sorted(Path(__file__).parent.glob("alerts_*.yaml"))
GRAFANA = "https://grafana.example/at"
FLEET = {
    "HeadwayOperatorWithoutLeader",
    "HeadwayOperatorNotScraped",
    "HeadwayOperatorStuck",
    "HeadwayReconcilesFail",
}
ELSEWHERE = {
    "HeadwayWeightsOutOfSync": "servers",
    "HeadwaySandboxStarved": "sandboxes",
    "HeadwayNamespaceBudgetExhausted": "fleet",
    "HeadwayNamespaceBudgetLow": "fleet",
}
"""Alerts on jobs and namespaces whose link leads to another dashboard than the job's own."""
CHOICES = ("namespace", "kind", "job_name")


def rules(**settings: Any) -> Json:
    """The rule file that the chart renders, with every alert that exists."""
    asked = {"enabled": True, "thresholds": {"costPerHour": 20}, **settings}
    (made,) = render("prometheusrule.yaml", {"prometheusRule": asked, "podMonitor": {"enabled": True}})
    spec: Json = made["spec"]
    return spec


def alerts(made: Json) -> dict[str, Json]:
    found = [rule for group in made["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in found if "alert" in rule}


def address(alert: str, labels: Json) -> str:
    """The address that an alert with these labels must link to."""
    if alert in FLEET:
        return f"{GRAFANA}/d/headway-fleet"
    chosen = "&".join(f"var-{name}={labels[name]}" for name in CHOICES if name in labels)
    return f"{GRAFANA}/d/headway-{ELSEWHERE.get(alert, 'job')}?{chosen}"


def cases(path: Path) -> Json:
    """The cases of a file, changed to test where the link of each firing alert leads."""
    found: Json = yaml.safe_load(path.read_text())
    for test in found["tests"]:
        for asked in test["alert_rule_test"]:
            asked["exp_alerts"] = [
                {
                    "exp_labels": fires["exp_labels"],
                    "exp_annotations": {"dashboard_url": address(asked["alertname"], fires["exp_labels"])},
                }
                for fires in asked["exp_alerts"]
            ]
    return found


def of_signals(names: list[str], severity: dict[str, str]) -> Json:
    """Cases in which each signal in turn is raised for one job."""
    labels = {"kind": "RLTrainingJob", "namespace": "red", "job_name": "a"}
    chosen = ",".join(f'{name}="{value}"' for name, value in labels.items())
    series = [{"series": f"headway_job_active{{{chosen}}}", "values": "1x20"}]
    tests = []
    for name in names:
        alert = f"Headway{name}"
        series.append({"series": f'headway_job_signal{{{chosen},signal="{name}"}}', "values": "2x20"})
        fires = {
            "exp_labels": {**labels, "severity": severity[alert], "signal": name},
            "exp_annotations": {"dashboard_url": address(alert, labels)},
        }
        tests.append({"alertname": alert, "eval_time": "10m", "exp_alerts": [fires]})
    case = {"name": "signals", "interval": "1m", "input_series": series, "alert_rule_test": tests}
    return {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}


def led(found: Json) -> Iterator[str]:
    """Alerts that fire in some case."""
    for test in found["tests"]:
        yield from (asked["alertname"] for asked in test["alert_rule_test"] if asked["exp_alerts"])


def test_each_alert_leads_to_the_dashboard_of_what_it_is_about(tmp_path: Path) -> None:
    made = rules(dashboardUrl=GRAFANA)
    known = alerts(made)
    for rule in known.values():
        rule["annotations"] = {"dashboard_url": rule["annotations"]["dashboard_url"]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(made))
    signals = [
        each["name"] for each in yaml.safe_load((ROOT / "charts/headway/files/signals.yaml").read_text())
    ]
    severity = {name: rule["labels"]["severity"] for name, rule in known.items()}
    files = {path.name: cases(path) for path in CASES} | {"signals.yaml": of_signals(signals, severity)}
    for name, content in files.items():
        (tmp_path / name).write_text(yaml.safe_dump(content))
    assert {alert for content in files.values() for alert in led(content)} == known.keys()
    command = [str(cluster_command("promtool")), "test", "rules", *files]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_address_is_that_of_a_dashboard_and_of_its_variables() -> None:
    found = [
        json.loads(path.read_text()) for path in (ROOT / "charts/headway/files/dashboards").glob("*.json")
    ]
    boards = {f"/at/d/{board['uid']}": variables(board).keys() for board in found}
    for name, rule in alerts(rules(dashboardUrl=GRAFANA)).items():
        parts = urlsplit(rule["annotations"]["dashboard_url"])
        asked = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
        assert {key.removeprefix("var-") for key in asked} <= boards[parts.path], name
        assert not parts.fragment


def test_alerts_lead_nowhere_unless_an_address_is_given() -> None:
    assert not any("dashboard_url" in rule["annotations"] for rule in alerts(rules()).values())


def test_a_slash_at_the_end_of_the_address_does_no_harm() -> None:
    assert rules(dashboardUrl=f"{GRAFANA}/") == rules(dashboardUrl=GRAFANA)


@pytest.mark.parametrize("wrong", ["grafana.example", "https://grafana.example?orgId=2", "https://a b"])
def test_an_invalid_address_is_refused(wrong: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rules(dashboardUrl=wrong)
    assert "dashboardUrl" in refused.value.stderr
