"""Guard rails warn of what the table says, and of nothing else; recipes know their families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from refusal_cases import EVERYTHING, SMALLEST, changed, title
from warning_cases import QUIET, WARNINGS

from headway_api import recipes
from headway_api.spec.training import RLTrainingJob

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "headway"


def job(body: dict[str, Any]) -> RLTrainingJob:
    return RLTrainingJob.model_validate(body)


@pytest.mark.parametrize("case", WARNINGS, ids=title)
def test_warns_of_what_the_table_says(case: dict[str, Any]) -> None:
    said = recipes.warnings(job(changed(QUIET, case["set"])).spec)
    assert len(said) == len(case["says"]), said
    assert all(words in text for words, text in zip(case["says"], said, strict=True)), said


def test_every_guard_rail_is_in_the_table() -> None:
    words = [text for case in WARNINGS for text in case["says"]]
    silent = [rail.message for rail in recipes.GUARD_RAILS if not any(w in rail.message for w in words)]
    assert silent == []


def test_a_warning_names_its_field_and_fits_where_it_is_told() -> None:
    for rail in recipes.GUARD_RAILS:
        assert rail.message.startswith("spec."), rail.message
        assert len(rail.message) <= 256, "the API server may cut a warning there"
    assert len(recipes.GUARD_RAILS) <= 16, "status.warnings holds no more"


@pytest.mark.parametrize("body", [SMALLEST, EVERYTHING], ids=["smallest", "everything"])
def test_a_recipe_warns_of_nothing_of_its_own(body: dict[str, Any]) -> None:
    for recipe in recipes.RECIPES:
        fragment = recipe.spec()
        spec = changed(body, {"spec.model.lora": fragment["model"]["lora"], "spec.model.full": None})
        spec = changed(spec, {"spec.optimizer": fragment["optimizer"]})
        assert not any("learningRate" in text for text in recipes.warnings(job(spec).spec)), recipe


@pytest.mark.parametrize(
    ("base", "family"),
    [
        ("hf://Qwen/Qwen3-8B", "Qwen3"),
        ("hf://Qwen/Qwen3-30B-A3B", "Qwen3"),
        ("hf://Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3 2507"),
        ("hf://Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5 Instruct"),
        ("hf://meta-llama/Llama-3.2-1B-Instruct", "Llama 3.1 to 3.3"),
        ("hf://meta-llama/Meta-Llama-3.1-8B", "Llama 3.1 to 3.3"),
        ("hf://meta-llama/Meta-Llama-3-8B", "Llama 3"),
        ("hf://openai/gpt-oss-120b", "gpt-oss"),
        ("s3://acme/models/gpt-oss-20b", "gpt-oss"),
        ("hf://acme/other-7b", None),
    ],
)
def test_a_model_is_of_its_family(base: str, family: str | None) -> None:
    found = recipes.recipe(base)
    assert (found.family if found else None) == family


def test_the_page_says_the_same() -> None:
    rows = (ROOT / "docs" / "recipes.md").read_text().splitlines()
    for known in recipes.RECIPES:
        rate = f"{known.learning_rate:.0e}".replace("e-0", "e-")
        (row,) = [row for row in rows if row.endswith(f"| {known.context_length} |") and known.family in row]
        assert f"| {rate} |" in row


def test_prints_what_is_known_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(changed(QUIET, {"spec.model.base": "hf://openai/gpt-oss-20b"})))
    assert recipes.main([str(file)]) == 0
    said = capsys.readouterr().out
    assert "learningRate: 1.0e-05" in said
    assert "Warning: spec.optimizer.learningRate: gpt-oss wants a lower one" in said


def test_a_model_of_no_family_starts_from_the_defaults() -> None:
    said = recipes.advice(job(changed(QUIET, {"spec.model.base": "hf://acme/other-7b"})))
    assert said == "hf://acme/other-7b is of no family with a recipe; start from the defaults"


def test_the_chart_carries_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carried = CHART / "files" / "guard-rails.yaml"
    assert recipes.main(["--policy", str(carried), "--check"]) == 0, capsys.readouterr().err
    entries = yaml.safe_load(carried.read_text())
    assert entries == [rail.validation() for rail in recipes.GUARD_RAILS]
    other = tmp_path / "guard-rails.yaml"
    assert recipes.main(["--policy", str(other), "--check"]) == 1
    assert "run: make crds" in capsys.readouterr().err
    assert recipes.main(["--policy", str(other)]) == 0
    assert other.read_text() == carried.read_text()
