"""A job as files in a folder, for running it without a cluster. They hold what an API server would store.

    job.json                    metadata and spec; the local engine writes it
    status.<manager>.json       one field manager's part of the status, and when it was written

Each file has one writer and is replaced as a whole, so a reader never sees a partial file.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from headway_api.document import Json

JOB: Final = "job.json"


class JobFolder:
    """The folder of one job. Any process may read it; the module's docstring says which process writes a
    file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self) -> bool:
        """Whether the folder has a job."""
        return (self.folder / JOB).exists()

    def write(self, job: Json) -> None:
        """Replace metadata and spec."""
        _replace(self.folder / JOB, {key: value for key, value in job.items() if key != "status"})

    def write_status(self, manager: str, status: Json) -> None:
        """Replace a manager's part of the status."""
        _replace(self._status(manager), {"time": time.time_ns(), "status": status})

    def lend(self, path: str, content: str) -> None:
        """Write a file that replaces a ConfigMap or Secret of the namespace, where the job's processes look
        for it."""
        file = self.folder / path
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        new.write_text(content)
        new.replace(file)

    def last_status(self, manager: str) -> tuple[Json, float | None]:
        """A manager's part of the status, and when it was written (Unix time); empty and None before its
        first write."""
        found = _read(self._status(manager))
        at = found.get("time")
        return dict(found.get("status", {})), None if at is None else int(at) / 1e9

    def whole(self) -> Json:
        """The job with its status, merged as the API server merges the parts that managers force-apply."""
        parts = [_read(path) for path in self.folder.glob("status.*.json")]
        parts.sort(key=lambda part: int(part.get("time", 0)))
        return {**_read(self.folder / JOB), "status": merged([part.get("status", {}) for part in parts])}

    def _status(self, manager: str) -> Path:
        return self.folder / f"status.{manager}.json"


def merged(parts: list[Json]) -> Json:
    """Merge parts of a status, which are in the order in which they were written. If two parts have the same
    field or condition type, the newer part wins."""
    found: Json = {}
    conditions: dict[str, Json] = {}
    for part in parts:
        conditions |= {each["type"]: each for each in part.get("conditions", [])}
        found |= part
    return {**found, "conditions": list(conditions.values())} if conditions else found


def _read(path: Path) -> Json:
    try:
        content: Json = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return content


def _replace(path: Path, content: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Each write has a temporary file of its own: threads of one process may write at the same time.
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(content))
    os.replace(new, path)
