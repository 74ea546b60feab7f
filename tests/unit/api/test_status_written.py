"""The description of a status field without a writer says so. The writers' source shows which are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from headway_api.grants import RLBudgetStatus
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus, State

ROOT = Path(__file__).resolve().parents[3]
OPERATOR = "operator/headway_operator"
WRITERS = (OPERATOR, "coordinator/headway_coordinator", "api/headway_api")


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Models that an annotation names at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def trees(*folders: str) -> Iterator[ast.Module]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield ast.parse(path.read_text())


@cache
def written() -> set[tuple[str, str]]:
    """(model, field) of each field that is set when the model is made or later.

    The model is "" if unknown.
    """
    found: set[tuple[str, str]] = set()
    for node in (node for tree in trees(*WRITERS) for node in ast.walk(tree)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            found |= {(name, keyword.arg) for keyword in node.keywords if keyword.arg}
            if name == "model_copy":
                found |= {("", key) for key in updated(node)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(("", node.attr))
    return found


def updated(call: ast.Call) -> Iterator[str]:
    """Names in the `update` of a model_copy."""
    for keyword in call.keywords:
        if keyword.arg == "update" and isinstance(keyword.value, ast.Dict):
            yield from (str(key.value) for key in keyword.value.keys if isinstance(key, ast.Constant))


def fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, bool, bool]]:
    """Path of each field, whether it is written, and whether it says that it is not.

    The fields below an unwritten field are left out.
    """
    for name, field in model.model_fields.items():
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            continue  # a constant needs no writer
        is_written = bool({(model.__name__, name), ("", name)} & written())
        yield f"{path}{name}", is_written, str(field.description).endswith("Not written yet.")
        if is_written:
            for child in models_in(field.annotation):
                yield from fields(child, f"{path}{name}.")


@pytest.mark.parametrize("status", [RLTrainingJobStatus, RLEvalJobStatus, RLBudgetStatus])
def test_a_field_is_written_or_says_that_it_is_not(status: type[BaseModel]) -> None:
    found = list(fields(status))
    unwritten = {path for path, is_written, _ in found if not is_written}
    assert unwritten == {path for path, _, says_so in found if says_so}
    assert unwritten == set()


def test_every_state_is_set_by_some_code() -> None:
    strings = {
        node.value
        for tree in trees(OPERATOR)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(get_args(State)) <= strings
