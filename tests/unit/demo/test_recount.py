"""The recount of the bill: how it decides whether a group had a gradient."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from episodes import a_group, given_up

from headway_api.artifacts import Layout
from headway_api.prices import DEFAULT
from headway_api.records import GroupRecord, Purpose
from headway_api.store import FileStore
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import usage
from headway_coordinator.spool import Spool

SCRIPT = Path(__file__).parents[3] / "hack" / "recount.py"
TOKENS = 5


def episode(reward: float) -> dict[str, Any]:
    turn = {"prompt_tokens": 3, "cached_tokens": 1, "sampled_tokens": 2}
    row = {"tokens": [1] * TOKENS, "mask": [0, 0, 0, 1, 1]}
    return {"episode_id": "e", "outcome": "Completed", "reward": reward, "turns": [turn], "rows": [row]}


def counted(folder: Path, rewards: list[float], claimed: int, *options: str) -> tuple[int | None, str]:
    """The trained tokens by the recount, or None and its error message."""
    group = {"group_id": "g", "purpose": "train", "discarded": [], "episodes": list(map(episode, rewards))}
    for name in ("trajectories", "steps"):
        (folder / name).mkdir()
    (folder / "trajectories" / "g.json.gz").write_bytes(gzip.compress(json.dumps(group).encode()))
    (folder / "steps" / "1.json").write_text(json.dumps({"step": 1, "train_tokens": {"g": claimed}}))
    command = [sys.executable, str(SCRIPT), f"file://{folder}", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (None, done.stderr) if done.returncode else (json.loads(done.stdout)["tokens"]["train"], "")


@pytest.mark.parametrize("sampled_by", ["servers", "endpoint", "nobody"])
def test_the_recount_of_an_evaluation_equals_the_ledger(tmp_path: Path, sampled_by: Any) -> None:
    layout = Layout(f"file://{tmp_path}", "ns", "job", "uid")
    *groups, unread = [
        a_group(f"e-x-{n:06d}", [1.0, None], purpose=Purpose.EVALUATION, retried=n % 3) for n in range(4)
    ]
    groups.append(unread.model_copy(update={"episodes": [given_up(one) for one in unread.episodes]}))
    elsewhere = {"sampled_by": sampled_by, "candidate": "x"}
    groups = [group.model_copy(update=elsewhere) for group in groups]
    if sampled_by == "endpoint":
        groups = [without_rows(group) for group in groups]
    ledger = Ledger(FileStore(), layout)
    spool = Spool(FileStore(), layout)
    for group in groups:
        spool.put(group)
        ledger.group(group)
    shown = usage(ledger.days, DEFAULT, date(2026, 11, 23))
    status = tmp_path / "status.json"
    status.write_text(json.dumps({"status": {"usage": shown.as_object()}}))
    command = [sys.executable, str(SCRIPT), layout.root, "--status", str(status)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "status agrees"), done.stdout


def without_rows(group: GroupRecord) -> GroupRecord:
    """The group without rows, because an endpoint reports no token ids."""
    episodes = [e.model_copy(update={"rows": []}) for e in group.episodes]
    discarded = [e.model_copy(update={"rows": []}) for e in group.discarded]
    return group.model_copy(update={"episodes": episodes, "discarded": discarded})


@pytest.mark.parametrize(
    ("rewards", "claimed"), [([1.0, 0.0], 2 * TOKENS), ([1.0, 1.0], 0), ([0.1 + 0.2, 0.3], 0)]
)
def test_rewards_decide_whether_a_group_has_a_gradient(
    tmp_path: Path, rewards: list[float], claimed: int
) -> None:
    assert counted(tmp_path, rewards, claimed) == (claimed, "")


@pytest.mark.parametrize(
    ("rewards", "claimed"), [([1.0, 0.0], 0), ([1.0, 1.0], 2 * TOKENS), ([1.0, 0.0], TOKENS)]
)
def test_a_report_that_differs_from_the_recount_is_detected(
    tmp_path: Path, rewards: list[float], claimed: int
) -> None:
    found, words = counted(tmp_path, rewards, claimed)
    assert found is None
    assert f"g: {claimed} tokens trained" in words


@pytest.mark.parametrize("claimed", [0, 2 * TOKENS])
@pytest.mark.parametrize("rewards", [[1.0, 1.0], [1.0, 0.0]])
def test_if_rewards_do_not_decide_the_report_does(tmp_path: Path, rewards: list[float], claimed: int) -> None:
    assert counted(tmp_path, rewards, claimed, "--method", "monte_carlo") == (claimed, "")


def test_a_report_that_trains_a_part_of_a_group_is_wrong(tmp_path: Path) -> None:
    found, words = counted(tmp_path, [1.0, 1.0], TOKENS, "--method", "monte_carlo")
    assert found is None
    assert f"g: {TOKENS} tokens trained, but 0 or {2 * TOKENS} in its rows" in words
