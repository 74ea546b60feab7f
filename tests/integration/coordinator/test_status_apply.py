"""The coordinator's part of `.status`, applied to a real API server beside another writer's part."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client, config

from headway_api import names
from headway_api.conditions import Condition, ConditionType, Reason, condition
from headway_api.config import JobConfig
from headway_api.crd import definitions
from headway_api.status import (
    Remediation,
    RemedyMeasurements,
    RemedyOrder,
    RLTrainingJobStatus,
    TrainingProgress,
    Usage,
)
from headway_coordinator import projections
from headway_coordinator.status import Sink, previous_status, sink_of
from headway_coordinator.stored_job import KubernetesJob

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.integration

JOB: dict[str, Any] = {
    "apiVersion": "headway.dev/v1alpha1",
    "kind": "RLTrainingJob",
    "metadata": {"name": "reported"},
    "spec": {
        "managedBy": "example.com/nobody",
        "model": {"base": "s3://b/m"},
        "data": {"train": {"uri": "s3://b/t.jsonl"}, "validation": {"uri": "s3://b/v.jsonl"}},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "output": {"uri": "s3://b/o"},
    },
}


@pytest.fixture
def job(cluster: Cluster, namespace: str) -> JobConfig:
    cluster.apply(*[crd for crd in definitions() if crd["spec"]["names"]["kind"] == "RLTrainingJob"])
    crd = "crd/rltrainingjobs.headway.dev"
    cluster.kubectl("wait", "--for=condition=Established", crd, "--timeout=60s")
    made = cluster.kubectl("create", "-n", namespace, "-o", "json", "-f", "-", input=json.dumps(JOB))
    created = json.loads(made)
    identity = {"name": "reported", "namespace": namespace, "uid": created["metadata"]["uid"]}
    return JobConfig.model_validate(identity | {"spec": created["spec"]})


def api(cluster: Cluster) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(config.new_client_from_config(str(cluster.kubeconfig)))


def sink_at(cluster: Cluster, job: JobConfig) -> Sink:
    return sink_of(KubernetesJob(job, api(cluster)))


def found(cluster: Cluster, job: JobConfig) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(
        cluster.kubectl("get", "rltj", job.name, "-n", job.namespace, "-o", "json")
    )["status"]
    return status


def test_each_writer_keeps_its_own_fields(cluster: Cluster, job: JobConfig) -> None:
    sink = sink_at(cluster, job)
    sink(RLTrainingJobStatus(progress=TrainingProgress(step=1), usage=Usage(sample_tokens=5)).as_object())
    patch = {"status": {"state": "Training", "observedGeneration": 1}}
    cluster.kubectl(
        "patch",
        "rltj",
        job.name,
        "-n",
        job.namespace,
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps(patch),
    )
    sink(RLTrainingJobStatus(progress=TrainingProgress(step=2)).as_object())
    status = found(cluster, job)
    assert (status["state"], status["progress"]["step"]) == ("Training", 2)
    assert "usage" not in status, "what a writer no longer sends is gone"


def apply_by_operator(cluster: Cluster, job: JobConfig, *conditions: Condition) -> None:
    """Apply the operator's part of the status by force, as the operator does."""
    document = {
        "apiVersion": names.API_VERSION,
        "kind": "RLTrainingJob",
        "metadata": {"name": job.name},
        "status": RLTrainingJobStatus(conditions=list(conditions)).as_object(),
    }
    cluster.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--subresource=status",
        f"--field-manager={names.FIELD_MANAGER_OPERATOR}",
        "-n",
        job.namespace,
        "-f",
        "-",
        input=json.dumps(document),
    )


def test_each_writer_keeps_its_own_conditions(cluster: Cluster, job: JobConfig) -> None:
    synced = condition(ConditionType.WEIGHTS_IN_SYNC, True, Reason.SYNCED, "as wanted")
    sink = sink_at(cluster, job)
    sink(RLTrainingJobStatus(conditions=[synced]).as_object())

    def by_operator(ready: bool) -> None:
        apply_by_operator(cluster, job, condition(ConditionType.READY, ready, Reason.RUNNING, generation=1))

    def statuses() -> dict[str, str]:
        return {known["type"]: known["status"] for known in found(cluster, job)["conditions"]}

    by_operator(ready=False)
    assert statuses() == {"WeightsInSync": "True", "Ready": "False"}
    failed = condition(ConditionType.WEIGHTS_IN_SYNC, False, Reason.VERIFICATION_FAILED, "canary off by 3.1")
    sink(RLTrainingJobStatus(conditions=[failed]).as_object())
    by_operator(ready=True)
    assert statuses() == {"WeightsInSync": "False", "Ready": "True"}


