"""Removes a cluster from the machine, whatever its state: running, half started or crashed.

Every stage looks at what really exists on the machine, and not at what should exist. So it can run again
after any failure, and leftovers of one stage do not stop the next.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from . import containerd, host, network, node, policy, processes
from .cgroups import ControlGroup
from .layout import Layout
from .shell import succeeds
from .steps import step

NET_STATE = Path("/var/lib/cni")
CONTAINER_LOG_LINKS = Path("/var/log/containers")


def tear_down(layout: Layout, binaries: Path, *, keep_images: bool = False) -> None:
    """Remove the whole cluster, except its loaded images if `keep_images`."""
    before = host.remembered(layout)
    group = ControlGroup(layout.name)
    with step("stopping pods"):
        processes.stop(layout, "kubelet")
        group.kill_members("kubepods")
        sockets = containerd.shim_sockets(layout)
        networks = _sandbox_ids(layout)
        images_kept = keep_images and _forget_containers(layout)
    with step("stopping processes"):
        for name in reversed(processes.recorded(layout)):
            processes.stop(layout, name)
        group.kill_members()
    with step("removing mounts, interfaces and rules"):
        _unmount_below(layout.state)
        _clean_service_rules(layout, binaries)
        policy.remove()
        network.remove()
        _remove_tables_that_were_not_there(before)
        host.restore_sysctls(before)
        group.remove()
        _remove_outside_files(layout, sockets, networks)
    with step("removing state"):
        _remove_state(layout, keep_images=images_kept)


def anything_left(layout: Layout) -> bool:
    """Whether a cluster runs, or has left files or processes that `tear_down` would remove."""
    traces = layout.state.exists() and any(path != layout.containerd_root for path in layout.state.iterdir())
    return traces or bool(ControlGroup(layout.name).members())


def _forget_containers(layout: Layout) -> bool:
    """Delete all containers from the image store; False if containerd no longer runs."""
    daemon = processes.recorded(layout).get("containerd")
    if daemon is None or not daemon.alive():
        return False
    containerd.delete_containers(layout)
    return True


def _sandbox_ids(layout: Layout) -> set[str]:
    """Ids of this cluster's pod sandboxes for which the CNI plugins keep result files."""
    prefix, suffix = f"{layout.name}-", "-eth0"
    return {
        path.name.removeprefix(prefix).removesuffix(suffix)
        for path in (NET_STATE / "results").glob(f"{prefix}*{suffix}")
    }


def _unmount_below(top: Path) -> None:
    """Unmount everything at or below `top`, innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split(" ")[4].replace("\\040", " ") for line in lines]
    ours = [point for point in points if point == str(top) or point.startswith(f"{top}/")]
    for point in reversed(ours):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=True)


def _clean_service_rules(layout: Layout, binaries: Path) -> None:
    if (binaries / "kube-proxy").exists() and layout.kubeconfig("kube-proxy").exists():
        command = [*node.kube_proxy_command(layout, binaries), "--cleanup"]
        succeeds([str(word) for word in command])


def _remove_tables_that_were_not_there(before: host.HostBefore) -> None:
    """Delete the iptables tables that did not exist before `up`: kube-proxy made them."""
    if not before.sysctls:
        return  # there is no record from before `up`, so `up` changed nothing
    for table in host.nft_tables():
        if table not in before.nft_tables and table.split()[1] in _IPTABLES_TABLES:
            succeeds(["nft", "delete", "table", *table.split()])


_IPTABLES_TABLES = {"filter", "nat", "mangle", "raw"}


def _remove_outside_files(layout: Layout, sockets: list[Path], sandboxes: set[str]) -> None:
    """Delete files that containerd, CNI plugins and the kubelet write to folders that cannot be
    configured."""
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for sandbox in sandboxes:
        for result in (NET_STATE / "results").glob(f"*{sandbox}*"):
            result.unlink()
    for link in CONTAINER_LOG_LINKS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(layout.state):
            link.unlink()


def _remove_state(layout: Layout, *, keep_images: bool) -> None:
    if not layout.state.exists():
        return
    for path in layout.state.iterdir():
        if keep_images and path == layout.containerd_root:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not any(layout.state.iterdir()):
        layout.state.rmdir()
