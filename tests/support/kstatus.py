"""The rules by which GitOps tools (Argo CD's and Flux's kstatus, helm --wait) judge an object of any kind.

As sigs.k8s.io/cli-utils documents them in pkg/kstatus/README.md.
"""

from __future__ import annotations

from typing import Any, Literal

Verdict = Literal["Current", "InProgress", "Failed", "Terminating"]


def verdict(body: dict[str, Any]) -> Verdict:
    """What a tool that waits for this object makes of it."""
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
