"""Runs the network policy enforcer as a host process."""

from __future__ import annotations

from pathlib import Path

from . import processes
from .layout import BRIDGE, NODE_NAME, POD_CIDR, Layout
from .shell import succeeds

TABLE = "headway-policy"


def start(layout: Layout, binaries: Path) -> None:
    """Start the enforcer, and return once the first rules are in the kernel. So no pod starts without
    rules."""
    daemon = processes.start(
        layout,
        "netpol",
        [
            binaries / "headway-netpol",
            f"--kubeconfig={layout.kubeconfig('netpol')}",
            f"--node={NODE_NAME}",
            f"--table={TABLE}",
            f"--bridge={BRIDGE}",
            f"--pod-cidr={POD_CIDR}",
            f"--socket={layout.netpol_socket}",
        ],
    )
    processes.wait_ready(layout, daemon, layout.netpol_socket.exists)


def remove() -> None:
    succeeds(["nft", "delete", "table", "inet", TABLE])
