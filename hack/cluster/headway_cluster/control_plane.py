"""Starts etcd, the API server, the controller manager and the scheduler as host processes."""

from __future__ import annotations

import json
from pathlib import Path

from . import health, processes
from .layout import API_PORT, CLUSTER_DOMAIN, NODE_IP, SERVICE_CIDR, Layout
from .shell import run

UNUSED_CONTROLLERS = (
    "bootstrap-signer-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "endpoints-controller",
    "endpointslice-mirroring-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "resourceclaim-controller",
    "service-lb-controller",
    "storageversion-garbage-collector-controller",
    "token-cleaner-controller",
    "ttl-controller",
)
"""Controllers that watch pods or nodes, for features that this cluster never uses."""

TERMINATED_PODS_KEPT = 200


def start_etcd(layout: Layout) -> None:
    """Start etcd with its data in memory. The data need not outlive the cluster, and disk syncs are most of a
    write's cost."""
    layout.etcd_data.mkdir(mode=0o700, parents=True, exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", "size=2g,mode=0700", "headway-etcd", layout.etcd_data])
    pki, url = layout.pki, "https://127.0.0.1:2379"
    daemon = processes.start(
        layout,
        "etcd",
        [
            "etcd",
            "--name=headway",
            f"--data-dir={layout.etcd_data}/data",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            f"--cert-file={pki}/etcd.crt",
            f"--key-file={pki}/etcd.key",
            f"--trusted-ca-file={pki}/etcd-ca.crt",
            "--client-cert-auth=true",
            "--auto-compaction-retention=5m",
            "--quota-backend-bytes=1900000000",
            "--snapshot-count=50000",
            "--logger=zap",
            "--log-level=warn",
        ],
    )
    processes.wait_ready(layout, daemon, lambda: health.accepts(2379))


def start_api_server(layout: Layout, binaries: Path) -> None:
    pki = layout.pki
    daemon = processes.start(
        layout,
        "kube-apiserver",
        [
            binaries / "kube-apiserver",
            f"--bind-address={NODE_IP}",
            f"--advertise-address={NODE_IP}",
            f"--secure-port={API_PORT}",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            "--etcd-servers=https://127.0.0.1:2379",
            f"--etcd-cafile={pki}/etcd-ca.crt",
            f"--etcd-certfile={pki}/apiserver-to-etcd.crt",
            f"--etcd-keyfile={pki}/apiserver-to-etcd.key",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
            f"--service-account-key-file={pki}/service-accounts.pub",
            f"--service-account-signing-key-file={pki}/service-accounts.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/apiserver-to-kubelet.crt",
            f"--kubelet-client-key={pki}/apiserver-to-kubelet.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
            f"--proxy-client-key-file={pki}/front-proxy-client.key",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=1000",
            "--max-mutating-requests-inflight=500",
            "--event-ttl=30m",
            "--profiling=false",
            "--v=0",
        ],
    )
    processes.wait_ready(layout, daemon, lambda: health.api_ready(layout))


def start_controller_manager(layout: Layout, binaries: Path) -> None:
    config = layout.kubeconfig("controller-manager")
    disabled = ",".join(f"-{name}" for name in UNUSED_CONTROLLERS)
    daemon = processes.start(
        layout,
        "kube-controller-manager",
        [
            binaries / "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--controllers=*,{disabled}",
            f"--service-account-private-key-file={layout.pki}/service-accounts.key",
            f"--root-ca-file={layout.pki}/ca.crt",
            f"--terminated-pod-gc-threshold={TERMINATED_PODS_KEPT}",
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            "--profiling=false",
            "--v=0",
        ],
    )
    processes.wait_ready(layout, daemon, lambda: health.local_ready(10257, tls=True))


def start_scheduler(layout: Layout, binaries: Path) -> None:
    config = layout.kubeconfig("scheduler")
    settings = layout.config / "scheduler.json"
    settings.write_text(
        json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False},
                "clientConnection": {"kubeconfig": str(config), "qps": 300, "burst": 600},
                "podInitialBackoffSeconds": 1,
                "podMaxBackoffSeconds": 3,
            }
        )
    )
    daemon = processes.start(
        layout,
        "kube-scheduler",
        [
            binaries / "kube-scheduler",
            f"--config={settings}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            "--v=0",
        ],
    )
    processes.wait_ready(layout, daemon, lambda: health.local_ready(10259, tls=True))
