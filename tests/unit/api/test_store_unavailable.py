"""An unavailable store: a process with time left waits for it, and otherwise the error names the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from absent_bucket import AbsentBucket
from botocore.exceptions import ClientError, CredentialRetrievalError, NoCredentialsError
from botocore.retries.standard import ExponentialBackoff

from headway_api import store as stores
from headway_api import store_unavailable
from headway_api.exits import RETRIABLE, JobError
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import FileStore, ObjectNotFoundError, Store, download_folder, open_store
from headway_api.store_unavailable import Patience, Patient, StoreUnavailableError, store_explained

BEYOND_BOTOCORE = 2.0
"""Seconds of an outage. Botocore's own five retries are over by then in these tests."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_unavailable, "PAUSE", 0.1)
    # botocore draws its pauses at random, up to 16 s.
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda backoff, context: 0.02)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def bucket() -> Iterator[AbsentBucket]:
    found = AbsentBucket()
    yield found
    found.close()


def output(bucket: AbsentBucket) -> OutputSpec:
    return OutputSpec.model_validate(
        {"uri": "s3://bucket/runs", "endpointUrl": bucket.url, "region": "eu-test-1"}
    )


@pytest.mark.parametrize("how", ["refused", 503, "cut off"])
def test_every_request_waits_for_an_unavailable_store(
    how: int | str, bucket: AbsentBucket, tmp_path: Path
) -> None:
    """The requests run at the same time, as those of a learner's upload in parts may."""
    store = open_store(output(bucket), Patience(60))
    store.put("s3://bucket/there", b"0123456789")
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (20 * 2**20 // 256))
    bucket.leave(how, BEYOND_BOTOCORE)
    with ThreadPoolExecutor(8) as threads:
        uploaded = threads.submit(store.upload, large, "s3://bucket/large")
        downloaded = threads.submit(store.download, "s3://bucket/there", tmp_path / "there")
        put = threads.submit(store.put, "s3://bucket/put", b"put")
        new = threads.submit(store.put_new, "s3://bucket/new", b"new")
        listed = threads.submit(store.list, "s3://bucket")
        got = threads.submit(store.get, "s3://bucket/there")
        start = threads.submit(store.get_start, "s3://bucket/there", 4)
        size = threads.submit(store.size, "s3://bucket/there")
        gone = threads.submit(store.delete, ["s3://bucket/none", "s3://bucket/neither"])
        for done in (uploaded, downloaded, put, gone):
            done.result(30)
        assert new.result(30) is True
        assert "s3://bucket/there" in listed.result(30)
        assert (got.result(30), start.result(30), size.result(30)) == (b"0123456789", b"0123", 10)
    assert bucket.objects["/bucket/large"] == large.read_bytes()
    assert (bucket.objects["/bucket/put"], bucket.objects["/bucket/new"]) == (b"put", b"new")
    assert (tmp_path / "there").read_bytes() == b"0123456789"


class SteppingClock:
    """A clock that advances 40 s at each reading, however busy the machine is."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 40
        return self._now


@pytest.mark.parametrize("how", ["refused", 503])
def test_a_process_that_ends_names_the_unavailable_store(
    how: int | str, bucket: AbsentBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(output(bucket), Patience(100))
    bucket.leave(how)
    monkeypatch.setattr(store_unavailable, "time", SteppingClock())
    with pytest.raises(JobError, match=r"has been unavailable for 120 s") as ended, store_explained():
        store.put("s3://bucket/key", b"x")
    assert (ended.value.termination.reason, ended.value.code) == ("StoreUnavailable", RETRIABLE)


def test_an_upload_in_parts_is_given_up_once(bucket: AbsentBucket, tmp_path: Path) -> None:
    """The clean-up of its parts does not wait again, although botocore would retry it."""
    store = open_store(output(bucket), Patience(3))
    large = tmp_path / "large"
    large.write_bytes(bytes(20 * 2**20))
    bucket.leave_once_asked("partNumber=1", 503)
    with pytest.raises(StoreUnavailableError):
        store.upload(large, "s3://bucket/large")
    assert 1 <= bucket.asked_by["DELETE"] <= stores.CLIENT_SETTINGS["retries"]["total_max_attempts"]


def test_an_ending_process_stops_waiting(bucket: AbsentBucket) -> None:
    patience = Patience(60)
    store = open_store(output(bucket), patience)
    bucket.leave(503)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.get, "s3://bucket/key")
        time.sleep(0.5)
        assert not waiting.done()
        patience.over.set()
        with pytest.raises(StoreUnavailableError):
            waiting.result(10)


@pytest.mark.parametrize(("status", "expected"), [(404, ObjectNotFoundError), (501, ClientError)])
def test_a_refusal_is_not_retried(status: int, expected: type[Exception], bucket: AbsentBucket) -> None:
    store = open_store(output(bucket), Patience(60))
    bucket.leave(status)
    asked = bucket.asked
    with pytest.raises(expected):
        store.get("s3://bucket/key")
    assert bucket.asked == asked + 1


class NoPatience(Patience):
    """The patience of a request that must not wait."""

    def pause(self, since: float, now: float, why: object) -> float:
        pytest.fail(f"a request waits for the store: {why}")


def test_the_first_look_at_the_store_does_not_wait(bucket: AbsentBucket) -> None:
    bucket.leave("refused")
    with pytest.raises(JobError, match="bucket 'bucket' cannot be used") as refused:
        open_store(output(bucket), NoPatience())
    assert refused.value.termination.reason == "BucketUnavailable"
    attempts = stores.PROBE_SETTINGS["retries"]["total_max_attempts"]
    assert (
        attempts * max(stores.PROBE_SETTINGS["connect_timeout"], stores.PROBE_SETTINGS["read_timeout"]) <= 15
    )


class NoIdentity(FileStore):
    """Credentials of a cloud whose identity service answers only after a while."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def get(self, uri: str) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        return super().get(uri)


def test_temporarily_unavailable_credentials_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"x")
    uri = f"file://{tmp_path}/key"
    silent = CredentialRetrievalError(provider="container-role", error_msg="refused")
    assert Patient(NoIdentity(silent, silent), Patience(60)).get(uri) == b"x"
    with pytest.raises(StoreUnavailableError, match="refused"):
        Patient(NoIdentity(silent), Patience(0)).get(uri)
    with pytest.raises(NoCredentialsError):
        Patient(NoIdentity(NoCredentialsError()), Patience(60)).get(uri)


