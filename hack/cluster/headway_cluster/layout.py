"""Paths and addresses of the local cluster: its cache of built programs, and the state of a running
cluster."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent

NODE_NAME = "headway-local"
POD_CIDR = "10.88.0.0/16"
NODE_IP = "10.88.0.1"
"""The bridge's address. It is also the gateway of the pods and the API server's address.

So the cluster works on a machine without a network, and is not reachable from outside the machine.
"""
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
API_PORT = 6443
BRIDGE = "headway0"
DEFAULT_STATE = "/var/lib/headway-cluster"


@dataclass(frozen=True)
class Layout:
    """The two folders that a cluster uses, and the paths inside them."""

    cache: Path
    """Folder that survives `down`: built binaries, the Go toolchain, images. It is safe to delete."""
    state: Path
    """Folder with the state of one cluster: keys, etcd's data, logs, process ids. `down` deletes it."""

    @staticmethod
    def from_environment() -> Layout:
        cache = os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway"
        state = os.environ.get("HEADWAY_STATE") or DEFAULT_STATE
        return Layout(cache=Path(cache).resolve(), state=Path(state).resolve())

    @property
    def name(self) -> str:
        """Name of the cluster's control group and pod network. It is different for each state folder."""
        if str(self.state) == DEFAULT_STATE:
            return "headway-cluster"
        return f"headway-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def config(self) -> Path:
        return self.state / "config"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def etcd_data(self) -> Path:
        return self.state / "etcd"

    @property
    def kubelet_root(self) -> Path:
        return self.state / "kubelet"

    @property
    def containerd_root(self) -> Path:
        return self.state / "containerd"

    @property
    def containerd_run(self) -> Path:
        return self.state / "run"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def cni_config(self) -> Path:
        return self.state / "cni" / "net.d"

    @property
    def cni_data(self) -> Path:
        return self.state / "cni" / "addresses"

    @property
    def netpol_socket(self) -> Path:
        return self.state / "netpol.sock"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def host_before(self) -> Path:
        return self.state / "host-before.json"

    def kubeconfig(self, component: str) -> Path:
        return self.config / f"{component}.kubeconfig"
