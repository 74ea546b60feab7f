"""Mutations of valid custom resources against the real API server and a running operator.

HOSTILE_COUNT says how many mutations are made, and HOSTILE_SEED which ones; `make test-hostile` draws another
seed each time. A failure prints the seed and the manifest.

No neighbour of the mutations is reconciled later than 5 s. On a busy machine that time alone proves nothing.
So a second operator, in a namespace without mutations, has a job that is changed at the same moment. If its
change takes more than `CALM_SECONDS`, the machine is slow, and the limit of 5 s grows by the same factor.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from mutations import mutated
from operator_rig import API_GROUP, Cluster, Rig, wait
from urllib3.exceptions import HTTPError

from headway_api import names
from headway_api.document import Json
from headway_operator import wire

COUNT = int(os.environ.get("HOSTILE_COUNT", "60"))
SEED = int(os.environ.get("HOSTILE_SEED", "1"))
TOGETHER = 10
"""Mutations that exist at the same time. A neighbour is changed after each lot."""
LATE_SECONDS = 5.0
"""Seconds that a neighbour of mutations may wait on a machine that is not busy."""
CALM_SECONDS = 0.5
"""Seconds that a job without such neighbours may wait on a machine that is not busy."""
FAR_TOO_LATE_SECONDS = 60.0

pytestmark = [
    pytest.mark.ci,
    pytest.mark.integration,
    pytest.mark.hostile,
    pytest.mark.timeout(300 + 2 * COUNT),
]

FIELD = re.compile(r"\b(spec|metadata|status|kind|apiVersion)\b")


CONTRACT: Json = {"tools": [{"name": "look_up", "inputSchema": {"properties": {"key": {"type": "string"}}}}]}
COLLECTED: Json = {"type": "Collected", "status": "True"}


class Writer:
    """Sends any text as a job, over one connection that is kept."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._client: Any = config.new_client_from_config(str(rig.cluster.kubeconfig))

    def send(self, method: str, resource: str, name: str = "", text: str | None = None) -> tuple[int, Json]:
        """The status code and the document of the API server's answer."""
        path = f"/{API_GROUP}/namespaces/{self._rig.namespace}/{resource}/{name}".rstrip("/")
        # Each unknown field adds a warning header, and Python accepts at most a hundred headers.
        path += "?fieldValidation=Ignore"
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = self._client.rest_client.pool_manager.request(
            method,
            self._client.configuration.host + path,
            body=text,
            headers={"Content-Type": content},
            timeout=30,
        )
        return answer.status, json.loads(answer.data) if answer.status >= 400 else {}

    def first_condition(self, resource: str, name: str, *, orphan: bool) -> Json:
        """The first condition of a job that Python's own JSON reader may not be able to read.

        An orphan is a job whose owner does not exist. Kubernetes may have collected it already, or only
        somebody's finalizer may hold it.
        """
        path = f"/{API_GROUP}/namespaces/{self._rig.namespace}/{resource}/{name}"
        answer = self._client.rest_client.pool_manager.request("GET", self._client.configuration.host + path)
        if answer.status == 404:
            return COLLECTED if orphan else {}
        body = wire.job(answer.data)
        if orphan and body["metadata"].get("deletionTimestamp"):
            return COLLECTED
        found = {item["type"]: item for item in body.get("status", {}).get("conditions", [])}
        return found.get("Accepted") or found.get("CandidatesResolved") or {}

    def held(self, resource: str, name: str) -> bool:
        """Whether the operator's finalizer is on a job. Others may be on it too."""
        path = f"/{API_GROUP}/namespaces/{self._rig.namespace}/{resource}/{name}"
        answer = self._client.rest_client.pool_manager.request("GET", self._client.configuration.host + path)
        finalizers = wire.job(answer.data)["metadata"].get("finalizers", []) if answer.status == 200 else []
        return names.FINALIZER_TEARDOWN in finalizers


