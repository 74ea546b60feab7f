"""Pod templates: what a job's own template may not contain, and what applies whatever it contains."""

from __future__ import annotations

from typing import Any

import pytest
from observed_cluster import PLATFORM, job

from headway_api.document import Json
from headway_api.spec.training import RLTrainingJob
from headway_operator.plan import admission
from headway_operator.plan.context import Context
from headway_operator.plan.reading import SpecRefusal, parse
from headway_operator.plan.template import harden

SANDBOX = "spec.environment.sandbox.podTemplate"
LEARNER = "spec.learner.podTemplate"
ROLLOUT = "spec.rollout.podTemplate"


def refused(field: str, fragment: Any) -> list[str]:
    """The refusals of a job whose pod template for this role is the fragment."""
    environment = {"image": "i", "entrypoint": "a:B"}
    spec = {
        SANDBOX: {"environment": environment | {"sandbox": {"podTemplate": fragment}}},
        LEARNER: {"learner": {"podTemplate": fragment}},
        ROLLOUT: {"rollout": {"podTemplate": fragment}},
    }[field]
    found = parse(RLTrainingJob, job(**spec))
    assert not isinstance(found, SpecRefusal), found
    return admission.of_training(Context(found, PLATFORM))


def pod(**spec: Any) -> Json:
    return {"spec": spec}


def volume(**source: Any) -> Json:
    return pod(volumes=[{"name": "fine", "emptyDir": {}}, {"name": "data"} | source])


def container(**fields: Any) -> Json:
    return pod(containers=[{"name": "sandbox"} | fields])


CLAIM = {"claimName": "c"}
KEY = {"name": "keys", "key": "k"}
CREDENTIALS = [
    (volume(secret={"secretName": "keys"}), "volumes[1].secret"),
    (volume(csi={"driver": "secrets-store.csi.k8s.io"}), "volumes[1].csi"),
    (volume(persistentVolumeClaim=CLAIM), "volumes[1].persistentVolumeClaim"),
    (volume(ephemeral={"volumeClaimTemplate": {}}), "volumes[1].ephemeral"),
    (
        container(env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": KEY}}]),
        "containers[0].env[1].valueFrom.secretKeyRef",
    ),
    (container(envFrom=[{"secretRef": {"name": "keys"}}]), "containers[0].envFrom[0].secretRef"),
    (
        pod(initContainers=[{"name": "i", "envFrom": [{"prefix": "A", "secretRef": {"name": "keys"}}]}]),
        "initContainers[0].envFrom[0].secretRef",
    ),
]
NEVER = [
    (volume(hostPath={"path": "/"}), "volumes[1].hostPath"),
    (volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}), "volumes[1].projected"),
    (volume(projected={"sources": [{"secret": {"name": "keys"}}]}), "volumes[1].projected"),
    (container(ports=[{"containerPort": 1, "hostPort": 1}]), "containers[0].ports[0].hostPort"),
    (
        pod(initContainers=[{"name": "i", "ports": [{"containerPort": 1, "hostIP": "0.0.0.0"}]}]),
        "initContainers[0].ports[0].hostIP",
    ),
    *(
        (pod(**{field: value}), field)
        for field, value in {
            "serviceAccountName": "admin",
            "serviceAccount": "admin",
            "automountServiceAccountToken": True,
            "hostNetwork": True,
            "hostPID": True,
            "hostIPC": True,
            "hostUsers": True,
            "shareProcessNamespace": True,
            "nodeName": "n1",
            "securityContext": {"runAsUser": 0},
            "ephemeralContainers": [],
        }.items()
    ),
]


