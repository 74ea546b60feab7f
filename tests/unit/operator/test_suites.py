"""How the planner handles suites of an evaluation: own brokers, and a single way out of their pods."""

from __future__ import annotations

from typing import Any

import pytest
from observed_cluster import PASSED, PLATFORM, SANDBOXED, UID, World, chosen, eval_job

from headway_api import names
from headway_api.config import EvalConfig
from headway_api.document import Json
from headway_operator.plan import teardown
from headway_operator.plan.observed import Observed

SUITES = [
    {"name": "sums", "image": "i", "task": "a.py@sums", "limit": 3},
    {"name": "facts", "image": "i", "task": "pkg/facts", "limit": 3},
]
GATEWAY = [{"protocol": "TCP", "port": names.PORT_GATEWAY}]


def suite_broker(world: World, number: int, suite: str, **status: Any) -> Json:
    status = status or {"phase": "Running", "conditions": [world.condition("Ready", True)]}
    pod = world.pod(names.SUITE_BROKER, number, **status)
    pod["metadata"]["labels"][names.LABEL_SUITE] = suite
    return pod


def test_each_suite_has_a_broker_that_serves_it() -> None:
    world = chosen(suites=SUITES)
    assert world.deployments() == {f"refunds-eval-broker{end}" for end in ("", "-1", "-2")}
    config = EvalConfig.model_validate_json(
        world.objects["ConfigMap", "refunds-eval-config"]["data"]["job.json"]
    )
    for number, suite in enumerate(("sums", "facts"), 1):
        name = f"refunds-eval-broker-{number}"
        assert config.suite_broker_url(suite) == f"http://{name}.team.svc:{names.PORT_BROKER}"
        labels = {
            names.LABEL_JOB_UID: UID,
            names.LABEL_COMPONENT: names.SUITE_BROKER,
            names.LABEL_SUITE: suite,
        }
        assert world.objects["Service", name]["spec"]["selector"] == labels
        deployment = world.objects["Deployment", name]["spec"]
        assert deployment["selector"]["matchLabels"] == labels
        pod = deployment["template"]
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["serviceAccountName"] == "refunds-eval-broker"
        env = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
        assert env[names.ENV_SUITE] == suite


