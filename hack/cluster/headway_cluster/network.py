"""Sets up the node's side of pod networking: a bridge, routes, and masquerading for traffic to the outside.

One masquerade rule covers all pods. The bridge plugin could add such rules itself. But it would call iptables
for each pod, which is a fifth of the cost of a pod's start.
"""

from __future__ import annotations

import json
from pathlib import Path

from .host import set_sysctl
from .layout import BRIDGE, NODE_IP, POD_CIDR, SERVICE_CIDR, Layout
from .packages import CNI_PLUGINS
from .shell import run, succeeds

NAT_TABLE = "headway-nat"


def create() -> None:
    """Create the bridge with the node's address, enable forwarding, and add the masquerade rule."""
    prefix = POD_CIDR.partition("/")[2]
    run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "address", "add", f"{NODE_IP}/{prefix}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "mtu", _mtu(), "up"])
    run(["ip", "route", "add", SERVICE_CIDR, "dev", BRIDGE])
    set_sysctl("net/ipv4/ip_forward", "1")
    set_sysctl("net/bridge/bridge-nf-call-iptables", "1")
    set_sysctl("net/bridge/bridge-nf-call-ip6tables", "1")
    run(["nft", "-f", "-"], stdin=_masquerade())


def write_cni(layout: Layout, binaries: Path) -> None:
    """Write the chain of network plugins that the container runtime calls for each pod."""
    plugins = layout.state / "cni" / "bin"
    plugins.mkdir(parents=True)
    for plugin in CNI_PLUGINS.iterdir():
        (plugins / plugin.name).symlink_to(plugin)
    (plugins / "headway-netpol-cni").symlink_to(binaries / "headway-netpol-cni")
    layout.cni_config.mkdir(parents=True)
    chain = layout.cni_config / "10-headway.conflist"
    chain.write_text(json.dumps(_cni_chain(layout), indent=2))


def _cni_chain(layout: Layout) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.cni_data),
        "ranges": [[{"subnet": POD_CIDR, "gateway": NODE_IP}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "mtu": int(_mtu()),
        "ipam": addresses,
    }
    policy = {"type": "headway-netpol-cni", "socket": str(layout.netpol_socket)}
    return {"cniVersion": "0.4.0", "name": layout.name, "plugins": [bridge, policy]}


def _masquerade() -> str:
    return f"""
        table ip {NAT_TABLE} {{
            chain postrouting {{
                type nat hook postrouting priority 100; policy accept;
                ip saddr {POD_CIDR} ip daddr != {POD_CIDR} masquerade
            }}
        }}
    """


def _mtu() -> str:
    """The smallest MTU of the machine's links, at most 1500, which packets of pods must not exceed."""
    links = json.loads(run(["ip", "-json", "link", "show", "up"]))
    sizes = [link["mtu"] for link in links if link.get("ifname", "lo") not in ("lo", BRIDGE)]
    return str(min([1500, *(size for size in sizes if size >= 1280)]))


def remove() -> None:
    """Remove the bridge with its routes, and the masquerade rule."""
    succeeds(["ip", "link", "delete", BRIDGE])
    succeeds(["nft", "delete", "table", "ip", NAT_TABLE])