def test_objects_are_deleted_together(bucket: AbsentBucket) -> None:
    store = open_store(output(bucket), Patience(60))
    for key in ("a&b", "c", "d"):
        store.put(f"s3://bucket/{key}", b"x")
    asked = bucket.asked
    store.delete(["s3://bucket/c", "s3://bucket/none", "s3://bucket/d"])
    assert (list(bucket.objects), bucket.asked) == (["/bucket/a&b"], asked + 1)


class Slow(FileStore):
    """A store that is too busy for every other delete request."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []

    def delete(self, uris: Iterable[str]) -> None:
        self.requests.append(list(uris))
        if len(self.requests) % 2 == 0:
            answer = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
            raise ClientError(answer, "DeleteObjects")  # type: ignore[arg-type]


def test_only_what_could_not_be_deleted_is_requested_again() -> None:
    slow = Slow()
    Patient(slow, Patience(60)).delete(f"s3://b/{n}" for n in range(1500))
    assert [(uris[0], len(uris)) for uris in slow.requests] == [
        ("s3://b/0", 1000),
        ("s3://b/1000", 500),
        ("s3://b/1000", 500),
    ]


def raises(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


SUPERSEDED = JobError("Superseded", "another has begun", permanent=False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailableError("away"), "StoreUnavailable"),
        (
            ExceptionGroup(
                "tasks", [ValueError("x"), ExceptionGroup("more", [StoreUnavailableError("away")])]
            ),
            "StoreUnavailable",
        ),
        (SUPERSEDED, "Superseded"),
        (ExceptionGroup("tasks", [StoreUnavailableError("away"), SUPERSEDED]), None),
        (ValueError("a bug"), None),
    ],
)
def test_only_an_outage_is_reported_as_an_outage(error: Exception, reason: str | None) -> None:
    work = raises(error)
    with pytest.raises(type(error) if reason is None else JobError) as ended, store_explained():
        work()
    if reason is None:
        assert ended.value is error
    else:
        assert isinstance(ended.value, JobError)
        assert ended.value.termination.reason == reason


def marked(bucket: AbsentBucket, **keys: bytes) -> Store:
    bucket.objects |= {f"/bucket/models/qwen/{key}": content for key, content in keys.items()}
    return open_store(output(bucket))


def test_objects_that_mark_a_folder_are_not_files(bucket: AbsentBucket, tmp_path: Path) -> None:
    """S3's console and s3fs make such objects."""
    keys: dict[str, Any] = {"": b"", "config.json": b"{}", "original/": b"", "original/params.json": b"{}"}
    store = marked(bucket, **keys)
    download_folder(store, "s3://bucket/models/qwen", tmp_path / "got")
    found = sorted(str(p.relative_to(tmp_path / "got")) for p in (tmp_path / "got").rglob("*") if p.is_file())
    assert found == ["config.json", "original/params.json"]


def test_a_folder_with_only_its_marker_does_not_exist(bucket: AbsentBucket, tmp_path: Path) -> None:
    store = marked(bucket, **{"": b""})
    with pytest.raises(ObjectNotFoundError):
        download_folder(store, "s3://bucket/models/qwen", tmp_path / "got")
