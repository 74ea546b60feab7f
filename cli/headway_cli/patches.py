"""What is changed of a job on a cluster to stop it, and to let it go on. Pure."""

from __future__ import annotations

from typing import Final

from headway_api import names
from headway_api.document import Json

SUSPENSION: Final[Json] = {"spec": {"suspend": True}}


def resumption(job: Json) -> Json:
    """The merge patch that lets a job go on, and ends its pause where it has one."""
    patch: Json = {"spec": {"suspend": False}}
    if (paused := job.get("status", {}).get("pause", {}).get("time")) is not None:
        patch["metadata"] = {"annotations": {names.ANNOTATION_RESUME: paused}}
    return patch
