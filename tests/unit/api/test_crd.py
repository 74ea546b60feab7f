"""The CRDs in the repository are those of the models, with a shape that every API server accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusal_cases import SMALLEST

from headway_api import crd, docs
from headway_api.rules import VALIDATIONS
from headway_api.spec.training import RLTrainingJob

ROOT = Path(__file__).resolve().parents[3]
CLIENT_APPLY_LIMIT = 262_144
"""Above this size, `kubectl apply` cannot store its annotation."""


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a schema, with the path of its field."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


BOTH = pytest.mark.parametrize("definition", crd.definitions(), ids=lambda it: it["spec"]["names"]["kind"])


def fields(definition: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every node under spec and status."""
    return [(path, node) for path, node in nodes(schema(definition)) if path.startswith((".spec", ".status"))]


def test_crd_files_are_those_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main([str(ROOT / "crds"), "--check"]) == 0, capsys.readouterr().err


def test_reference_page_is_that_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main([str(ROOT / "docs/reference/crds.md"), "--check"]) == 0, capsys.readouterr().err


def test_a_difference_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main([str(tmp_path), "--check"]) == 1
    assert "run: make crds" in capsys.readouterr().err
    assert crd.main([str(tmp_path)]) == 0
    assert crd.main([str(tmp_path), "--check"]) == 0


@pytest.mark.parametrize(("file", "text"), crd.files().items(), ids=crd.files().keys())
def test_a_crd_is_small_enough_for_client_side_apply(file: str, text: str) -> None:
    """`kubectl apply` stores the object in an annotation, as JSON without spaces in Go's form."""
    kept = json.dumps(yaml.safe_load(text), separators=(",", ":"), ensure_ascii=False)
    kept = re.sub("[<>&]", r"\\u0000", kept)
    over = len(kept.encode()) + 1 - CLIENT_APPLY_LIMIT // 2
    assert over <= 0, (
        f"{file} is {over} bytes too large: shorten descriptions, which are the docstrings of fields in "
        "api/headway_api/spec/ and api/headway_api/status/, or messages of rules"
    )


TYPES = {"object", "array", "string", "integer", "number", "boolean"}
NOT_STRUCTURAL = {"$ref", "anyOf", "oneOf", "allOf", "not", "const", "nullable", "title", "readOnly"}


def is_structural(node: dict[str, Any]) -> bool:
    if node.get("x-kubernetes-int-or-string"):
        return "type" not in node
    both = {"properties", "additionalProperties"} <= node.keys()
    return node["type"] in TYPES and not node.keys() & NOT_STRUCTURAL and not both


def is_bounded(node: dict[str, Any]) -> bool:
    match node.get("type"):
        case "string":
            return "maxLength" in node or "enum" in node or node.get("format") == "date-time"
        case "array":
            return "maxItems" in node
        case "integer" | "number":
            return "minimum" in node
        case "object":
            return "additionalProperties" not in node or "maxProperties" in node
    return True


@BOTH
def test_every_field_is_structural(definition: dict[str, Any]) -> None:
    assert [path for path, node in fields(definition) if not is_structural(node)] == []


@BOTH
def test_every_field_is_bounded(definition: dict[str, Any]) -> None:
    assert [path for path, node in fields(definition) if not is_bounded(node)] == []


@BOTH
def test_every_field_is_described(definition: dict[str, Any]) -> None:
    silent = [
        path
        for path, node in nodes(schema(definition))
        if not path.endswith("[]") and path not in {"", ".apiVersion", ".kind", ".metadata"}
        if not node.get("description", "").endswith((".", ")"))
    ]
    assert not silent


@BOTH
def test_every_rule_says_what_it_is_about(definition: dict[str, Any]) -> None:
    for path, node in nodes(schema(definition)):
        for rule in node.get(VALIDATIONS, []):
            assert len(rule["message"]) <= 2048
            if (pointed := rule.get("fieldPath")) is not None:
                assert pointed.removeprefix(".") in node["properties"], path


def test_defaults_are_those_of_the_models() -> None:
    """The schema's defaults, applied to the smallest job, change nothing for the models."""

    def fill(value: Any, node: dict[str, Any]) -> Any:
        for name, child in node.get("properties", {}).items():
            if name not in value and "default" in child:
                value = {**value, name: child["default"]}
            if name in value and isinstance(value[name], dict):
                value = {**value, name: fill(value[name], child)}
        return value

    spec_schema = schema(crd.definitions()[0])["properties"]["spec"]
    filled = fill(SMALLEST["spec"], spec_schema)
    job = RLTrainingJob.model_validate({**SMALLEST, "spec": filled})
    assert job.spec == RLTrainingJob.model_validate(SMALLEST).spec
    assert filled["evaluation"]["sampling"] == {"temperature": 0, "topP": 1}