def test_no_service_selects_another_suites_broker() -> None:
    world = chosen(suites=SUITES)
    pods = {
        name: world.objects["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        for name in world.deployments()
    }
    for name in pods:
        selector = world.objects["Service", name]["spec"]["selector"]
        assert [other for other, labels in pods.items() if selector.items() <= labels.items()] == [name]


def test_a_job_without_suites_has_no_further_objects() -> None:
    assert {item.ref for item in chosen().plan().wanted} <= {
        item.ref for item in chosen(suites=SUITES).plan().wanted
    }
    assert ("NetworkPolicy", "refunds-eval-suites") not in chosen().objects


@pytest.mark.parametrize("agent", [{}, {"http": {"url": "http://agent"}}, SANDBOXED])
def test_pods_of_suites_reach_the_gateway_and_nothing_else(agent: Json) -> None:
    world, plain = chosen(suites=SUITES, agent=agent), chosen(agent=agent)
    policy = world.objects["NetworkPolicy", "refunds-eval-suites"]["spec"]
    of_suites = {
        "matchLabels": {names.LABEL_JOB_UID: UID, names.LABEL_COMPONENT: names.SANDBOX},
        "matchExpressions": [{"key": names.LABEL_SUITE, "operator": "Exists"}],
    }
    coordinator = {names.LABEL_JOB_UID: UID, names.LABEL_COMPONENT: names.COORDINATOR}
    assert policy == {
        "podSelector": of_suites,
        "policyTypes": ["Egress"],
        "egress": [{"to": [{"podSelector": {"matchLabels": coordinator}}], "ports": GATEWAY}],
    }
    own = world.objects["NetworkPolicy", "refunds-eval-sandbox"]["spec"]
    assert own.get("egress") == plain.objects["NetworkPolicy", "refunds-eval-sandbox"]["spec"].get("egress")
    rules = [
        rule
        for rule in world.objects["NetworkPolicy", "refunds-eval-coordinator"]["spec"]["ingress"]
        if rule["ports"] == GATEWAY
    ]
    (rule,) = rules
    if not agent:
        assert rule["from"] == [{"podSelector": of_suites}], "the job's own sandboxes stay shut out"


def test_the_brokers_of_suites_have_the_same_network_policies() -> None:
    objects = chosen(suites=SUITES).objects
    own, theirs = (
        objects["NetworkPolicy", f"refunds-eval-{role}"]["spec"] for role in ("broker", "suite-broker")
    )
    assert theirs["ingress"] == own["ingress"]
    into_sandboxes = objects["NetworkPolicy", "refunds-eval-sandbox"]["spec"]["ingress"][0]["from"]
    components = {peer["podSelector"]["matchLabels"][names.LABEL_COMPONENT] for peer in into_sandboxes}
    assert components == {"coordinator", "broker", "suite-broker"}


def test_every_broker_must_be_ready() -> None:
    world = chosen(suites=SUITES)
    world.body["status"] |= PASSED
    world.ready("coordinator", "broker")
    suite_broker(world, 1, "sums")
    world.carry_out()
    roles = {role["name"]: role for role in world.body["status"]["roles"]}
    assert (roles["broker"]["desired"], roles["broker"]["ready"]) == (3, 2)
    assert not world.is_true("SandboxesReady")
    suite_broker(world, 2, "facts")
    world.carry_out()
    assert world.is_true("SandboxesReady")


def test_a_suite_whose_image_cannot_be_pulled_is_reported() -> None:
    """This holds although the job's own sandboxes can start."""
    world = chosen(suites=SUITES)
    world.ready("coordinator", "broker", "sandbox")
    for number, suite in enumerate(("sums", "facts"), 1):
        suite_broker(world, number, suite)
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod = world.pod("sandbox", 1, phase="Pending", containerStatuses=[{"name": "sandbox", "state": state}])
    pod["metadata"]["labels"][names.LABEL_SUITE] = "sums"
    world.carry_out()
    assert "no such image" in world.status_condition("SandboxesReady")["message"]


def test_sandboxes_go_once_no_broker_is_left() -> None:
    world = World(eval_job(suites=SUITES))
    world.ready("sandbox")
    broker = suite_broker(world, 1, "sums")
    seen = Observed(world.now, tuple(world.objects.values()))
    assert teardown.stopping(seen) == ()
    del world.objects["Pod", broker["metadata"]["name"]]
    (left,) = teardown.stopping(Observed(world.now, tuple(world.objects.values())))
    assert left["metadata"]["labels"][names.LABEL_COMPONENT] == "sandbox"


def test_pools_of_all_suites_above_the_limit_are_refused() -> None:
    world = World(eval_job(suites=SUITES, rollout={"maxConcurrency": 512}))
    world.carry_out()
    message = world.status_condition("Accepted")["message"]
    assert "for each of spec.suites: 1536 is above this platform's limit of 1024" in message


def test_a_template_of_a_suite_may_not_loosen_its_sandbox() -> None:
    template = {"spec": {"hostNetwork": True, "runtimeClassName": "gvisor"}}
    suites = [SUITES[0] | {"sandbox": {"podTemplate": template}}]
    world = World(eval_job(suites=suites))
    world.carry_out()
    message = world.status_condition("Accepted")["message"]
    assert "spec.suites[sums].sandbox.podTemplate.spec.hostNetwork is fixed for every sandbox" in message
    assert "use spec.suites[sums].sandbox.runtimeClassName" in message


def test_scrapers_of_the_platform_reach_suites_brokers() -> None:
    (rule,) = chosen(suites=SUITES).objects["NetworkPolicy", "refunds-eval-suite-broker"]["spec"]["ingress"]
    assert rule["from"][1:] == [*PLATFORM.metrics_from]
