"""Installs the Debian packages that the cluster needs, if they are missing."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from .errors import ClusterError
from .shell import run
from .steps import step

CNI_PLUGINS = Path("/usr/lib/cni")
LISTS_FRESH_S = 24 * 3600

PROVIDED_BY = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "etcd": "etcd-server",
    "iptables": "iptables",
    "ipset": "ipset",
    "nft": "nftables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "socat": "socat",
    "openssl": "openssl",
    "busybox": "busybox-static",
}
"""Command that the cluster calls -> Debian package that contains the command."""


def missing() -> list[str]:
    """Packages whose commands are missing on this machine."""
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    absent = {package for command, package in PROVIDED_BY.items() if not shutil.which(command, path=search)}
    if not (CNI_PLUGINS / "bridge").exists():
        absent.add("containernetworking-plugins")
    return sorted(absent)


def install() -> None:
    """Install the missing packages, without recommended ones."""
    wanted = missing()
    if not wanted:
        return
    fix = f"install these yourself: {' '.join(wanted)}"
    if not shutil.which("apt-get"):
        raise ClusterError(f"missing on this machine: {' '.join(wanted)}", fix=fix)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    refresh_lists(fix=fix)
    with step(f"installing {' '.join(wanted)}"):
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted], env=env, fix=fix)


def refresh_lists(*, fix: str) -> None:
    """Fetch the package lists if they are older than a day and this process runs as root."""
    if not _lists_fresh() and os.geteuid() == 0:
        with step("refreshing the lists of Debian packages"):
            run(["apt-get", "update", "-qq"], fix=fix)


def _lists_fresh() -> bool:
    lists = [path for path in Path("/var/lib/apt/lists").glob("*Packages*") if path.is_file()]
    newest = max((path.stat().st_mtime for path in lists), default=0.0)
    return time.time() - newest < LISTS_FRESH_S
