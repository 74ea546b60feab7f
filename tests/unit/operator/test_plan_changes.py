"""Workloads never change once they exist. A field that would change one is mutable only without workloads."""

from __future__ import annotations

from typing import Any

import pytest
from observed_cluster import PASSED, World, job

from headway_api.document import Json
from headway_api.spec.training import RLTrainingJobSpec
from headway_operator.plan.context import Mode

CHANGES: dict[str, Any] = {
    "suspend": False,
    "learner.nodes": 2,
    "learner.processesPerNode": 2,
    "learner.terminationGracePeriodSeconds": 900,
    "rollout.replicas": 3,
    "schedule.maxSteps": 60,
    "evaluation.everySteps": 5,
    "checkpoints.everySteps": 4,
    "checkpoints.keepBest": 3,
    "checkpoints.keepLast": 3,
    "failurePolicy.maxRestarts": 9,
    "activeDeadlineSeconds": 100,
    "pendingDeadlineSeconds": 100,
    "ttlSecondsAfterFinished": 100,
}
"""Each mutable field, with another value for it."""


def mutable() -> set[str]:
    """Paths of the fields that may change in some way. The budget is left out."""
    found = set()
    for name in RLTrainingJobSpec.mutable - {"budget"}:
        field = RLTrainingJobSpec.model_fields[name]
        inner = getattr(field.annotation, "mutable", None)
        parts = [field.annotation.model_fields[part].alias for part in inner] if inner else []  # type: ignore[union-attr]
        found |= {f"{field.alias}.{part}" for part in parts} or {str(field.alias)}
    return found


def pinned(spec: Json) -> dict[tuple[str, str, str], Json]:
    """Bodies of the workloads, without the replicas, which may be scaled."""
    made = [item for item in World(job(status=PASSED, **spec)).plan().wanted if item.mode == Mode.PIN]
    for item in made:
        item.body["spec"].pop("replicas", None)
    return {item.ref: item.body for item in made}


def test_every_mutable_field_is_tried() -> None:
    assert mutable() == set(CHANGES)


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_a_change_while_the_job_runs_recreates_no_workload(path: str) -> None:
    frozen = [rule for rule in RLTrainingJobSpec.validations if rule.cel.endswith(f" == oldSelf.{path}")]
    block, _, last = path.partition(".")
    changed = pinned({block: {last: CHANGES[path]} if last else CHANGES[path]})
    assert frozen or changed == pinned({})
