"""The comparison in the demo's report, also if a held-out row has no answer at one of the steps."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from headway_demo import report

NONE = None
"""The reward of a try that was lost with its sandbox."""


def episode(row: int, score: float | None) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "assistant", "content": f"row {row}: {score}"},
    ]
    outcome = "InfraError" if score is None else "Completed"
    return {"messages": messages, "outcome": outcome, "reward": score, "score": score}


def group(row: int, *scores: float | None) -> dict[str, Any]:
    return {"row": row, "episodes": [episode(row, score) for score in scores]}


def comparison(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    return "\n".join(report.comparison({0: before, 20: after}))


def test_the_first_row_that_does_better_is_shown() -> None:
    text = comparison(
        [group(0, 1.0), group(1, 0.0), group(2, 0.0)], [group(0, 1.0), group(1, 1.0), group(2, 1.0)]
    )
    assert "before (step 0)\n  assistant: row 1: 0.0" in text
    assert "after (step 20)\n  assistant: row 1: 1.0" in text
    assert "rules" not in text


def test_a_row_without_an_answer_at_either_step_is_skipped() -> None:
    text = comparison(
        [group(1, 0.0), group(2, 0.0), group(3, 0.0)], [group(0, 1.0), group(2, 0.5), group(3, 1.0)]
    )
    assert "row 2: 0.0" in text
    assert "row 2: 0.5" in text
    both_tries = comparison([group(0, NONE, 0.0), group(1, 0.0)], [group(0, 1.0), group(1, NONE)])
    assert "row 0: 0.0" in both_tries


def test_the_first_row_remains_where_none_does_better() -> None:
    text = comparison([group(1, 1.0), group(2, 0.0)], [group(2, 0.0), group(1, 0.0)])
    assert "row 1: 1.0" in text
    assert "row 1: 0.0" in text


def test_the_report_says_that_no_row_is_in_common() -> None:
    text = comparison([group(0, 0.0), group(1, NONE)], [group(1, 1.0)])
    assert text == "No held-out case was answered both at step 0 and at step 20, so none is compared"


def test_rows_are_read_from_a_copy_of_the_jobs_folder(tmp_path: Path) -> None:
    for step, rows in ((0, (0, 1)), (20, (1,))):
        folder = tmp_path / "trajectories" / "validation" / f"{step:06d}"
        folder.mkdir(parents=True)
        for row in rows:
            path = folder / f"v{step:06d}-{row:06d}.json.gz"
            path.write_bytes(gzip.compress(json.dumps(group(row, step / 20)).encode()))
    evaluated = report.validations(tmp_path)
    assert [len(groups) for groups in evaluated.values()] == [2, 1]
    assert "row 1: 1.0" in "\n".join(report.comparison(evaluated))


def test_the_learning_curve_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    report.draw({0: 0.375, 5: 0.844, 10: 1.0}, [0.2, 0.5, 0.9], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert report.sparkline([0.0, 0.5, 1.0])[0] != report.sparkline([0.0, 0.5, 1.0])[-1]