def manifests(rig: Rig) -> list[Json]:
    """Valid jobs of both kinds.

    They are suspended, because the test is about the operator and not the node.
    """
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    }
    more: Json = {
        "suspend": True,
        "agent": {"builtin": {"maxTurns": 4}},
        "reward": {"range": [0, 1]},
        "activeDeadlineSeconds": 3600,
        "rollout": {
            "replicas": 1,
            "podTemplate": template,
            "resources": {"limits": {"memory": "1Gi", "cpu": 1}},
        },
    }
    training = rig.job("x", **more, learner={"nodes": 1, "podTemplate": template}, schedule={"maxSteps": 3})
    evaluation = rig.evaluations.job("x", **more)
    for body in (training, evaluation):
        body["spec"]["environment"]["config"] = {"limits": {"a": [1, 2, {"b": None}]}, "name": "x"}
        endpoint = {"url": "https://judge.example.org/v1", "model": "m"}
        body["spec"]["judges"] = [{"name": "strict", "endpoint": endpoint, "secretRef": {"name": "judge"}}]
    training["spec"]["environment"]["contract"] = CONTRACT
    sandbox = {"deadlineSeconds": 3600, "podTemplate": template}
    suite = {"name": "s", "image": "i:1", "task": "a/b", "limit": 2, "sandbox": sandbox}
    evaluation["spec"]["suites"] = [{**suite, "args": {"level": [1, {"b": None}]}}]
    return [training, evaluation]


@pytest.fixture
def neighbour(rig: Rig) -> Iterator[Rig]:
    """An operator, and somebody else's job that it manages."""
    rig.start()
    wait("a leader", rig.leads, explain=rig.log)
    rig.apply("neighbour", suspend=True)
    wait("the neighbour", lambda: rig.condition("neighbour", "Accepted"), explain=rig.log)
    return rig


@pytest.fixture
def calm(cluster: Cluster, tmp_path: Path) -> Iterator[Rig]:
    """A second operator, with one job and no mutations."""
    rig = Rig(cluster, f"calm-{uuid.uuid4().hex[:6]}", tmp_path)
    try:
        rig.prepare()
        rig.start()
        wait("a leader", rig.leads, explain=rig.log)
        rig.apply("neighbour", suspend=True)
        wait("the calm job", lambda: rig.condition("neighbour", "Accepted"), explain=rig.log)
        yield rig
    finally:
        rig.clean()
        rig.remove()


def seen_after(rig: Rig, change: int) -> float:
    """Seconds until the operator has seen a change of the neighbour."""
    begun = time.monotonic()
    rig.patch("neighbour", {"rollout": {"replicas": 1 + change % 2}})
    generation = rig.get("neighbour")["metadata"]["generation"]
    wait(
        "the neighbour's change to be seen",
        lambda: rig.get("neighbour")["status"].get("observedGeneration") == generation,
        deadline=FAR_TOO_LATE_SECONDS,
        explain=rig.log,
    )
    return time.monotonic() - begun


def is_late(waited: float, control: float) -> bool:
    """Whether a neighbour waited too long, if a job without mutations waited `control` seconds."""
    return waited > LATE_SECONDS * max(1.0, control / CALM_SECONDS)


@pytest.mark.parametrize(
    ("waited", "control", "late"), [(4.9, 0.1, False), (5.1, 0.5, True), (19, 2, False), (21, 2, True)]
)
def test_a_slow_machine_does_not_make_a_neighbour_late(waited: float, control: float, late: bool) -> None:
    assert is_late(waited, control) is late


def explains(refusal: Json) -> bool:
    """Whether a refusal names the field, or the place in the text where the error is."""
    causes = (refusal.get("details") or {}).get("causes") or []
    text = str(refusal.get("message", ""))
    named = any(cause.get("field") for cause in causes) or FIELD.search(text) is not None
    return bool(text) and (named or "json" in text.lower() or "decod" in text or "too large" in text)


