"""Checks this machine before anything is started, and restores its settings afterwards."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import cgroups
from .errors import ClusterError
from .layout import API_PORT, Layout
from .shell import run, succeeds

PORTS = {
    2379: "etcd",
    API_PORT: "kube-apiserver",
    10248: "kubelet",
    10249: "kube-proxy",
    10250: "kubelet",
    10256: "kube-proxy",
    10257: "kube-controller-manager",
    10259: "kube-scheduler",
}

SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Kernel settings that this tool, the kubelet or kube-proxy changes."""


def docker_answers() -> bool:
    """Whether a Docker engine runs on this machine. An installed client alone is not enough."""
    return succeeds(["docker", "info"], timeout_s=15)


def check_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError(
            "a cluster of host processes needs root (namespaces, mounts, firewall rules)",
            fix="run this command with sudo",
        )


def check() -> None:
    """Check that the cluster can run on this machine.

    Raises:
        ClusterError: it cannot; the message has the reason.
    """
    if "memory" not in cgroups.hierarchies() and "unified" not in cgroups.hierarchies():
        raise ClusterError(
            "control groups are not mounted",
            fix="mount cgroup v2 on /sys/fs/cgroup, or run on a host rather than in a container",
        )
    if "overlay" not in Path("/proc/filesystems").read_text():
        succeeds(["modprobe", "overlay"])
    succeeds(["modprobe", "br_netfilter"])
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        raise ClusterError(
            "the kernel's br_netfilter is not loaded, so policies would not see bridged traffic",
            fix="modprobe br_netfilter",
        )
    for port, owner in PORTS.items():
        _check_port_free(port, owner)


def _check_port_free(port: int, owner: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as taken:
            raise ClusterError(
                f"port {port}, which {owner} needs, is in use",
                fix=f"see whose it is with `ss -ltnp sport = {port}` and stop that",
            ) from taken


@dataclass(frozen=True)
class HostBefore:
    """Settings of the machine before `up`, stored on disk so that `down` can restore them."""

    sysctls: dict[str, str] = field(default_factory=dict)
    nft_tables: list[str] = field(default_factory=list)
    """Firewall tables that existed before `up`, such as `ip filter`."""


def remember(layout: Layout) -> None:
    before = HostBefore(
        sysctls={name: value for name in SYSCTLS if (value := sysctl(name)) is not None},
        nft_tables=nft_tables(),
    )
    layout.host_before.write_text(json.dumps(asdict(before), indent=2))


def remembered(layout: Layout) -> HostBefore:
    """The record that `remember` wrote; an empty record if there is none."""
    try:
        return HostBefore(**json.loads(layout.host_before.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return HostBefore()


def restore_sysctls(before: HostBefore) -> None:
    for name, value in before.sysctls.items():
        if sysctl(name) != value:
            set_sysctl(name, value)


def set_sysctl(name: str, value: str) -> None:
    (Path("/proc/sys") / name).write_text(value)


def sysctl(name: str) -> str | None:
    path = Path("/proc/sys") / name
    return path.read_text().strip() if path.exists() else None


def nft_tables() -> list[str]:
    """Family and name of every firewall table, such as `inet headway-policy`."""
    listing = json.loads(run(["nft", "-j", "list", "tables"]))
    found = [entry["table"] for entry in listing["nftables"] if "table" in entry]
    return [f"{table['family']} {table['name']}" for table in found]
