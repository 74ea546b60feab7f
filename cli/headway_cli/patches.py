"""Patches of a job on a cluster that suspend and resume it. Pure."""

from __future__ import annotations

from typing import Final

from headway_api import names
from headway_api.document import Json

SUSPENSION: Final[Json] = {"spec": {"suspend": True}}


def resumption(job: Json) -> Json:
    """The merge patch that resumes a job, and ends its pause if it has one."""
    patch: Json = {"spec": {"suspend": False}}
    if (paused := job.get("status", {}).get("pause", {}).get("time")) is not None:
        patch["metadata"] = {"annotations": {names.ANNOTATION_RESUME: paused}}
    return patch
