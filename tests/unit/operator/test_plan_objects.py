"""Properties of every object that the operator plans, whatever the job's spec."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observed_cluster import FROM_MEMORY, IMAGE, PASSED, PLATFORM, SANDBOXED, UID, World, evaluating, job

from headway_api import names
from headway_api.config import JobConfig
from headway_api.document import Json
from headway_operator.config import OperatorConfig
from headway_operator.plan.context import Mode, Wanted
from headway_trainer import launch

WORKLOADS = ("Job", "Deployment")

quantities = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["1", "500m", "16"]),
        "memory": st.sampled_from(["1Gi", "64Gi"]),
        "nvidia.com/gpu": st.sampled_from(["0", "1", "8"]),
    },
)
resources = st.fixed_dictionaries({}, optional={"requests": quantities, "limits": quantities})
fragments = st.sampled_from(
    [
        {},
        {"metadata": {"labels": {"team": "rl", names.LABEL_JOB_UID: "forged"}}},
        {"spec": {"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]}},
        {
            "spec": {
                "containers": [{"name": "rollout", "securityContext": {"privileged": True, "runAsUser": 0}}]
            }
        },
        {
            "spec": {
                "containers": [{"name": "sidecar", "image": "x"}],
                "initContainers": [{"name": "i", "image": "x"}],
            }
        },
        {"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}},
    ]
)
specs = st.fixed_dictionaries(
    {
        "rollout": st.fixed_dictionaries(
            {"replicas": st.integers(1, 8), "resources": resources, "podTemplate": fragments}
        ),
        "learner": st.fixed_dictionaries(
            {
                "nodes": st.integers(1, 4),
                "processesPerNode": st.integers(1, 8),
                "resources": resources,
                "podTemplate": fragments,
            }
        ),
    }
)


def wanted(body: Json, platform: OperatorConfig = PLATFORM) -> list[Wanted]:
    return list(World(body, platform).plan().wanted)


def everything(**spec: Any) -> list[Wanted]:
    return wanted(job(status=PASSED, **spec))


def named(items: list[Wanted], kind: str, name: str) -> Json:
    return next(item.body for item in items if item.ref == (kind, "team", name))


def templates(items: list[Wanted]) -> dict[str, Json]:
    """Pod templates by role."""
    return {
        item.body["metadata"]["labels"][names.LABEL_COMPONENT]: item.body["spec"]["template"]
        for item in items
        if item.ref[0] in WORKLOADS
    }


@settings(max_examples=50)
@given(specs)
def test_every_object_is_owned_by_the_job_and_labelled_with_it(spec: Json) -> None:
    for item in everything(**spec):
        (owner,) = item.body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("RLTrainingJob", UID, True)
        assert owner["blockOwnerDeletion"] is True
        assert item.body["metadata"]["labels"][names.LABEL_JOB_UID] == UID
        assert item.body["metadata"]["namespace"] == "team"


@settings(max_examples=50)
@given(specs)
def test_every_pod_is_restricted_under_any_template(spec: Json) -> None:
    for role, template in templates(everything(**spec)).items():
        pod = template["spec"]
        assert (
            template["metadata"]["labels"].items()
            >= names.job_labels("RLTrainingJob", "refunds", UID, role).items()
        )
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is (role in (names.COORDINATOR, names.BROKER))
        assert pod["serviceAccountName"] == f"refunds-{role}"
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not context.keys() & {"privileged", "runAsUser"}


def test_only_the_learner_with_its_long_grace_is_not_process_1() -> None:
    pods = {role: template["spec"] for role, template in templates(everything()).items()}
    assert {role for role, pod in pods.items() if pod.get("shareProcessNamespace")} == {names.LEARNER}


@settings(max_examples=50)
@given(specs)
def test_every_container_has_requests_and_limits_that_fit(spec: Json) -> None:
    for template in templates(everything(**spec)).values():
        for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]:
            asked, limit = container["resources"]["requests"], container["resources"]["limits"]
            assert asked.keys() == limit.keys() >= {"cpu", "memory"}
            assert asked.get("nvidia.com/gpu") == limit.get("nvidia.com/gpu")


@settings(max_examples=50)
@given(specs)
def test_planning_is_deterministic_and_names_are_unique(spec: Json) -> None:
    first, second = everything(**spec), everything(**spec)
    assert first == second
    assert len({item.ref for item in first}) == len(first)


def test_accelerators_wait_for_the_preflight() -> None:
    before = wanted(job())
    assert set(templates(before)) == {names.COORDINATOR, names.BROKER}
    after = wanted(job(status=PASSED))
    assert set(templates(after)) == {names.COORDINATOR, names.BROKER, names.LEARNER, names.ROLLOUT}
    assert {item.ref for item in before} < {item.ref for item in after}


@pytest.mark.parametrize("state", ["Pending", "Running", "Failed"])
def test_a_preflight_that_has_not_passed_holds_accelerators(state: str) -> None:
    assert names.LEARNER not in templates(wanted(job(status={"preflight": {"state": state}})))


@pytest.mark.parametrize("state", ["Passed", "Warned", "Skipped"])
def test_a_finished_preflight_lets_accelerators_start(state: str) -> None:
    assert names.LEARNER in templates(wanted(job(status={"preflight": {"state": state}})))


def test_a_preflight_that_runs_again_stops_nobody() -> None:
    world = World(job(status=dict(PASSED)))
    world.carry_out()
    world.body["status"]["preflight"] = {"state": "Running"}
    made = world.carry_out()
    assert made.to_delete == ()
    assert names.LEARNER in templates(list(made.wanted))


def test_without_a_preflight_accelerators_start_at_once() -> None:
    assert names.ROLLOUT in templates(wanted(job(preflight={"policy": "Off"})))


def test_policies_and_accounts_exist_before_any_pod() -> None:
    kinds = [item.ref[0] for item in everything()]
    first_workload = min(kinds.index(kind) for kind in WORKLOADS)
    for kind in ("ServiceAccount", "RoleBinding", "ConfigMap", "Secret", "NetworkPolicy"):
        assert max(i for i, k in enumerate(kinds) if k == kind) < first_workload


def test_the_file_the_pods_read_is_the_job() -> None:
    body = job(rollout={"replicas": 3})
    data = named(wanted(body), "ConfigMap", "refunds-config")["data"]
    config = JobConfig.model_validate_json(data["job.json"])
    assert (config.name, config.namespace, config.uid) == ("refunds", "team", UID)
    assert config.spec.rollout.replicas == 3


def test_the_keys_are_not_part_of_the_plan() -> None:
    (secret,) = [item for item in everything() if item.ref[0] == "Secret"]
    assert secret.mode == Mode.SECRET
    assert not secret.body.keys() & {"data", "stringData"}


def test_the_operator_makes_no_roles_and_binds_fixed_ones() -> None:
    assert not [item for item in everything() if item.ref[0] in ("Role", "ClusterRole")]
    bound = {item.ref[2]: item.body["roleRef"] for item in everything() if item.ref[0] == "RoleBinding"}
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    assert bound == {
        "refunds-coordinator-rights": group | {"name": "headway-coordinator-rltrainingjobs"},
        "refunds-broker-rights": group | {"name": "headway-broker"},
    }


def test_sandboxes_have_an_account_without_rights_and_token() -> None:
    items = wanted(job())
    account = named(items, "ServiceAccount", "refunds-sandbox")
    assert account["automountServiceAccountToken"] is False
    assert "annotations" not in account["metadata"], "what a cloud gives an account is asked for there"
    bound = {s["name"] for i in items if i.ref[0] == "RoleBinding" for s in i.body["subjects"]}
    assert bound == {
        "refunds-coordinator",
        "refunds-broker",
        names.broker_of("refunds", job()["metadata"]["uid"]),
    }
    accounts = {i.ref[2] for i in items if i.ref[0] == "ServiceAccount"}
    assert names.broker_of("refunds", job()["metadata"]["uid"]) not in accounts, "it stands for the uid alone"


def test_a_brokers_binding_holds_uid_and_runtime_class() -> None:
    uid = job()["metadata"]["uid"]
    environment = {"image": "i:1", "entrypoint": "a:B"}

    def proofs(runtime_class: str | None) -> set[str]:
        sandbox = {} if runtime_class is None else {"sandbox": {"runtimeClassName": runtime_class}}
        binding = named(everything(environment=environment | sandbox), "RoleBinding", "refunds-broker-rights")
        return {subject["name"] for subject in binding["subjects"]} - {"refunds-broker"}

    assert proofs(None) == {f"refunds.{uid}-broker"}
    assert proofs("gvisor") == {f"refunds.{uid}.gvisor-broker"}
    assert proofs("x" * 253) == {f"refunds.{uid}-broker"}, "an account's name has 253 characters at most"


@pytest.mark.parametrize("role", [names.BROKER, names.SANDBOX])
def test_an_account_of_one_roles_own_is_not_lent_to_others(role: str) -> None:
    made = World(job(serviceAccountName=f"refunds-{role}")).plan()
    assert made.wanted == ()
    assert made.status is not None
    (accepted,) = [c for c in made.status.conditions if c.type == "Accepted"]
    assert f"spec.serviceAccountName: the operator creates refunds-{role}" in accepted.message


def test_a_users_own_account_is_used_and_not_created() -> None:
    items = everything(serviceAccountName="with-s3")
    accounts = {item.ref[2] for item in items if item.ref[0] == "ServiceAccount"}
    assert accounts == {"refunds-broker", "refunds-sandbox"}
    used = {role: template["spec"]["serviceAccountName"] for role, template in templates(items).items()}
    assert used == {
        "coordinator": "with-s3", "learner": "with-s3", "rollout": "with-s3", "broker": "refunds-broker",
    }  # fmt: skip
    (subject,) = named(items, "RoleBinding", "refunds-coordinator-rights")["subjects"]
    assert subject["name"] == "with-s3"


def test_store_credentials_reach_only_the_roles_that_use_them() -> None:
    items = everything(output={"uri": "s3://b/runs", "secretRef": {"name": "keys"}})
    given_to = {
        role for role, template in templates(items).items() if "envFrom" in template["spec"]["containers"][0]
    }
    assert given_to == {"coordinator", "learner", "rollout"}


def test_a_judges_token_is_a_file_of_the_coordinator_alone() -> None:
    """The pod mounts its Secret by name. The operator never reads it, and no other role gets it."""
    endpoint = {"url": "https://models.acme.dev/v1", "model": "large"}
    judges = [{"name": "style", "endpoint": endpoint, "secretRef": {"name": "judge-key"}}]
    pods = templates(everything(judges=[*judges, {"name": "open", "endpoint": endpoint}]))
    volumes = {item["name"]: item for item in pods["coordinator"]["spec"]["volumes"]}
    mounts = {m["mountPath"]: m for m in pods["coordinator"]["spec"]["containers"][0]["volumeMounts"]}
    mount = mounts["/etc/headway-judges/style"]
    assert mount["readOnly"]
    assert volumes[mount["name"]]["secret"] == {
        "secretName": "judge-key",
        "items": [{"key": "token", "path": "token"}],
        "defaultMode": 0o440,
        "optional": True,
    }
    assert "/etc/headway-judges/open" not in mounts
    assert {role for role, pod in pods.items() if "judge-key" in str(pod)} == {"coordinator"}


def test_a_role_with_a_secret_of_its_own_gets_that_one_alone() -> None:
    """So rollout servers, which only read, need no credentials that can write."""
    both = {"secretRef": {"name": "all"}, "roleSecretRefs": {"rollout": {"name": "read"}}}
    own = {"roleSecretRefs": {"learner": {"name": "write"}}}
    for output, expected in (
        (both, {"coordinator": ["all"], "learner": ["all"], "rollout": ["read"], "broker": []}),
        (own, {"coordinator": [], "learner": ["write"], "rollout": [], "broker": []}),
    ):
        pods = templates(everything(output={"uri": "s3://b/runs"} | output))
        found = {
            role: [source["secretRef"]["name"] for source in pod["spec"]["containers"][0].get("envFrom", [])]
            for role, pod in pods.items()
        }
        assert found == expected


@pytest.mark.parametrize("agent", [{"http": {"url": "http://agent"}}, SANDBOXED])
def test_the_gateways_port_exists_for_users_own_agents(agent: Json) -> None:
    for asked, ports in ({}, {"http": 8100}), (agent, {"http": 8100, "gateway": 8110}):
        items = everything(agent=asked)
        service = named(items, "Service", "refunds-coordinator")["spec"]["ports"]
        assert {port["targetPort"]: port["port"] for port in service} == ports
        container = templates(items)["coordinator"]["spec"]["containers"][0]
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports


@pytest.mark.parametrize("asked", [{}, FROM_MEMORY])
def test_the_learners_weights_port_exists_if_it_is_used(asked: Json) -> None:
    items = everything(**asked)
    met = {"torch": 29500} | ({"weights": 8310} if asked else {})
    service = named(items, "Service", "refunds-learner")["spec"]["ports"]
    assert {port["name"]: port["port"] for port in service} == met
    container = templates(items)["learner"]["spec"]["containers"][0]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"http": 8300} | met


def test_ranks_find_one_another_by_a_stable_name() -> None:
    items = everything(learner={"nodes": 2, "processesPerNode": 4})
    body = named(items, "Job", "refunds-learner")["spec"]
    assert (body["completionMode"], body["completions"], body["parallelism"]) == ("Indexed", 2, 2)
    pod = body["template"]["spec"]
    env = {entry["name"]: entry for entry in pod["containers"][0]["env"]}
    assert env["MASTER_ADDR"]["value"] == "refunds-learner-0.refunds-learner.team.svc"
    assert (env["NNODES"]["value"], env["NPROC"]["value"]) == ("2", "4")
    assert "job-completion-index" in env["NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert pod["subdomain"] == "refunds-learner"
    service = named(items, "Service", "refunds-learner")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_accelerators_are_counted_by_process() -> None:
    items = everything(learner={"processesPerNode": 4}, rollout={"engine": {"tensorParallelSize": 2}})
    pods = templates(items)
    gpus = {
        role: pods[role]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        for role in pods
    }
    assert gpus == {"learner": "4", "rollout": "2", "coordinator": None, "broker": None}


def test_a_job_on_a_cluster_without_accelerators_requests_none() -> None:
    items = wanted(job(status=PASSED), PLATFORM.model_copy(update={"accelerator": ""}))
    for template in templates(items).values():
        assert template["spec"]["containers"][0]["resources"]["limits"].keys() == {"cpu", "memory"}


def test_a_single_limit_or_request_sets_both() -> None:
    items = everything(rollout={"resources": {"limits": {"memory": "8Gi"}, "requests": {"cpu": "32"}}})
    found = templates(items)["rollout"]["spec"]["containers"][0]["resources"]
    assert found["limits"]["memory"] == found["requests"]["memory"] == "8Gi"
    assert found["limits"]["cpu"] == found["requests"]["cpu"] == "32"


def test_permanent_faults_fail_a_job_and_disruptions_are_ignored() -> None:
    for role in ("coordinator", "learner"):
        body = named(everything(failurePolicy={"maxRestarts": 2}), "Job", f"refunds-{role}")["spec"]
        permanent, restart, disrupted = body["podFailurePolicy"]["rules"]
        assert permanent["action"] == "FailJob"
        assert permanent["onExitCodes"] == {"containerName": role, "operator": "In", "values": [42]}
        assert restart["onExitCodes"] == {"containerName": role, "operator": "In", "values": [44]}
        assert restart["action"] == "Ignore"
        assert (disrupted["action"], disrupted["onPodConditions"][0]["type"]) == (
            "Ignore",
            "DisruptionTarget",
        )
        assert "ttlSecondsAfterFinished" not in body


def test_restarts_are_those_of_a_role_however_many_nodes_it_has() -> None:
    """When a learner of eight nodes fails, eight pods fail."""
    items = everything(failurePolicy={"maxRestarts": 2}, learner={"nodes": 8})
    coordinator = named(items, "Job", "refunds-coordinator")["spec"]
    learner = named(items, "Job", "refunds-learner")["spec"]
    assert coordinator["backoffLimit"] == 2
    assert (learner["backoffLimitPerIndex"], learner["maxFailedIndexes"]) == (2, 0)
    assert "backoffLimit" not in learner


@pytest.mark.parametrize("platform", [None, 40])
def test_a_learner_knows_how_long_it_has_to_save(platform: int | None) -> None:
    """Its launcher ends hanging ranks early enough to report them."""
    template: Json = {"spec": {"terminationGracePeriodSeconds": platform}} if platform else {}
    known = PLATFORM.model_copy(update={"role_templates": {"learner": template}})
    body = job(status=PASSED, learner={"terminationGracePeriodSeconds": 1200})
    pod = templates(wanted(body, known))["learner"]["spec"]
    grace = platform or 1200
    env = {entry["name"]: entry.get("value", "0") for entry in pod["containers"][0]["env"]}
    assert pod["terminationGracePeriodSeconds"] == launch.NodePlace.of(env).grace == grace
    assert templates(everything())["learner"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_the_jobs_template_overrides_the_platforms() -> None:
    mine = {
        "spec": {
            "nodeSelector": {"pool": "platform", "arch": "amd64"},
            "volumes": [{"name": "lent", "hostPath": {"path": "/opt"}}],
            "containers": [{"name": "rollout", "env": [{"name": "HOME", "value": "/opt"}]}],
        }
    }
    platform = PLATFORM.model_copy(update={"role_templates": {"rollout": mine}})
    body = job(status=PASSED, rollout={"podTemplate": {"spec": {"nodeSelector": {"pool": "job"}}}})
    pod = templates(wanted(body, platform))["rollout"]["spec"]
    assert pod["nodeSelector"] == {"pool": "job", "arch": "amd64"}
    assert {"name": "lent", "hostPath": {"path": "/opt"}} in pod["volumes"]
    env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert env["HOME"] == "/opt"
    assert pod["containers"][0]["image"] == IMAGE


def test_the_platforms_sandbox_template_reaches_the_broker() -> None:
    platform = PLATFORM.model_copy(
        update={"role_templates": {"sandbox": {"spec": {"nodeSelector": {"a": "b"}}}}}
    )
    data = named(wanted(job(), platform), "ConfigMap", "refunds-config")["data"]
    document = json.loads(data["sandbox-template.json"])
    assert document["template"] == {"spec": {"nodeSelector": {"a": "b"}}}
    assert document["resources"]["limits"]["memory"]


def test_every_rollout_server_names_the_port_that_scrapers_reach() -> None:
    training = World(job(status=PASSED, evaluation={"servers": "Dedicated"}))
    training.carry_out()
    sets = evaluating()
    for world, servers in (
        (training, ("refunds-rollout", "refunds-rollout-validation")),
        (sets, ("refunds-eval-rollout-0",)),
    ):
        for server in servers:
            container = world.objects["Deployment", server]["spec"]["template"]["spec"]["containers"][0]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert ports == {"engine": 8000, "weights": 8001, "metrics": 8002}