def test_the_operator_reports_for_a_coordinator_that_is_gone(cluster: Cluster, job: JobConfig) -> None:
    kind, sink = ConditionType.WEIGHTS_IN_SYNC, sink_at(cluster, job)
    ready = condition(ConditionType.READY, False, Reason.RECONCILING, generation=1)

    def weights() -> dict[str, Any]:
        conditions = found(cluster, job)["conditions"]
        return next(known for known in conditions if known["type"] == kind)

    sink(RLTrainingJobStatus(conditions=[condition(kind, True, Reason.SYNCED, "as wanted")]).as_object())
    for reason in (Reason.SUSPENDED, Reason.RESUMED):
        apply_by_operator(cluster, job, ready, condition(kind, None, reason, generation=1))
        assert (weights()["status"], weights()["reason"]) == ("Unknown", reason)
    sink(RLTrainingJobStatus(conditions=[condition(kind, None, Reason.PENDING)]).as_object())
    apply_by_operator(cluster, job, ready)
    assert (weights()["status"], weights()["reason"]) == ("Unknown", "Pending")
    assert "observedGeneration" not in weights(), "it was the operator's"
    sink(RLTrainingJobStatus(conditions=[condition(kind, True, Reason.SYNCED)]).as_object())
    apply_by_operator(cluster, job, ready)
    assert (weights()["status"], weights()["reason"]) == ("True", "Synced")


def test_a_successor_reads_the_status_with_patch_rights_alone(cluster: Cluster, job: JobConfig) -> None:
    server = api(cluster)
    assert previous_status(KubernetesJob(job, server)).conditions == []
    synced = condition(ConditionType.WEIGHTS_IN_SYNC, True, Reason.SYNCED, "as wanted")
    sink_of(KubernetesJob(job, server))(RLTrainingJobStatus(conditions=[synced]).as_object())
    before = cluster.kubectl(
        "get", "rltj", job.name, "-n", job.namespace, "-o", "jsonpath={.metadata.resourceVersion}"
    )
    assert previous_status(KubernetesJob(job, server)).conditions == [synced]
    after = cluster.kubectl(
        "get", "rltj", job.name, "-n", job.namespace, "-o", "jsonpath={.metadata.resourceVersion}"
    )
    assert after == before, "reading changes nothing"


def test_an_order_is_read_and_a_successor_finds_its_answer(cluster: Cluster, job: JobConfig) -> None:
    server = api(cluster)
    sink = sink_of(KubernetesJob(job, server))
    assert sink(RLTrainingJobStatus().as_object()).remedy is None  # type: ignore[union-attr]
    order = f"{names.ANNOTATION_REMEDY}=OnPolicy@2"
    cluster.kubectl("annotate", "rltj", job.name, "-n", job.namespace, order)
    taken = RLTrainingJobStatus(
        algorithm=projections.algorithm(job.spec),
        remediations=[
            Remediation(
                number=1,
                step=3,
                remedy="OnPolicy",
                order="OnPolicy@2",
                action="maxStepsOffPolicy 3 -> 0",
                state="Watching",
                before=RemedyMeasurements(reward="0.03 (0.02 to 0.04)", steps=10),
            )
        ],
        remedy_order=RemedyOrder(order="OnPolicy@2", state="Taken", step=3),
    )
    heard = sink(taken.as_object())
    assert heard is not None
    assert heard.remedy == "OnPolicy@2"
    known = previous_status(KubernetesJob(job, server))
    assert known == taken
    status = found(cluster, job)
    assert (status["remedyOrder"]["state"], status["remediations"][0]["remedy"]) == ("Taken", "OnPolicy")
