"""Commits of examples/promote, applied in order as Argo CD and Flux do, and only past a passed gate.

This test implements the order itself. The tools' own code evaluates a gate's real status.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import gitops
import pytest
from gitops import DEPLOY, EXAMPLE, Stages, Verdict
from job_stages import STAGES

from headway_api.document import Json

sys.path.insert(0, str(EXAMPLE))

import propose

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(gitops.FIRST_BUILD_S + 120)]
Passes = Callable[[Verdict], bool]
OLD = "s3://runs/training/team/refunds/5a1f0c/weights/000120"
NEW = "s3://runs/training/team/refunds/5a1f0c/weights/000180"
PRUNE = {"Argo CD": ("argocd.argoproj.io/sync-options", "Prune=false")}
PRUNE["Flux"] = ("kustomize.toolkit.fluxcd.io/prune", "disabled")


def argo_order(folder: Path) -> list[list[Json]]:
    """Objects by sync wave."""
    found: dict[int, list[Json]] = {}
    for body in gitops.manifests(folder):
        wave = int(body["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave", "0"))
        found.setdefault(wave, []).append(body)
    return [found[wave] for wave in sorted(found)]


def flux_order(folder: Path) -> list[list[Json]]:
    """Objects by Kustomization, each after those that it depends on."""
    known = {body["metadata"]["name"]: body for body in gitops.manifests(EXAMPLE / "flux")}
    left = [body for body in known.values() if body["kind"] == "Kustomization"]
    done: list[str] = []
    stages = []
    while left:
        now = next(b for b in left if all(d["name"] in done for d in b["spec"].get("dependsOn", [])))
        left.remove(now)
        done.append(now["metadata"]["name"])
        stages.append(gitops.manifests(folder.parent / now["spec"]["path"]))
    return stages


TOOLS: dict[str, tuple[Callable[[Path], list[list[Json]]], Passes]] = {
    "Argo CD": (argo_order, lambda verdict: verdict.argo == "Healthy"),
    "Flux": (flux_order, lambda verdict: verdict.flux == "Current"),
}


class Cluster:
    """The objects that a tool has applied, and the evaluations that ran."""

    def __init__(self, tool: str) -> None:
        self.order, self.passes = TOOLS[tool]
        self.keeps = PRUNE[tool]
        self.verdicts: dict[str, Verdict] = {}
        """Verdicts of the existing evaluations, by name."""
        self.ran: list[str] = []
        self.serving = ""

    def apply(self, folder: Path, verdict: Verdict) -> None:
        """Apply a commit. A new evaluation ends with this verdict, and an existing one keeps its own."""
        for stage in self.order(folder):
            passed = [self._applied(body, verdict) for body in stage]
            if not all(passed):
                return

    def _applied(self, body: Json, verdict: Verdict) -> bool:
        name = body["metadata"]["name"]
        if body["kind"] == "Deployment":
            self.serving = body["spec"]["template"]["spec"]["initContainers"][0]["env"][0]["value"]
        if body["kind"] != "RLEvalJob":
            return True
        key, value = self.keeps
        assert value in body["metadata"]["annotations"][key], "or the verdicts of earlier promotions would go"
        if name not in self.verdicts:
            self.ran.append(name)
            self.verdicts[name] = verdict
        return self.passes(self.verdicts[name])


def commit(folder: Path, step: int) -> Path:
    """The contents of deploy/ after a promotion of this step's weights."""
    copytree(DEPLOY, folder / "deploy")
    uri = f"{OLD.rpartition('/')[0]}/{step:06d}"
    best = {"checkpoints": {"best": {"step": step, "uri": uri}}}
    propose.write(folder / "deploy", propose.proposal({"metadata": {"name": "refunds"}, "status": best}))
    return folder / "deploy"


@pytest.fixture
def commits(tmp_path: Path) -> tuple[Path, Path]:
    """The commit in production, and the next promotion."""
    return commit(tmp_path / "old", 120), commit(tmp_path / "new", 180)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("stage", [s for s in STAGES["RLEvalJob"] if "`" not in s and "without" not in s])
def test_only_a_gate_that_has_passed_changes_what_serves(
    stages: Stages, commits: tuple[Path, Path], tool: str, stage: str
) -> None:
    cluster, (old, new) = Cluster(tool), commits
    cluster.apply(old, stages["RLEvalJob", "complete"][1])
    assert cluster.serving == OLD
    cluster.apply(new, stages["RLEvalJob", stage][1])
    assert cluster.serving == (NEW if stage == "complete" else OLD)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("stage", ["complete", "the gate has not passed"])
def test_a_revert_serves_the_old_model_and_runs_nothing(
    stages: Stages, commits: tuple[Path, Path], tool: str, stage: str
) -> None:
    cluster, (old, new) = Cluster(tool), commits
    cluster.apply(old, stages["RLEvalJob", "complete"][1])
    cluster.apply(new, stages["RLEvalJob", stage][1])
    before = list(cluster.ran)
    assert len(before) == 2
    cluster.apply(old, stages["RLEvalJob", "failed"][1])
    assert (cluster.serving, cluster.ran) == (OLD, before)


@pytest.mark.parametrize("tool", TOOLS)
def test_without_the_order_a_failed_gate_changes_what_serves(
    stages: Stages, commits: tuple[Path, Path], tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This shows that the tests above can fail."""
    order, passes = TOOLS[tool]
    monkeypatch.setitem(TOOLS, tool, (lambda folder: [[b for s in order(folder) for b in s]], passes))
    cluster = Cluster(tool)
    cluster.apply(commits[1], stages["RLEvalJob", "the gate has not passed"][1])
    assert cluster.serving == NEW
