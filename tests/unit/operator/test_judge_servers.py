"""How the planner handles servers of judges' models: when they start, who reaches them, their status."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from observed_cluster import PASSED, PLATFORM, UID, World, evaluating, job

from headway_api import judge_servers, names
from headway_api.config import JobConfig
from headway_api.document import Json
from headway_operator.config import Caps

ENDPOINT: Json = {"name": "frontier", "endpoint": {"url": "https://models.acme.dev/v1", "model": "large"}}
CLERK: Json = {"name": "clerk", "model": {"base": "s3://b/clerk", "replicas": 2, "tensorParallelSize": 4}}
STYLE: Json = {"name": "style", "model": {"base": "hf://acme/style", "resources": {"limits": {"cpu": "3"}}}}
JUDGES = [ENDPOINT, CLERK, STYLE]
SERVERS = {"refunds-judge-2", "refunds-judge-3"}
FIELDS = ("spec.judges[clerk].model", "spec.judges[style].model")


def checking(waits_for: str | None = None, judges: list[Json] | None = None, **spec: Any) -> World:
    """A job during its preflight, which may wait for one of its checks."""
    world = World(job(judges=judges or JUDGES, **spec))
    world.carry_out()
    world.body["status"]["preflight"] = {"state": "Running", "checks": []}
    if waits_for is not None:
        found = {"name": waits_for, "passed": False, "message": "no answer", "field": "spec.judges[clerk]"}
        world.body["status"]["preflight"]["waitsFor"] = found
    world.ready("broker")
    world.starting("coordinator")
    world.carry_out()
    return world


def judged_job(ready: tuple[str, ...] = ("clerk", "style"), **spec: Any) -> World:
    """A job that trains if the servers of all judges are ready."""
    world = World(job(status=copy.deepcopy(PASSED), judges=JUDGES, **spec))
    world.carry_out()
    world.ready("coordinator", "broker", "learner", "rollout")
    for index, name in enumerate(("clerk", "style")):
        put(world, name, index, ready=name in ready)
    world.carry_out()
    return world


def put(world: World, judge: str, index: int, *, ready: bool = True, **status: Any) -> Json:
    status = status or {"phase": "Running", "conditions": [world.condition("Ready", ready)]}
    pod = world.pod(names.JUDGE, index, **status)
    pod["metadata"]["labels"][names.LABEL_JUDGE] = judge
    return pod


def servers(world: World) -> set[str]:
    return world.deployments() & SERVERS


def role(world: World) -> Json:
    [found] = [role for role in world.body["status"]["roles"] if role["name"] == "judge"]
    return dict(found)


class TestObjects:
    def test_each_model_has_a_service_and_servers_of_its_own(self) -> None:
        world = judged_job()
        assert servers(world) == SERVERS
        assert ("Service", "refunds-judge-1") not in world.objects, "an endpoint is served elsewhere"
        for number, judge, replicas in ((2, "clerk", 2), (3, "style", 1)):
            name = f"refunds-judge-{number}"
            labels = {
                names.LABEL_JOB_UID: UID,
                names.LABEL_COMPONENT: names.JUDGE,
                names.LABEL_JUDGE: judge,
            }
            service, deployment = world.objects["Service", name], world.objects["Deployment", name]
            assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
            assert [port["port"] for port in service["spec"]["ports"]] == [names.PORT_ENGINE]
            assert deployment["spec"]["replicas"] == replicas
            assert labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()

    def test_the_coordinator_uses_the_servers_services(self) -> None:
        world = judged_job()
        config = JobConfig.model_validate_json(
            world.objects["ConfigMap", "refunds-config"]["data"]["job.json"]
        )
        assert judge_servers.urls(config) == {
            "clerk": "http://refunds-judge-2.team.svc:8000/v1",
            "style": "http://refunds-judge-3.team.svc:8000/v1",
        }
        model = judge_servers.served(config, "clerk")
        assert (model.base, model.updates, model.lora_rank) == ("s3://b/clerk", False, None)
        assert model.field == "spec.judges[clerk].model.base"
        assert model.rollout.engine.tensor_parallel_size == 4

    def test_judge_pods_are_rollout_servers_with_own_key_and_model(self) -> None:
        fragment = {"spec": {"nodeSelector": {"pool": "gpu"}}}
        world = judged_job(rollout={"podTemplate": fragment})
        template = world.objects["Deployment", "refunds-judge-2"]["spec"]["template"]["spec"]
        usual = world.objects["Deployment", "refunds-rollout"]["spec"]["template"]["spec"]
        [container], [other] = template["containers"], usual["containers"]
        differs = {key for key in container if container[key] != other[key]}
        assert differs == {"env", "resources"}
        assert {key for key in template if template[key] != usual[key]} == {"containers", "volumes"}
        assert template["nodeSelector"] == {"pool": "gpu"}
        env = {item["name"]: item.get("value") for item in container["env"]}
        assert env[names.ENV_JUDGE] == "clerk"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
        [keys] = [volume for volume in template["volumes"] if volume["name"] == "keys"]
        [made, _] = keys["projected"]["sources"]
        assert [item["key"] for item in made["secret"]["items"]] == ["coordinator-to-judge"]

    def test_the_coordinator_alone_has_the_servers_key(self) -> None:
        world = judged_job()
        holders = {
            body["metadata"]["labels"][names.LABEL_COMPONENT]
            for (kind, _), body in world.objects.items()
            if kind in ("Job", "Deployment") and "coordinator-to-judge" in str(body["spec"])
        }
        assert holders == {"coordinator", "judge"}
        spec = world.objects["Job", "refunds-coordinator"]["spec"]["template"]["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for judge in ("clerk", "style"):
            assert volumes[f"{judge}-token"]["secret"] == {
                "secretName": f"refunds-keys-{UID[:8]}",
                "items": [{"key": "coordinator-to-judge", "path": "token"}],
                "defaultMode": 0o440,
                "optional": True,
            }
        assert "frontier-token" not in volumes

    def test_the_coordinator_alone_reaches_the_servers(self) -> None:
        policy = judged_job().objects["NetworkPolicy", "refunds-judge"]["spec"]
        coordinator = {names.LABEL_JOB_UID: UID, names.LABEL_COMPONENT: names.COORDINATOR}
        assert policy == {
            "podSelector": {"matchLabels": {names.LABEL_JOB_UID: UID, names.LABEL_COMPONENT: names.JUDGE}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": coordinator}}],
                    "ports": [{"protocol": "TCP", "port": names.PORT_ENGINE}],
                }
            ],
        }

    def test_a_job_with_endpoints_alone_has_no_judge_servers(self) -> None:
        plain, asking = World(job(status=PASSED)), World(job(status=PASSED, judges=[ENDPOINT]))
        assert {item.ref for item in plain.plan().wanted} == {item.ref for item in asking.plan().wanted}
        assert "coordinator-to-judge" not in str(asking.plan().wanted)

    def test_the_scale_subresource_does_not_count_judge_servers(self) -> None:
        status = judged_job().body["status"]
        assert (status["rolloutReplicas"], "judge" in status["rolloutSelector"]) == (1, False)

    def test_an_evaluation_has_judge_servers_too(self) -> None:
        world = evaluating(judges=JUDGES)
        assert {"refunds-eval-judge-2", "refunds-eval-judge-3"} <= world.deployments()
        assert not world.is_true("Progressing")
        for index, name in enumerate(("clerk", "style")):
            put(world, name, index)
        world.carry_out()
        assert world.is_true("Progressing")


class TestWhen:
    def test_no_server_starts_before_the_preflight_needs_a_judge(self) -> None:
        """By then, everything that needs no accelerator has been checked."""
        assert servers(checking()) == set()
        assert servers(checking("Environment")) == set()
        assert servers(checking("Judge frontier")) == set()

    def test_all_servers_run_once_the_preflight_needs_one(self) -> None:
        world = checking("Judge clerk")
        assert servers(world) == SERVERS
        assert "refunds-rollout" not in world.deployments(), "these come after the preflight"
        del world.body["status"]["preflight"]["waitsFor"]
        world.carry_out()
        assert servers(world) == SERVERS

    def test_servers_start_at_once_without_a_preflight(self) -> None:
        world = World(job(judges=JUDGES, preflight={"policy": "Off"}))
        world.carry_out()
        assert servers(world) == SERVERS

    @pytest.mark.parametrize("held", ["suspend", "pause"])
    def test_servers_stop_if_the_job_must_have_no_pods(self, held: str) -> None:
        world = judged_job(collapse={"policy": "Pause"})
        if held == "suspend":
            world.body["spec"]["suspend"] = True
        else:
            pause = {"signal": "RewardFlat", "step": 3, "time": "2026-11-01T12:00:00Z"}
            world.body["status"]["pause"] = pause | {"message": "flat", "resume": "kubectl annotate"}
        world.carry_out()
        assert servers(world) == set()
        assert ("Service", "refunds-judge-2") not in world.objects
        assert not world.is_true("Suspended")
        world.gone("coordinator", "broker", "learner", "rollout", "judge").carry_out()
        assert world.is_true("Suspended")

    def test_servers_stop_when_the_job_has_ended(self) -> None:
        world = judged_job()
        world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
        world.carry_out()
        world.carry_out()
        assert servers(world) == set()


class TestStatus:
    def test_conditions_name_the_field_of_a_starting_server(self) -> None:
        world = checking("Judge clerk")
        put(world, "clerk", 0, ready=False)
        put(world, "style", 1)
        world.carry_out()
        for kind in ("Progressing", "Ready"):
            condition = world.status_condition(kind)
            assert condition["reason"] == "Starting", kind
            assert "spec.judges[clerk].model: 1 of 3 pods are ready" in condition["message"]
        assert world.status_condition("SandboxesReady")["status"] == "True", "sandboxes have no problem"
        assert world.body["status"]["state"] == "Preflight"

    @pytest.mark.parametrize(("ready", "field"), [("style", FIELDS[0]), ("clerk", FIELDS[1])])
    def test_a_job_without_a_judges_server_is_not_running(self, ready: str, field: str) -> None:
        world = judged_job((ready,))
        assert not world.is_true("Progressing")
        assert field in world.status_condition("Progressing")["message"]
        assert (role(world)["desired"], role(world)["ready"]) == (3, 1)
        assert world.body["status"]["state"] == "Starting"

    def test_one_of_several_servers_is_enough(self) -> None:
        assert judged_job().is_true("Progressing"), "clerk has two"

    def test_an_unschedulable_server_names_what_to_change(self) -> None:
        world = judged_job(("style",))
        words = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
        scheduled = world.condition("PodScheduled", False) | {"reason": "Unschedulable", "message": words}
        put(world, "clerk", 0, phase="Pending", conditions=[scheduled])
        world.carry_out()
        assert (
            "spec.judges[].model.resources: pod refunds-judge-0"
            in world.status_condition("Progressing")["message"]
        )
        world.later(3601).carry_out()
        failed = world.status_condition("Failed")
        assert failed["reason"] == "PendingDeadlineExceeded"
        assert failed["message"].startswith("spec.judges[clerk].model was not ready within")

    def test_a_server_without_its_image_names_the_charts_value(self) -> None:
        world = judged_job(("style",))
        state = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
        status = {"name": "rollout", "state": state, "ready": False, "restartCount": 0}
        unready = world.condition("Ready", False)
        put(world, "clerk", 0, phase="Pending", conditions=[unready], containerStatuses=[status])
        world.carry_out()
        assert "images.rollout of the chart's values" in world.status_condition("Progressing")["message"]

    def test_an_unloadable_judge_model_fails_the_job_with_its_reason(self) -> None:
        world = judged_job()
        world.gave_up("judge", "ModelNotLoadable", "no such model type", "spec.judges[clerk].model.base")
        world.carry_out()
        failed = world.status_condition("Failed")
        assert failed["reason"] == "ModelNotLoadable"
        assert "spec.judges[clerk].model.base" in failed["message"]

    def test_a_server_that_keeps_dying_fails_the_job(self) -> None:
        world = judged_job(failurePolicy={"maxRestarts": 1})
        status = {"name": "rollout", "state": {"running": {}}, "ready": True, "restartCount": 2}
        good = world.condition("Ready", True)
        put(world, "clerk", 0, phase="Running", conditions=[good], containerStatuses=[status])
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "MaxRestartsExceeded"


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_judge_servers_stay_within_the_platforms_limit(kind: str) -> None:
    platform = PLATFORM.model_copy(update={"caps": Caps(rollout_replicas=2)})
    world = World(job(judges=JUDGES), platform) if kind == "training" else evaluating(judges=JUDGES)
    world.platform = platform
    world.carry_out()
    assert (
        "spec.judges[].model.replicas, together: 3 is above" in world.status_condition("Accepted")["message"]
    )
