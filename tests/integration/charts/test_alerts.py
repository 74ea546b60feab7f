"""The chart's alerts, as helm renders them and as Prometheus' own promtool judges them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import FIRST_BUILD_S, cluster_command, render

from headway_api.conditions import Reason
from headway_api.metrics import (
    FAMILIES,
    JOB_LABELS,
    JOBS,
    OPERATOR,
    SHARED_BUDGETS,
    MetricFamily,
    prometheus_name,
)
from headway_api.signals import SignalName
from headway_operator.telemetry import ERRORS

ROOT = Path(__file__).resolve().parents[3]
CASES = sorted(Path(__file__).parent.glob("alerts_*.yaml"))
SIGNALS = yaml.safe_load((ROOT / "charts/headway/files/signals.yaml").read_text())
OF_SIGNALS = "signals.yaml"
"""The file of the cases that this module generates."""
GROUPS = ["headway-records", "headway-operator", "headway-jobs", "headway-signals"]
"""The order in which promtool must evaluate the groups: alerts after the recorded series that they read."""
RUNBOOKS = ROOT / "docs" / "runbooks"
SIGNAL_ALERTS = {f"Headway{name}" for name in SignalName}
"""The alerts of signals, which share one row of the table."""
RUNBOOK_URL = "https://runbooks.example"
OPERATOR_CODE = ROOT / "operator" / "headway_operator"
PROCESSES = ("coordinator", "operator", "rollout", "trainer", "sandbox")
OF_THE_SCRAPE = {"namespace", "job", "pod"}
"""Labels that Prometheus adds to the samples of a PodMonitor's target."""
OF_THE_JOBS_MONITOR = "kind"
"""The label that the PodMonitor of jobs gives to every sample."""
OF_PROMETHEUS_ITSELF = {"HeadwayOperatorNotScraped"}
VALUES: dict[str, Any] = {
    "prometheusRule": {"enabled": True, "runbookUrl": RUNBOOK_URL, "thresholds": {"costPerHour": 20}},
    "podMonitor": {"enabled": True},
}
"""Values with which the chart renders every alert."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]
Rules = dict[str, Any]


@pytest.fixture(scope="module")
def rules() -> Rules:
    """The rule file that the chart renders."""
    (made,) = render("prometheusrule.yaml", VALUES)
    spec: Rules = made["spec"]
    return spec


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The path of promtool."""
    return cluster_command("promtool")


def all_rules(rules: Rules) -> list[Rules]:
    return [rule for group in rules["groups"] for rule in group["rules"]]


def alerts(rules: Rules) -> dict[str, Rules]:
    """Alerts by name."""
    return {rule["alert"]: rule for rule in all_rules(rules) if "alert" in rule}


def judge(promtool: Path, verb: str, rules: Rules, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `promtool check rules`, or `promtool test rules` with the cases."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    for path in CASES:
        shutil.copy(path, folder)
    (folder / OF_SIGNALS).write_text(yaml.safe_dump(signal_cases()))
    files = {"check": ["rules.yaml"], "test": [*(path.name for path in CASES), OF_SIGNALS]}[verb]
    command = [str(promtool), verb, "rules", *files]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=300)


def signal_cases() -> Rules:
    """For each signal, cases in which its alert must fire for some jobs and not for others."""
    series = [*active_series(), *(each for signal in SIGNALS for each in signal_series(signal["name"]))]
    tests = [each for signal in SIGNALS for each in signal_tests(signal)]
    case = {"name": "signals", "interval": "1m", "input_series": series, "alert_rule_test": tests}
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "group_eval_order": GROUPS,
        "tests": [case],
    }


CROWDED = "crowded"
"""A job with so many raised signals that its status has no room for this one."""
ACTIVE = {
    "raised": "1x40", "suspect": "1x40", "ended": "1x2 0x38", "resumed": "0x20 1x1 0x18", CROWDED: "1x40",
}  # fmt: skip
STATES = {"raised": "0x4 1x3 2x17", "suspect": "0x4 1x35", "ended": "2x40", "resumed": "2x40"}


def active_series() -> Iterator[dict[str, str]]:
    for job, values in ACTIVE.items():
        of = f'kind="RLTrainingJob",namespace="red",job_name="{job}",pod="a"'
        yield {"series": f"headway_job_active{{{of}}}", "values": values}


def signal_series(name: str) -> Iterator[dict[str, str]]:
    for job, values in STATES.items():
        of = f'kind="RLTrainingJob",namespace="red",job_name="{job}",signal="{name}"'
        yield {"series": f'headway_job_signal{{{of},pod="a"}}', "values": values}
        if job == "raised":
            yield {"series": f'headway_job_signal{{{of},pod="b"}}', "values": "_x25 2x4 0x10"}
    of = f'kind="RLTrainingJob",namespace="red",job_name="{CROWDED}",signal="{name}"'
    yield {"series": f'headway_signal_state{{{of},pod="coordinator"}}', "values": "0x7 2x22 0x10"}


