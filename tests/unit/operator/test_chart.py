"""The chart's copies of generated files are current, and the operator reads the chart's values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headway_operator.config import OperatorConfig

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "headway"


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def test_the_chart_carries_the_generated_definitions() -> None:
    made = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    carried = {path.name: path.read_text() for path in (CHART / "files" / "crds").glob("*.yaml")}
    assert carried == made, "run: make crds"


def test_the_default_values_keep_to_the_schema() -> None:
    jsonschema.validate(values(), schema())


def test_values_and_schema_have_the_same_fields() -> None:
    assert set(values()) == set(schema()["properties"]) - {"global"}


def test_every_threshold_has_a_default_and_is_described() -> None:
    found, described = values()["prometheusRule"], schema()["properties"]["prometheusRule"]["properties"]
    assert set(found) == set(described)
    limits = described["thresholds"]["properties"]
    assert set(found["thresholds"]) == set(limits)
    assert all(limit["description"].startswith("Headway") for limit in limits.values())


@pytest.mark.parametrize("wrong", [{"replica": 1}, {"crds": {"instal": True}}, {"logLevel": "LOUD"}])
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values() | wrong, schema())


def test_operator_settings_in_the_chart_have_the_operators_names() -> None:
    offered = {
        key for key in values() if key in {field.alias for field in OperatorConfig.model_fields.values()}
    }
    template = (CHART / "templates" / "_helpers.tpl").read_text()
    config = template[template.index('define "headway.config"') :]
    written = {line.partition(":")[0] for line in config.splitlines() if line[:1].isalpha() and ":" in line}
    assert offered <= written
    assert written <= {field.alias for field in OperatorConfig.model_fields.values()}
