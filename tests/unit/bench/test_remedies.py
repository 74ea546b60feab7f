"""The remedies benchmark describes its curves correctly."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_rig import manifest, report

sys.path.insert(0, str(Path(__file__).parents[3]))

from bench.remedies import curves, replay, seeds
from bench.remedies.__main__ import BENCHMARK
from bench.remedies.job import Curve
from bench.support.report import Section, merge

from headway_api.signals import SignalName

SCORES = {0: 0.5, 5: 0.7, 10: 0.7, 15: 0.75, 20: 0.0, 25: 0.8, 30: 0.9, 35: 0.7}
REMEDY: dict[str, Any] = {"step": 13, "remedy": "RollBack", "action": "goes back", "state": "Kept"}


def a_curve(**changes: Any) -> Curve:
    """The curve of a job whose second signal is one that a remedy may follow."""
    found = Curve(
        steps={step: {"rollout/reward/mean": 0.5} for step in range(1, 36)},
        scores=SCORES,
        raised={8: ["StalenessAtBound"], 12: ["EntropyRising"]},
        reports=[report(step) for step in range(36)],
    )
    return replace(found, **changes)


def test_a_job_is_compared_with_its_best_before_the_signal() -> None:
    found = seeds.row("Remediate", a_curve(remedies=[REMEDY]), 7.4)
    assert (found["alerted after step"], found["best before"], found["at step"]) == (12, 0.7, 5)
    assert (found["end"], found["last"], found["lowest since"]) == (pytest.approx(0.8), 0.7, 0.0)
    assert found["raised"] == "12: EntropyRising"
    assert found["remedies"] == "13: RollBack (goes back): Kept"


def test_a_job_of_which_nothing_was_raised_has_a_row_too() -> None:
    found = seeds.row("Alert", a_curve(raised={8: ["StalenessAtBound"]}), 7.4)
    assert (found["alerted after step"], found["best before"], found["lowest since"]) == (None, 0.9, None)


@pytest.mark.parametrize(("changed", "left", "met"), [(0.71, 0.69, [True, True]), (0.7, 0.7, [False, False])])
def test_the_goals_need_one_job_to_recover_and_one_to_collapse(
    changed: float, left: float, met: list[bool]
) -> None:
    ends = {"Alert": left, "Remediate": changed}
    rows = [{"policy": policy, "best before": 0.7, "end": end} for policy, end in ends.items()]
    assert [goal.met for goal in seeds.section(0, rows).goals] == met


def test_two_jobs_are_alike_until_their_weights_differ() -> None:
    one, other = a_curve(), a_curve()
    assert seeds.agree(one, other) == 35
    changed = manifest(20).model_copy(update={"files": [{"name": "adapter", "size": 1, "sha256": "f" * 64}]})
    other.reports[20] = other.reports[20].model_copy(update={"weights": changed})
    assert seeds.agree(one, other) == 19


def test_curves_are_files_of_their_own_beside_the_page(tmp_path: Path) -> None:
    found = {"Alert": a_curve(), "Remediate": a_curve(remedies=[REMEDY])}
    drawn = curves.drawn(found, "two jobs")
    assert drawn == curves.drawn(found, "two jobs"), "the same numbers make the same file"
    assert "policy: Remediate" in drawn
    assert "RollBack" in drawn
    made = Section("Seed 0", [], files={"a.svg": drawn, "a.json": json.dumps(curves.recorded(found))})
    BENCHMARK.write(tmp_path, {"seed-0": made})
    assert (tmp_path / "a.svg").read_text() == drawn
    assert json.loads((tmp_path / "a.json").read_text())["Alert"]["scores"]["15"] == 0.75
    assert "files" not in merge(tmp_path / "remedies.json", {}, ["seed-0"])["seed-0"]


RECORDED = {seed: json.loads((seeds.RESULTS / seeds.curves_of(seed)).read_text()) for seed in seeds.SEEDS}


def test_the_page_shows_what_todays_signals_find_in_its_curves() -> None:
    page = (seeds.RESULTS / "remedies.md").read_text()
    for seed, recorded in RECORDED.items():
        _, section = page.split(f"## Seed {seed}\n")
        replayed = replay.summary(recorded["Alert"], seeds.LAG)
        assert replayed in section.split("## Seed")[0], "run make bench-remedies ONLY=page"


def test_the_documentation_has_the_alerts_and_ends_of_the_record() -> None:
    text = (seeds.RESULTS.parents[1] / "docs" / "remedies.md").read_text()
    rows = re.findall(r"^\| (\d) \| (\d+) \| (.+) \| (0\.\d\d) \| (0\.\d\d) \| (0[.\d]*)", text, re.MULTILINE)
    shown = {}
    for seed, recorded in RECORDED.items():
        alert, changed = (seeds.row(policy, curve_of(recorded[policy]), 0.0) for policy in seeds.POLICIES)
        numbers = (alert["best before"], changed["end"], alert["end"])
        shown[seed] = (alert["alerted after step"], *(round(number, 2) for number in numbers))
        names = [change["remedy"] for change in recorded["Remediate"]["remedies"]]
        [written] = [row[2] for row in rows if row[0] == str(seed)]
        assert re.findall(r"`(\w+)`", written) == names
    assert {int(row[0]): (int(row[1]), *map(float, row[3:])) for row in rows} == shown


def curve_of(recorded: dict[str, Any]) -> Curve:
    """The recorded curve with this name."""
    return a_curve(
        scores={int(step): score for step, score in recorded["scores"].items()},
        raised={int(step): names for step, names in recorded["raised"].items()},
        remedies=recorded["remedies"],
    )


def test_a_signal_raised_at_another_step_is_shown_with_both() -> None:
    steps = {f"{step}": {"rollout/reward/mean": 0.8 if step < 20 else 0.0} for step in range(1, 30)}
    found = replay.again(steps, 4)
    assert found == {SignalName.REWARD_COLLAPSED: [22]}
    moved = replay.summary(
        {"steps": steps, "raised": {"20": ["RewardCollapsed"], "25": ["EntropyRising"]}}, 4
    )
    assert moved == "RewardCollapsed after 22 (then: 20); EntropyRising after none (then: 25)"
    same = replay.summary({"steps": steps, "raised": {"22": ["RewardCollapsed", "TurnsExhausted"]}}, 4)
    assert same == "RewardCollapsed after 22"
