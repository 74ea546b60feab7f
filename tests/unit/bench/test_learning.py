"""The learning benchmark describes its numbers correctly."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))
# This import comes last, because the example has modules with the names of some in tests/support.
sys.path.append(str(Path(__file__).parents[3] / "examples" / "sop-quickstart"))

import generate
from bench.learning import seeds
from bench.learning.__main__ import BENCHMARK


@pytest.mark.parametrize(
    ("after", "found", "met"), [(0.75, "32 .. 75, mean 54", True), (0.7, "27 .. 75, mean 51", False)]
)
def test_a_gain_is_given_in_percentage_points(after: float, found: str, met: bool) -> None:
    [goal] = seeds.section("ppo", [{"before": 0.25, "after": 1.0}, {"before": 0.43, "after": after}]).goals
    assert goal.what.endswith("rises by 30 percentage points or more")
    assert (goal.found, goal.met) == (found, met)


def test_the_seeds_held_out_cases_overlap_as_the_page_says() -> None:
    assert "takes its first 64 of the same 164" in BENCHMARK.intro[0]
    assert {len(generate.rows("validation", seed)) for seed in seeds.SEEDS} == {164}
    held_out = [{row["case_id"] for row in generate.rows("validation", seed)[:64]} for seed in seeds.SEEDS]
    for one, other in combinations(held_out, 2):
        assert len(one & other) / 64 == pytest.approx(1 / 3, abs=0.05)


def test_a_skipped_section_keeps_its_numbers_in_current_wording(
    tmp_path: Path,
) -> None:
    rows = [{"seed": 0, "before": 0.25, "after": 0.75, "s": 7}]
    recorded = asdict(seeds.section("ppo", rows))
    recorded["read"] = ["words of another day"]
    recorded["goals"] = [{"what": "rises by 30%", "found": "50%", "met": False}]
    recorded["measured"] = {"at commit": "abc"}
    (tmp_path / "learning.json").write_text(json.dumps({"ppo": recorded}))
    BENCHMARK.write(tmp_path, {})
    now = json.loads((tmp_path / "learning.json").read_text())["ppo"]
    assert now["tables"] == recorded["tables"]
    assert now["measured"] == {"at commit": "abc"}
    assert now["read"] == seeds.READ
    [goal] = now["goals"]
    assert goal["what"].endswith("30 percentage points or more")
    assert (goal["found"], goal["met"]) == ("50 .. 50, mean 50", True)
    page = (tmp_path / "learning.md").read_text()
    assert "another day" not in page
    assert "| 0 | 0.25 | 0.75 | 7 |" in page
