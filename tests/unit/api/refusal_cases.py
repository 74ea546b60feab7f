"""The table of refusals as objects, for tests of the models and of an API server."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load((HERE / "refusals.yaml").read_text())
SMALLEST: dict[str, Any] = yaml.safe_load((HERE / "smallest.yaml").read_text())
EVERYTHING: dict[str, Any] = yaml.safe_load((HERE / "everything.yaml").read_text())


def changed(job: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`job` with a value put at each dotted path, or removed where it is None."""
    job = deepcopy(job)
    for path, value in changes.items():
        *parents, last = path.split(".")
        block = job
        for name in parents:
            block = block.setdefault(name, {})
        if value is None:
            block.pop(last, None)
        else:
            block[last] = value
    return job


def title(case: dict[str, Any]) -> str:
    """The test id of a case."""
    return str(case["set"]).strip("{}").replace("'", "").replace(" ", "")[:60]
