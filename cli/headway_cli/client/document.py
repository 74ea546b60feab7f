"""Reads a job from a file or a mapping, and merges changes into its spec. Pure, except for reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway_api import names
from headway_api.document import Json
from headway_cli.local import manifest
from headway_cli.local.manifest import ManifestError

Spec = str | Path | Mapping[str, Any]
"""A file with one job, or the job as a mapping with the file's content."""
BEGINS = {names.TRAINING_KIND: "train()", names.EVAL_KIND: "evaluate()"}
"""The client's method that begins a job, by the kind of job."""


def made(spec: Spec, kind: str, name: str | None, changes: Mapping[str, Any]) -> Json:
    """The job with changes merged into its spec.

    Args:
        spec: the job, or its file.
        kind: the kind that the job must have.
        name: a name for the job; None for the name in `spec`.
        changes: fields of the job's spec, merged into it block by block.

    Raises:
        ManifestError: it is not a job, is of another kind, has no name, or a change is not JSON.
    """
    read = dict(spec) if isinstance(spec, Mapping) else manifest.read(Path(spec))
    job: Json = json.loads(json.dumps(read, default=str))
    if job.get("kind") not in BEGINS:
        raise ManifestError(f"kind: write {' or '.join(BEGINS)}")
    if job["kind"] != kind:
        raise ManifestError(f"kind: this is an {job['kind']}: call {BEGINS[job['kind']]}")
    for part in ("metadata", "spec"):
        if not isinstance(job.setdefault(part, {}), dict):
            raise ManifestError(f"{part}: write fields below it")
    if name is not None:
        job["metadata"]["name"] = name
    if not manifest.NAME.fullmatch(str(job["metadata"].get("name"))):
        raise ManifestError("metadata.name: write a name of a-z, 0-9 and -, such as my-job")
    for key, value in changes.items():
        _require_plain(value, f"spec.{key}")
    return {"apiVersion": names.API_VERSION, **job, "spec": laid_over(job["spec"], changes)}


def _require_plain(value: object, at: str) -> None:
    """Refuse a value that JSON does not have, such as a number of numpy.

    Raises:
        ManifestError: `value`, or a value within it, has another type.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            _require_plain(each, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            _require_plain(each, f"{at}.{number}")
    elif not isinstance(value, str | int | float | None):
        raise ManifestError(
            f"{at}: {type(value).__name__} is no type of JSON: write a str, int, float, bool, list or dict"
        )


def laid_over(block: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """A copy of `block` with `changes`. If a field's old and new values are mappings, they are merged field
    by field. Otherwise the new value replaces the old one."""
    found = dict(block)
    for key, new in changes.items():
        old: Any = found.get(key)
        both = isinstance(old, Mapping) and isinstance(new, Mapping)
        found[key] = laid_over(old, new) if both else new
    return found


def home(spec: Spec) -> Path | None:
    """The folder of a job's file, where its environment's modules are; None for a mapping."""
    return None if isinstance(spec, Mapping) else Path(spec).parent
