"""Renders the chart with the helm of hack/cluster."""

from __future__ import annotations

import copy
import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FIRST_BUILD_S = 900


@functools.cache
def cluster_command(verb: str) -> Path:
    """The path that a verb of hack/cluster prints. The verb builds missing tools first."""
    command = ["/usr/bin/python3", str(ROOT / "hack" / "cluster" / "cluster.py"), verb]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=FIRST_BUILD_S)
    return Path(done.stdout.strip())


def render(
    template: str, values: dict[str, Any], release: str = "headway", namespace: str = "headway-system"
) -> list[dict[str, Any]]:
    """The objects of one template of a release.

    Raises:
        subprocess.CalledProcessError: helm refuses the values; `stderr` says why.
    """
    helm, chart = cluster_command("tools") / "helm", ROOT / "charts" / "headway"
    command = [helm, "template", release, chart, "--namespace", namespace, "--values", "-"]
    command += ["--show-only", f"templates/{template}"]
    text = subprocess.run(
        command, check=True, text=True, capture_output=True, input=yaml.safe_dump(values)
    ).stdout
    return [document for document in yaml.safe_load_all(text) if document]


def rules_at_once(values: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The chart's alerting rules, without waiting times: a job under test lives only for seconds."""
    (made,) = render("prometheusrule.yaml", values, namespace=namespace)
    rules: dict[str, Any] = copy.deepcopy(made["spec"])
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return rules
