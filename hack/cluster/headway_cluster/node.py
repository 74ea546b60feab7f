"""Starts the kubelet and kube-proxy, configured for many short-lived pods on few cores."""

from __future__ import annotations

import json
from pathlib import Path

from . import health, processes
from .layout import (
    CLUSTER_DOMAIN,
    DNS_SERVICE_IP,
    NODE_IP,
    NODE_NAME,
    POD_CIDR,
    Layout,
)

MAX_PODS = 250


def start_kubelet(layout: Layout, binaries: Path) -> None:
    layout.kubelet_root.mkdir(mode=0o755, parents=True, exist_ok=True)
    settings = layout.config / "kubelet.json"
    settings.write_text(json.dumps(_kubelet_settings(layout), indent=2))
    daemon = processes.start(
        layout,
        "kubelet",
        [
            binaries / "kubelet",
            f"--config={settings}",
            f"--kubeconfig={layout.kubeconfig('kubelet')}",
            f"--root-dir={layout.kubelet_root}",
            f"--cert-dir={layout.kubelet_root}/pki",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_IP}",
            "--housekeeping-interval=60s",
            "--v=0",
        ],
    )
    processes.wait_ready(layout, daemon, lambda: health.local_ready(10248, tls=False))


def start_kube_proxy(layout: Layout, binaries: Path) -> None:
    daemon = processes.start(layout, "kube-proxy", kube_proxy_command(layout, binaries))
    processes.wait_ready(layout, daemon, lambda: health.local_ready(10256, tls=False))


def kube_proxy_command(layout: Layout, binaries: Path) -> list[str | Path]:
    return [
        binaries / "kube-proxy",
        f"--kubeconfig={layout.kubeconfig('kube-proxy')}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_CIDR}",
        f"--hostname-override={NODE_NAME}",
        "--healthz-bind-address=127.0.0.1:10256",
        # With 0, kube-proxy does not change the machine's limits on connection tracking.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--iptables-min-sync-period=300ms",
        "--iptables-sync-period=5m",
        "--v=0",
    ]


def _kubelet_settings(layout: Layout) -> dict[str, object]:
    certificates = {
        "tlsCertFile": f"{layout.pki}/kubelet-serving.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/kubelet-serving.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "2m"},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
    }
    runtime = {
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "podLogsDir": f"{layout.state}/pod-logs",
        "volumePluginDir": f"{layout.kubelet_root}/volume-plugins",
        "makeIPTablesUtilChains": False,
    }
    pace = {
        "maxPods": MAX_PODS,
        "kubeAPIQPS": 300,
        "kubeAPIBurst": 600,
        "eventRecordQPS": 0,
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "10s",
        "nodeStatusReportFrequency": "5m",
        # How often the kubelet looks for volumes beyond their limit, to evict their pods. Its default is 1
        # minute.
        "volumeStatsAggPeriod": "20s",
    }
    disk = {
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        # Images come from `load-image` and not from a registry. So a deleted image could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_IP,
        "healthzBindAddress": "127.0.0.1",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [DNS_SERVICE_IP],
        **certificates,
        **runtime,
        **pace,
        **disk,
    }
