"""Writes self-contained kubeconfigs: the keys are inside, so a file can be copied on its own."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

from .layout import API_PORT, NODE_IP, Layout


def write(layout: Layout, identity: str, target: Path) -> Path:
    """Write a kubeconfig with the certificate of `identity` to `target`, readable only by its owner."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        # JSON is also YAML, and the standard library can write JSON.
        json.dump(_document(layout.pki, identity), file, indent=2)
    return target


def _document(pki: Path, identity: str) -> dict[str, object]:
    server = f"https://{NODE_IP}:{API_PORT}"
    authority = {"server": server, "certificate-authority-data": _encoded(pki / "ca.crt")}
    user = {
        "client-certificate-data": _encoded(pki / f"{identity}.crt"),
        "client-key-data": _encoded(pki / f"{identity}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "headway", "cluster": authority}],
        "users": [{"name": identity, "user": user}],
        "contexts": [{"name": "headway", "context": {"cluster": "headway", "user": identity}}],
        "current-context": "headway",
    }


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
