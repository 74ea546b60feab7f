"""The bill, recomputed from the stored trajectories by `hack/recount.py` and held against the status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway_demo.settings import ROOT

COUNTED = ("prefillTokens", "cachedPrefillTokens", "sampleTokens", "trainTokens", "evaluationTokens")
"""Fields of `.status.usage` that the recount must match to the token."""


class BillMismatch(Exception):
    """The status and the stored trajectories disagree."""


@dataclass(frozen=True)
class Bill:
    """What a recount found."""

    tokens: dict[str, int]
    text: str


def status_tokens(job: Mapping[str, Any]) -> dict[str, int]:
    """The counted classes as the job's status has them."""
    usage = job["status"]["usage"]
    return {name: int(usage.get(name, 0)) for name in COUNTED}


def recount(run: Path) -> Bill:
    """Run the independent script over a copy of the job's folder."""
    command = [sys.executable, str(ROOT / "hack" / "recount.py"), str(run), "--json"]
    found = json.loads(
        subprocess.run(command, check=True, text=True, capture_output=True, timeout=300).stdout
    )
    tokens = {name: int(found["tokens"].get(name, 0)) for name in COUNTED}
    return Bill(tokens=tokens, text=json.dumps(found))


def verified(job: Mapping[str, Any], run: Path) -> str:
    """The bill as text; BillMismatch where the recount differs."""
    claimed, found = status_tokens(job), recount(run).tokens
    if claimed != found:
        raise BillMismatch(f"status says {claimed}, the stored trajectories {found}")
    usage = job["status"]["usage"]
    lines = [f"  {name:<22}{count:>12,}" for name, count in found.items()]
    lines.append(f"  {'cost':<22}{usage['cost']:>12} {usage['currency']} ({usage['priceBook']})")
    lines.append("  recounted from the stored trajectories: equal")
    return "\n".join(lines)