def signal_tests(signal: dict[str, str]) -> Iterator[Rules]:
    """The alert fires for two jobs from minute 8 to minute 30.

    From minute 26 on, another replica of the operator reports one of these jobs.
    """
    labels = {"kind": "RLTrainingJob", "namespace": "red"}
    labels |= {"severity": signal["severity"], "signal": signal["name"]}
    raised = [
        {
            "exp_labels": labels | {"job_name": job},
            "exp_annotations": {"summary": f"RLTrainingJob red/{job}: {signal['summary']}"},
        }
        for job in ("raised", CROWDED)
    ]
    for minute, expected in ((7, []), (12, []), (15, raised), (28, raised), (35, [])):
        alert = f"Headway{signal['name']}"
        yield {"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": expected}


def summaries_only(rules: Rules) -> Rules:
    """The rules with no annotation except for the summary, because no case repeats the others."""
    found = deepcopy(rules)
    for rule in alerts(found).values():
        rule["annotations"] = {"summary": rule["annotations"]["summary"]}
    return found


def test_the_rules_are_valid(promtool: Path, rules: Rules, tmp_path: Path) -> None:
    done = judge(promtool, "check", rules, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cases_order_every_group_of_rules(rules: Rules) -> None:
    assert [group["name"] for group in rules["groups"]] == GROUPS
    assert [yaml.safe_load(path.read_text())["group_eval_order"] for path in CASES] == [GROUPS] * len(CASES)


def test_alerts_fire_when_they_should_and_only_then(promtool: Path, rules: Rules, tmp_path: Path) -> None:
    done = judge(promtool, "test", summaries_only(rules), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_cases_that_fire_and_that_stay_silent(rules: Rules) -> None:
    files = [yaml.safe_load(path.read_text()) for path in CASES]
    written = [case for file in files for test in file["tests"] for case in test.get("alert_rule_test", [])]
    cases = [*written, *(case for signal in SIGNALS for case in signal_tests(signal))]
    for name in alerts(rules):
        fires = {bool(case["exp_alerts"]) for case in cases if case["alertname"] == name}
        assert fires == {True, False}, name


@pytest.mark.parametrize(
    "broken", ["vector(0) > 1", pytest.param("vector(1)", marks=pytest.mark.ci)], ids=["never", "always"]
)
def test_the_cases_notice_each_alert_that_is_broken(
    promtool: Path, rules: Rules, tmp_path: Path, broken: str
) -> None:
    changed = summaries_only(rules)
    for rule in alerts(changed).values():
        rule.update({"expr": broken, "for": "0m"})
    done = judge(promtool, "test", changed, tmp_path)
    failed = set(re.findall(r"alertname: (\w+), time", done.stdout + done.stderr))
    assert failed == set(alerts(rules)), "no case would notice the others"


def test_each_alert_has_severity_summary_and_runbook_link(rules: Rules) -> None:
    for name, rule in alerts(rules).items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        annotations = rule["annotations"]
        assert annotations.keys() == {"summary", "description", "runbook_url"}
        assert annotations["runbook_url"] == f"{RUNBOOK_URL}/{name}"
        assert all(text.endswith(".") for text in (annotations["summary"], annotations["description"]))


def test_each_alert_has_a_runbook_and_each_runbook_an_alert(rules: Rules) -> None:
    written = {path.stem for path in RUNBOOKS.glob("*.md")}
    assert written <= set(alerts(rules))
    assert set(alerts(rules)) == set(written)
    for name in written:
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n")
        titles = ["What it means", "What to look at", "What to do"]
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == titles, name


def test_the_operations_page_lists_each_alert(rules: Rules) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks/(\w+)\.md\) \| (\w+) \|.*\| ([\w ]+) \|$", text, re.MULTILINE)
    listed = {name: (severity, after) for name, runbook, severity, after in rows if name == runbook}
    assert listed.keys() == alerts(rules).keys() - SIGNAL_ALERTS
    for name, (severity, after) in listed.items():
        rule = alerts(rules)[name]
        assert rule["labels"]["severity"] == severity
        assert rule["for"] == ("0m" if after == "at once" else f"{after.split()[0]}m")


def test_every_link_of_a_runbook_leads_to_a_file_of_docs() -> None:
    for path in RUNBOOKS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)", path.read_text()):
            assert (path.parent / link).resolve().is_file(), f"{path.stem}: {link}"
            assert (path.parent / link).resolve().is_relative_to(ROOT / "docs"), f"{path.stem}: {link}"


