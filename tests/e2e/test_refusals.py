"""A job whose image or reward cannot be used names the field. One whose weights do not load leaves its logs.

`test_faults` has the other faults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provoked import inputs

from headway_demo.settings import NAMESPACE

SPOILT = "spoilt"
"""Folder in the bucket of models that do not load."""

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.timeout(1200)]

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-image-name": (
        {"environment": {"image": "Headway/Environment:1"}},
        "ImagePullFailed",
        "spec.environment.image",
    ),
    "reward-raises": (
        {"environment": {"entrypoint": "headway_sandbox.reported:ReportedReward"}},
        "RewardFailed",
        "spec.environment.entrypoint: reward raised ValueError",
    ),
}


WEIGHTS = "spoilt-weights"
OF_WEIGHTS: dict[str, Any] = {"model": {"base": f"s3://headway/{SPOILT}/weights"}}
NO_IMAGE = "no-image"
OF_NO_IMAGE: dict[str, Any] = {"environment": {"image": "headway.invalid/no-such-environment:1"}}


@pytest.fixture(scope="module")
def spoilt_models(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The quickstart's model with a configuration of another size.

    Only loading the model shows the mismatch.
    """
    folder: Path = tmp_path_factory.mktemp("models")
    with bench.platform.bucket() as bucket:
        bucket.download("s3://headway/quickstart/model", folder / "whole")
        inputs.described_as(folder / "whole", folder / "spoilt" / "weights", "intermediate_size", 2)
        bucket.upload(folder / "spoilt", SPOILT)


@pytest.fixture(scope="module")
def refused(bench: Any, spoilt_models: None) -> Iterator[None]:
    """All jobs that pass `kubectl apply`, applied at once: each mostly waits for its coordinator to start."""
    jobs = {name: changes for name, (changes, _, _) in CASES.items()}
    jobs |= {WEIGHTS: OF_WEIGHTS, NO_IMAGE: OF_NO_IMAGE}
    try:
        for name, changes in jobs.items():
            bench.kube.apply(bench.job(name, changes))
        yield
    finally:
        bench.delete(*jobs)


@pytest.mark.parametrize("name", CASES)
def test_the_job_fails_before_accelerators_and_names_the_field(bench: Any, refused: None, name: str) -> None:
    _, reason, field = CASES[name]
    failed = bench.wait_condition(name, "Failed")
    assert failed["reason"] == reason, failed
    assert field in failed["message"], failed
    assert not {"learner", "rollout"} & set(bench.pods(name))


def test_an_image_that_does_not_exist_is_in_the_columns(bench: Any, refused: None) -> None:
    def reason_shown() -> bool:
        return bool(bench.get(NO_IMAGE).get("status", {}).get("reason") == "ImagePullFailed")

    def recorded() -> bool:
        found = json.loads(bench.kube.run("get", "events", "-n", NAMESPACE, "-o", "json"))["items"]
        own = [event["message"] for event in found if event["involvedObject"]["name"] == NO_IMAGE]
        return any("spec.environment.image: " in message for message in own)

    bench.kube.wait(
        "REASON", reason_shown, deadline_s=60, explain=lambda: json.dumps(bench.get(NO_IMAGE)["status"])
    )
    status = bench.get(NO_IMAGE)["status"]
    assert status["state"] in ("Pending", "Stalled"), status
    ready = next(found for found in status["conditions"] if found["type"] == "Ready")
    assert ready["message"].startswith("spec.environment.image: pod "), ready
    bench.kube.wait("an event", recorded, deadline_s=30)


def test_unloadable_weights_fail_the_job_and_remove_its_pods(
    bench: Any, refused: None, tmp_path: Path
) -> None:
    failed = bench.wait_condition(WEIGHTS, "Failed")
    assert failed["reason"] == "ModelNotLoadable", failed
    assert "spec.model.base" in failed["message"], failed
    bench.kube.wait(
        "no pods",
        lambda: not bench.pods(WEIGHTS),
        deadline_s=90,
        explain=lambda: " ".join(bench.pods(WEIGHTS)),
    )
    with bench.platform.bucket() as bucket:
        kept = bucket.download(f"{bench.get(WEIGHTS)['status']['artifacts']['uri']}/logs", tmp_path)
    logs = {path.name: path.read_text() for path in kept}
    assert "ModelNotLoadable" in logs.get("learner.log", "") + logs.get("rollout.log", ""), sorted(logs)
    assert "check-passed" in logs["coordinator.log"]