HOST = {"host": "169.254.169.254", "port": 80}
BEYOND = [
    (
        container(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "containers[0].securityContext.seccompProfile.type",
    ),
    (container(livenessProbe={"httpGet": HOST}), "containers[0].livenessProbe.httpGet.host"),
    (container(readinessProbe={"tcpSocket": HOST}), "containers[0].readinessProbe.tcpSocket.host"),
    (container(startupProbe={"httpGet": HOST}), "containers[0].startupProbe.httpGet.host"),
    (
        container(lifecycle={"postStart": {"httpGet": HOST}}),
        "containers[0].lifecycle.postStart.httpGet.host",
    ),
    (
        pod(initContainers=[{"name": "i", "lifecycle": {"preStop": {"tcpSocket": HOST}}}]),
        "initContainers[0].lifecycle.preStop.tcpSocket.host",
    ),
    (
        container(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        "containers[0].securityContext.appArmorProfile",
    ),
    (container(securityContext={"procMount": "Unmasked"}), "containers[0].securityContext.procMount"),
    (container(securityContext={"privileged": True}), "containers[0].securityContext.privileged"),
    (container(stdin=True), "containers[0].stdin"),
    (container(fieldOfTheFuture={}), "containers[0].fieldOfTheFuture"),
    (pod(priorityClassName="system-node-critical"), "priorityClassName"),
    (pod(tolerations=[{"key": "a"}, {"operator": "Exists"}]), "tolerations[1]"),
    (pod(tolerations=[{"key": "node-role.kubernetes.io/control-plane"}]), "tolerations[0].key"),
]


@pytest.mark.parametrize(("fragment", "where"), BEYOND)
@pytest.mark.parametrize("field", [SANDBOX, LEARNER, ROLLOUT])
def test_a_field_that_acts_outside_the_pod_is_refused(field: str, fragment: Json, where: str) -> None:
    (text,) = refused(field, fragment)
    assert text.startswith((f"{field}.spec.{where} ", f"{field}.spec.{where}: "))
    assert any(words in text for words in ("ask for it", "leave it out", "name another", "write the key"))


@pytest.mark.parametrize(
    ("metadata", "label"),
    [
        ({"labels": {"headway.dev/server-set": "1"}}, "metadata.labels: headway.dev/server-set"),
        ({"annotations": {"headway.dev/resume": "x"}}, "metadata.annotations: headway.dev/resume"),
        (
            {"annotations": {"container.apparmor.security.beta.kubernetes.io/learner": "unconfined"}},
            "metadata.annotations: container.apparmor.security.beta.kubernetes.io/learner",
        ),
    ],
)
def test_labels_of_the_platform_are_refused(metadata: Json, label: str) -> None:
    for field in (SANDBOX, LEARNER, ROLLOUT):
        (text,) = refused(field, {"metadata": metadata})
        assert text.startswith(f"{field}.{label} may not be set in a job")
    assert refused(LEARNER, {"metadata": {"labels": {"team": "rl", "headway.development/x": "y"}}}) == []


@pytest.mark.parametrize(("fragment", "where"), CREDENTIALS)
def test_a_sandbox_is_given_no_credentials(fragment: Json, where: str) -> None:
    (text,) = refused(SANDBOX, fragment)
    assert text.startswith(f"{SANDBOX}.spec.{where} ")
    assert "holds no credentials" in text
    assert "use " in text or "give " in text, "what to do instead"


@pytest.mark.parametrize(("fragment", "where"), CREDENTIALS)
@pytest.mark.parametrize("field", [LEARNER, ROLLOUT])
def test_other_roles_may_have_credentials(field: str, fragment: Json, where: str) -> None:
    assert refused(field, fragment) == []


def test_a_learners_grace_period_may_be_set_in_one_place() -> None:
    grace = pod(terminationGracePeriodSeconds=900)
    (text,) = refused(LEARNER, grace)
    assert text == (
        f"{LEARNER}.spec.terminationGracePeriodSeconds may not be set here; use "
        "spec.learner.terminationGracePeriodSeconds"
    )
    assert refused(ROLLOUT, grace) == []


@pytest.mark.parametrize(("fragment", "where"), NEVER)
@pytest.mark.parametrize("field", [SANDBOX, LEARNER, ROLLOUT])
def test_a_field_that_reaches_beyond_the_pod_is_the_platforms(field: str, fragment: Json, where: str) -> None:
    (text,) = refused(field, fragment)
    assert text.startswith(f"{field}.spec.{where} ")
    ways_out = ("ask for it in the operator's roleTemplates", "leave it out", "use spec.serviceAccountName")
    assert text.endswith(ways_out)


@pytest.mark.parametrize(
    ("field", "instead"),
    [
        ("runtimeClassName", "spec.environment.sandbox.runtimeClassName"),
        ("activeDeadlineSeconds", "spec.environment.sandbox.deadlineSeconds"),
        ("dnsPolicy", "leave it out"),
        ("terminationGracePeriodSeconds", "leave it out"),
    ],
)
def test_a_refusal_names_the_sandbox_field_to_set_instead(field: str, instead: str) -> None:
    fragment = pod(**{field: 5})
    (text,) = refused(SANDBOX, fragment)
    assert text.startswith(f"{SANDBOX}.spec.{field} ")
    assert instead in text
    assert refused(ROLLOUT, fragment) == []


def test_a_sandbox_may_have_scratch_data_and_its_own_place() -> None:
    fragment = pod(
        nodeSelector={"pool": "sandboxes"},
        tolerations=[{"key": "pool", "operator": "Exists"}],
        priorityClassName="low",
        imagePullSecrets=[{"name": "registry"}],
        volumes=[
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "rules", "configMap": {"name": "rules"}},
            {"name": "self", "downwardAPI": {"items": []}},
            {"name": "data", "image": {"reference": "data:1"}},
        ],
        containers=[
            {
                "name": "sandbox",
                "ports": [{"containerPort": 9000}],
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"configMapKeyRef": KEY}},
                    {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "envFrom": [{"prefix": "A_", "configMapRef": {"name": "rules"}}],
            }
        ],
    )
    assert refused(SANDBOX, fragment) == []


def test_every_fault_of_a_template_is_named_at_once() -> None:
    both = pod(hostNetwork=True, volumes=[{"name": "s", "secret": {"secretName": "keys"}}])
    assert len(refused(SANDBOX, both)) == 2


@pytest.mark.parametrize(
    ("fragment", "where"),
    [
        ({"spec": None}, "spec"),
        ({"metadata": 3}, "metadata"),
        (pod(containers=None), "spec.containers"),
        (pod(volumes={"name": "a"}), "spec.volumes"),
        (pod(initContainers=["a"]), "spec.initContainers"),
        ({"status": {}}, "status"),
        ({"metadata": {"name": "a"}}, "metadata.name"),
        ({"metadata": {"labels": "a"}}, "metadata.labels"),
        ({"metadata": {"annotations": ["a"]}}, "metadata.annotations"),
    ],
)
def test_a_template_of_another_shape_is_refused_by_name(fragment: Json, where: str) -> None:
    for field in (SANDBOX, LEARNER):
        (text,) = refused(field, fragment)
        assert text.startswith(f"{field}.{where}: ")


@pytest.mark.parametrize("wrong", [None, "x", ["x"], 3])
def test_a_malformed_security_context_is_restricted_too(wrong: Any) -> None:
    held = harden(pod(containers=[{"name": "a", "securityContext": wrong}]), {}, "account")
    assert held["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
