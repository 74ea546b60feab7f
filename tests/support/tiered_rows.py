"""The example's rows with one more column, the customer's tier, which may name tasks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from headway_demo.quickstart import EXAMPLE

COLUMN = "tier"
SPLITS = ("train", "validation")


def write(inputs: Path, folder: Path) -> None:
    """Write the example's rows from `inputs` to `folder`, with one more column."""
    desk = _environment()
    for split in SPLITS:
        rows = [json.loads(line) for line in (inputs / f"{split}.jsonl").read_text().splitlines()]
        tiered = [row | {COLUMN: desk.case_record(row["case_id"])[COLUMN]} for row in rows]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiered))


def _environment() -> ModuleType:
    """Load the example's environment."""
    spec = importlib.util.spec_from_file_location("refund_desk", EXAMPLE / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
