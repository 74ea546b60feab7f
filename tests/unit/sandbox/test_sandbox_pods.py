"""The sandbox pod: what no pod template can change, and what the pod's status means."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway_api import names
from headway_api.config import EvalConfig, JobConfig
from headway_api.pod_template import SIDECAR_RESOURCES
from headway_sandbox.broker import __main__ as broker
from headway_sandbox.broker import pods

PLATFORM = pods.Platform({}, {"requests": {"cpu": "10m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}, [])


def job(agent: dict[str, Any] | None = None, **sandbox: Any) -> pods.SandboxKind:
    spec = {
        "agent": agent or {},
        "model": {"base": "s3://bucket/model"},
        "data": {"train": {"uri": "s3://bucket/train.jsonl"}},
        "evaluation": {"everySteps": 0, "atStart": False},
        "environment": {
            "image": "registry/env:1",
            "entrypoint": "env:Desk",
            "config": {"strict": True},
            "sandbox": sandbox,
        },
        "output": {"uri": "s3://bucket/out"},
    }
    of = {"name": "refunds", "namespace": "team", "uid": "u-1", "spec": spec}
    return pods.SandboxKind(JobConfig.model_validate(of))


LOOSE = {
    "metadata": {"labels": {names.LABEL_JOB_UID: "another", "team": "rl"}},
    "spec": {
        "hostNetwork": True,
        "hostPID": True,
        "automountServiceAccountToken": True,
        "serviceAccountName": "admin",
        "serviceAccount": "admin",
        "restartPolicy": "Always",
        "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "Unconfined"}},
        "nodeSelector": {"pool": "cpu"},
        "containers": [{"name": names.SANDBOX, "securityContext": {"privileged": True, "runAsUser": 0}}],
        "initContainers": [{"name": "extra", "image": "x", "securityContext": {"privileged": True}}],
    },
}


@pytest.mark.parametrize("where", ["job", "platform"])
def test_no_template_loosens_the_isolation(where: str) -> None:
    platform = PLATFORM if where == "job" else pods.Platform(LOOSE, PLATFORM.resources, [])
    pod = pods.manifest(job(podTemplate=LOOSE) if where == "job" else job(), platform, "refunds-sandbox-1")
    spec = pod["spec"]
    assert (
        pod["metadata"]["labels"] | names.job_labels("RLTrainingJob", "refunds", "u-1", names.SANDBOX)
        == pod["metadata"]["labels"]
    )
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert spec["nodeSelector"] == {"pool": "cpu"}
    assert not any(spec[name] for name in ("hostNetwork", "hostPID", "hostIPC"))
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "refunds-sandbox"
    assert "serviceAccount" not in spec
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] != 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["containers"], *spec["initContainers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


def test_sandbox_templates_are_merged_as_those_of_other_roles() -> None:
    def layer(value: Any, key: str) -> dict[str, Any]:
        container = {"name": names.SANDBOX, "env": [{"name": "PLACE"} | value]}
        return {"spec": {"tolerations": [{"key": key}], "containers": [container], "schedulerName": key}}

    mine = layer({"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, "job")
    mine["spec"]["schedulerName"] = None
    platform = pods.Platform(layer({"value": "here"}, "platform"), PLATFORM.resources, [])
    spec = pods.manifest(job(podTemplate=mine), platform, "p")["spec"]
    assert spec["tolerations"] == [{"key": "platform"}, {"key": "job"}]
    assert "schedulerName" not in spec
    [place] = [entry for entry in spec["containers"][0]["env"] if entry["name"] == "PLACE"]
    assert "value" not in place, "value and valueFrom exclude one another"
    assert len(spec["containers"][0]["env"]) == 3


def test_a_plain_pod_has_one_container_no_volumes_and_a_deadline() -> None:
    pod = pods.manifest(job(runtimeClassName="gvisor", deadlineSeconds=700), PLATFORM, "p")
    spec = pod["spec"]
    assert len(spec["containers"]) == 1
    assert "volumes" not in spec
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["activeDeadlineSeconds"] == 700 + pods.IDLE_SECONDS
    assert {e["name"]: e["value"] for e in spec["containers"][0]["env"]} == {
        names.ENV_ENTRYPOINT: "env:Desk",
        names.ENV_ENVIRONMENT_CONFIG: '{"strict": true}',
    }
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RLTrainingJob", "refunds", "u-1")


SANDBOXED = {"sandboxed": {"command": ["agent"]}}


def containers(pod: dict[str, Any]) -> dict[str, Any]:
    return {container["name"]: container for container in pod["spec"]["containers"]}


@pytest.mark.parametrize(
    "kind",
    [
        lambda: job(SANDBOXED, resources={"limits": {"ephemeral-storage": "1Gi"}}),
        lambda: job(runsCode=True, resources={"limits": {"ephemeral-storage": "1Gi"}}),
    ],
)
def test_the_models_code_runs_in_its_own_container(kind: Any) -> None:
    pod = pods.manifest(kind(), PLATFORM, "p")
    found = containers(pod)
    assert list(found) == [names.SANDBOX, names.RUNNER], "logs and exec take the first"
    server, runner = found.values()
    assert runner["image"] == server["image"]
    assert runner["securityContext"]["runAsUser"] == runner["securityContext"]["runAsGroup"] == 65533
    assert "runAsUser" not in server["securityContext"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 65532
    assert pod["spec"]["shareProcessNamespace"] is False
    assert [entry["name"] for entry in runner["env"]] == [names.ENV_RUNNER], "nothing of the server's"
    assert {"name": names.ENV_RUNNER, "value": names.RUNNER_SOCKET} in server["env"]
    assert names.RUNNER_SOCKET.startswith(f"{names.RUNNER_DIR}/")
    assert runner["resources"]["limits"] == server["resources"]["limits"]


def test_the_models_code_can_write_to_one_folder_only() -> None:
    mine = {"volumes": [{"name": "data", "configMap": {"name": "data"}}]}
    given = {"resources": {"limits": {"ephemeral-storage": "1Gi"}}, "podTemplate": {"spec": mine}}
    pod = pods.manifest(job(SANDBOXED, **given), PLATFORM, "p")
    volumes = {volume.pop("name"): volume for volume in pod["spec"]["volumes"]}
    assert volumes == {
        pods.AGENT_VOLUME: {"emptyDir": {"sizeLimit": "1Gi"}},
        pods.RUNNER_VOLUME: {"emptyDir": {"sizeLimit": "1Mi"}},
        "data": {"configMap": {"name": "data"}},
    }
    server, runner = containers(pod).values()
    at = {"name": pods.RUNNER_VOLUME, "mountPath": names.RUNNER_DIR}
    assert server["volumeMounts"] == [at]
    assert runner["volumeMounts"] == [
        {"name": pods.AGENT_VOLUME, "mountPath": names.EPISODE_DIR},
        {**at, "readOnly": True},
    ]
    assert names.EPISODE_FILE.startswith(f"{names.EPISODE_DIR}/")
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in (server, runner))


def test_no_template_ends_the_runners_isolation() -> None:
    loose = {
        "shareProcessNamespace": True,
        "containers": [{"name": names.RUNNER, "securityContext": {"runAsUser": 65532}}],
    }
    pod = pods.manifest(job(runsCode=True, podTemplate={"spec": loose}), PLATFORM, "p")
    assert pod["spec"]["shareProcessNamespace"] is False
    assert containers(pod)[names.RUNNER]["securityContext"]["runAsUser"] == 65533


def test_a_servers_end_explains_the_pod_not_its_runners() -> None:
    """The kubelet lists containers by name, so the runner comes first, but its end explains nothing."""
    message = '{"reason":"EnvironmentNotImportable","field":"spec.environment.entrypoint","message":"no env"}'
    statuses = [
        {"name": names.RUNNER, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
        {"name": names.SANDBOX, "state": {"terminated": {"exitCode": 42, "message": message}}},
    ]
    problem = pods.problem_of({"status": {"phase": "Failed", "containerStatuses": statuses}})
    assert problem is not None
    assert (problem.reason, problem.permanent) == ("EnvironmentNotImportable", True)


def test_a_jobs_own_resources_are_requests_and_limits_alike() -> None:
    given = {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"}}
    pod = pods.manifest(job(resources=given), PLATFORM, "p")
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources == {"requests": given["limits"], "limits": given["limits"]}


def test_a_job_may_ask_for_less_than_its_limit() -> None:
    given = {"requests": {"cpu": "50m"}, "limits": {"cpu": "1", "memory": "256Mi"}}
    resources = pods.manifest(job(resources=given), PLATFORM, "p")["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("50m", "1")
    assert resources["requests"]["memory"] == "256Mi"


def test_the_platforms_resources_always_bound_memory_and_storage() -> None:
    limits = pods.manifest(job(), PLATFORM, "p")["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": pods.EPHEMERAL_STORAGE}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_container_that_a_template_adds_is_bounded_too(kind: str) -> None:
    asked = {"limits": {"cpu": "1", "memory": "1Gi"}}
    added = [{"name": "extra", "image": "x"}, {"name": "big", "image": "x", "resources": asked}]
    made = pods.manifest(job(podTemplate={"spec": {kind: added}}), PLATFORM, "p")["spec"]
    found = {container["name"]: container["resources"] for container in made[kind]}
    assert found["extra"] == SIDECAR_RESOURCES
    assert found["big"] == asked


def terminated(**state: Any) -> dict[str, Any]:
    return {"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": state}}]}}


def test_an_unimportable_environment_is_a_permanent_problem() -> None:
    message = '{"reason":"EnvironmentNotImportable","field":"spec.environment.entrypoint","message":"no env"}'
    problem = pods.problem_of(terminated(exitCode=42, message=message))
    assert problem is not None
    assert (problem.reason, problem.field) == ("EnvironmentNotImportable", "spec.environment.entrypoint")
    assert problem.permanent


def test_an_oom_killed_sandbox_is_named_and_retriable() -> None:
    problem = pods.problem_of(terminated(exitCode=137, reason="OOMKilled"))
    assert problem is not None
    assert "OOMKilled" in problem.message
    assert not problem.permanent


@pytest.mark.parametrize(
    ("ended", "by_image"),
    [
        ({"exitCode": 1, "message": "No module named headway_sandbox"}, True),
        ({"exitCode": 128, "reason": "StartError", "message": 'exec: "python3": not found in $PATH'}, True),
        ({"exitCode": 137, "reason": "OOMKilled"}, False),
        ({"exitCode": 143}, False),
        ({"exitCode": 0}, False),
        ({"exitCode": 42, "message": '{"reason": "EnvironmentNotImportable", "message": "x"}'}, False),
    ],
)
def test_an_image_that_cannot_run_the_server_is_not_a_kill(ended: Any, by_image: bool) -> None:
    assert pods.failed_by_image(terminated(**ended)) is by_image


def test_the_last_output_of_a_failing_image_is_reported() -> None:
    problem = pods.problem_of(terminated(exitCode=1, message="No module named headway_sandbox\n"))
    assert problem is not None
    assert problem.message.endswith("before its episode did: No module named headway_sandbox")
    given_up = pods.repeated_failure(problem)
    assert (given_up.permanent, given_up.field) == (True, "spec.environment.image")
    assert "No module named headway_sandbox; build it on" in given_up.message


def test_messages_of_kubelet_and_scheduler_are_passed_on() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pulled = pods.problem_of({"status": {"phase": "Pending", "containerStatuses": [{"state": waiting}]}})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    placed = pods.problem_of({"status": {"phase": "Pending", "conditions": [condition]}})
    assert pulled is not None and placed is not None  # noqa: PT018
    assert (pulled.reason, pulled.message, pulled.field) == (
        "ImagePullBackOff",
        "no such image",
        "spec.environment.image",
    )
    assert (placed.reason, placed.message) == ("Unschedulable", "0/1 nodes")


def test_a_starting_pod_is_not_a_problem() -> None:
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    assert (
        pods.problem_of({"status": {"phase": "Pending", "containerStatuses": [{"state": waiting}]}}) is None
    )
    assert pods.problem_of({"status": {"phase": "Pending"}}) is None


def test_urls_of_ipv4_and_ipv6_addresses() -> None:
    assert pods.url_of("10.0.0.1") == "http://10.0.0.1:8080"
    assert pods.url_of("fd00::1") == "http://[fd00::1]:8080"


def evaluation(folder: Path, **changes: Any) -> dict[str, str]:
    """Environment variables of an evaluation's broker."""
    spec = {
        "candidates": [{"name": "base", "model": {"base": "s3://bucket/model"}}],
        "data": {"uri": "s3://bucket/test.jsonl"},
        "environment": {"image": "registry/env:1", "entrypoint": "env:Desk"},
        "rollout": {"maxConcurrency": 7},
        "output": {"uri": "s3://bucket/out"},
    } | changes
    written = {"kind": "RLEvalJob", "name": "refunds", "namespace": "team", "uid": "u-2", "spec": spec}
    (folder / "job.json").write_text(json.dumps(written | {"candidates": []}))
    platform = {"template": LOOSE, "resources": {}, "imagePullSecrets": []}
    (folder / "sandbox-template.json").write_text(json.dumps(platform))
    return {names.ENV_CONFIG: str(folder / "job.json")}


