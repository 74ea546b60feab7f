"""YAML as kubectl reads it: numbers, times, and keys that are written twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headway_cli import kubectl_yaml
from headway_cli.local import manifest
from headway_cli.local.manifest import ManifestError

JOB = "kind: RLTrainingJob\nmetadata: {name: desk}\nspec:\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E3", 1e3),
        ("-.5", -0.5),
        ("3.", 3.0),
        ("7", 7),
        ("0x1f", 31),
        ("0777", 511),
        ("0o17", 15),
        ("12:30", "12:30"),
        ("12:30:45.5", "12:30:45.5"),
        ("2026-11-03", "2026-11-03"),
        ("2026-11-03T10:00:00Z", "2026-11-03T10:00:00Z"),
        ("true", True),
        ("~", None),
        ("'1e-4'", "1e-4"),
        ("1e", "1e"),
        ("v1.2", "v1.2"),
        (".inf", float("inf")),
    ],
)
def test_a_plain_word_has_kubectls_type(text: str, value: Any) -> None:
    found = kubectl_yaml.value(text)
    assert (type(found), found) == (type(value), value)


def test_a_key_that_is_written_twice_is_refused() -> None:
    with pytest.raises(yaml.YAMLError, match="schedule is written twice"):
        kubectl_yaml.documents("spec:\n  schedule: 1\n  schedule: 2\n")
    assert kubectl_yaml.value("a: &a {b: 1}\nc: {<<: *a, b: 2}\n") == {"a": {"b": 1}, "c": {"b": 2}}


def test_numbers_of_a_job_and_of_set_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB + "  optimizer: {learningRate: 1e-3}\n")
    job = manifest.read(file)
    assert job["spec"]["optimizer"]["learningRate"] == 1e-3
    changed = manifest.changed(job, ["spec.optimizer.learningRate=1e-4", "spec.environment.config.at=12:30"])
    assert changed["spec"]["optimizer"]["learningRate"] == 1e-4
    assert changed["spec"]["environment"]["config"]["at"] == "12:30"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  schedule: {}\n  schedule: {}\n", "line 5, column 3: schedule is written twice; correct it there"),
        ("  a: " + "[" * 3000 + "]" * 3000 + "\n", "is nested too deeply: write fewer levels"),
    ],
)
def test_a_file_that_would_lose_its_meaning_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB + text)
    with pytest.raises(ManifestError, match=says):
        manifest.read(file)
