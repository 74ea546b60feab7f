"""Errors of a store that refuses, in words for the author of `spec.output`."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from refusing_bucket import refusing_store

from headway_api.exits import JobError
from headway_api.store import bucket_unavailable
from headway_api.store_refused import SHELL, refusal

REFUSED = (
    "<HTTPConnection object at 0x7f0>: Failed to establish a new connection: [Errno 111] Connection refused"
)


def head(code: int) -> ClientError:
    """A request without a body shows its refusal by the status alone."""
    answer = {"Error": {"Code": str(code), "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": code}}
    return ClientError(answer, "HeadBucket")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "wrong", "fix"),
    [
        (head(404), "there is no such bucket", "create it"),
        (head(403), "the store refuses the credentials", "Secret of spec.output.secretRef"),
        (
            EndpointConnectionError(endpoint_url="http://objects:7070", error=REFUSED),
            "http://objects:7070 does not answer (Connection refused)",
            "correct spec.output.endpointUrl",
        ),
        (
            ReadTimeoutError(endpoint_url="http://objects:7070"),
            "http://objects:7070 does not answer",
            "let the pods of this job reach it",
        ),
        (NoCredentialsError(), "no credentials", "name a Secret with AWS_ACCESS_KEY_ID"),
        (head(501), "the store answers 501: no", "correct spec.output.uri"),
    ],
)
def test_a_refusal_says_cause_and_fix(error: Exception, wrong: str, fix: str) -> None:
    found = refusal(error)
    assert found.wrong == wrong
    assert fix in found.fix


@pytest.mark.parametrize(
    "error",
    [
        head(404),
        head(403),
        head(501),
        ReadTimeoutError(endpoint_url="u"),
        NoCredentialsError(),
        ValueError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_person_at_a_shell_reads_of_no_field(error: Exception) -> None:
    there, here = refusal(error), refusal(error, SHELL)
    assert here.wrong == there.wrong
    assert "spec." in there.fix
    assert not any(word in here.fix for word in ("spec.", "Secret ", "pods", "service account"))


@pytest.mark.parametrize(("code", "status"), [("NoSuchBucket", 404), ("InvalidAccessKeyId", 403)])
def test_a_refused_object_has_the_stores_own_code(code: str, status: int) -> None:
    with pytest.raises(PermissionError, match=code) as denied:
        refusing_store(code, status).get("s3://bucket/key")
    assert "An error occurred" not in str(denied.value)
    error: JobError = bucket_unavailable("s3://bucket/runs", denied.value)
    assert code in error.termination.message
    assert "; " in error.termination.message
