"""Conditional writes: the first one wins, even if S3 does not decide at once."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    MetadataRetrievalError,
    NoCredentialsError,
    ReadTimeoutError,
)
from pydantic import ValidationError
from refusing_bucket import refusing_store

from headway_api import store
from headway_api.records import FileDigest
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import (
    CorruptFileError,
    FileStore,
    ObjectNotFoundError,
    S3Store,
    StoreDeniedError,
    bucket_unavailable,
    download_folder,
    get_each,
)
from headway_api.store_unavailable import may_pass


class Bucket:
    """An S3 client that answers each write with the next of `statuses`."""

    class exceptions:
        ClientError = ClientError

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked: list[dict[str, Any]] = []

    def put_object(self, **request: Any) -> None:
        self.asked.append(request)
        status = self.statuses.pop(0)
        if status != 200:
            answer = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(answer, "PutObject")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CONFLICT_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("statuses", "written"), [([200], True), ([412], False), ([409, 409, 200], True), ([409, 412], False)]
)
def test_a_conflict_is_asked_again_until_it_is_decided(statuses: list[int], written: bool) -> None:
    bucket = Bucket(*statuses)
    assert S3Store(bucket).put_new("s3://b/k", b"x") is written
    assert bucket.statuses == []
    assert {request["IfNoneMatch"] for request in bucket.asked} == {"*"}


@pytest.mark.parametrize("statuses", [[500], [409] * store.CONFLICT_TRIES])
def test_any_other_refusal_and_endless_conflicts_are_errors(statuses: list[int]) -> None:
    bucket = Bucket(*statuses)
    with pytest.raises(ClientError):
        S3Store(bucket).put_new("s3://b/k", b"x")
    assert bucket.statuses == []


def test_a_folder_keeps_what_was_written_first(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/a/b"
    assert FileStore().put_new(uri, b"first")
    assert not FileStore().put_new(uri, b"second")
    assert FileStore().get(uri) == b"first"
    assert FileStore().list(f"file://{tmp_path}") == [uri]


WORDS = [
    ("NoSuchBucket", 404, StoreDeniedError),
    ("AccessDenied", 403, StoreDeniedError),
    ("NoSuchKey", 404, ObjectNotFoundError),
    ("SlowDown", 503, ClientError),
]


@pytest.mark.parametrize(("code", "status", "expected"), WORDS, ids=[code for code, _, _ in WORDS])
@pytest.mark.parametrize("call", ["get", "put", "put_new", "list"])
def test_a_refused_object_is_not_reported_as_missing(
    call: str, code: str, status: int, expected: type[Exception]
) -> None:
    store = refusing_store(code, status)
    arguments = (b"x",) if call.startswith("put") else ()
    with pytest.raises(expected):
        getattr(store, call)("s3://bucket/key", *arguments)


@pytest.mark.parametrize(
    ("code", "status", "expected"), [word for word in WORDS if word[0] != "NoSuchKey"], ids=lambda it: str(it)
)
def test_a_refused_delete_raises_the_same_error_as_other_calls(
    code: str, status: int, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        refusing_store(code, status).delete(["s3://bucket/key"])


def test_many_objects_are_read_in_order_and_concurrently(tmp_path: Path) -> None:
    met = threading.Barrier(store.READERS, timeout=20)

    class Slow(FileStore):
        def get(self, uri: str) -> bytes:
            met.wait()
            return super().get(uri)

    uris = [f"file://{tmp_path}/{n}" for n in range(store.READ_AHEAD + store.READERS)]
    for n, uri in enumerate(uris):
        FileStore().put(uri, str(n).encode())
    assert [*get_each(Slow(), uris)] == [str(n).encode() for n in range(len(uris))]
    with pytest.raises(ObjectNotFoundError):
        [*get_each(FileStore(), [*uris, f"file://{tmp_path}/gone"])]
    assert [*get_each(FileStore(), [])] == []


class Shelf:
    """An S3 client that records delete requests.

    A bulk request leaves the objects in `stays`. A request for one object is answered with `status`, and
    every bulk request with `together`.
    """

    class exceptions:
        ClientError = ClientError

    def __init__(self, *stays: str, status: int = 200, together: int = 200) -> None:
        self.stays, self.status, self.together = stays, status, together
        self.requests: list[tuple[str, list[str]]] = []
        self.one_by_one: list[str] = []

    def delete_objects(self, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:
        self.answer(self.together)
        assert Delete["Quiet"]
        keys = [item["Key"] for item in Delete["Objects"]]
        self.requests.append((Bucket, keys))
        errors = [{"Key": key, "Code": "WordOfItsOwn"} for key in keys if key in self.stays]
        return {"Errors": errors} if errors else {}

    def delete_object(self, *, Bucket: str, Key: str) -> None:
        self.one_by_one.append(f"{Bucket}/{Key}")
        self.answer(self.status)

    def answer(self, status: int) -> None:
        if status != 200:
            response = {"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(response, "Delete")  # type: ignore[arg-type]


def test_objects_are_deleted_by_the_thousand_per_bucket_in_order() -> None:
    shelf = Shelf()
    S3Store(shelf).delete(f"s3://{'ab'[n // 2500]}/folder/{n}" for n in range(2600))
    assert [(bucket, len(keys)) for bucket, keys in shelf.requests] == [
        ("a", 1000),
        ("a", 1000),
        ("a", 500),
        ("b", 100),
    ]
    assert [key for _, keys in shelf.requests for key in keys] == [f"folder/{n}" for n in range(2600)]
    S3Store(nothing := Shelf()).delete([])
    assert nothing.requests == []


@pytest.mark.parametrize(
    ("status", "expected", "passes"),
    [
        (403, StoreDeniedError, False),
        (503, ClientError, True),
        (500, ClientError, True),
        (400, ClientError, False),
    ],
)
def test_an_undeleted_object_raises_the_error_of_its_own_delete(
    status: int, expected: type[Exception], passes: bool
) -> None:
    shelf = Shelf("two", status=status)
    with pytest.raises(expected) as refused:
        S3Store(shelf).delete(["s3://b/one", "s3://b/two", "s3://b/three"])
    assert may_pass(refused.value) is passes
    assert shelf.one_by_one == ["b/two"]


def test_an_object_deleted_one_by_one_raises_no_error() -> None:
    S3Store(shelf := Shelf("busy")).delete(["s3://b/busy", "s3://b/there"])
    assert shelf.one_by_one == ["b/busy"]


@pytest.mark.parametrize("status", [400, 405, 501])
def test_a_server_without_bulk_delete_is_asked_for_each_object(status: int) -> None:
    shelf = Shelf(together=status)
    S3Store(shelf).delete(["s3://b/one", "s3://b/two"])
    assert shelf.one_by_one == ["b/one", "b/two"]


def test_a_name_that_no_bucket_can_have_is_denied() -> None:
    with pytest.raises(StoreDeniedError, match="Invalid bucket name"):
        refusing_store("never asked", 500).get("s3://no bucket/key")


@pytest.mark.parametrize(("code", "expected"), [("404", ObjectNotFoundError), ("403", StoreDeniedError)])
def test_a_download_is_refused_in_the_same_words(
    code: str, expected: type[Exception], tmp_path: Path
) -> None:
    """Its first request has no body, so the status is the only information."""
    with pytest.raises(expected):
        refusing_store(code, int(code)).download("s3://bucket/key", tmp_path / "file")


def client_error(status: int) -> ClientError:
    return ClientError({"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "HeadBucket")


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (client_error(404), True),
        (client_error(403), True),
        (NoCredentialsError(), True),
        (client_error(503), False),
        (client_error(429), False),
        (EndpointConnectionError(endpoint_url="http://s3"), False),
        (ReadTimeoutError(endpoint_url="http://s3"), False),
        (CredentialRetrievalError(provider="container-role", error_msg="refused"), False),
        (MetadataRetrievalError(error_msg="no answer"), False),
    ],
)
def test_the_store_waits_out_an_outage_but_not_a_refusal(error: Exception, permanent: bool) -> None:
    refused = bucket_unavailable("s3://bucket/runs", error)
    assert refused.permanent is permanent
    assert (refused.termination.reason, refused.termination.field) == ("BucketUnavailable", "spec.output.uri")


class Objects:
    """An S3 client with one object. It answers a range of an empty object as S3 does."""

    class exceptions:
        ClientError = ClientError

    def __init__(self, content: bytes) -> None:
        self.content = content

    def get_object(self, *, Range: str, **_: Any) -> dict[str, Any]:
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        if first >= len(self.content):
            answer = {"Error": {"Code": "InvalidRange"}, "ResponseMetadata": {"HTTPStatusCode": 416}}
            raise ClientError(answer, "GetObject")  # type: ignore[arg-type]
        return {"Body": io.BytesIO(self.content[first : last + 1])}


@pytest.mark.parametrize(("content", "start"), [(b"0123456789", b"0123"), (b"01", b"01"), (b"", b"")])
def test_the_start_of_an_object(content: bytes, start: bytes, tmp_path: Path) -> None:
    assert S3Store(Objects(content)).get_start("s3://b/k", 4) == start
    (tmp_path / "k").write_bytes(content)
    assert FileStore().get_start(f"file://{tmp_path}/k", 4) == start
    with pytest.raises(ObjectNotFoundError):
        FileStore().get_start(f"file://{tmp_path}/none", 4)


def test_the_size_of_an_object(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"0123456789")
    assert FileStore().size(f"file://{tmp_path}/k") == 10
    with pytest.raises(ObjectNotFoundError):
        FileStore().size(f"file://{tmp_path}/none")


@pytest.mark.parametrize(
    ("code", "expected"), [("AccessDenied", StoreDeniedError), ("NoSuchBucket", StoreDeniedError)]
)
def test_a_refused_upload_raises_the_same_error_as_a_request(
    code: str, expected: type[Exception], tmp_path: Path
) -> None:
    """boto3 wraps S3's error only for an upload."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(expected, match=code):
        refusing_store(code, 403 if code == "AccessDenied" else 404).upload(
            tmp_path / "file", "s3://bucket/k"
        )


