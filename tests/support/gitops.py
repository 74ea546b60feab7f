"""Asks `headway-verdicts` how GitOps tools judge objects, by the rules in examples/promote."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from headway_api.document import Json

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "promote"
DEPLOY = EXAMPLE / "deploy"
KINDS = ("RLEvalJob", "RLTrainingJob")
FIRST_BUILD_S = 900


@dataclass(frozen=True)
class Verdict:
    """How the tools judge one object."""

    kstatus: str
    argo: str
    says: str
    """Argo CD's message."""
    flux: str
    """Flux's status of the object, by the expressions in flux/gate.yaml."""
    ends: str
    """How Flux's wait ends by these expressions: Ready, Failed (at once) or TimedOut."""
    ends_plainly: str
    """How Flux's wait ends without the expressions, by kstatus."""


Stages = dict[tuple[str, str], tuple[Json, Verdict]]
"""(kind, stage) -> the stored job, and how the tools judge it."""


def manifests(*paths: Path) -> list[Json]:
    """Every object of YAML files, or of all files below folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.yaml")))]
    return [body for file in files for body in yaml.safe_load_all(file.read_text())]


def health_checks() -> dict[str, str]:
    """Argo CD's health check of each kind, as argocd-cm has it."""
    (config,) = manifests(EXAMPLE / "argocd" / "argocd-cm.yaml")
    return {kind: config["data"][f"resource.customizations.health.headway.dev_{kind}"] for kind in KINDS}


def expressions() -> list[Json]:
    """Flux's `healthCheckExprs`."""
    (gate,) = manifests(EXAMPLE / "flux" / "gate.yaml")
    found: list[Json] = gate["spec"]["healthCheckExprs"]
    return found


def program() -> Path:
    """The path of headway-verdicts, which is built if it is missing."""
    command = ["/usr/bin/python3", str(ROOT / "hack" / "cluster" / "cluster.py"), "verdicts"]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=FIRST_BUILD_S)
    return Path(done.stdout.strip())


def judge(built: Path, objects: list[Json]) -> list[Verdict]:
    """The verdict on each object."""
    question = {"objects": objects, "lua": health_checks(), "healthCheckExprs": expressions()}
    done = subprocess.run([built], input=json.dumps(question), text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [
        Verdict(
            kstatus=verdict["kstatus"],
            argo=verdict["argo"]["status"],
            says=verdict["argo"]["message"],
            flux=verdict["flux"],
            ends=verdict["waited"]["ended"],
            ends_plainly=verdict["waitedPlainly"]["ended"],
        )
        for verdict in json.loads(done.stdout)
    ]
