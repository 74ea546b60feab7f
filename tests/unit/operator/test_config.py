"""The operator's settings, as read from their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headway_operator.config import OperatorConfig, load

IMAGES = dict.fromkeys(("coordinator", "broker", "learner", "rollout"), "i:1")


def read(folder: Path, **settings: Any) -> OperatorConfig:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"images": IMAGES} | settings))
    return load({"HEADWAY_OPERATOR_CONFIG": str(file)})


@pytest.mark.parametrize("name", ["caps", "resources", "roleTemplates", "watchNamespaces", "metricsFrom"])
def test_a_null_setting_has_its_default(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, **{name: None}) == read(tmp_path)


def test_a_null_in_a_block_has_its_default(tmp_path: Path) -> None:
    made = read(tmp_path, caps={"sandboxes": None, "learnerNodes": 3}, resources={"learner": None})
    assert made.caps == read(tmp_path).caps.model_copy(update={"learner_nodes": 3})
    assert made.resources == {}


def test_a_null_in_a_template_removes_a_field(tmp_path: Path) -> None:
    container = {"name": "learner", "livenessProbe": None}
    made = read(tmp_path, roleTemplates={"learner": {"spec": {"containers": [container]}}, "rollout": None})
    assert made.role_templates == {"learner": {"spec": {"containers": [container]}}}
