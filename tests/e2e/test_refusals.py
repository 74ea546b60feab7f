"""Bad input that only a running job can find: named field and fix, nothing left, no GPU pod started."""

from __future__ import annotations

from typing import Any

import pytest

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
    "no-environment": (
        {"environment": {"entrypoint": "no_such_module:Desk"}},
        "EnvironmentNotImportable",
        "spec.environment.entrypoint",
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


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_the_job_fails_before_accelerators_and_says_what_to_write(bench: Any, name: str) -> None:
    changes, reason, field = CASES[name]
    bench.kube.apply(bench.job(name, changes))
    try:
        failed = bench.wait_condition(name, "Failed")
        assert failed["reason"] == reason, failed
        assert field in failed["message"], failed
        assert not {"learner", "rollout"} & set(bench.pods(name))
    finally:
        bench.delete(name)
