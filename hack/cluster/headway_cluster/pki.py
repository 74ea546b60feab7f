"""Makes keys and certificates, with one authority each for the cluster, etcd and the front proxy.

The authorities are separate because a certificate of the cluster's authority must not give access to etcd.
Its holder must not impersonate other users either, as the aggregation layer's front proxy may.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .layout import API_SERVICE_IP, CLUSTER_DOMAIN, NODE_NAME, Layout
from .shell import run

DAYS_VALID = "365"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
FIX = "install Debian's openssl (3.0 or later)"


@dataclass(frozen=True)
class Identity:
    """A certificate to issue: its subject, its authority, and its permitted usage."""

    file: str
    user: str
    """Common name of the certificate. For clients of the API server, it is the user name."""
    group: str = ""
    """Organization of the certificate. For clients of the API server, it is the user's group."""
    authority: str = "ca"
    usage: str = "clientAuth"
    names: tuple[str, ...] = ()
    """Subject alternative names, such as `DNS:localhost` or `IP:127.0.0.1`."""


def identities(node_ip: str) -> list[Identity]:
    """All certificates of the cluster."""
    service = f"kubernetes.default.svc.{CLUSTER_DOMAIN}".split(".")
    api_names = [f"DNS:{'.'.join(service[:count])}" for count in (1, 2, 3, len(service))]
    loopback = ("DNS:localhost", "IP:127.0.0.1")
    api = (*api_names, *loopback, f"IP:{node_ip}", f"IP:{API_SERVICE_IP}")
    node = (f"DNS:{NODE_NAME}", *loopback, f"IP:{node_ip}")
    serving = "serverAuth"
    return [
        Identity("apiserver", "kube-apiserver", usage=serving, names=api),
        Identity("kubelet-serving", f"system:node:{NODE_NAME}", usage=serving, names=node),
        Identity("apiserver-to-kubelet", "kube-apiserver-kubelet-client", "headway:kubelet-clients"),
        Identity("front-proxy-client", "front-proxy-client", authority="front-proxy-ca"),
        Identity("etcd", "etcd", authority="etcd-ca", usage="serverAuth,clientAuth", names=loopback),
        Identity("apiserver-to-etcd", "kube-apiserver", authority="etcd-ca"),
        Identity("admin", "headway-admin", "system:masters"),
        Identity("controller-manager", "system:kube-controller-manager"),
        Identity("scheduler", "system:kube-scheduler"),
        Identity("kubelet", f"system:node:{NODE_NAME}", "system:nodes"),
        Identity("kube-proxy", "system:kube-proxy"),
        Identity("netpol", "headway:netpol"),
    ]


def create(layout: Layout, node_ip: str) -> None:
    """Write every key and certificate to `<state>/pki`, readable by root only."""
    layout.pki.mkdir(mode=0o700, parents=True, exist_ok=True)
    for authority in ("ca", "etcd-ca", "front-proxy-ca"):
        _self_signed(layout.pki, authority)
    for identity in identities(node_ip):
        _issue(layout.pki, identity)
    _service_account_key(layout.pki)


def _self_signed(folder: Path, name: str) -> None:
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
    run(
        ["openssl", "req", "-x509", *NEW_KEY, "-days", DAYS_VALID, "-subj", f"/CN=headway-{name}",
         "-addext", usage, "-keyout", key, "-out", certificate],
        fix=FIX,
    )  # fmt: skip


def _issue(folder: Path, identity: Identity) -> None:
    key, certificate = folder / f"{identity.file}.key", folder / f"{identity.file}.crt"
    authority = folder / identity.authority
    subject = (f"/O={identity.group}" if identity.group else "") + f"/CN={identity.user}"
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        f"extendedKeyUsage={identity.usage}",
    ]
    if identity.names:
        extensions.append(f"subjectAltName={','.join(identity.names)}")
    added = [word for extension in extensions for word in ("-addext", extension)]
    run(
        ["openssl", "req", "-x509", *NEW_KEY, "-days", DAYS_VALID, "-subj", subject,
         "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", *added,
         "-keyout", key, "-out", certificate],
        fix=FIX,
    )  # fmt: skip


def _service_account_key(folder: Path) -> None:
    private, public = folder / "service-accounts.key", folder / "service-accounts.pub"
    algorithm = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    run(["openssl", "genpkey", *algorithm, "-out", private], fix=FIX)
    run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], fix=FIX)
