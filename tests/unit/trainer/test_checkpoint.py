"""Checkpoints that cannot be resumed: the learner's error, and whether it is retriable."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import learner_rig as rig
import pytest

from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.records import FileDigest
from headway_api.spec.learner import CheckpointsSpec
from headway_api.store import FileStore
from headway_trainer import probes, ranks
from headway_trainer.checkpoint import resize, state
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.manager import CheckpointManager
from headway_trainer.checkpoint.manifest import Checkpoint, CheckpointManifest
from headway_trainer.engine import Engine
from headway_trainer.ranks import Ranks

UNTOUCHED = cast(Engine, SimpleNamespace(replicated=False))
"""An engine that these tests never load, because their checkpoints are incomplete."""
ONE = Ranks(0, 0, 1, None)


def manifest(*, world: int, file: FileDigest) -> CheckpointManifest:
    return CheckpointManifest(start=0, files=[file], world_size=world, updates=1)


def restore(folder: Path, found: CheckpointManifest, scratch: Path) -> JobError:
    layout = cast(Layout, SimpleNamespace(checkpoint_of=lambda step, start: f"file://{folder}"))
    journal = cast(Journal, None)
    checkpointer = CheckpointManager(CheckpointsSpec(), UNTOUCHED, FileStore(), layout, journal, scratch, ONE)
    with pytest.raises(JobError) as failed:
        checkpointer.restore(Checkpoint(report=rig.report(1), state=found))
    assert failed.value.termination.reason == "CheckpointUnusable"
    return failed.value


def test_a_damaged_checkpoint_is_retriable_and_names_latest_json(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    found = manifest(world=1, file=FileDigest(name="a.pt", size=9, sha256="0" * 64))
    missing = restore(folder, found, tmp_path / "scratch")
    (folder / "a.pt").write_bytes(b"torn")
    damaged = restore(folder, found, tmp_path / "scratch")
    for error in (missing, damaged):
        assert not error.permanent
        assert "set latest.json" in error.termination.message


@pytest.mark.parametrize("seconds", [resize.SECONDS, 0.01])
def test_a_failed_conversion_to_a_new_process_count_is_retriable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The conversion may fail or take too long."""
    monkeypatch.setattr(resize, "SECONDS", seconds)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "a.pt").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    found = manifest(world=2, file=FileDigest(name="a.pt", size=0, sha256=empty))
    error = restore(folder, found, tmp_path / "scratch")
    assert not error.permanent, "a job that has failed could not be given its old number of processes"
    assert error.termination.field == "spec.learner"
    assert "set nodes x processesPerNode to the former number" in error.termination.message
    assert ("it did not finish within" in error.termination.message) == (seconds < 1)


def test_time_limits_let_a_wait_for_a_checkpoint_finish() -> None:
    """The conversion and another node's upload have time limits.

    The liveness probe must not end a wait within them.
    """
    waits = ranks.CONTROL_TIMEOUT.total_seconds()
    assert waits > max(resize.SECONDS, state.PART_SECONDS)
    assert waits + resize.SECONDS < probes.STALL
