"""What the demo prints while it follows a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hack" / "demo"))

from headway_cli.progress import preflight


def a_job(**preflight: Any) -> dict[str, Any]:
    return {"status": {"preflight": preflight}}


def test_preflight_verdicts_are_printed_once_they_exist() -> None:
    findings = [
        {"check": "foothold", "verdict": "Warn", "value": "0.03 (0 to 0.1)", "message": "1 of 32 succeed"},
        {"check": "splits", "verdict": "Pass", "message": "no row twice"},
    ]
    status = {"state": "Passed", "episodes": 32, "summary": "1 warned, 1 passed", "findings": findings}
    assert preflight(a_job(**status)) == [
        "preflight: Passed after 32 baseline episodes: 1 warned, 1 passed",
        "  Warn    foothold 0.03 (0 to 0.1): 1 of 32 succeed",
        "  Pass    splits: no row twice",
    ]


def test_without_verdicts_nothing_is_printed() -> None:
    assert preflight(a_job(state="Sampling", episodes=8)) == []
    assert preflight({}) == []
