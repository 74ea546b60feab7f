"""Bad input is refused where it is first seen, with its field and what to write, and nothing of it is left.

That is at `kubectl apply`, or by the preflight before any GPU pod is started; of weights only loading them
tells that they are spoilt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway_demo.kube import KubeError
from headway_demo.settings import NAMESPACE

SPOILT = "spoilt"
"""Folder in the bucket of models that do not load."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

AT_APPLY: dict[str, tuple[dict[str, Any], str]] = {
    "wrong-type": ({"algorithm": {"batchSize": "four"}}, r"spec\.algorithm\.batchSize.*integer"),
    "unknown-field": ({"algorithm": {"batchsize": 4}}, r'unknown field "spec\.algorithm\.batchsize"'),
    "contradiction": ({"model": {"full": {}}}, r"spec\.model.*lora or full, not both"),
}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-bucket": (
        {"output": {"uri": "s3://no-such-bucket/runs"}},
        "BucketUnavailable",
        "spec.output.uri",
    ),
    "no-dataset": (
        {"data": {"train": {"uri": "s3://headway/quickstart/no-such-file.jsonl"}}},
        "DatasetNotFound",
        "spec.data.train",
    ),
    "spoilt-dataset": (
        {"data": {"train": {"format": "parquet"}}},
        "DatasetUnreadable",
        "spec.data.train",
    ),
    "no-column": (
        {"data": {"train": {"promptColumn": "no_such_column"}}},
        "PromptColumnMissing",
        "spec.data.train.promptColumn",
    ),
    "no-model": (
        {"model": {"base": "s3://headway/quickstart/no-such-model"}},
        "ModelUnavailable",
        "spec.model.base",
    ),
    "spoilt-config": (
        {"model": {"base": f"s3://headway/{SPOILT}/config"}},
        "ModelNotLoadable",
        "spec.model.base",
    ),
    "no-environment": (
        {"environment": {"entrypoint": "no_such_module:Desk"}},
        "EnvironmentNotImportable",
        "spec.environment.entrypoint",
    ),
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
    "tight-context": (
        {
            "model": {"contextLength": 400},
            "rollout": {"sampling": {"maxTokens": 64}},
            "agent": {"builtin": {"maxTurns": 6}},
        },
        "ContextTooShort",
        "spec.rollout.sampling.maxTokens",
    ),
}


WEIGHTS = "spoilt-weights"
OF_WEIGHTS: dict[str, Any] = {"model": {"base": f"s3://headway/{SPOILT}/weights"}}
NO_IMAGE = "no-image"
OF_NO_IMAGE: dict[str, Any] = {"environment": {"image": "headway.invalid/no-such-environment:1"}}


@pytest.fixture(scope="module")
def spoilt_models(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The quickstart's model with a garbled config.json, and with the second half of its weights cut off."""
    folder: Path = tmp_path_factory.mktemp("models")
    with bench.platform.bucket() as bucket:
        for name, file in (("config", "config.json"), ("weights", "model.safetensors")):
            bucket.download("s3://headway/quickstart/model", folder / name)
            whole = (folder / name / file).read_bytes()
            (folder / name / file).write_bytes(whole[: len(whole) // 2])
        bucket.upload(folder, SPOILT)


@pytest.fixture(scope="module")
def refused(bench: Any, spoilt_models: None) -> Iterator[None]:
    """All the jobs that are accepted at first, at once: each waits mostly for its coordinator to start."""
    jobs = {name: changes for name, (changes, _, _) in CASES.items()}
    jobs |= {WEIGHTS: OF_WEIGHTS, NO_IMAGE: OF_NO_IMAGE}
    try:
        for name, changes in jobs.items():
            bench.kube.apply(bench.job(name, changes))
        yield
    finally:
        bench.delete(*jobs)


@pytest.mark.parametrize("name", AT_APPLY)
def test_apply_refuses_what_cannot_be_meant(bench: Any, name: str) -> None:
    changes, words = AT_APPLY[name]
    with pytest.raises(KubeError, match=words):
        bench.kube.run("apply", "-f", "-", stdin=json.dumps(bench.job(name, changes)))
    assert bench.kube.run("get", "rltrainingjob", name, "-n", NAMESPACE, "--ignore-not-found") == ""


@pytest.mark.parametrize("name", CASES)
def test_the_job_fails_before_accelerators_and_says_what_to_write(
    bench: Any, refused: None, name: str
) -> None:
    _, reason, field = CASES[name]
    failed = bench.wait_condition(name, "Failed")
    assert failed["reason"] == reason, failed
    assert field in failed["message"], failed
    assert not {"learner", "rollout"} & set(bench.pods(name))


def test_an_image_that_is_nowhere_stands_in_the_columns(bench: Any, refused: None) -> None:
    def told() -> bool:
        return bool(bench.get(NO_IMAGE)["status"].get("reason") == "ImagePullFailed")

    bench.kube.wait("REASON", told, deadline_s=60, explain=lambda: json.dumps(bench.get(NO_IMAGE)["status"]))
    status = bench.get(NO_IMAGE)["status"]
    assert status["state"] in ("Pending", "Stalled"), status
    ready = next(found for found in status["conditions"] if found["type"] == "Ready")
    assert ready["message"].startswith("spec.environment.image: pod "), ready
    events = bench.kube.run("get", "events", "-n", NAMESPACE, "-o", "json")
    own = [e for e in json.loads(events)["items"] if e["involvedObject"]["name"] == NO_IMAGE]
    assert [e for e in own if "spec.environment.image: " in e["message"]], own


def test_weights_that_do_not_load_fail_the_job_and_its_pods_go(
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
    said = {path.name: path.read_text() for path in kept}
    assert "ModelNotLoadable" in said.get("learner.log", "") + said.get("rollout.log", ""), sorted(said)
    assert "check-passed" in said["coordinator.log"]
