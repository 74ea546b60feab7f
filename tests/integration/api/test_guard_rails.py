"""With the guard rails the API server gives the same warnings as the models, and still accepts the job."""

from __future__ import annotations

import json
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from refusal_cases import changed
from warning_cases import QUIET, WARNINGS

ROOT = Path(__file__).resolve().parents[3]
SEEN_WITHIN_S = 60
"""Seconds until a new policy must act. It acts only once the API server's informer has seen it."""
MANAGER = "headway.dev/guard-rails-under-test"
"""The jobs name this manager, so that no other release's policy warns of them and no operator runs them."""

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(900)]


class Cluster(Protocol):
    def kubectl(self, *args: str, input: str | None = None) -> str: ...

    def attempt(self, *args: str, input: str | None = None) -> subprocess.CompletedProcess[str]: ...


def ours(changes: dict[str, Any], name: str) -> dict[str, Any]:
    return changed(changed(QUIET, changes), {"metadata.name": name, "spec.managedBy": MANAGER})


def warned(cluster: Cluster, verb: str, namespace: str, job: dict[str, Any]) -> list[str]:
    """The warnings that kubectl printed, without the policy's name. The job must be accepted."""
    done = cluster.attempt(verb, "-n", namespace, "-f", "-", input=json.dumps(job))
    assert done.returncode == 0, done.stderr
    return re.findall(r"^Warning: .*?'[^']*' with binding '[^']*': (.*)$", done.stderr, re.MULTILINE)


@pytest.fixture(scope="module")
def namespace(served: Cluster) -> Iterator[str]:
    cluster = served
    name = f"guard-rails-{uuid.uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    tools = ["/usr/bin/python3", str(ROOT / "hack" / "cluster" / "cluster.py"), "tools"]
    folder = subprocess.run(tools, check=True, text=True, stdout=subprocess.PIPE, timeout=900).stdout.strip()
    command = [f"{folder}/helm", "template", name, str(ROOT / "charts" / "headway")]
    command += ["--set", f"manager={MANAGER},watchNamespaces={{{name}}}"]
    command += ["--show-only", "templates/guardrails.yaml"]
    policy = subprocess.run(command, check=True, text=True, capture_output=True).stdout
    cluster.kubectl("apply", "-f", "-", input=policy)
    try:
        wait_until_it_acts(cluster, name)
        yield name
    finally:
        cluster.kubectl("delete", "-f", "-", "--wait=false", input=policy)
        cluster.kubectl("delete", "namespace", name, "--wait=false")


def wait_until_it_acts(cluster: Cluster, namespace: str) -> None:
    unwise = ours({"spec.optimizer": {"learningRate": 0.01}}, "unwise")
    end = time.monotonic() + SEEN_WITHIN_S
    while not warned(cluster, "apply", namespace, unwise):
        assert time.monotonic() < end, "the policy does not act"
        cluster.kubectl("delete", "rltj/unwise", "-n", namespace)
        time.sleep(0.5)


def test_the_api_server_gives_the_models_warnings(cluster: Cluster, namespace: str) -> None:
    missed = []
    for index, case in enumerate(WARNINGS):
        warnings = warned(cluster, "create", namespace, ours(case["set"], f"case-{index}"))
        agree = len(warnings) == len(case["says"])
        if not agree or not all(words in text for words, text in zip(case["says"], warnings, strict=True)):
            missed.append((case, warnings))
    assert not missed


def test_an_unrelated_change_is_not_warned_of_again(cluster: Cluster, namespace: str) -> None:
    job = ours({"spec.optimizer": {"learningRate": 0.01}}, "changing")
    assert len(warned(cluster, "create", namespace, job)) == 1
    assert warned(cluster, "apply", namespace, changed(job, {"metadata.labels": {"team": "a"}})) == []
    longer = changed(job, {"spec.activeDeadlineSeconds": 3600})
    assert len(warned(cluster, "apply", namespace, longer)) == 1


def test_a_job_of_another_release_gets_no_warning(cluster: Cluster, namespace: str) -> None:
    job = changed(
        ours({"spec.optimizer": {"learningRate": 0.01}}, "theirs"), {"spec.managedBy": "acme.dev/x"}
    )
    assert warned(cluster, "create", namespace, job) == []
