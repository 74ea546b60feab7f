"""The job that a file or a mapping is, with changes laid over its spec. Pure, but for reading the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway_api import names
from headway_api.document import Json
from headway_cli.local import manifest
from headway_cli.local.manifest import ManifestWrong

Spec = str | Path | Mapping[str, Any]
"""A file with one job, or the job itself, as its file would be."""
BEGINS = {names.TRAINING_KIND: "train()", names.EVAL_KIND: "evaluate()"}
"""Kind of job -> what begins it."""


def made(spec: Spec, kind: str, name: str | None, changes: Mapping[str, Any]) -> Json:
    """The job.

    Args:
        kind: which it must be.
        name: another one than it has.
        changes: fields of its spec, laid over it mapping by mapping.

    Raises:
        ManifestWrong: it is no job, one of another kind, or one without a name.
    """
    read = dict(spec) if isinstance(spec, Mapping) else manifest.read(Path(spec))
    job: Json = json.loads(json.dumps(read, default=str))
    if job.get("kind") not in BEGINS:
        raise ManifestWrong(f"kind: write {' or '.join(BEGINS)}")
    if job["kind"] != kind:
        raise ManifestWrong(f"kind: this is an {job['kind']}: call {BEGINS[job['kind']]}")
    for part in ("metadata", "spec"):
        if not isinstance(job.setdefault(part, {}), dict):
            raise ManifestWrong(f"{part}: write fields below it")
    if name is not None:
        job["metadata"]["name"] = name
    if not manifest.NAME.fullmatch(str(job["metadata"].get("name"))):
        raise ManifestWrong("metadata.name: write a name of a-z, 0-9 and -, such as my-job")
    return {"apiVersion": names.API_VERSION, **job, "spec": laid_over(job["spec"], changes)}


def laid_over(block: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """A block with changes: where both have fields, field by field; else the change stands."""
    found = dict(block)
    for key, new in changes.items():
        old: Any = found.get(key)
        both = isinstance(old, Mapping) and isinstance(new, Mapping)
        found[key] = laid_over(old, new) if both else new
    return found


def home(spec: Spec) -> Path | None:
    """The folder of a job's file, where its environment is; None of a mapping."""
    return None if isinstance(spec, Mapping) else Path(spec).parent
