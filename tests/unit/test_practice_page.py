"""Fields, commands, metrics and sections that docs/practice.md names exist."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import headway_sandbox.testing
from headway_api import metrics

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "practice.md"
TEXT = PAGE.read_text()
FIELDS = sorted(set(re.findall(r"\b(?:spec|status)(?:\.[a-zA-Z]+(?:\[\])?)+", TEXT)))
TARGETS = sorted(set(re.findall(r"`make ([a-z0-9-]+)`", TEXT)))
METRICS = sorted(set(re.findall(r"`((?:[a-z]+/)?(?:rollout|episodes|analysis|val)/[a-z0-9_/]+)`", TEXT)))


@cache
def schemas() -> list[Mapping[str, Any]]:
    """The schemas of both kinds, read once because parsing their YAML takes seconds."""
    documents = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    return [document["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for document in documents]


def has(schema: Mapping[str, Any], field: str) -> bool:
    """Whether a schema has a path such as `spec.candidates[].model`."""
    for name in field.split("."):
        schema = schema.get("properties", {}).get(name.removesuffix("[]"), {})
        if name.endswith("[]"):
            schema = schema.get("items", {})
    return bool(schema)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_the_page_names_exists(field: str) -> None:
    assert any(has(schema, field) for schema in schemas()), "no custom resource has this field"


@pytest.mark.parametrize("target", TARGETS)
def test_a_command_that_the_page_names_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_that_the_page_names_exists(name: str) -> None:
    assert metrics.family(name)


def test_modules_that_the_page_imports_can_be_imported() -> None:
    [names] = re.findall(r"from headway_sandbox.testing import (.+)", TEXT)
    assert all(name in headway_sandbox.testing.__all__ for name in names.split(", "))


def test_the_page_names_fields_commands_and_metrics() -> None:
    """The patterns above find something, so none of these tests is empty."""
    assert {"spec.evaluation.passK", "spec.candidates[].checkpoint.withBase"} <= {*FIELDS}
    assert {"demo", "test-traps"} <= {*TARGETS}
    assert len(METRICS) > 8
