"""The rules by which GitOps tools (Argo CD's and Flux's kstatus, helm --wait) judge an object of any kind.

The rules are those that pkg/kstatus/README.md of sigs.k8s.io/cli-utils documents.
"""

from __future__ import annotations

from typing import Any, Literal

Verdict = Literal["Current", "InProgress", "Failed", "Terminating"]


def verdict(body: dict[str, Any]) -> Verdict:
    """How a tool that waits for this object judges it."""
    status = body.get("status") or {}
    if body["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", body["metadata"]["generation"]) != body["metadata"]["generation"]:
        return "InProgress"
    found = {item["type"]: item["status"] for item in status.get("conditions", [])}
    for kind, means in (("Reconciling", "InProgress"), ("Stalled", "Failed")):
        if found.get(kind) == "True":
            return "InProgress" if means == "InProgress" else "Failed"
    return "Current" if found.get("Ready", "True") == "True" else "InProgress"
