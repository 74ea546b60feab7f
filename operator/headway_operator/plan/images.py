"""Explains why a container cannot be created: the field of its image or Secret, the cause, and the fix. Pure.

The kubelet retries such a container forever. As far as its messages allow, these functions distinguish faults
that only a person can fix from temporary ones, such as an unavailable registry.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from headway_api import names
from headway_api.document import Json
from headway_api.spec.suite import field_of

PULLS: Final = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")
"""The kubelet's reasons for a container that waits for its image."""
DENIED: Final = re.compile(
    r"denied|unauthorized|forbidden|authorization failed|no basic auth|\b40[13]\b", re.I
)
ABSENT: Final = re.compile(r"not found|manifest unknown|name unknown|\b404\b", re.I)
UNREACHABLE: Final = re.compile(
    r"no such host|timeout|timed out|refused|unreachable|\bEOF\b|reset by peer|\b50\d\b", re.I
)
SECRET: Final = re.compile(r'secret "(?P<by_name>[^"]+)" not found|in Secret [^/\s]+/(?P<of_key>\S+)')


class Outlook(Enum):
    """Whether a container that cannot be created now may be created later."""

    MAY_PASS = "may pass"
    """The fault may disappear by itself: a registry is unavailable, or a Secret comes later."""
    NEEDS_HELP = "needs help"
    """A person has to change something outside the pod."""
    NEVER = "never"
    """Neither this pod nor an identical one can ever be created."""


def of_pull(pod: Json, container: str, reason: str, message: str) -> tuple[str, Outlook]:
    """The message about a container without an image, and its outlook.

    Args:
        container: name of the container.
        reason: the kubelet's reason, one of `PULLS`.
        message: the kubelet's message.
    """
    outlook, fix = _pull(reason, message)
    at = f"{_image_field(pod, container)}: pod {pod['metadata']['name']} has no image"
    image = _spec(pod, container).get("image")
    words = f": {reason}: {message}" if message else f": {reason}"
    return f"{at}{f' {image}' if image else ''}{words}; {fix}", outlook


def _pull(reason: str, message: str) -> tuple[Outlook, str]:
    if reason == "InvalidImageName":
        return Outlook.NEVER, "write it as REGISTRY/NAME:TAG, the name in lower case"
    if reason == "ErrImageNeverPull":
        return Outlook.MAY_PASS, "load it onto the node, or have it pulled: imagePullPolicy IfNotPresent"
    if UNREACHABLE.search(message):
        return (
            Outlook.MAY_PASS,
            "correct the registry's name, or let the nodes reach it; the pull is retried",
        )
    if DENIED.search(message):
        login = "name a Secret with the registry's login in spec.imagePullSecrets"
        return Outlook.NEEDS_HELP, f"correct the image's name, or {login}"
    if ABSENT.search(message):
        return Outlook.NEEDS_HELP, "push it, or correct its name and tag"
    return Outlook.MAY_PASS, "push it, correct its name and tag, or let the nodes reach its registry"


def of_creation(pod: Json, container: str, reason: str, message: str) -> str:
    """The message about a container that has its image but cannot be created."""
    words = f"pod {pod['metadata']['name']}: {reason}: {message}"
    missing = SECRET.search(message)
    if missing is None:
        return words
    secret = missing["by_name"] or missing["of_key"]
    field = "spec.output.secretRef" if secret in _secrets_of_variables(pod, container) else "Secret"
    return f"{field}: {words}; create Secret {secret} with that key, or name another one"


def _image_field(pod: Json, container: str) -> str:
    """The field that names a container's image: in the job, or in the chart's values."""
    labels = pod["metadata"].get("labels") or {}
    component, suite = labels.get(names.LABEL_COMPONENT), labels.get(names.LABEL_SUITE)
    if component == names.SANDBOX and container in (names.SANDBOX, names.RUNNER):
        return field_of(suite, "image") if suite else "spec.environment.image"
    role = {names.SUITE_BROKER: names.BROKER, names.JUDGE: names.ROLLOUT}.get(str(component), component)
    if container == role:
        return f"images.{role} of the chart's values"
    return f"container {container} of a podTemplate"


def _secrets_of_variables(pod: Json, container: str) -> set[str]:
    """Secrets whose keys become variables of a container. Only the artifact store's Secret does."""
    sources = _spec(pod, container).get("envFrom") or []
    return {source["secretRef"]["name"] for source in sources if "secretRef" in source}


def _spec(pod: Json, container: str) -> Json:
    spec = pod.get("spec", {})
    known = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    found: Json = next((each for each in known if each.get("name") == container), {})
    return found
