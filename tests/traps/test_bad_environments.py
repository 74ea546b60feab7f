"""A bad environment's fault is reported in time, with its method and row, and harms no other episode."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.traps.trap import TASKS

from headway_analysis.preflight.evidence import Facts
from headway_sandbox import process
from headway_sandbox.testing import Call, Report, Sandboxes, Seen, episode
from headway_sandbox.testing.playing import Player, Turns, baseline

TIMEOUT = 10.0
"""Seconds until an episode that hangs is ended. A good episode ends long before, even on a busy machine."""
HOME = "tasks/bad.py"
BAD = [
    ("reset", "raises", "reset raised RuntimeError: on purpose"),
    ("reset", "hangs", "reset has not returned by the end of the episode's time"),
    ("reset", "a set", "reset raised AttributeError"),
    ("reset", "leaves", "reset raised SystemExit: 3"),
    ("look", "raises", "tool look raised RuntimeError: on purpose"),
    ("look", "hangs", "tool look has not returned by the end of the episode's time"),
    ("look", "a set", "tool look returned a value that is not JSON"),
    ("look", "leaves", "tool look raised SystemExit: 3"),
    ("reward", "raises", "reward raised RuntimeError: on purpose"),
    ("reward", "hangs", "reward has not returned by the end of the episode's time"),
    ("reward", "NaN", "reward is nan"),
    ("reward", "text", "reward returned the text 'high'"),
    ("reward", "1e200", "reward is 1e+200; beyond 1e+06"),
    ("reward", "fields", "metrics; give 1000 at most"),
    ("score", "raises", "score raised RuntimeError: on purpose"),
    ("score", "hangs", "score has not returned by the end of the episode's time"),
    ("score", "NaN", "score is nan"),
    ("score", "text", "score returned the text 'high'; return a number"),
    ("score", "1e200", "score is 1e+200; beyond 1e+06"),
]
ENDS = [
    ("reset", "the sandbox's process ended in reset, exit status 0"),
    ("look", "the sandbox's process ended in tool look, exit status 0"),
    ("reward", "the sandbox's process ended in reward or score, exit status 0"),
    ("score", "the sandbox's process ended in reward or score, exit status 0"),
]
HARMLESS = [
    ("reset", "prints"),
    ("look", "prints"),
    ("reward", "prints"),
    ("look", "forks"),
    ("reward", "forks"),
]


def agent(seen: Seen) -> Turns:
    yield Call("look", {})
    return "yes"


def sampled(rows: list[dict[str, Any]], folder: Path) -> Report:
    """An episode of each row, eight at once."""
    of = Sandboxes("bad:Bad", {"folder": str(folder)}, [TASKS], timeout=TIMEOUT, packages=False)
    facts = Facts(rows, group_size=1)
    return Report(baseline(Player(of, 8), agent, facts, len(rows)), [], [])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A baseline with all bad rows and as many good ones."""
    rows: list[dict[str, Any]] = [{"where": where, "how": how} for where, how, _ in BAD]
    rows += [{"where": where, "how": "ends the process"} for where, _ in ENDS]
    rows += [{"good": number} for number in range(len(rows))]
    return sampled(rows, tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize(("where", "how", "says"), BAD)
def test_a_fault_is_reported_with_method_row_and_line(
    report: Report, where: str, how: str, says: str
) -> None:
    row = [(one["where"], one["how"]) for one in report.baseline.facts.rows[: len(BAD)]].index((where, how))
    [message] = [each for each in report.broken if f"row {row}:" in each]
    assert says in message
    assert HOME in message or "metrics" in says or " is " in says


@pytest.mark.parametrize(("where", "says"), ENDS)
def test_an_ended_process_is_reported_with_its_row(report: Report, where: str, says: str) -> None:
    row = len(BAD) + [each for each, _ in ENDS].index(where)
    assert [each for each in report.broken if re.search(rf"row {row}[:,].*{says}", each)]


def test_a_fault_does_not_change_other_episodes(report: Report) -> None:
    good = [one for one in report.baseline.sampled if "good" in one.row]
    assert len(good) == len(BAD) + len(ENDS)
    assert {(one.record.reward, one.record.score, one.record.error) for one in good} == {(1.0, 1.0, None)}


def test_no_fault_takes_longer_than_the_episode(report: Report) -> None:
    """A method that hangs is reported within the episode's time, and nothing waits beyond it."""
    for one in report.baseline.sampled:
        assert "did not answer" not in (one.record.error or ""), "the server itself said what hangs"


@pytest.mark.parametrize(("where", "how"), HARMLESS)
def test_child_processes_end_with_the_sandbox(where: str, how: str, tmp_path: Path) -> None:
    found = sampled([{"where": where, "how": how}, {"good": 1}], tmp_path)
    assert not found.broken
    assert [one.record.reward for one in found.baseline.sampled] == [1.0, 1.0]
    left = {int(path.name) for path in tmp_path.iterdir()}
    assert bool(left) == (how == "forks")
    ends = time.monotonic() + 30
    while left & (alive := {pid for pid, (state, _) in process.processes() if state not in "ZX"}):
        assert time.monotonic() < ends, f"still there: {left & alive}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", "bad_import:Refuses cannot be imported: RuntimeError: on purpose"),
        ("leaves", "bad_import:Refuses cannot be imported: SystemExit: 0"),
        ("hangs", "bad_import:Refuses was not imported within 1 s"),
        ("ends the process", "the sandbox's process ended in the import, exit status 0"),
        ("", "bad_import:Refuses refused spec.environment.config: ValueError: config: remove everything"),
        ("forks", "bad_import:Refuses refused spec.environment.config"),
        ("prints", "bad_import:Refuses refused spec.environment.config"),
    ],
)
def test_the_error_for_an_unloadable_environment_says_why(how: str, says: str) -> None:
    of = Sandboxes(
        "bad_import:Refuses", folders=[TASKS], timeout=1.0 if how == "hangs" else 30.0, variables={"HOW": how}
    )
    played = episode(of, {})
    assert says in (played.error or "")
    assert how not in ("raises", "leaves") or "bad_import.py:" in (played.error or "")


def test_an_unknown_class_is_answered_with_those_there_are() -> None:
    played = episode("bad:Worse", {}, folders=[TASKS])
    assert played.error is not None
    assert "bad:Worse cannot be imported" in played.error
    assert "write bad:Bad" in played.error
