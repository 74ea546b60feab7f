"""Runs the cluster's own containerd, with its own root, state and socket, so as not to disturb the
system's."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from . import processes
from .layout import Layout
from .oci import PAUSE_IMAGE
from .shell import run, succeeds
from .waiting import wait_for

NAMESPACE = "k8s.io"


def start(layout: Layout) -> None:
    for folder in (layout.containerd_root, layout.containerd_run):
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    config = layout.config / "containerd.toml"
    config.write_text(_config(layout))
    daemon = processes.start(layout, "containerd", ["containerd", "--config", config])
    processes.wait_ready(layout, daemon, lambda: succeeds([*ctr(layout), "version"]))


def ctr(layout: Layout) -> list[str]:
    """The first arguments of every `ctr` command for this containerd."""
    return ["ctr", "--address", str(layout.containerd_socket), "--namespace", NAMESPACE]


def import_image(layout: Layout, archive: Path) -> list[str]:
    """Load an OCI or Docker archive, and return the names of its images."""
    output = run([*ctr(layout), "images", "import", archive], fix="is the file an OCI archive?")
    return [line.split()[1] for line in output.splitlines() if line.startswith("unpacking ")]


def delete_containers(layout: Layout) -> None:
    """Delete every container, so that only images remain in the store."""
    for kind, options in (("tasks", ["--force"]), ("containers", [])):
        wait_for(
            f"containerd to forget its {kind}", partial(_delete_all, layout, kind, options), deadline_s=60
        )


def _delete_all(layout: Layout, kind: str, options: list[str]) -> bool:
    """Delete all objects of a kind that ctr lists. Return whether it listed none.

    Objects also disappear by themselves, when the shims of killed pods end. So an object that is already gone
    is not an error.
    """
    listed = run([*ctr(layout), kind, "list", "--quiet"]).split()
    if listed:
        succeeds([*ctr(layout), kind, "delete", *options, *listed])
    return not listed


def shim_sockets(layout: Layout) -> list[Path]:
    """Sockets of the container shims, which lie in a folder fixed in containerd itself."""
    bundles = layout.containerd_run / "io.containerd.runtime.v2.task" / NAMESPACE
    found = [address.read_text().strip() for address in bundles.glob("*/address")]
    return [Path(text.removeprefix("unix://")) for text in found]


def _config(layout: Layout) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    quoted = json.dumps  # a JSON string is a TOML string
    return f"""
version = 2
root = {quoted(str(layout.containerd_root))}
state = {quoted(str(layout.containerd_run))}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = {quoted(str(layout.containerd_socket))}

[debug]
level = "warn"

[plugins."io.containerd.internal.v1.opt"]
path = {quoted(str(layout.state / "opt"))}

[{cri}]
sandbox_image = {quoted(PAUSE_IMAGE)}
# Not every machine lends the capability to lower the score of what it kills first.
restrict_oom_score_adj = true
disable_apparmor = true
enable_unprivileged_ports = true
enable_unprivileged_icmp = true
netns_mounts_under_state_dir = true

[{cri}.cni]
bin_dir = {quoted(str(layout.state / "cni" / "bin"))}
conf_dir = {quoted(str(layout.cni_config))}
max_conf_num = 1

[{cri}.containerd]
default_runtime_name = "default"
snapshotter = "overlayfs"

[{cri}.containerd.runtimes.default]
runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.default.options]
BinaryName = {quoted(OCI_RUNTIME)}
Root = {quoted(str(layout.containerd_run / "oci"))}
SystemdCgroup = false
"""


OCI_RUNTIME = "runc"
"""crun 1.8 refuses machines that have control groups of both versions ("hybrid mode not supported")."""
