"""Labels by which costs are allocated: from the job to its pods and to the coordinator's configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from observed_cluster import PASSED, PLATFORM, UID, World, job
from pydantic import ValidationError

from headway_api import names
from headway_api.config import JobConfig
from headway_api.document import Json
from headway_operator.config import OperatorConfig

WORKLOADS = ("Job", "Deployment")


def planned(
    labels: dict[str, str], cost_labels: Sequence[str] = names.COST_LABELS, **spec: Any
) -> tuple[dict[str, Json], JobConfig]:
    """Pod templates by role, and the coordinator's configuration. `cost_labels` are the platform's."""
    body = job(status=PASSED, **spec)
    body["metadata"]["labels"] = labels
    found = [item.body for item in World(body, platform(*cost_labels)).plan().wanted]
    pods = {
        each["metadata"]["labels"][names.LABEL_COMPONENT]: each["spec"]["template"]
        for each in found
        if each["kind"] in WORKLOADS
    }
    (config,) = (
        each["data"]["job.json"]
        for each in found
        if each["kind"] == "ConfigMap" and "job.json" in each["data"]
    )
    return pods, JobConfig.model_validate(json.loads(config))


def platform(*cost_labels: str) -> OperatorConfig:
    return OperatorConfig.model_validate(PLATFORM.model_dump() | {"cost_labels": cost_labels})


def carried(pods: dict[str, Json]) -> set[tuple[tuple[str, str], ...]]:
    """Labels that the pods of every role have in addition to Headway's own."""
    own = names.job_labels("RLTrainingJob", "refunds", UID, "learner").keys()
    return {
        tuple(sorted((k, v) for k, v in pod["metadata"]["labels"].items() if k not in own))
        for pod in pods.values()
    }


def test_the_default_cost_labels_are_the_charts() -> None:
    assert PLATFORM.cost_labels == names.COST_LABELS


def test_every_pod_and_the_bill_carry_the_same_labels() -> None:
    labels = {"acme.io/team": "returns", "project": "x", "cost-center": "7", "color": "red"}
    pods, config = planned(labels)
    assert {"coordinator", "broker", "learner", "rollout"} <= pods.keys()
    expected = {key: value for key, value in labels.items() if key != "color"}
    assert config.labels == expected
    assert carried(pods) == {tuple(sorted(expected.items()))}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["color"], {"color": "red", "acme.io/color": "blue"}),
        (["acme.io/color"], {"acme.io/color": "blue"}),
        (["Team", "or"], {}),
        ([], {}),
    ],
)
def test_the_platform_names_the_labels(asked: list[str], expected: dict[str, str]) -> None:
    labels = {"color": "red", "acme.io/color": "blue", "team": "returns"}
    pods, config = planned(labels, asked)
    assert carried(pods) == {tuple(sorted(expected.items()))}
    assert (config.labels or {}) == expected


def test_no_label_of_a_job_replaces_headways_own() -> None:
    forged = {names.LABEL_JOB_UID: "u", names.LABEL_COMPONENT: "sandbox", names.LABEL_SUITE: "s", "team": "a"}
    pods, config = planned(forged, ["job-uid", "component", "suite", "team"])
    assert carried(pods) == {(("team", "a"),)}
    for role, pod in pods.items():
        assert (
            pod["metadata"]["labels"].items()
            >= names.job_labels("RLTrainingJob", "refunds", UID, role).items()
        )
    assert config.labels is not None
    assert names.LABEL_JOB_UID not in config.labels


def test_a_template_cannot_charge_somebody_else() -> None:
    fragment = {"metadata": {"labels": {"team": "others"}}}
    pods, _ = planned({"team": "returns"}, learner={"podTemplate": fragment})
    assert carried(pods) == {(("team", "returns"),)}


@pytest.mark.parametrize("wrong", ["", "a/b/c", "-team", "team-", "Acme.io/team", "x" * 64])
def test_an_invalid_label_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match=r"cost_?labels|costLabels"):
        platform(wrong)
