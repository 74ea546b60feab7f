"""The error for a mistake in a manifest names its field, and for a misspelt field the one that is meant."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
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


PYDANTIC = re.compile("Value error|Input should|after validation|instance of|should have|should match")
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
        ({"spec.schedule": {"maxSteps": 0}}, "spec.schedule.maxSteps is 0: write 1 or more"),
        (
            {"spec.algorithm.sampler": "inorder"},
            'spec.algorithm.sampler is "inorder": write in_order, windowed or ready_first',
        ),
        (
            {"spec.preflight": {"policy": False}},
            'spec.preflight.policy is false: write Enforce, Warn or "Off"',
        ),
        ({"spec.model.revision": 7}, 'spec.model.revision is 7: write text, as in "7"'),
        ({"spec.seed": "x" * 99}, f'spec.seed is "{"x" * 38}…: write a whole number'),
        ({"spec.suspend": "maybe"}, 'spec.suspend is "maybe": write true or false'),
        ({"spec.optimizer": {"betas": [0.9]}}, "spec.optimizer.betas has 1 entry: write 2 or more"),
        ({"spec.rollout": {"maxRetries": 10**9}}, "spec.rollout.maxRetries is 1000000000: write "),
        ({"spec.rollout": {"sampling": {"topP": 1.5}}}, "spec.rollout.sampling.topP is 1.5: write 1 or less"),
        ({"spec.optimizer": 7}, "spec.optimizer is 7: write fields below it"),
        ({"spec.model": {"dtype": "float32"}}, "spec.model.base is missing: write it"),
        ({"spec.budget": {"usd": "much"}}, 'spec.budget.usd is "much": write an amount of 0 or more'),
        ({"spec.data.train.uri": "here"}, "spec.data.train.uri: the uri of a dataset must start with s3://"),
    ],
    ids=str,
)
def test_a_mistake_names_the_field_and_what_to_write(changes: dict[str, Any], message: str) -> None:
    [sentence] = sentences(changes)
    assert sentence.startswith(message)


def test_every_mistake_is_reported_at_once() -> None:
    assert len(sentences({"spec.agnet": {}, "spec.optimizer": {"learningRate": 2, "epsilon": 1}})) == 3


def walk(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from walk(value, (*path, key))


EVERYTHING = yaml.safe_load((Path(__file__).parent / "everything.yaml").read_text())


@pytest.mark.parametrize("wrong", ["nonsense", 7, -5.5, True, "", [1], {"x": 1}, None], ids=repr)
def test_no_fault_has_the_words_of_pydantic(wrong: object) -> None:
    """Each field of the example in turn gets a wrong value."""
    found = 0
    for path in walk(EVERYTHING["spec"], ("spec",)):
        document = copy.deepcopy(EVERYTHING)
        *parents, last = path
        functools.reduce(lambda node, key: node[key], parents, document)[last] = wrong
        try:
            RLTrainingJob.model_validate(document)
        except ValidationError as invalid:
            for sentence in mistakes(invalid, RLTrainingJob):
                found += 1
                assert not PYDANTIC.search(sentence)
                assert "spec." in sentence
    assert found > 100


def test_a_very_long_name_is_cut() -> None:
    [sentence] = sentences({"spec.reward": {"x" * 5000: 1}})
    assert len(sentence) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (yaml.safe_dump(changed(SMALLEST, {"spec.agnet": {}})), "did you mean agent?"),
        ("a: [", "job.yaml cannot be read as YAML"),
        ("[" * 5000, "job.yaml cannot be read as YAML"),
        ("- a list", "the file is a list: write fields below it"),
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


def test_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recipes.main([str(tmp_path / "none.yaml")]) == 1
    assert "No such file" in capsys.readouterr().err
