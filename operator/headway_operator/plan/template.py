"""Adds the last layer of a pod template, after the operator's own, the platform's and the job's.

So no other layer can change labels, service account or the restricted security context.
"""

from __future__ import annotations

import copy
from typing import Final

from headway_api.document import Json
from headway_api.pod_template import bounded, merge

USER: Final = 65532

POD_SECURITY: Final[Json] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def harden(template: Json, labels: dict[str, str], service_account: str) -> Json:
    """Apply the last layer, which overrides all others."""
    hardened = merge(
        template,
        {
            "metadata": {"labels": labels},
            "spec": {
                "serviceAccountName": service_account,
                "enableServiceLinks": False,
                "securityContext": POD_SECURITY,
            },
        },
    )
    for kind in ("containers", "initContainers"):
        if kind in hardened["spec"]:
            hardened["spec"][kind] = [bounded(_restricted(container)) for container in hardened["spec"][kind]]
    return hardened


def _restricted(container: Json) -> Json:
    given = {"runAsUser", "runAsGroup", "privileged", "procMount", "seccompProfile", "seLinuxOptions"}
    asked = container.get("securityContext")
    context = {k: v for k, v in asked.items() if k not in given} if isinstance(asked, dict) else {}
    return container | {"securityContext": context | copy.deepcopy(CONTAINER_SECURITY)}
