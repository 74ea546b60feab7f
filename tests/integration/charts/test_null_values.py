"""A value that is null (`--set caps=null`) acts as if it were absent, and no broken object is installed."""

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
"""Values that an installation needs. Helm refuses a null for them, by the chart's schema."""
SETTINGS = [
    *DEFAULTS,
    *(f"{block}.{key}" for block in ("caps", "policy") for key in DEFAULTS[block]),
    "images.broker",
]


def rendered(path: str) -> str:
    """The whole chart, rendered with this value set to null.

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
def test_a_null_value_acts_as_if_it_were_absent(path: str, tmp_path: Path) -> None:
    if path.partition(".")[0] in NEEDED:
        with pytest.raises(subprocess.CalledProcessError) as refused:
            rendered(path)
        assert path.rpartition(".")[2] in refused.value.stderr
        return
    text = rendered(path)
    for body in yaml.safe_load_all(text):
        assert body is None or all(body[key] for key in ("apiVersion", "kind", "metadata"))
    read(text, tmp_path)


def test_lists_of_what_jobs_may_name_reach_the_operator(tmp_path: Path) -> None:
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


def test_null_scrapers_allow_nobody_to_scrape(tmp_path: Path) -> None:
    assert read(rendered("metricsFrom"), tmp_path).metrics_from == ()
    assert read(rendered("caps.sandboxes"), tmp_path).caps == OperatorConfig.model_fields["caps"].default
