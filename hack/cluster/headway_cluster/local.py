"""Brings the local cluster up, step by step, and reports on it."""

from __future__ import annotations

import json
from pathlib import Path

from . import (
    binaries,
    containerd,
    control_plane,
    health,
    host,
    images,
    kubeconfig,
    network,
    node,
    packages,
    pki,
    policy,
    processes,
    teardown,
)
from .cgroups import ControlGroup
from .errors import ClusterError
from .layout import NODE_IP, NODE_NAME, SOURCE, Layout
from .shell import run
from .steps import say, step
from .waiting import wait_for

DAEMONS = (
    "etcd",
    "containerd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "netpol",
    "kubelet",
    "kube-proxy",
)


def up(layout: Layout, *, keep_failed: bool = False) -> None:
    """Start the cluster, and wait until its node is Ready and DNS works. Return at once if it runs already.

    If the start fails or is interrupted, it cleans up. With `keep_failed` it leaves everything for
    inspection.
    """
    host.check_root()
    packages.install()
    programs = binaries.build(layout, binaries.CLUSTER_PROGRAMS)
    if healthy(layout):
        say(f"the cluster is up: export KUBECONFIG={layout.admin_kubeconfig}")
        return
    if teardown.anything_left(layout):
        say("an earlier cluster is not well: clearing it first")
        teardown.tear_down(layout, programs, keep_images=True)
    host.check()
    try:
        _start(layout, programs)
    except BaseException:
        if keep_failed:
            raise
        say("giving up: clearing what was started")
        teardown.tear_down(layout, programs, keep_images=True)
        raise
    say(f"ready: export KUBECONFIG={layout.admin_kubeconfig}")


def _start(layout: Layout, programs: Path) -> None:
    for folder in (layout.state, layout.config, layout.logs):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    host.remember(layout)
    ControlGroup(layout.name).create()
    with step("network"):
        network.create()
        network.write_cni(layout, programs)
    with step("keys and certificates"):
        pki.create(layout, NODE_IP)
        for identity in ("controller-manager", "scheduler", "kubelet", "kube-proxy", "netpol"):
            kubeconfig.write(layout, identity, layout.kubeconfig(identity))
        kubeconfig.write(layout, "admin", layout.admin_kubeconfig)
    with step("etcd and API server"):
        control_plane.start_etcd(layout)
        control_plane.start_api_server(layout, programs)
    with step("containerd and its first images"):
        containerd.start(layout)
        images.load_builtin(layout, programs)
    with step("controller manager and scheduler"):
        control_plane.start_controller_manager(layout, programs)
        control_plane.start_scheduler(layout, programs)
    with step("access rules, DNS objects and network policy"):
        config = f"--kubeconfig={layout.admin_kubeconfig}"
        run([programs / "kubectl", config, "apply", "--filename", SOURCE / "manifests"])
        policy.start(layout, programs)
    with step("kubelet and kube-proxy"):
        node.start_kubelet(layout, programs)
        node.start_kube_proxy(layout, programs)
    with step("node ready and DNS answering"):
        kubelet_log = processes.log_of(layout, "kubelet")
        wait_for("the node to be Ready", lambda: node_ready(layout), log=kubelet_log)
        wait_for("CoreDNS to be available", lambda: _dns_ready(layout), log=kubelet_log)


def healthy(layout: Layout) -> bool:
    """Whether every daemon runs and the node is Ready."""
    recorded = processes.recorded(layout)
    alive = all(name in recorded and recorded[name].alive() for name in DAEMONS)
    return alive and health.api_ready(layout) and node_ready(layout)


def status(layout: Layout) -> bool:
    """Print a line for each daemon and one for the node; return whether all is well."""
    recorded = processes.recorded(layout)
    for name in DAEMONS:
        daemon = recorded.get(name)
        life = "not started" if daemon is None else f"pid {daemon.pid}"
        if daemon is not None and not daemon.alive():
            life = f"ended, see {processes.log_of(layout, name)}"
        print(f"{name:26} {life}")
    well = healthy(layout)
    print(f"{'node ' + NODE_NAME:26} {'Ready' if well else 'not ready'}")
    return well


def down(layout: Layout, *, keep_images: bool) -> None:
    host.check_root()
    teardown.tear_down(layout, binaries.folder(layout), keep_images=keep_images)


def load_image(layout: Layout, archive: Path) -> None:
    host.check_root()
    if not archive.is_file():
        raise ClusterError(f"there is no file {archive}", fix="name an OCI archive")
    if not layout.containerd_socket.exists():
        raise ClusterError("the cluster is not up", fix="cluster.py up")
    with step(f"loading {archive.name}"):
        names = containerd.import_image(layout, archive)
    for name in names:
        print(name)


def node_ready(layout: Layout) -> bool:
    code, body = health.api_get(layout, f"/api/v1/nodes/{NODE_NAME}")
    if code != 200:
        return False
    conditions = json.loads(body)["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _dns_ready(layout: Layout) -> bool:
    path = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
    code, body = health.api_get(layout, path)
    return code == 200 and json.loads(body).get("status", {}).get("availableReplicas", 0) > 0
