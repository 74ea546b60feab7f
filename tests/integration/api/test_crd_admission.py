"""The API server refuses, by the CRDs alone, what the models refuse, and gives the same reasons."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from evaluation_cases import CHANGES as EVALUATION_CHANGES
from evaluation_cases import EVALUATION, TAKEN
from evaluation_cases import REFUSED as EVALUATIONS_REFUSED
from refusal_cases import EVERYTHING, SMALLEST, TABLE, changed

from headway_api.spec.training import RLTrainingJob

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.integration

REFUSED = [*TABLE["messages"], *TABLE["bounds"]]
CHANGES = [*TABLE["transitions"], *TABLE["allowed"]]


class Cluster(Protocol):
    def kubectl(self, *args: str, input: str | None = None) -> str: ...

    def attempt(self, *args: str, input: str | None = None) -> subprocess.CompletedProcess[str]: ...


def kubectl_output(cluster: Cluster, *args: str, objects: list[dict[str, Any]] | None = None) -> str:
    """What kubectl printed, whether or not it succeeded.

    All objects go in one call, for speed.
    """
    given = {"apiVersion": "v1", "kind": "List", "items": objects} if objects else None
    result = cluster.attempt(*args, input=json.dumps(given) if given else None)
    return f"{result.stdout}\n{result.stderr}"


def by_object(text: str) -> dict[str, str]:
    """Name of each refused object -> why it was refused."""
    parts = re.split(r'RL(?:Training|Eval)Job\S* "([^"]+)" is invalid', text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def namespace(served: Cluster) -> Iterator[str]:
    cluster = served
    name = f"admission-{uuid.uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def named(job: dict[str, Any], name: str) -> dict[str, Any]:
    return job if job["metadata"]["name"] != "refunds" else changed(job, {"metadata.name": name})


def test_the_api_server_refuses_what_the_models_refuse(cluster: Cluster, namespace: str) -> None:
    objects = [named(changed(SMALLEST, case["set"]), f"case-{index}") for index, case in enumerate(REFUSED)]
    text = kubectl_output(
        cluster,
        *("create", "-n", namespace, "--dry-run=server", "--validate=false", "-f", "-"),
        objects=objects,
    )
    answers = by_object(text)
    missed = []
    for case, sent in zip(REFUSED, objects, strict=True):
        answer = answers.get(sent["metadata"]["name"], "accepted")
        wanted = case.get("says") or case["field"]
        if wanted not in answer:
            missed.append((case["set"], wanted, answer))
    assert not missed, text


@pytest.mark.parametrize("example", [SMALLEST, EVERYTHING], ids=["smallest", "everything"])
def test_the_api_server_accepts_the_examples(
    cluster: Cluster, namespace: str, example: dict[str, Any]
) -> None:
    result = cluster.kubectl(
        *("create", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", "-"),
        input=json.dumps(example),
    )
    assert "created" in result


def test_the_api_servers_defaults_are_those_of_the_models(cluster: Cluster, namespace: str) -> None:
    result = cluster.kubectl(
        *("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-"),
        input=json.dumps(SMALLEST),
    )
    stored = json.loads(result)
    from_server = RLTrainingJob.model_validate(stored).spec
    assert from_server == RLTrainingJob.model_validate(SMALLEST).spec
    assert stored["spec"].keys() >= {"seed", "algorithm", "rollout", "evaluation"}


def test_only_some_fields_may_change(cluster: Cluster, namespace: str) -> None:
    before = [
        changed(changed(SMALLEST, case.get("from", {})), {"metadata.name": f"change-{index}"})
        for index, case in enumerate(CHANGES)
    ]
    after = [changed(job, case["set"]) for job, case in zip(before, CHANGES, strict=True)]
    assert by_object(kubectl_output(cluster, "create", "-n", namespace, "-f", "-", objects=before)) == {}
    text = kubectl_output(cluster, "replace", "-n", namespace, "-f", "-", objects=after)
    answers = by_object(text)
    missed = []
    for index, case in enumerate(CHANGES):
        answer = answers.get(f"change-{index}", "accepted")
        if (case.get("says") or "accepted") not in answer:
            missed.append((case, answer))
    assert not missed, text


def test_refuses_the_evaluations_that_the_models_refuse(cluster: Cluster, namespace: str) -> None:
    sent = [
        {"metadata.name": f"refused-{index}"} | case for index, (case, _) in enumerate(EVALUATIONS_REFUSED)
    ]
    sent += [{"metadata.name": f"taken-{index}"} | case for index, case in enumerate(TAKEN)]
    text = kubectl_output(
        cluster,
        *("create", "-n", namespace, "--dry-run=server", "--validate=false", "-f", "-"),
        objects=[changed(EVALUATION, case) for case in sent],
    )
    answers = by_object(text)
    assert len(answers) == len(EVALUATIONS_REFUSED), text
    for index, (case, says) in enumerate(EVALUATIONS_REFUSED):
        assert says in answers[f"refused-{index}"], case


def test_only_some_fields_of_an_evaluation_may_change(cluster: Cluster, namespace: str) -> None:
    before = [
        changed(EVALUATION, {"metadata.name": f"eval-{index}"}) for index in range(len(EVALUATION_CHANGES))
    ]
    after = [changed(job, case) for job, (case, _) in zip(before, EVALUATION_CHANGES, strict=True)]
    assert by_object(kubectl_output(cluster, "create", "-n", namespace, "-f", "-", objects=before)) == {}
    answers = by_object(kubectl_output(cluster, "replace", "-n", namespace, "-f", "-", objects=after))
    for index, (case, says) in enumerate(EVALUATION_CHANGES):
        assert (says or "accepted") in answers.get(f"eval-{index}", "accepted"), case


def test_a_job_that_no_operator_has_seen_says_so(cluster: Cluster, namespace: str) -> None:
    for kind, body in (("rltrainingjob", SMALLEST), ("rlevaljob", EVALUATION)):
        sent = changed(body, {"metadata.name": "unseen", "spec.managedBy": "nobody.test/at-all"})
        cluster.kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(sent))
        stored = json.loads(cluster.kubectl("get", kind, "unseen", "-n", namespace, "-o", "json"))
        assert stored["status"]["observedGeneration"] == -1


def test_a_job_can_be_scaled_and_has_printer_columns(cluster: Cluster, namespace: str) -> None:
    job = changed(SMALLEST, {"metadata.name": "scaled"})
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job))
    cluster.kubectl("scale", "rltj/scaled", "-n", namespace, "--replicas=3")
    status = {
        "status": {
            "state": "Training",
            "progress": {"step": 12},
            "reward": {"mean": "0.61"},
            "validation": {"step": 10, "reward": "0.7", "externalScore": "0.55"},
            "usage": {"totalTokens": 1234, "cost": "18.42"},
        }
    }
    cluster.kubectl(
        *("patch", "rltj/scaled", "-n", namespace, "--subresource=status", "--type=merge"),
        *("-p", json.dumps(status)),
    )
    header, row = cluster.kubectl("get", "rltj", "scaled", "-n", namespace).splitlines()[:2]
    assert header.split() == ["NAME", "STATE", "STEP", "REWARD", "VAL", "TOKENS", "COST", "AGE"]
    assert row.split()[:7] == ["scaled", "Training", "12", "0.61", "0.55", "1234", "18.42"]
    stored = json.loads(cluster.kubectl("get", "rltj", "scaled", "-n", namespace, "-o", "json"))
    assert stored["spec"]["rollout"]["replicas"] == 3