def judged(rig: Rig, writer: Writer, body: Json, text: str) -> str:
    """What is wrong with how the operator handled a job that the API server accepted, or an empty text.

    Args:
        body: the job before it was mutated.
        text: the mutated job as it was sent.
    """
    resource, name = names.PLURALS[body["kind"]], body["metadata"]["name"]
    orphan = '"ownerReferences"' in text
    condition = wait(
        f"the operator to judge {name}",
        lambda: writer.first_condition(resource, name, orphan=orphan),
        explain=rig.log,
    )
    if condition["status"] == "True" or condition["type"] != "Accepted":
        return ""
    message = condition["message"]
    return "" if FIELD.search(message) and len(message) > 12 else f"a refusal that names no field: {message}"


def test_no_mutation_harms_the_operator_or_a_neighbour(neighbour: Rig, calm: Rig) -> None:
    print(f"HOSTILE_SEED={SEED} HOSTILE_COUNT={COUNT}")
    chance, valid, writer = random.Random(SEED), manifests(neighbour), Writer(neighbour)
    process = neighbour._processes[-1]
    waits: list[tuple[float, float]] = []
    """Seconds that the neighbour waited, and seconds that the job without mutations waited."""
    taken: list[tuple[Json, str]] = []
    refused = accepted = 0
    for number in range(COUNT):
        base = json.loads(json.dumps(chance.choice(valid)))
        base["metadata"]["name"] = f"m{number}"
        text = mutated(chance, base)
        where = f"HOSTILE_SEED={SEED}, mutation {number}: {text[:2000]}"
        try:
            code, answer = writer.send("POST", names.PLURALS[base["kind"]], text=text)
        except HTTPError as error:
            pytest.fail(f"{where}: no answer: {error}")
        assert code < 500 or "etcdserver: request is too large" in str(answer), f"{where}: {answer}"
        if code >= 400:
            refused += 1
            assert explains(answer), f"{where}: {answer}"
        else:
            accepted += 1
            taken.append((base, text))
        if number % TOGETHER == TOGETHER - 1 or number == COUNT - 1:
            with ThreadPoolExecutor(2) as pool:
                waits.append(tuple(pool.map(seen_after, (neighbour, calm), [number // TOGETHER] * 2)))
            for body, sent in taken:
                wrong = judged(neighbour, writer, body, sent)
                assert not wrong, f"HOSTILE_SEED={SEED}, {body['metadata']['name']}: {wrong}"
            _assert_well(neighbour, process)
            _remove(neighbour, writer, [body for body, _ in taken])
            taken = []
    late = [(round(waited, 1), round(control, 1)) for waited, control in waits if is_late(waited, control)]
    maximum, control = max(waits)
    print(f"{refused} refused, {accepted} taken")
    print(f"a neighbour waited {maximum:.1f} s at most, and then a job without mutations {control:.1f} s")
    assert not late, f"HOSTILE_SEED={SEED}: seconds that the neighbour waited, and without mutations: {late}"
    assert refused
    assert accepted


def _assert_well(rig: Rig, process: subprocess.Popen[bytes]) -> None:
    where = f"HOSTILE_SEED={SEED}"
    assert process.poll() is None, f"{where}: the operator died: {rig.log()[-3000:]}"
    assert rig.metric('headway_operator_reconcile_errors_total{reason="Bug"}') == 0, (
        f"{where}: {rig.log()[-3000:]}"
    )


def _remove(rig: Rig, writer: Writer, bodies: list[Json]) -> None:
    jobs = [(names.PLURALS[body["kind"]], body["metadata"]["name"]) for body in bodies]
    for resource, name in jobs:
        writer.send("DELETE", resource, name)
    for resource, name in jobs:
        wait(f"{name} to be let go", lambda r=resource, n=name: not writer.held(r, n), explain=rig.log)
        writer.send("PATCH", resource, name, '{"metadata":{"finalizers":null}}')