def test_runbooks_name_metrics_that_exist() -> None:
    for path in RUNBOOKS.glob("*.md"):
        asked = set(re.findall(r"\bheadway_\w+", path.read_text()))
        known = {re.sub(r"_(count|sum|bucket)$", "", name) for name in series()}
        assert asked <= known | series().keys(), path.stem


def test_there_is_an_alert_for_each_signal(rules: Rules) -> None:
    assert [signal["name"] for signal in SIGNALS] == list(SignalName)
    for signal in SIGNALS:
        assert signal.keys() == {"name", "severity", "summary", "advice"}
        rule = alerts(rules)[f"Headway{signal['name']}"]
        assert rule["labels"]["severity"] == signal["severity"]
        assert rule["annotations"]["description"].startswith(signal["advice"])


def test_runbooks_of_signals_say_when_the_alert_fires(rules: Rules) -> None:
    for name in SIGNAL_ALERTS:
        text = (RUNBOOKS / f"{name}.md").read_text()
        (minutes,) = re.findall(r"The alert fires if it is still raised (\d+) minutes later", text)
        assert alerts(rules)[name]["for"] == f"{minutes}m"


def test_recorded_series_are_named_by_level_metric_and_operation(rules: Rules) -> None:
    recorded = [rule for rule in all_rules(rules) if "record" in rule]
    known = series()
    assert recorded
    for rule in recorded:
        level, metric, operation = rule["record"].split(":")
        assert metric in known
        assert operation
        outer = re.match(r"(?:sum|max) by \(([\w, ]+)\)", rule["expr"])
        if outer is not None:
            assert "_".join(outer[1].split(", ")) == level


def reasons() -> set[str]:
    """Every value of the label `reason` that a failed reconcile may have.

    The writer of a job's objects blocks the job with some of them. A worker reports the others, for other
    errors.
    """
    blocked = re.findall(r"\bReason\.([A-Z_]+)", (OPERATOR_CODE / "apply.py").read_text())
    controller = (OPERATOR_CODE / "controller.py").read_text()
    others = re.findall(r'return None, "(\w+)"', controller)
    others += re.findall(r'^UNREADABLE: Final = "(\w+)"', controller, re.MULTILINE)
    assert blocked, "no reason found: see where the operator makes them"
    assert others, "no reason found: see where the operator makes them"
    assert set(others) == set(ERRORS), "these count from 0"
    return {Reason[name].value for name in blocked} | set(others)


def test_failed_reconciles_are_explained_by_reasons_that_occur() -> None:
    runbook = (RUNBOOKS / "HeadwayReconcilesFail.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", runbook, re.MULTILINE)) == reasons()
    text = "".join(path.read_text() for path in CASES)
    asked = re.findall(r'reconcile_errors_total\{[^}]*reason="(\w+)"', text)
    assert asked, "no case is about failed reconciles"
    assert set(asked) <= reasons(), "a case is about a reason that never occurs"


def reported(family: MetricFamily) -> bool:
    """Whether the code of some process names this family.

    `test_telemetry` tests the families of jobs and budgets.
    """
    sources = (path for room in PROCESSES for path in (ROOT / room).rglob("*.py"))
    return family in (*JOBS, *SHARED_BUDGETS) or any(
        f'"{family.name}"' in path.read_text() for path in sources
    )


def series() -> dict[str, MetricFamily]:
    """Families by each name that a query may use. Names with a variable part are left out."""
    known: dict[str, MetricFamily] = {}
    for family in FAMILIES:
        if "{" not in family.name:
            name = prometheus_name(family.name)
            suffixes = ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",)
            known |= dict.fromkeys((name + suffix for suffix in suffixes), family)
    return known


def test_rules_ask_for_metrics_and_labels_that_exist(rules: Rules) -> None:
    known = series()
    for rule in all_rules(rules):
        name = rule.get("alert") or rule["record"]
        expression = re.sub(r"^#.*$", "", rule["expr"], flags=re.MULTILINE)
        asked = re.findall(r"headway_\w+", expression)
        assert asked or name in OF_PROMETHEUS_ITSELF, f"{name} asks for none of Headway's metrics"
        assert set(asked) <= known.keys(), f"{name} asks for what no family is called"
        assert all(reported(known[metric]) for metric in asked), f"{name} asks for what nothing reports"
        labels = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression)
        grouped = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
        labels += [word for part in grouped for word in re.findall(r"\w+", part)]
        offered = OF_THE_SCRAPE | {label for metric in asked for label in labels_of(known[metric])}
        assert set(labels) <= offered, f"{name} asks for labels that {asked} do not have"


def labels_of(family: MetricFamily) -> set[str]:
    served_by_the_operator = family in (*OPERATOR, *JOBS, *SHARED_BUDGETS)
    return {*family.labels, *(() if served_by_the_operator else (*JOB_LABELS, OF_THE_JOBS_MONITOR))}
