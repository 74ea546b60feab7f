"""Each mistake of a manifest names its field, and a near miss the field that is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from refusal_cases import SMALLEST, changed

from headway_api import recipes
from headway_api.mistakes import mistakes
from headway_api.spec.training import RLTrainingJob


def sentences(changes: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ValidationError) as invalid:
        RLTrainingJob.model_validate(changed(SMALLEST, changes))
    return mistakes(invalid.value, RLTrainingJob)


NONE = "there is no such field"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec.agnet": {}}, f"spec.agnet: {NONE}; did you mean agent?"),
        ({"spec.algorithm.groupsize": 4}, f"spec.algorithm.groupsize: {NONE}; did you mean groupSize?"),
        ({"spec.reward": {"zzz": 1}}, f"spec.reward.zzz: {NONE}; there are range"),
        (
            {"spec.agent": {"builtin": {"max_turn": 3}}},
            f"spec.agent.builtin.max_turn: {NONE}; did you mean maxTurns?",
        ),
        ({"spec.optimizer": {"learningRate": 2}}, "spec.optimizer.learningRate must be at most 0.01"),
        ({"spec.environment.entrypoint": "desk.Desk"}, "spec.environment.entrypoint must be module:Class"),
        ({"spec.schedule": {"maxSteps": 0}}, "spec.schedule.maxSteps: "),
    ],
    ids=["block", "case", "unlike any", "underscore", "fraction", "pattern", "bound"],
)
def test_a_mistake_names_the_field_and_what_to_write(changes: dict[str, Any], message: str) -> None:
    [sentence] = sentences(changes)
    assert sentence.startswith(message)


def test_every_mistake_is_reported_at_once() -> None:
    assert len(sentences({"spec.agnet": {}, "spec.optimizer": {"learningRate": 2, "epsilon": 1}})) == 3


def test_a_very_long_name_is_cut() -> None:
    [sentence] = sentences({"spec.reward": {"x" * 5000: 1}})
    assert len(sentence) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (yaml.safe_dump(changed(SMALLEST, {"spec.agnet": {}})), "did you mean agent?"),
        ("a: [", "job.yaml cannot be read as YAML"),
        ("[" * 5000, "job.yaml cannot be read as YAML"),
        ("- a list", "Input should be a valid dictionary"),
    ],
    ids=["a typo", "half a list", "too deep", "a list"],
)
def test_the_command_line_says_so_without_a_traceback(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert recipes.main([str(file)]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recipes.main([str(tmp_path / "none.yaml")]) == 1
    assert "No such file" in capsys.readouterr().err