def test_an_upload_that_meets_a_busy_store_may_pass(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ClientError) as caught:
        refusing_store("SlowDown", 503).upload(tmp_path / "file", "s3://bucket/k")
    assert may_pass(caught.value)


OUTSIDE = ["../up", "a/../../up", "/etc/passwd", "a//b", "./a", "a/..", "a\0b", "a\\..\\b", "", "x" * 256]


class Listing(FileStore):
    """A store that lists the keys that a bucket may hold, and records what is fetched."""

    def __init__(self, *keys: str) -> None:
        self.keys, self.fetched = keys, list[Path]()

    def list(self, prefix_uri: str) -> list[str]:
        return [f"{prefix_uri.rstrip('/')}/{key}" for key in self.keys]

    def download(self, uri: str, path: Path) -> None:
        self.fetched.append(path)
        path.write_bytes(b"x")


@pytest.mark.parametrize("name", [name for name in OUTSIDE if name])
def test_a_key_that_leaves_its_folder_is_not_fetched(name: str, tmp_path: Path) -> None:
    store = Listing("config.json", name)
    with pytest.raises(CorruptFileError, match="rename the object"):
        download_folder(store, "s3://bucket/model", tmp_path / "cache" / "model")
    assert store.fetched == []


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_manifest_names_no_file_outside_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="below a folder"):
        FileDigest(name=name, size=1, sha256="0" * 64)
    forged = FileDigest.model_construct(name=name, size=1, sha256="0" * 64)
    store = Listing()
    with pytest.raises(CorruptFileError):
        download_folder(store, "s3://bucket/model", tmp_path, [forged])
    assert store.fetched == []


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(CorruptFileError):
        download_folder(Listing("link/up"), "s3://bucket/model", folder)
    assert not (tmp_path / "up").exists()


def test_files_below_a_folder_are_fetched(tmp_path: Path) -> None:
    download_folder(Listing("config.json", "sub/..data/x", "a b"), "s3://bucket/model", tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == {
        "config.json",
        "sub/..data/x",
        "a b",
    }


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    ("own", "used"),
    [
        (None, "https://s3.eu-west-1.amazonaws.com"),
        ("http://store.team.svc:9000", "http://store.team.svc:9000"),
    ],
)
def test_the_store_is_where_the_spec_says(
    monkeypatch: pytest.MonkeyPatch, variable: str, own: str | None, used: str
) -> None:
    monkeypatch.setenv(variable, "http://169.254.169.254")
    output = OutputSpec(uri="s3://bucket/out", endpoint_url=own, region="eu-west-1")
    assert store.client(output, store.PROBE_SETTINGS).meta.endpoint_url == used
