"""The folder of a local job: one command at a time, and no file is deleted that is not the job's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway_api.job_folder import JobFolder
from headway_cli.local import manifest
from headway_cli.local.engine import Engine, platform
from headway_cli.local.manifest import ManifestError
from headway_cli.local.run import opened

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "sop-quickstart" / "job.yaml"


def document(*settings: str) -> dict[str, Any]:
    return manifest.changed(manifest.read(JOB), settings)


def test_a_new_job_has_a_folder_that_nobody_else_reads(tmp_path: Path) -> None:
    notes: list[str] = []
    with opened(document(), tmp_path / "job", notes.append) as stored:
        assert stored.whole()["metadata"]["name"] == "sop-quickstart"
    assert (tmp_path / "job").stat().st_mode & 0o077 == 0
    assert notes == ["spec.tracking.mlflow is ignored: its server belongs to a cluster"]


def test_a_resumed_job_keeps_its_uid_and_a_fresh_job_does_not(tmp_path: Path) -> None:
    uids = []
    for fresh in (False, False, True):
        with opened(document(), tmp_path / "job", print, fresh=fresh) as stored:
            uids.append(stored.whole()["metadata"]["uid"])
            (tmp_path / "job" / "mark").touch()
    assert uids[0] == uids[1] != uids[2]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_no_job_is_left_alone(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    refused = pytest.raises(ManifestError, match="is not the folder of a job, and is not empty")
    with refused, opened(document(), tmp_path, print, fresh=fresh):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "job", tmp_path / "file" / "deep" / "job", Path("/proc/job")):
        refused = pytest.raises(ManifestError, match="name a folder that can be written with --folder")
        with refused, opened(document(), folder, print):
            pass


def test_a_wrong_spec_throws_nothing_away(tmp_path: Path) -> None:
    with opened(document(), tmp_path / "job", print):
        pass
    wrong, refused = document("spec.algorithm.groupSize=0"), pytest.raises(ManifestError, match="groupSize")
    with refused, opened(wrong, tmp_path / "job", print, fresh=True):
        pass
    assert JobFolder(tmp_path / "job").exists()


def test_one_command_runs_a_job_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(ManifestError, match="is already running: end that command first")
    first, second = (opened(document(), tmp_path / "job", print) for _ in range(2))
    with first, refused, second:
        pass
    with opened(document(), tmp_path / "job", print):
        pass


async def test_a_suspended_job_is_held(tmp_path: Path) -> None:
    with opened(document("spec.suspend=true"), tmp_path / "job", print) as stored:
        ended = await Engine(stored, tmp_path, platform(False)).run(lambda job: None)
    assert ended["status"]["state"] == "Suspended"


async def test_a_job_that_is_refused_is_held_and_says_why(tmp_path: Path) -> None:
    template = {"spec": {"hostNetwork": True, "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}
    setting = f"spec.environment.sandbox.podTemplate={json.dumps(template)}"
    with opened(document(setting), tmp_path / "job", print) as stored:
        ended = await Engine(stored, tmp_path, platform(False)).run(lambda job: None)
    refused = {each["type"]: each for each in ended["status"]["conditions"]}["Stalled"]
    assert refused["status"] == "True"
    assert "spec.environment.sandbox.podTemplate" in refused["message"]


def test_time_between_two_runs_counts_as_suspended(tmp_path: Path) -> None:
    with opened(document(), tmp_path / "job", print) as stored:
        stored.write_status("headway-operator", {"startTime": "2026-01-01T00:00:00Z", "suspendedSeconds": 5})
        path = tmp_path / "job" / "status.headway-operator.json"
        content = json.loads(path.read_text())
        content["time"] -= 3600 * 10**9
        path.write_text(json.dumps(content))
        Engine(stored, tmp_path, platform(False))._count_rest()
        status, _ = stored.last_status("headway-operator")
    assert status["suspendedSeconds"] == pytest.approx(3605, abs=60)