def test_the_broker_serves_an_evaluation_too(tmp_path: Path) -> None:
    """The evaluation's sandboxes have labels of its kind, never those of a training job."""
    kind, share = broker.load(evaluation(tmp_path))
    assert isinstance(kind.config, EvalConfig)
    assert broker.limits(kind).maximum == 7
    pod = pods.manifest(kind, share, "refunds-eval-sandbox-1")
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RLEvalJob", "refunds", "u-2")
    assert pod["metadata"]["labels"][names.LABEL_JOB_KIND] == "RLEvalJob"
    assert pod["spec"]["serviceAccountName"] == "refunds-eval-sandbox"


@pytest.mark.parametrize("runs_code", [False, True])
def test_a_sandbox_holds_no_key_of_its_job(runs_code: bool) -> None:
    spec = pods.manifest(job(runsCode=runs_code), PLATFORM, "refunds-sandbox-1")["spec"]
    sources = {key for volume in spec.get("volumes", []) for key in volume}
    assert sources <= {"name", "emptyDir"}
    assert [c["name"] for c in spec["containers"]] == ["sandbox", "runner"][: 1 + runs_code]
    text = json.dumps(spec["containers"])
    assert "secretKeyRef" not in text
    assert "envFrom" not in text
    assert names.KEYS_DIR not in text


