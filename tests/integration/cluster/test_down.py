"""`cluster.py down` leaves nothing, whatever state the cluster is in.

The cluster of these tests has its own network namespace and state folder. So it can be killed and taken down
beside a cluster that is in use.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster import binaries, host
from headway_cluster.cgroups import ControlGroup, hierarchies
from headway_cluster.layout import Layout
from headway_cluster.processes import recorded

from .pods import pod, service

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(2700),
    pytest.mark.skipif(os.geteuid() != 0, reason="a cluster of this machine's own processes needs root"),
]

REPOSITORY = Path(__file__).parents[3]
NETWORK = "headway-down-test"
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "closed", "namespace": "default"},
    "spec": {"podSelector": {}, "ingress": []},
}


@dataclass(frozen=True)
class Spare:
    """A second cluster in its own network namespace."""

    layout: Layout

    def run(self, *command: str, input: str | None = None) -> str:
        done = subprocess.run(
            ["nsenter", f"--net=/run/netns/{NETWORK}", *command],
            env={**os.environ, "HEADWAY_STATE": str(self.layout.state)},
            input=input,
            text=True,
            capture_output=True,
            timeout=2400,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout

    def cluster(self, *args: str) -> str:
        return self.run("/usr/bin/python3", str(REPOSITORY / "hack/cluster/cluster.py"), *args)

    def traces(self) -> dict[str, Any]:
        """Everything on this machine that a cluster may leave behind."""
        state, name = str(self.layout.state), self.layout.name
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        links = Path("/var/log/containers").glob("*.log")
        return {
            "processes": [line for line in commands if state.encode() in line],
            "members": ControlGroup(name).members(),
            "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if state in line],
            "groups": [top for top in hierarchies().values() if (top / name).exists()],
            "links": [link["ifname"] for link in json.loads(self.run("ip", "-json", "link"))],
            "routes": self.run("ip", "route", "show", "table", "all"),
            "rules": self.run("nft", "list", "ruleset"),
            "sets": self.run("ipset", "list", "-name"),
            "addresses": list(Path("/var/lib/cni/results").glob(f"{name}-*")),
            "logs": [link for link in links if state in os.readlink(link)],
            "settings": self.run("grep", "", *(f"/proc/sys/{name}" for name in host.SYSCTLS)),
            "state": self.layout.state.exists(),
        }


@pytest.fixture
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spare]:
    state = tmp_path_factory.mktemp("spare") / "state"
    # These traces belong to a run that was killed.
    subprocess.run(["ip", "netns", "delete", NETWORK], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "add", NETWORK], check=True)
    spare = Spare(Layout(cache=Layout.from_environment().cache, state=state))
    spare.run("ip", "link", "set", "lo", "up")
    yield spare
    spare.cluster("down")
    subprocess.run(["ip", "netns", "delete", NETWORK], check=True)


@pytest.mark.parametrize(
    "killed",
    [
        (),
        ("kubelet", "containerd"),
        ("kube-apiserver", "etcd", "netpol"),
        ("etcd", "containerd", "kube-apiserver", "kubelet", "kube-proxy", "netpol"),
    ],
    ids=["whole", "without-its-node", "without-its-control-plane", "pods-only"],
)
def test_down_leaves_nothing(spare: Spare, killed: tuple[str, ...]) -> None:
    before = spare.traces()
    spare.cluster("up")
    program = binaries.folder(spare.layout) / "kubectl"
    kubectl = (str(program), f"--kubeconfig={spare.layout.admin_kubeconfig}")
    for one in (
        pod("idle", "default", labels={"a": "b"}),
        service("idle", "default", {"a": "b"}, 80),
        POLICY,
    ):
        spare.run(*kubectl, "apply", "-f", "-", input=json.dumps(one))
    spare.run(*kubectl, "wait", "--for=condition=Ready", "--timeout=180s", "pod/idle")
    daemons = recorded(spare.layout)
    for name in killed:
        os.kill(daemons[name].pid, signal.SIGKILL)
    spare.cluster("down")
    assert spare.traces() == before


def test_an_interrupted_start_clears_up(spare: Spare) -> None:
    before = spare.traces()
    command = ["nsenter", f"--net=/run/netns/{NETWORK}", "/usr/bin/python3"]
    starting = subprocess.Popen(
        [*command, str(REPOSITORY / "hack/cluster/cluster.py"), "up"],
        env={**os.environ, "HEADWAY_STATE": str(spare.layout.state)},
        stderr=subprocess.PIPE,
        text=True,
        # A runner started in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert starting.stderr
    for line in starting.stderr:
        if "API server" in line:
            starting.send_signal(signal.SIGINT)
    assert starting.wait(timeout=120) == 130
    assert spare.traces() == before


def test_up_after_a_crash_starts_afresh(spare: Spare) -> None:
    spare.cluster("up")
    os.kill(recorded(spare.layout)["etcd"].pid, signal.SIGKILL)
    spare.cluster("up")
    assert "Ready" in spare.cluster("status")
