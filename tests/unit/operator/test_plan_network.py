"""Which pods may connect to which: the NetworkPolicy of each role."""

from __future__ import annotations

from typing import Any

import pytest
from observed_cluster import FROM_MEMORY, PLATFORM, SANDBOXED, UID, World, job

from headway_api import names
from headway_api.document import Json


def pods(role: str) -> list[Json]:
    """The peers that select the pods of a role of this job."""
    labels = {names.LABEL_JOB_UID: UID, names.LABEL_COMPONENT: role}
    return [{"podSelector": {"matchLabels": labels}}]


def policies_of(**spec: Any) -> dict[str, Json]:
    return {
        item.ref[2].removeprefix("refunds-"): item.body["spec"]
        for item in World(job(**spec)).plan().wanted
        if item.ref[0] == "NetworkPolicy"
    }


@pytest.fixture
def policies() -> dict[str, Json]:
    return policies_of()


def test_every_role_has_a_policy_from_the_start(policies: dict[str, Json]) -> None:
    assert set(policies) == set(names.ROLES)
    for role, spec in policies.items():
        selector = spec["podSelector"]["matchLabels"]
        assert selector == {names.LABEL_JOB_UID: UID, names.LABEL_COMPONENT: role}


def test_a_sandbox_reaches_nothing(policies: dict[str, Json]) -> None:
    assert policies["sandbox"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policies["sandbox"]


def test_judges_asked_by_the_coordinator_change_no_policy() -> None:
    endpoint = {"url": "https://models.acme.dev/v1", "model": "large"}
    found = policies_of(judges=[{"name": "style", "endpoint": endpoint}])
    assert found == policies_of()
    assert found["coordinator"]["policyTypes"] == ["Ingress"], "a judge is anywhere"
    assert "egress" not in found["sandbox"]


@pytest.mark.parametrize(
    ("role", "peers", "ports"),
    [
        ("sandbox", {"coordinator", "broker"}, {8080}),
        ("broker", {"coordinator", "scrapers"}, {8200}),
        ("coordinator", {"learner", "scrapers"}, {8100}),
        ("learner", {"learner"}, set()),
    ],
)
def test_each_roles_ports_are_open_to_its_peers_only(
    policies: dict[str, Json], role: str, peers: set[str], ports: set[int]
) -> None:
    (rule,) = policies[role]["ingress"]
    found = set()
    for peer in rule["from"]:
        if "podSelector" in peer:
            labels = peer["podSelector"]["matchLabels"]
            assert labels[names.LABEL_JOB_UID] == UID
            found.add(labels[names.LABEL_COMPONENT])
        else:
            assert peer == PLATFORM.metrics_from[0]
            found.add("scrapers")
    assert found == peers
    assert {port["port"] for port in rule.get("ports", [])} == ports


def test_scrapers_reach_vllms_metrics_and_not_vllm(policies: dict[str, Json]) -> None:
    assert policies["rollout"]["ingress"] == [
        {"from": pods("coordinator"), "ports": [{"protocol": "TCP", "port": port} for port in (8000, 8001)]},
        {
            "from": [*pods("coordinator"), PLATFORM.metrics_from[0]],
            "ports": [{"protocol": "TCP", "port": 8002}],
        },
    ]


def test_a_platform_without_scrapers_lets_none_in() -> None:
    quiet = PLATFORM.model_copy(update={"metrics_from": ()})
    wanted = World(job(), quiet).plan().wanted
    found = {item.ref[2]: item.body["spec"] for item in wanted if item.ref[0] == "NetworkPolicy"}
    for rule in found["refunds-rollout"]["ingress"]:
        assert rule["from"] == pods("coordinator")


def test_an_http_agent_adds_only_gateway_ingress_from_anywhere(policies: dict[str, Json]) -> None:
    found = policies_of(agent={"http": {"url": "http://agent"}})
    opened = found["coordinator"]["ingress"].pop()
    assert opened == {"ports": [{"protocol": "TCP", "port": 8110}]}, "without `from`: from anywhere"
    assert found == policies


def test_a_sandboxed_agent_adds_only_access_to_its_jobs_gateway(
    policies: dict[str, Json],
) -> None:
    found = policies_of(agent=SANDBOXED)
    ports = [{"protocol": "TCP", "port": 8110}]
    assert found["sandbox"].pop("egress") == [{"to": pods("coordinator"), "ports": ports}]
    assert found["coordinator"]["ingress"].pop() == {"from": pods("sandbox"), "ports": ports}
    assert found == policies


def test_learner_and_servers_reach_each_other_to_send_weights(policies: dict[str, Json]) -> None:
    found = policies_of(**FROM_MEMORY)
    chosen = {"protocol": "TCP", "port": 32768, "endPort": 60999}
    asked = {"protocol": "TCP", "port": 8310}
    assert found["learner"]["ingress"].pop() == {"from": pods("rollout"), "ports": [asked, chosen]}
    assert found["rollout"]["ingress"].pop() == {"from": pods("learner"), "ports": [chosen]}
    assert found == policies


def test_named_ports_lie_outside_the_systems_port_range() -> None:
    named = {value for name, value in vars(names).items() if name.startswith("PORT_")}
    first, last = names.SYSTEM_PORTS
    assert len(named) > 5
    assert not named & set(range(first, last + 1))