SUITE = {
    "name": "sums",
    "image": "registry/suite:1",
    "imagePullPolicy": "Always",
    "task": "arithmetic.py@arithmetic",
    "args": {"maximum": 20},
    "limit": 5,
    "sandbox": {"warmPool": {"min": 1, "max": 3}, "deadlineSeconds": 950},
}


def test_a_suites_broker_hands_out_only_pods_of_that_suite(tmp_path: Path) -> None:
    variables = evaluation(tmp_path, suites=[SUITE])
    own, share = broker.load(variables)
    kind, _ = broker.load(variables | {names.ENV_SUITE: "sums"})
    assert (broker.limits(kind).minimum, broker.limits(kind).maximum) == (1, 3)
    pod = pods.manifest(kind, share, "p")
    container = containers(pod)[names.SANDBOX]
    env = {item["name"]: item["value"] for item in container["env"]}
    assert (container["image"], container["imagePullPolicy"]) == ("registry/suite:1", "Always")
    assert env[names.ENV_ENTRYPOINT] == "headway_sandbox.suites.environment:InspectSample"
    config = {"task": "arithmetic.py@arithmetic", "args": {"maximum": 20}}
    assert json.loads(env[names.ENV_ENVIRONMENT_CONFIG]) == config
    assert {"name": pods.AGENT_VOLUME, "mountPath": names.EPISODE_DIR} in containers(pod)[names.RUNNER][
        "volumeMounts"
    ]
    assert pod["spec"]["dnsPolicy"] == "None"
    assert pod["metadata"]["labels"][names.LABEL_SUITE] == "sums"
    assert pods.selector(kind).endswith(f",{names.LABEL_SUITE}=sums")
    assert pods.selector(own).endswith(f",!{names.LABEL_SUITE}")


