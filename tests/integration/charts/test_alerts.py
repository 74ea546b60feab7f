"""The chart's alerts, as helm renders them and as Prometheus' own promtool judges them."""

from __future__ import annotations

import re
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import FIRST_BUILD_S, cluster_command, render

from headway_api.conditions import Reason
from headway_api.metrics import FAMILIES, Family, prometheus_name

ROOT = Path(__file__).resolve().parents[3]
CASES = Path(__file__).parent / "alerts.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
RUNBOOK_URL = "https://runbooks.example"
OPERATOR = ROOT / "operator" / "headway_operator"
PROCESSES = ("operator", "rollout", "trainer", "sandbox")
OF_THE_SCRAPE = {"namespace", "job", "pod"}
"""Labels that a PodMonitor's target has beside those of the sample."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
Rules = dict[str, Any]


@pytest.fixture(scope="module")
def rules() -> Rules:
    """The rule file that the chart makes."""
    (made,) = render("prometheusrule.yaml", {"prometheusRule": {"enabled": True, "runbookUrl": RUNBOOK_URL}})
    spec: Rules = made["spec"]
    return spec


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The program."""
    return cluster_command("promtool")


def alerts(rules: Rules) -> dict[str, Rules]:
    """Alerts by name."""
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}


def judge(promtool: Path, verb: str, rules: Rules, folder: Path) -> subprocess.CompletedProcess[str]:
    """`promtool check rules`, or `promtool test rules` with the written cases."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(CASES, folder)
    file = {"check": "rules.yaml", "test": CASES.name}[verb]
    command = [str(promtool), verb, "rules", file]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=60)


def summaries_only(rules: Rules) -> Rules:
    """The rules without the annotations that no case repeats."""
    found = deepcopy(rules)
    for rule in alerts(found).values():
        rule["annotations"] = {"summary": rule["annotations"]["summary"]}
    return found


def test_the_rules_are_valid(promtool: Path, rules: Rules, tmp_path: Path) -> None:
    done = judge(promtool, "check", rules, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_only_then(promtool: Path, rules: Rules, tmp_path: Path) -> None:
    done = judge(promtool, "test", summaries_only(rules), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("broken", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_the_cases_notice_an_alert_that_is_broken(
    promtool: Path, rules: Rules, tmp_path: Path, broken: str
) -> None:
    for name in alerts(rules):
        changed = summaries_only(rules)
        alerts(changed)[name].update({"expr": broken, "for": "0m"})
        done = judge(promtool, "test", changed, tmp_path)
        assert done.returncode != 0, f"no case would notice {name} with {broken}"
        assert name in done.stdout + done.stderr


def test_each_alert_has_a_runbook_and_each_runbook_an_alert(rules: Rules) -> None:
    found = alerts(rules)
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(found)
    for name, rule in found.items():
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK_URL}/{name}"
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n")
        assert len(text.split()) > 20, f"the runbook of {name} says nothing"


def reasons() -> set[str]:
    """Every value of the label `reason` of a failed reconcile: what an object's writer blocks a job with, and
    what a worker says of other errors."""
    blocked = re.findall(r"\bReason\.([A-Z_]+)", (OPERATOR / "apply.py").read_text())
    others = re.findall(r'return None, "(\w+)"', (OPERATOR / "controller.py").read_text())
    assert blocked, "no reason found: see where the operator makes them"
    assert others, "no reason found: see where the operator makes them"
    return {Reason[name].value for name in blocked} | set(others)


def test_failed_reconciles_are_explained_by_the_reasons_that_occur() -> None:
    runbook = (RUNBOOKS / "HeadwayReconcilesFail.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", runbook, re.MULTILINE)) == reasons()
    asked = re.findall(r'reconcile_errors_total\{[^}]*reason="(\w+)"', CASES.read_text())
    assert asked, "no case is about failed reconciles"
    assert set(asked) <= reasons(), "a case is about a reason that never occurs"


def reported(family: Family) -> bool:
    """Whether a process names this family anywhere."""
    sources = (path for room in PROCESSES for path in (ROOT / room).rglob("*.py"))
    return any(f'"{family.name}"' in path.read_text() for path in sources)


def series() -> dict[str, Family]:
    """Families by each name that a query may use; names with a variable part are left out."""
    known: dict[str, Family] = {}
    for family in FAMILIES:
        if "{" not in family.name:
            name = prometheus_name(family.name)
            suffixes = ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",)
            known |= dict.fromkeys((name + suffix for suffix in suffixes), family)
    return known


def test_alerts_ask_for_metrics_and_labels_that_there_are(rules: Rules) -> None:
    known = series()
    for name, rule in alerts(rules).items():
        asked = re.findall(r"headway_\w+", rule["expr"])
        assert asked, f"{name} asks for none of Headway's metrics"
        assert set(asked) <= known.keys(), f"{name} asks for what no family is called"
        assert all(reported(known[metric]) for metric in asked), f"{name} asks for what nothing reports"
        labels = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", rule["expr"])
        labels += [
            word
            for part in re.findall(r"by\s*\(([^)]*)\)", rule["expr"])
            for word in re.findall(r"\w+", part)
        ]
        offered = OF_THE_SCRAPE | {label for metric in asked for label in known[metric].labels}
        assert set(labels) <= offered, f"{name} asks for labels that {asked} do not have"
