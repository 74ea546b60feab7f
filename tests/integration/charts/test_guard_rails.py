"""The chart's policy of warnings, as helm renders it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway_api.recipes import GUARD_RAILS

ROOT = Path(__file__).resolve().parents[3]
FIRST_BUILD_S = 900
TEMPLATE = "templates/guardrails.yaml"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]


@pytest.fixture(scope="module")
def helm() -> str:
    command = ["/usr/bin/python3", str(ROOT / "hack" / "cluster" / "cluster.py"), "tools"]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=FIRST_BUILD_S)
    return f"{done.stdout.strip()}/helm"


def rendered(helm: str, *options: str) -> list[dict[str, Any]]:
    """The rendered admission policies and bindings, without those that refuse objects (test_admission.py)."""
    command = [helm, "template", "headway", str(ROOT / "charts" / "headway"), *options]
    text = subprocess.run(command, check=True, text=True, capture_output=True).stdout
    found = [document for document in yaml.safe_load_all(text) if document]
    refusing = {f"headway-{name}" for name in ("sandboxes", "labels", "status", "bounds")}
    return [
        document
        for document in found
        if document["apiVersion"].startswith("admissionregistration")
        and document["metadata"]["name"] not in refusing
    ]


def test_the_policy_warns_and_refuses_nothing(helm: str) -> None:
    policy, binding = rendered(helm)
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    assert policy["spec"]["validations"] == [rail.validation() for rail in GUARD_RAILS]
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Warn"]}


def test_the_policy_warns_where_the_release_watches(helm: str) -> None:
    policy, binding = rendered(helm, "--set", "watchNamespaces={team-a,team-b},manager=acme.dev/second")
    (where,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert where["values"] == ["team-a", "team-b"]
    (mine,) = [c for c in policy["spec"]["matchConditions"] if c["name"] == "managed-by-this-release"]
    assert mine["expression"].endswith("== 'acme.dev/second'")


KINDS = "v1/Pod,admissionregistration.k8s.io/v1"
"""The API versions of a cluster that does not serve admission policies."""


@pytest.mark.parametrize(
    "options",
    [("--set", "guardRails.enabled=false"), ("--api-versions", KINDS)],
    ids=["switched off", "not served"],
)
def test_the_policy_can_be_left_out(helm: str, options: tuple[str, ...]) -> None:
    assert rendered(helm, *options) == []


def test_a_cluster_that_serves_policies_gets_one(helm: str) -> None:
    served = f"{KINDS},admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
    assert len(rendered(helm, "--api-versions", served)) == 2
