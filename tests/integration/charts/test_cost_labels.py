"""The chart's costLabels, as the operator reads them."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml
from chart import FIRST_BUILD_S, render

from headway_api import names
from headway_operator.config import OperatorConfig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(FIRST_BUILD_S)]


def read(values: dict[str, Any]) -> tuple[str, ...]:
    """The operator's configuration, as the operator reads it from these values."""
    documents = render("config.yaml", values)
    (text,) = [each["data"]["config.yaml"] for each in documents if "config.yaml" in each.get("data", {})]
    return OperatorConfig.model_validate(yaml.safe_load(text)).cost_labels


def test_the_chart_and_the_operator_have_the_same_default() -> None:
    assert read({}) == names.COST_LABELS


@pytest.mark.parametrize("given", [[], ["acme.io/team", "color"]])
def test_the_charts_labels_reach_the_operator(given: list[str]) -> None:
    assert read({"costLabels": given}) == tuple(given)


@pytest.mark.parametrize("wrong", [["a/b/c"], ["team", "team"], "team", [""]])
def test_an_invalid_label_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        read({"costLabels": wrong})
    assert "costLabels" in refused.value.stderr
