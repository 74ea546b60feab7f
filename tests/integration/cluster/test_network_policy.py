"""NetworkPolicy with real pods: a table of which connections must open and which must not.

Every case has these pods:

- `server` (app=server) in the test's namespace, which listens on 8080, named "web", and on 9090;
- `friend` (role=friend) and `other` in the same namespace;
- `visitor` (role=friend) in a second namespace, which is labelled team=visitors.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from .pods import pod, service

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.timeout(2700)]

CONNECT_S = 2
"""Seconds to wait for a connection. Dropped packets get no answer, so a denied connection takes this long."""
ENFORCED_S = 20
"""Seconds from the API's answer until the kernel enforces a policy. It takes under 50 ms if the daemon gets a
CPU."""

Knock = tuple[str, str, int]
"""Sender, host, port."""


@dataclass(frozen=True)
class Lab:
    """Two namespaces with the pods that the module's docstring lists."""

    cluster: Any
    home: str
    foreign: str

    def connects(self, sender: str, host: str, port: int = 8080) -> bool:
        """Whether `sender` opens a TCP connection to a host."""
        namespace = self.foreign if sender == "visitor" else self.home
        done = self.cluster.attempt("exec", "-n", namespace, sender, "--", "sh", "-c", knock(host, port))
        return bool(done.returncode == 0)

    def opened(self, knocks: Iterable[Knock]) -> dict[Knock, bool]:
        """Which of these connections open. All are tried at once."""
        asked = list(knocks)
        with ThreadPoolExecutor(len(asked)) as threads:
            return dict(zip(asked, threads.map(lambda knock: self.connects(*knock), asked), strict=True))

    def settles(self, expected: Mapping[Knock, bool]) -> None:
        """Assert that exactly the expected connections open within `ENFORCED_S`, and keep doing so."""
        deadline = time.monotonic() + ENFORCED_S
        while (found := self.opened(expected)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
        assert found == expected
        assert self.opened(expected) == expected, "what is enforced comes and goes"

    def address(self, name: str) -> str:
        namespace = self.foreign if name == "visitor" else self.home
        path = "jsonpath={.status.podIP}"
        return str(self.cluster.kubectl("get", "-n", namespace, f"pod/{name}", "-o", path))

    def enforce(self, *specs: dict[str, Any]) -> None:
        """Replace all policies by these."""
        self.cluster.kubectl("delete", "networkpolicies", "--all", "-n", self.home)
        for number, spec in enumerate(specs):
            self.cluster.apply(policy(f"policy-{number}", self.home, spec))


def knock(host: str, port: int) -> str:
    """A shell command that succeeds if a TCP connection opens."""
    return f"nc -w {CONNECT_S} {host} {port} < /dev/null > /dev/null 2>&1"


def policy(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


LISTEN = "echo x > /tmp/index.html; httpd -p 9090 -h /tmp; exec httpd -f -p 8080 -h /tmp"


@pytest.fixture(scope="module")
def lab(cluster: Any) -> Iterator[Lab]:
    stem = f"policy-{time.time_ns() // 1_000_000:x}"
    lab = Lab(cluster, f"{stem}-home", f"{stem}-foreign")
    for name in (lab.home, lab.foreign):
        cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", lab.foreign, "team=visitors")
    cluster.wait_until(
        "service accounts",
        lambda: all(
            cluster.attempt("get", "-n", name, "serviceaccount", "default").returncode == 0
            for name in (lab.home, lab.foreign)
        ),
    )
    server = pod("server", lab.home, "sh", "-c", LISTEN, labels={"app": "server"}, ports={"web": 8080})
    cluster.apply(
        server,
        pod("friend", lab.home, labels={"role": "friend"}),
        pod("other", lab.home),
        pod("visitor", lab.foreign, labels={"role": "friend"}),
        service("server", lab.home, {"app": "server"}, 8080),
    )
    for name in (lab.home, lab.foreign):
        ready = ("--for=condition=Ready", "--timeout=180s", "pod", "--all")
        cluster.kubectl("wait", "-n", name, *ready)
    yield lab
    for name in (lab.home, lab.foreign):
        cluster.kubectl("delete", "namespace", name, "--wait=false")


SERVER = {"matchLabels": {"app": "server"}}
FRIEND = {"podSelector": {"matchLabels": {"role": "friend"}}}
VISITORS = {"namespaceSelector": {"matchLabels": {"team": "visitors"}}}
EVERYONE = {"namespaceSelector": {}}
PODS = "10.88.0.0/16"


def ingress(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"podSelector": SERVER, "policyTypes": ["Ingress"], "ingress": list(rules)}


CASES: dict[str, tuple[list[dict[str, Any]], dict[str, bool]]] = {
    "no policy": ([], {"friend": True, "other": True, "visitor": True}),
    "default deny": ([ingress()], {"friend": False, "other": False, "visitor": False}),
    "policyTypes left out": ([{"podSelector": SERVER}], {"friend": False, "visitor": False}),
    "podSelector": (
        [ingress({"from": [FRIEND]})],
        {"friend": True, "other": False, "visitor": False},
    ),
    "namespaceSelector": (
        [ingress({"from": [VISITORS]})],
        {"friend": False, "other": False, "visitor": True},
    ),
    "both selectors in one peer": (
        [ingress({"from": [{**VISITORS, **FRIEND}]})],
        {"friend": False, "other": False, "visitor": True},
    ),
    "either selector": (
        [ingress({"from": [VISITORS, FRIEND]})],
        {"friend": True, "other": False, "visitor": True},
    ),
    "policies add up": (
        [ingress(), ingress({"from": [FRIEND]})],
        {"friend": True, "other": False},
    ),
    "ipBlock": ([ingress({"from": [{"ipBlock": {"cidr": PODS}}]})], {"friend": True, "other": True}),
    "ipBlock with except": (
        [ingress({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": [PODS]}}]})],
        {"friend": False, "visitor": False},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_policy_decides_who_may_connect(lab: Lab, case: str) -> None:
    policies, expected = CASES[case]
    lab.enforce(*policies)
    server = lab.address("server")
    lab.settles({(sender, server, 8080): may for sender, may in expected.items()})


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({"port": 8080}, {8080: True, 9090: False}),
        ({"port": "web"}, {8080: True, 9090: False}),
        ({"port": 8000, "endPort": 8100}, {8080: True, 9090: False}),
        ({"port": 8080, "protocol": "UDP"}, {8080: False}),
    ],
    ids=["numeric", "named", "range", "other-protocol"],
)
def test_a_policy_decides_which_ports_are_open(
    lab: Lab, port: dict[str, Any], expected: dict[int, bool]
) -> None:
    lab.enforce(ingress({"ports": [port]}))
    server = lab.address("server")
    lab.settles({("other", server, number): may for number, may in expected.items()})


def test_a_service_is_judged_by_the_pod_behind_it(lab: Lab) -> None:
    lab.enforce(ingress({"from": [FRIEND]}))
    path = "jsonpath={.spec.clusterIP}"
    virtual = lab.cluster.kubectl("get", "-n", lab.home, "service/server", "-o", path)
    lab.settles({("friend", virtual, 8080): True, ("other", virtual, 8080): False})


def test_denied_egress_reaches_nothing(lab: Lab) -> None:
    lab.enforce({"podSelector": SERVER, "policyTypes": ["Egress"]})
    elsewhere = ((lab.address("visitor"), 8080), ("10.96.0.1", 443), ("10.96.0.10", 53))
    denied = {("server", host, port): False for host, port in elsewhere}
    lab.settles({("other", lab.address("server"), 8080): True} | denied)


def test_egress_opens_what_it_lists(lab: Lab) -> None:
    dns = {"to": [EVERYONE], "ports": [{"port": 53, "protocol": "TCP"}]}
    web = {"to": [{"podSelector": SERVER}], "ports": [{"port": "web"}]}
    other = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}
    lab.enforce({"podSelector": other, "policyTypes": ["Egress"], "egress": [dns, web]})
    server = lab.address("server")
    lab.settles(
        {
            ("other", "10.96.0.10", 53): True,
            ("other", server, 8080): True,
            ("other", server, 9090): False,
            ("other", "10.96.0.1", 443): False,
        }
    )


def test_a_new_policy_keeps_open_connections(lab: Lab) -> None:
    lab.enforce()
    lines = 16
    talk = f"for i in $(seq {lines}); do echo; sleep 0.5; done"
    server = lab.address("server")
    lab.settles({("other", server, 8080): True})

    def in_background(name: str, command: str) -> None:
        quiet = f"({command}) < /dev/null > /dev/null 2>&1 & sleep 0.3"
        lab.cluster.kubectl("exec", "-n", lab.home, name, "--", "sh", "-c", quiet)

    def heard() -> int:
        count = ("exec", "-n", lab.home, "server", "--", "sh", "-c", "wc -l < /tmp/heard || echo 0")
        return int(lab.cluster.kubectl(*count))

    in_background("server", "sleep 120 | nc -l -p 7000 > /tmp/heard")
    # Until the server listens, no connection opens. It accepts only one.
    in_background("other", f"for try in $(seq 50); do ({talk}) | nc {server} 7000 && break; sleep 0.2; done")
    lab.cluster.wait_until("the first line", lambda: heard() > 0, deadline=30)
    lab.enforce(ingress())
    lab.cluster.wait_until(f"all {lines} lines", lambda: heard() == lines, deadline=30)
    lab.settles({("other", server, 8080): False})


def test_the_node_itself_always_reaches_its_pods(lab: Lab) -> None:
    lab.enforce(ingress())
    probed = pod("probed", lab.home, "sh", "-c", LISTEN, labels={"app": "server"})
    (container,) = probed["spec"]["containers"]
    container["readinessProbe"] = {"httpGet": {"path": "/index.html", "port": 8080}, "periodSeconds": 1}
    lab.cluster.apply(probed)
    ready = ("--for=condition=Ready", "--timeout=30s", "pod/probed")
    lab.cluster.kubectl("wait", "-n", lab.home, *ready)


def test_a_policy_covers_a_pod_from_its_first_instruction(lab: Lab) -> None:
    """Pods whose egress is denied try to connect as soon as they start. Not one may ever succeed."""
    sealed = {"podSelector": {"matchLabels": {"sealed": "yes"}}, "policyTypes": ["Egress"]}
    lab.enforce(sealed)
    time.sleep(1)  # the policy is enforced by now: the test is about pods that start before their own rules
    server = lab.address("server")
    attempt = f"{knock(server, 8080)} && echo through"
    names = [f"sealed-{number}" for number in range(8)]
    for name in names:
        command = ("sh", "-c", f"{attempt}; {attempt}; true")
        one = pod(name, lab.home, *command, labels={"sealed": "yes"}, restartPolicy="Never")
        lab.cluster.apply(one)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    for name in names:
        lab.cluster.kubectl("wait", "-n", lab.home, done, "--timeout=180s", f"pod/{name}")
        assert "through" not in lab.cluster.kubectl("logs", "-n", lab.home, name)


def test_relabelling_a_pod_changes_what_it_reaches(lab: Lab) -> None:
    lab.enforce(ingress({"from": [FRIEND]}))
    server = lab.address("server")
    lab.settles({("other", server, 8080): False})
    lab.cluster.kubectl("label", "-n", lab.home, "pod/other", "role=friend")
    lab.settles({("other", server, 8080): True})
    lab.cluster.kubectl("label", "-n", lab.home, "pod/other", "role-")