def test_no_template_makes_a_sandbox_one_of_a_suite() -> None:
    """With a suite's label, a sandbox would be lost to its own broker, and could reach the gateway."""
    template = {"metadata": {"labels": {names.LABEL_SUITE: "sums", "team": "rl"}}}
    labels = pods.manifest(job(podTemplate=template), PLATFORM, "p")["metadata"]["labels"]
    assert names.LABEL_SUITE not in labels
    assert labels["team"] == "rl"


def tries(kind: pods.SandboxKind, number: int) -> bool:
    """Whether the broker's pod with this number tests at its start which destinations it reaches."""
    [container] = pods.manifest(kind, PLATFORM, "p", number)["spec"]["containers"]
    return {"name": names.ENV_REACH, "value": "1"} in container["env"]


def test_the_first_pods_probe_the_network_for_the_preflight() -> None:
    assert [tries(job(), number) for number in (0, 1, 8, 9)] == [False, True, True, False]
    config = job().config
    assert isinstance(config, JobConfig)
    for preflight in ({"episodes": 0}, {"checks": {"isolated": "Off"}}):
        spec = config.spec.as_object() | {"preflight": preflight}
        other = pods.SandboxKind(JobConfig.model_validate(config.model_dump() | {"spec": spec}))
        assert not tries(other, 1)
