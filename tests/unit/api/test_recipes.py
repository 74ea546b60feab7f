"""Guard rails warn exactly as the table says. The chart and the command line have the same rails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from refusal_cases import changed, title
from warning_cases import QUIET, WARNINGS

from headway_api import recipes
from headway_api.spec.training import RLTrainingJob

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "headway"


def job(body: dict[str, Any]) -> RLTrainingJob:
    return RLTrainingJob.model_validate(body)


@pytest.mark.parametrize("case", WARNINGS, ids=title)
def test_guard_rails_warn_as_the_table_says(case: dict[str, Any]) -> None:
    warnings = recipes.warnings(job(changed(QUIET, case["set"])).spec)
    assert len(warnings) == len(case["says"]), warnings
    assert all(words in text for words, text in zip(case["says"], warnings, strict=True)), warnings


def test_every_guard_rail_is_in_the_table() -> None:
    words = [text for case in WARNINGS for text in case["says"]]
    silent = [rail.message for rail in recipes.GUARD_RAILS if not any(w in rail.message for w in words)]
    assert silent == []


def test_a_warning_names_its_field_and_fits_where_it_is_shown() -> None:
    for rail in recipes.GUARD_RAILS:
        assert rail.message.startswith("spec."), rail.message
        assert len(rail.message) <= 256, "the API server may cut a warning there"
    assert len(recipes.GUARD_RAILS) <= 24, "status.warnings holds no more"


def test_advice_has_what_is_known_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(changed(QUIET, {"spec.model.base": "hf://openai/gpt-oss-20b"})))
    assert recipes.main([str(file)]) == 0
    output = capsys.readouterr().out
    assert "learningRate: 1.0e-05" in output
    assert "Warning: spec.optimizer.learningRate: gpt-oss needs a lower rate" in output


def test_the_chart_has_the_same_guard_rails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carried = CHART / "files" / "guard-rails.yaml"
    assert recipes.main(["--policy", str(carried), "--check"]) == 0, capsys.readouterr().err
    entries = yaml.safe_load(carried.read_text())
    assert entries == [rail.validation() for rail in recipes.GUARD_RAILS]
    other = tmp_path / "guard-rails.yaml"
    assert recipes.main(["--policy", str(other), "--check"]) == 1
    assert "run: make crds" in capsys.readouterr().err
    assert recipes.main(["--policy", str(other)]) == 0
    assert other.read_text() == carried.read_text()
