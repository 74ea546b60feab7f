"""A job as files: each part of its status has one writer, and the parts are read as one status."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headway_api.job_folder import JobFolder, merged

READY = {"type": "Ready", "status": "True"}
JOB = {"kind": "RLTrainingJob", "metadata": {"name": "a"}, "spec": {}}


def test_the_parts_of_two_managers_are_one_status(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    assert not folder.exists()
    folder.write(JOB)
    folder.write_status("operator", {"state": "Training", "conditions": [READY]})
    folder.write_status("coordinator", {"progress": {"step": 1}, "conditions": [{"type": "Healthy"}]})
    whole = folder.whole()
    assert folder.exists()
    assert whole["metadata"] == {"name": "a"}
    assert whole["status"] == {
        "state": "Training",
        "progress": {"step": 1},
        "conditions": [READY, {"type": "Healthy"}],
    }


def test_a_part_that_a_manager_no_longer_sends_is_removed(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.write_status("coordinator", {"progress": {"step": 1}, "usage": {}})
    folder.write_status("coordinator", {"progress": {"step": 2}})
    assert folder.whole()["status"] == {"progress": {"step": 2}}
    status, at = folder.last_status("coordinator")
    assert status == {"progress": {"step": 2}}
    assert at == pytest.approx(time.time(), abs=60)
    assert folder.last_status("operator") == ({}, None)


def test_a_status_is_not_stored_with_the_job(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.write({**JOB, "status": {"state": "Training"}})
    assert folder.whole() == {**JOB, "status": {}}


def test_the_newer_of_two_writers_conditions_remains(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.write_status("coordinator", {"conditions": [{"type": "WeightsInSync", "status": "True"}]})
    folder.write_status("operator", {"conditions": [{"type": "WeightsInSync", "status": "Unknown"}]})
    assert folder.whole()["status"]["conditions"] == [{"type": "WeightsInSync", "status": "Unknown"}]
    folder.write_status("coordinator", {"conditions": [{"type": "WeightsInSync", "status": "False"}]})
    assert folder.whole()["status"]["conditions"] == [{"type": "WeightsInSync", "status": "False"}]


def test_concurrent_threads_leave_one_of_their_statuses_whole(tmp_path: Path) -> None:
    folder, sizes = JobFolder(tmp_path), [10, 200_000]

    def write(size: int) -> None:
        for _ in range(50):
            folder.write_status("coordinator", {"message": "x" * size})

    writers = [threading.Thread(target=write, args=(size,)) for size in sizes]
    for each in writers:
        each.start()
    while any(each.is_alive() for each in writers):
        found = folder.whole()["status"]
        assert len(found.get("message", "x" * 10)) in sizes
    assert [path.name for path in tmp_path.iterdir()] == ["status.coordinator.json"]


def test_parts_without_conditions_make_none() -> None:
    assert merged([{}, {"state": "Pending"}]) == {"state": "Pending"}
