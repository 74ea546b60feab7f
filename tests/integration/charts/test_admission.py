"""The chart's restrictions as helm renders them: policies, fixed roles, quotas and the install notes."""

from __future__ import annotations

import subprocess

import chart
import pytest

from headway_api.document import Json

pytestmark = [pytest.mark.integration, pytest.mark.timeout(chart.FIRST_BUILD_S)]

TEAMS = {"watchNamespaces": ["team-a", "team-b"]}


def named(documents: list[Json], kind: str) -> dict[str, Json]:
    return {body["metadata"]["name"]: body for body in documents if body["kind"] == kind}


def test_every_policy_refuses_and_is_bound() -> None:
    made = chart.render("admission.yaml", {})
    policies = named(made, "ValidatingAdmissionPolicy")
    assert policies.keys() == {"headway-sandboxes", "headway-labels", "headway-status", "headway-bounds"}
    bindings = named(made, "ValidatingAdmissionPolicyBinding")
    assert bindings.keys() == policies.keys()
    for name, binding in bindings.items():
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}
        assert policies[name]["spec"]["failurePolicy"] == "Fail"
        for rule in policies[name]["spec"]["validations"]:
            assert rule["message"].partition(":")[0], "a message begins with the field"


def test_admission_policies_act_where_the_release_watches() -> None:
    made = chart.render("admission.yaml", TEAMS, release="two", namespace="ops")
    for binding in named(made, "ValidatingAdmissionPolicyBinding").values():
        (where,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert where["values"] == TEAMS["watchNamespaces"]
    policy = named(made, "ValidatingAdmissionPolicy")["two-headway-labels"]
    (stranger,) = policy["spec"]["matchConditions"]
    assert "'system:serviceaccount:ops:two-headway-operator'" in stranger["expression"]


def test_a_sandbox_may_have_the_folders_that_the_platform_lends() -> None:
    volumes = [{"name": "lent", "hostPath": {"path": "/opt/lent"}}]
    for values, expected in (
        ({}, "v.hostPath.path in []"),
        ({"roleTemplates": {"sandbox": {"spec": {"volumes": volumes}}}}, "in ['/opt/lent']"),
    ):
        policy = named(chart.render("admission.yaml", values), "ValidatingAdmissionPolicy")[
            "headway-sandboxes"
        ]
        (rule,) = [
            rule for rule in policy["spec"]["validations"] if rule["message"].startswith("spec.volumes")
        ]
        assert expected in rule["expression"]


def test_admission_policies_can_be_left_out() -> None:
    with pytest.raises(subprocess.CalledProcessError, match="returned non-zero"):
        chart.render("admission.yaml", {"admission": {"enabled": False}})


@pytest.mark.parametrize(
    ("values", "kind"), [({}, "ClusterRole"), (TEAMS, "Role")], ids=["cluster", "namespaces"]
)
def test_the_operator_makes_no_roles_and_binds_fixed_ones(values: Json, kind: str) -> None:
    made = chart.render("rbac.yaml", values)
    roles = named(made, kind)
    fixed = {name for name in roles if name.startswith(("headway-broker", "headway-coordinator"))}
    assert fixed == {"headway-broker", "headway-coordinator-rltrainingjobs", "headway-coordinator-rlevaljobs"}
    granted = [
        (resource, verb, rule.get("resourceNames"))
        for rule in roles["headway-operator"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    on_roles = {
        (verb, tuple(only or ())) for resource, verb, only in granted if resource in ("roles", "clusterroles")
    }
    assert on_roles == {
        *((verb, ()) for verb in ("get", "list", "watch", "delete")),
        ("bind", tuple(sorted(fixed))),
    }
    assert ("pods", "create", None) not in granted
    (config,) = chart.render("config.yaml", values)
    assert f"kind: {kind}\n" in config["data"]["config.yaml"]


def test_each_watched_namespace_has_a_quota() -> None:
    made = chart.render("quota.yaml", TEAMS | {"quota": {"jobs": 7}})
    assert [body["metadata"]["namespace"] for body in made] == TEAMS["watchNamespaces"]
    assert all(set(body["spec"]["hard"].values()) == {"7"} for body in made)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        chart.render("quota.yaml", {"quota": {"jobs": 7}})
    assert "quota.jobs" in refused.value.stderr
    assert "watchNamespaces" in refused.value.stderr


def notes(**values: str) -> str:
    helm = chart.cluster_command("tools") / "helm"
    command = [str(helm), "install", "headway", str(chart.ROOT / "charts" / "headway"), "--dry-run=client"]
    command += [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_no_release_asks_to_delete_the_jobs_of_another() -> None:
    everywhere = "delete rltrainingjobs,rlevaljobs --all --all-namespaces"
    assert everywhere in notes()
    ours = notes(watchNamespaces="{team-a,team-b}")
    assert everywhere not in ours
    for team in TEAMS["watchNamespaces"]:
        assert f"delete rltrainingjobs,rlevaljobs --all --namespace {team}" in ours
    other = notes(manager="acme.dev/second")
    assert "--all " not in other.replace("--all-namespaces", "")
    assert "spec.managedBy is acme.dev/second" in other
