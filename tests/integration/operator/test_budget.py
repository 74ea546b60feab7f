"""Budgets of a job and of its namespace on a real cluster.

When the coordinator reports that the budget is exhausted, the pods stop. A higher budget brings them back.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from operator_rig import MANAGER, Rig, wait

from headway_api import names
from headway_api.document import Json

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def exhausted(maximum: str, needed: str) -> Json:
    limit = {
        "name": "usd",
        "limit": maximum,
        "spent": maximum,
        "reserved": "0",
        "left": "0",
        "needed": needed,
    }
    return {"limits": [limit], "exhaustedTime": "2026-01-01T00:00:00Z"}


def reasons(rig: Rig, name: str) -> list[str]:
    """Reasons of the job's events."""
    fields = f"involvedObject.name={name}"
    text = rig.cluster.kubectl("get", "events", "-n", rig.namespace, "--field-selector", fields, "-o", "json")
    return [event["reason"] for event in json.loads(text)["items"]]


@pytest.mark.ci
def test_an_exhausted_job_has_no_pods_until_its_budget_is_raised(rig: Rig) -> None:
    rig.start()
    rig.run("spent", budget={"usd": "10"})
    rig.tell("spent", preflight={"state": "Passed", "checks": []}, budget=exhausted("10", "12.5"))
    stopped = rig.wait_true("spent", "Suspended")
    assert stopped["reason"] == "BudgetExhausted"
    assert "spec.budget.usd is 10, and continuing needs 12.5" in stopped["message"]
    assert not any(rig.pods("spent", role) for role in ("coordinator", "learner", "rollout"))
    wait("its event", lambda: "Suspended" in reasons(rig, "spent"))

    rig.patch("spent", {"budget": {"usd": "11"}})
    wait("the new amount", lambda: "usd is 11" in rig.condition("spent", "Suspended").get("message", ""))
    assert not rig.pods("spent", "coordinator")

    rig.patch("spent", {"budget": {"usd": "12.5"}})
    wait("its pods", lambda: rig.pods("spent", "coordinator"), explain=lambda: rig.story("spent"))
    wait("its word", lambda: rig.condition("spent", "Suspended")["reason"] == "Resumed")


def test_a_budget_is_checked_at_apply(rig: Rig) -> None:
    body = json.dumps(rig.job("empty", budget={"onExhausted": "Fail"}))
    with pytest.raises(Exception, match=re.escape("spec.budget has no limit; write usd, tokens, or both")):
        rig.cluster.kubectl("apply", "-f", "-", input=body)


def budget_of_namespace(rig: Rig, **spec: Any) -> None:
    spec |= {"managedBy": MANAGER}
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.BUDGET_KIND,
        "metadata": {"name": "default"},
        "spec": spec,
    }
    rig.cluster.kubectl("apply", "-n", rig.namespace, "-f", "-", input=json.dumps(body))


def of_namespace(rig: Rig) -> Json:
    text = rig.cluster.kubectl("get", "rlbudget", "default", "-n", rig.namespace, "-o", "json")
    found: Json = json.loads(text).get("status", {})
    return found


def granted(rig: Rig, name: str) -> str | None:
    parts = rig.get(name)["status"].get("grant", {}).get("parts", [])
    return parts[0]["granted"] if parts else None


def refused(rig: Rig, name: str) -> str | None:
    found: str | None = rig.get(name)["status"]["grant"]["parts"][0].get("refused")
    return found


def asks(needed: str, spent: str = "0", **more: Any) -> Json:
    limit = {
        "name": "namespace.usd",
        "limit": "0",
        "spent": spent,
        "reserved": "0",
        "left": "0",
        "needed": needed,
    }
    return {"limits": [limit], **more}


@pytest.mark.ci
def test_jobs_share_the_budget_of_their_namespace(rig: Rig) -> None:
    budget_of_namespace(rig, usd="30")
    rig.start()
    rig.run("first")
    rig.run("second")
    assert all(granted(rig, name) in ("0", "0.00") for name in ("first", "second"))
    rig.tell("first", preflight={"state": "Passed", "checks": []}, budget=asks("20"))
    wait("its grant", lambda: granted(rig, "first") == "20.00", explain=lambda: rig.story("first"))

    rig.tell("second", preflight={"state": "Passed", "checks": []}, budget=asks("12"))
    wait("its refusal", lambda: refused(rig, "second") == "12.00", explain=lambda: rig.story("second"))
    passed = {"state": "Passed", "checks": []}
    rig.tell("second", preflight=passed, budget=asks("12", exhaustedTime="2026-01-01T00:00:00Z"))
    stopped = rig.wait_true("second", "Suspended")
    assert "RLBudget lets the job use 0.00 of spec.usd, and continuing needs 12" in stopped["message"]
    conditions = {each["type"]: each for each in of_namespace(rig)["conditions"]}
    assert conditions["BudgetExhausted"]["message"] == (
        "spec.usd is 30.00; write 32.00 or more: these jobs cannot continue: second"
    )

    rig.delete("first")
    wait("what it was granted stays charged", lambda: of_namespace(rig)["limits"][0]["ended"] == "20.00")
    budget_of_namespace(rig, usd="32")
    wait("its grant", lambda: granted(rig, "second") == "12.00", explain=lambda: rig.story("second"))
    wait("its pods", lambda: rig.pods("second", "coordinator"), explain=lambda: rig.story("second"))

    rig.cluster.kubectl("delete", "rlbudget", "default", "-n", rig.namespace)
    wait("no bound", lambda: granted(rig, "second") is None, explain=lambda: rig.story("second"))


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("team", {"usd": "1"}, "metadata.name must be default: a namespace has one RLBudget"),
        ("default", {}, "spec has no limit; write usd, tokens, or both"),
        ("default", {"tokens": {}}, "spec.tokens names no class; write a limit for one of"),
        ("default", {"usd": "-1"}, "spec.usd"),
        ("default", {"usd": "NaN"}, "spec.usd"),
        ("default", {"usd": "1", "onExhausted": "Fail"}, "onExhausted"),
    ],
)
def test_a_namespaces_budget_is_checked_at_apply(rig: Rig, name: str, spec: Json, message: str) -> None:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.BUDGET_KIND,
        "metadata": {"name": name},
        "spec": spec,
    }
    with pytest.raises(Exception, match=re.escape(message)):
        rig.cluster.kubectl("apply", "-n", rig.namespace, "-f", "-", input=json.dumps(body))
