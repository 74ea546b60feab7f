"""A job's file, and the changes with which it runs on one machine."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway_cli.local import manifest
from headway_cli.local.manifest import ManifestError

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "sop-quickstart" / "job.yaml"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def written(folder: Path, *documents: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_the_example_runs_here_and_keeps_its_artifacts_here() -> None:
    made, notes = manifest.local(manifest.read(JOB), Path("/there"), NOW)
    assert made["spec"]["output"]["uri"] == "file:///there/artifacts"
    assert made["metadata"]["namespace"] == "headway-demo"
    assert made["metadata"]["generation"] == 1
    assert "mlflow" not in made["spec"].get("tracking", {})
    assert notes == ("spec.tracking.mlflow is ignored: its server belongs to a cluster",)


def test_other_documents_of_the_file_are_skipped(tmp_path: Path) -> None:
    job = yaml.safe_load(JOB.read_text())
    assert manifest.read(written(tmp_path, {"kind": "ConfigMap"}, job)) == job


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "has no job: write kind: RLTrainingJob or RLEvalJob"),
        (
            [{"kind": "RLTrainJob"}],
            "has no job, only kind RLTrainJob: write kind: RLTrainingJob or RLEvalJob",
        ),
        ([{"kind": "RLEvalJob", "metadata": {"name": n}} for n in "ab"], "has 2 jobs: keep one"),
        ([{"kind": "RLTrainingJob", "metadata": {"name": ".."}}], "metadata.name: write a name"),
        ([{"kind": "RLTrainingJob", "metadata": {"name": "a"}, "spec": "x"}], "spec: write fields below it"),
        ([{"kind": "RLTrainingJob", "spec": {}}], "metadata.name: write a name"),
    ],
)
def test_a_file_that_is_not_a_job_is_refused(tmp_path: Path, documents: list[Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        manifest.read(written(tmp_path, *documents))


def test_a_file_that_is_not_there_or_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="does not exist: name the file"):
        manifest.read(tmp_path / "absent.yaml")
    (tmp_path / "odd.yaml").write_text("a: [")
    with pytest.raises(
        ManifestError, match=r"cannot be read as YAML: line 1, column 5: .*; correct it"
    ) as odd:
        manifest.read(tmp_path / "odd.yaml")
    assert "\n" not in str(odd.value)


def test_settings_change_fields_and_leave_the_file_as_it_was() -> None:
    job = manifest.read(JOB)
    made = manifest.changed(job, ["spec.schedule.maxSteps=3", "spec.rollout.sampling.temperature=0.5"])
    assert made["spec"]["schedule"]["maxSteps"] == 3
    assert made["spec"]["rollout"]["sampling"] == {"maxTokens": 32, "temperature": 0.5}
    assert job["spec"]["schedule"]["maxSteps"] == 20


@pytest.mark.parametrize(
    "setting", ["schedule.maxSteps=3", "spec.schedule.maxSteps", "spec.seed.x=1", "spec=3", "spec.seed=[1"]
)
def test_a_setting_of_another_form_is_refused(setting: str) -> None:
    job = manifest.read(JOB)
    job["spec"]["seed"] = 1
    with pytest.raises(ManifestError, match=re.escape(f"--set {setting}")):
        manifest.changed(job, [setting])


def test_the_error_of_an_invalid_spec_names_the_field() -> None:
    job = manifest.changed(manifest.read(JOB), ["spec.algorithm.groupSize=0"])
    with pytest.raises(ManifestError, match=r"spec\.algorithm\.groupSize"):
        manifest.local(job, Path("/there"), NOW)


def made(*settings: str) -> dict[str, Any]:
    job, _ = manifest.local(manifest.changed(manifest.read(JOB), settings), Path("/there"), NOW)
    return {**job, "status": {}}


def test_an_unchanged_job_goes_on() -> None:
    stored = made()
    assert manifest.continued(stored, made(), resume=False) == stored


@pytest.mark.parametrize("setting", ["spec.budget.usd='9'", "spec.schedule.maxSteps=40", "spec.suspend=true"])
def test_a_job_goes_on_with_an_allowed_change(setting: str) -> None:
    stored, new = made(), made(setting)
    found = manifest.continued(stored, new, resume=False)
    assert found["spec"] == new["spec"]
    assert found["metadata"] == {**stored["metadata"], "generation": 2}


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_an_ended_job_refuses_a_change_that_would_do_nothing(end: str) -> None:
    stored = made() | {"status": {"conditions": [{"type": end, "status": "True"}]}}
    assert manifest.continued(stored, made(), resume=False) == stored
    with pytest.raises(
        ManifestError, match=f"this job is {end}, and a change .* write --fresh to run it again"
    ):
        manifest.continued(stored, made("spec.schedule.maxSteps=40"), resume=False)


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("spec.seed=9", "spec.seed"),
        ("spec.algorithm.groupSize=4", "spec.algorithm"),
        ("spec.rollout.maxConcurrency=4", "spec.rollout.maxConcurrency"),
        ("spec.schedule.maxSteps=3", "spec.schedule.maxSteps or more than it"),
    ],
)
def test_a_job_keeps_its_immutable_fields(setting: str, field: str) -> None:
    with pytest.raises(ManifestError, match=f"a job that has begun keeps {field}: write --fresh"):
        manifest.continued(made(), made(setting), resume=False)


def test_a_person_ends_the_pause_of_a_job() -> None:
    stored = made() | {"status": {"pause": {"time": "2026-01-01T00:00:00Z"}}}
    assert "annotations" not in manifest.continued(stored, made(), resume=False)["metadata"]
    found = manifest.continued(stored, made(), resume=True)
    assert found["metadata"]["annotations"] == {"headway.dev/resume": "2026-01-01T00:00:00Z"}
