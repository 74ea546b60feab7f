"""A value that is null (`--set caps=null`): as if it had not been given. Nothing starts that cannot run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import chart
import pytest
import yaml

from headway_operator.config import OperatorConfig, load

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(chart.FIRST_BUILD_S)]

DEFAULTS: dict[str, Any] = yaml.safe_load((chart.ROOT / "charts" / "headway" / "values.yaml").read_text())
SCHEMA = json.loads((chart.ROOT / "charts" / "headway" / "values.schema.json").read_text())
NEEDED = frozenset(SCHEMA["required"])
"""Values without which there is nothing to install. Helm refuses them, by the chart's schema."""
SETTINGS = [
    *DEFAULTS,
    *(f"{block}.{key}" for block in ("caps", "policy") for key in DEFAULTS[block]),
    "images.broker",
]


def rendered(path: str) -> str:
    """All of the chart with one value null.

    Raises:
        subprocess.CalledProcessError: helm refuses it.
    """
    helm = chart.cluster_command("tools") / "helm"
    command = [helm, "template", "headway", chart.ROOT / "charts" / "headway", "--set", f"{path}=null"]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def read(text: str, folder: Path) -> OperatorConfig:
    """The operator's configuration, as the operator reads it."""
    documents = [body for body in yaml.safe_load_all(text) if body]
    (settings,) = [body for body in documents if "config.yaml" in body.get("data", {})]
    file = folder / "config.yaml"
    file.write_text(settings["data"]["config.yaml"])
    return load({"HEADWAY_OPERATOR_CONFIG": str(file)})


@pytest.mark.parametrize("path", SETTINGS)
def test_a_null_value_is_one_that_is_not_given(path: str, tmp_path: Path) -> None:
    if path.partition(".")[0] in NEEDED:
        with pytest.raises(subprocess.CalledProcessError) as refused:
            rendered(path)
        assert path.rpartition(".")[2] in refused.value.stderr
        return
    text = rendered(path)
    for body in yaml.safe_load_all(text):
        assert body is None or all(body[key] for key in ("apiVersion", "kind", "metadata"))
    read(text, tmp_path)


def test_what_jobs_may_name_reaches_the_operator(tmp_path: Path) -> None:
    values = json.dumps(
        {"agentUrls": ["https://*.acme.dev/agents"], "secretNames": ["team-*"], "serviceAccounts": ["jobs-*"]}
    )
    helm = chart.cluster_command("tools") / "helm"
    command = [
        helm,
        "template",
        "headway",
        chart.ROOT / "charts" / "headway",
        "--set-json",
        f"policy={values}",
    ]
    text = subprocess.run(command, check=True, text=True, capture_output=True).stdout
    policy = read(text, tmp_path).policy
    assert (policy.agent_urls, policy.secret_names) == (("https://*.acme.dev/agents",), ("team-*",))
    assert policy.service_accounts == ("jobs-*",)


def test_scrapers_that_are_null_are_nobody(tmp_path: Path) -> None:
    assert read(rendered("metricsFrom"), tmp_path).metrics_from == ()
    assert read(rendered("caps.sandboxes"), tmp_path).caps == OperatorConfig.model_fields["caps"].default
