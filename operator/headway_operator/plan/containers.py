"""Refuses fields of a job's podTemplate with which a container could act outside its pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headway_api.document import Json

ROLE_TEMPLATES: Final = "ask for it in the operator's roleTemplates"
FIELDS: Final = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resizePolicy",
        "resources",
        "restartPolicy",
        "securityContext",
        "startupProbe",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "volumeDevices",
        "volumeMounts",
        "workingDir",
    }
)
SECURITY: Final = frozenset(
    {
        "allowPrivilegeEscalation",
        "capabilities",
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "seccompProfile",
    }
)
"""Fields of a container's securityContext that a job may write. The values in `template` override them."""
UNCONFINED: Final = "Unconfined"
PROFILE: Final = "may not be set in a job; leave it out to use RuntimeDefault"
PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS: Final = ("postStart", "preStop")
REQUESTS: Final = ("httpGet", "tcpSocket")
OWN_ADDRESS: Final = (
    "may not be set in a job: the kubelet probes from the node; leave it out to probe the pod"
)


def refusals(container: Json, path: str) -> Iterator[str]:
    """What is wrong with a container at `path`: each message names the field and what to change."""
    for key in container:
        if key not in FIELDS:
            yield f"{path}.{key} may not be set in a job; {ROLE_TEMPLATES}"
    security = container.get("securityContext")
    for key in security if isinstance(security, dict) else ():
        if key not in SECURITY:
            yield f"{path}.securityContext.{key} may not be set in a job; {ROLE_TEMPLATES}"
    profile = _mapping(_mapping(security).get("seccompProfile"))
    if profile.get("type") == UNCONFINED:
        yield f"{path}.securityContext.seccompProfile.type: {UNCONFINED} {PROFILE}"
    for probe in PROBES:
        yield from _hosts(container.get(probe), f"{path}.{probe}")
    hooks = _mapping(container.get("lifecycle"))
    for hook in HOOKS:
        yield from _hosts(hooks.get(hook), f"{path}.lifecycle.{hook}")


def _hosts(asked: Any, path: str) -> Iterator[str]:
    """Refuse addresses to which the kubelet would send requests."""
    for how in REQUESTS:
        if "host" in _mapping(_mapping(asked).get(how)):
            yield f"{path}.{how}.host {OWN_ADDRESS}"


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
