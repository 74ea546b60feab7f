"""The artifact store: a thin client over S3, and over a local folder for `file://` URIs.

Every object has a URI. Objects are small or streamed file by file. No object is ever changed in place, except
pointers. The two clients differ only in boto3's calls, so tests may use either.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http import HTTPStatus
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from headway_api import bounds
from headway_api.bounds import is_below, shortened
from headway_api.records import FileDigest
from headway_api.store_faults import ObjectNotFoundError as ObjectNotFoundError
from headway_api.store_faults import StoreDeniedError as StoreDeniedError
from headway_api.store_faults import bucket_unavailable as bucket_unavailable
from headway_api.store_faults import listed, require_small
from headway_api.store_faults import unreadable as unreadable
from headway_api.store_protocol import Store as Store
from headway_api.store_refused import refusal
from headway_api.store_unavailable import Patience, Patient, batches, status_of, wait_for

if TYPE_CHECKING:
    from headway_api.spec.lifecycle import OutputSpec


EXISTS = 412
CONFLICT = 409
"""S3's answer to a conditional write that collided with another request for the same key. It does not say
which of them succeeds."""
CONFLICT_TRIES = 6
CONFLICT_SECONDS = 0.2
"""Seconds to pause after the first conflict; each further pause is this much longer."""
ONE_BY_ONE: Final = (400, 405, 501)
"""Answers of servers without batch deletes: they do not know the request, or require an older checksum of it
than boto3 sends."""
READERS: Final = 8
"""Objects that are read at the same time. A client has ten connections."""
READ_AHEAD: Final = 256
"""Maximum objects whose contents are buffered for a slow reader."""
PROBE_SETTINGS: Final[dict[str, Any]] = {
    "retries": {"mode": "standard", "total_max_attempts": 3},
    "connect_timeout": 4,
    "read_timeout": 4,
}
"""Settings for the first request to a bucket: quick, so that a wrong endpoint is reported while somebody
watches."""
CLIENT_SETTINGS: Final[dict[str, Any]] = {
    "retries": {"mode": "standard", "total_max_attempts": 6},
    "connect_timeout": 5,
    "read_timeout": 30,
}


BUCKET: Final = "s3://"


class FileStore:
    """The store for `file:///folder/...`, for one machine, tests and `headway` commands without a cluster."""

    def _path(self, uri: str) -> Path:
        # No URL parser here: a name may have any character, such as ? and #.
        return Path(uri.removeprefix("file://"))

    def get(self, uri: str) -> bytes:
        data = self.get_start(uri, bounds.OBJECT + 1)
        require_small(uri, len(data))
        return data

    def get_start(self, uri: str, size: int) -> bytes:
        try:
            with self._path(uri).open("rb") as stream:
                return stream.read(min(size, os.fstat(stream.fileno()).st_size))
        except FileNotFoundError:
            raise ObjectNotFoundError(uri) from None

    def size(self, uri: str) -> int:
        try:
            return self._path(uri).stat().st_size
        except FileNotFoundError:
            raise ObjectNotFoundError(uri) from None

    def put(self, uri: str, data: bytes) -> None:
        path = self._path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(data)
        partial.replace(path)

    def put_new(self, uri: str, data: bytes) -> bool:
        path = self._path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(data)
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        finally:
            partial.unlink()
        return True

    def list(self, prefix_uri: str) -> list[str]:
        folder = self._path(prefix_uri)
        found = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
        return sorted(listed(prefix_uri, (f"file://{p}" for p in found)))

    def delete(self, uris: Iterable[str]) -> None:
        for uri in uris:
            self._path(uri).unlink(missing_ok=True)

    def download(self, uri: str, path: Path) -> None:
        try:
            shutil.copyfile(self._path(uri), path)
        except FileNotFoundError:
            raise ObjectNotFoundError(uri) from None

    def upload(self, path: Path, uri: str) -> None:
        target = self._path(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(path, partial)
        partial.replace(target)


class S3Store:
    """The store for `s3://bucket/key`, on AWS or any server that speaks S3."""

    def __init__(self, client: Any) -> None:
        self._s3 = client

    @staticmethod
    def _split(uri: str) -> tuple[str, str]:
        # No URL parser here: a key may have any character, such as ? and #.
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return bucket, key.lstrip("/")

    def get(self, uri: str) -> bytes:
        bucket, key = self._split(uri)
        with _translated(uri):
            answer = self._s3.get_object(Bucket=bucket, Key=key)
            with closing(answer["Body"]) as body:
                require_small(uri, answer["ContentLength"])
                return cast(bytes, body.read())

    def get_start(self, uri: str, size: int) -> bytes:
        bucket, key = self._split(uri)
        wanted = f"bytes=0-{size - 1}"
        try:
            with _translated(uri):
                return cast(bytes, self._s3.get_object(Bucket=bucket, Key=key, Range=wanted)["Body"].read())
        except self._s3.exceptions.ClientError as error:
            if status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # the object is empty
                return b""
            raise

    def size(self, uri: str) -> int:
        bucket, key = self._split(uri)
        with _translated(uri):
            return int(self._s3.head_object(Bucket=bucket, Key=key)["ContentLength"])

    def put(self, uri: str, data: bytes) -> None:
        bucket, key = self._split(uri)
        with _translated(uri):
            self._s3.put_object(Bucket=bucket, Key=key, Body=data)

    def put_new(self, uri: str, data: bytes) -> bool:
        bucket, key = self._split(uri)
        tried = 1
        while True:
            try:
                with _translated(uri):
                    self._s3.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
                return True
            except self._s3.exceptions.ClientError as error:
                status = status_of(error)
                if status == EXISTS:
                    return False
                if status != CONFLICT or tried == CONFLICT_TRIES:
                    raise
            time.sleep(CONFLICT_SECONDS * tried)
            tried += 1

    def list(self, prefix_uri: str) -> list[str]:
        bucket, prefix = self._split(prefix_uri.rstrip("/") + "/")
        with _translated(prefix_uri):
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            keys = (item["Key"] for page in pages for item in page.get("Contents", []))
            return listed(prefix_uri, (f"s3://{bucket}/{key}" for key in keys))

    def delete(self, uris: Iterable[str]) -> None:
        for bucket, places in groupby(map(self._split, uris), itemgetter(0)):
            for keys in batches(key for _, key in places):
                with _translated(f"s3://{bucket}"):
                    self._delete(bucket, keys)

    def _delete(self, bucket: str, keys: Sequence[str]) -> None:
        together = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._s3.delete_objects(Bucket=bucket, Delete=together)
            left: Sequence[str] = [failed["Key"] for failed in answer.get("Errors", [])]
        except self._s3.exceptions.ClientError as error:
            if status_of(error) not in ONE_BY_ONE:
                raise
            left = keys
        # Errors of a batch delete carry no HTTP status. A single delete has one, which shows whether the
        # error may pass.
        for key in left:
            self._s3.delete_object(Bucket=bucket, Key=key)

    def download(self, uri: str, path: Path) -> None:
        bucket, key = self._split(uri)
        with _translated(uri):
            self._s3.download_file(bucket, key, str(path))

    def upload(self, path: Path, uri: str) -> None:
        bucket, key = self._split(uri)
        with _translated(uri):
            self._s3.upload_file(str(path), bucket, key)


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """Context that turns S3's refusals into `ObjectNotFoundError` or `StoreDeniedError`. Others pass."""
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import ClientError, ParamValidationError

    try:
        try:
            yield
        except S3UploadFailedError as error:
            # boto3 hides S3's answer in the inner error: what is wrong, and whether it may pass.
            if not isinstance(error.__context__, ClientError):
                raise
            raise error.__context__ from None
    except ParamValidationError as error:  # no bucket can have this name
        raise StoreDeniedError(f"{uri}: {refusal(error).wrong}") from error
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchBucket" or status_of(error) == HTTPStatus.FORBIDDEN:
            raise StoreDeniedError(f"{uri}: {refusal(error).wrong}") from error
        if status_of(error) == HTTPStatus.NOT_FOUND:
            raise ObjectNotFoundError(uri) from None
        raise


def client(output: OutputSpec, how: dict[str, Any]) -> Any:
    """A boto3 client for `spec.output`, at its endpoint or at AWS.

    The client ignores an endpoint in the environment, which a Secret may set, because no rule has checked it.
    """
    import boto3
    from botocore.config import Config

    config = Config(**(how | {"ignore_configured_endpoint_urls": True}))
    return boto3.client("s3", endpoint_url=output.endpoint_url, region_name=output.region, config=config)


def open_store(output: OutputSpec, patience: Patience | None = None, *, quick: bool = False) -> Store:
    """Client for `spec.output`; credentials come from the pod's environment or service account.

    The first request checks the bucket. Its timeout is short with `patience`, and with `quick`, which is for
    a person who waits. With `patience`, later requests wait for an unavailable store.

    Raises:
        JobError: `BucketUnavailable`, if the bucket does not exist or cannot be reached with the
            credentials; retriable if the store did not answer or failed itself.
    """
    if urlsplit(output.uri).scheme == "file":
        return LocalStore(output)
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        looks = quick or patience is not None
        client(output, PROBE_SETTINGS if looks else CLIENT_SETTINGS).head_bucket(
            Bucket=urlsplit(output.uri).netloc
        )
    except (ClientError, BotoCoreError) as error:
        raise bucket_unavailable(output.uri, error) from error
    working = client(output, CLIENT_SETTINGS)
    if patience is None:
        return S3Store(working)
    wait_for(working, patience)
    return Patient(S3Store(working), patience)


class LocalStore(FileStore):
    """Reads and writes files, and reads buckets: the model and the rows of a job on one machine may be in a
    bucket."""

    def __init__(self, output: OutputSpec) -> None:
        self._output = output
        self._buckets: dict[str, S3Store] = {}

    def get(self, uri: str) -> bytes:
        return self._bucket(uri).get(uri) if uri.startswith(BUCKET) else super().get(uri)

    def get_start(self, uri: str, size: int) -> bytes:
        return (
            self._bucket(uri).get_start(uri, size) if uri.startswith(BUCKET) else super().get_start(uri, size)
        )

    def size(self, uri: str) -> int:
        return self._bucket(uri).size(uri) if uri.startswith(BUCKET) else super().size(uri)

    def list(self, prefix_uri: str) -> list[str]:
        if prefix_uri.startswith(BUCKET):
            return self._bucket(prefix_uri).list(prefix_uri)
        return super().list(prefix_uri)

    def download(self, uri: str, path: Path) -> None:
        if uri.startswith(BUCKET):
            self._bucket(uri).download(uri, path)
        else:
            super().download(uri, path)

    def _bucket(self, uri: str) -> S3Store:
        """Raises JobError, `BucketUnavailable`, as `open_store` does."""
        from botocore.exceptions import BotoCoreError, ClientError

        name = urlsplit(uri).netloc
        if name not in self._buckets:
            try:
                client(self._output, PROBE_SETTINGS).head_bucket(Bucket=name)
            except (ClientError, BotoCoreError) as error:
                raise bucket_unavailable(f"{BUCKET}{name}", error) from error
            self._buckets[name] = S3Store(client(self._output, CLIENT_SETTINGS))
        return self._buckets[name]


def get_each(store: Store, uris: Sequence[str]) -> Iterator[bytes]:
    """Contents of many small objects in their order, several read at the same time.

    Raises:
        ObjectNotFoundError: one of them is missing; also the other errors of `Store.get`.
    """
    with ThreadPoolExecutor(READERS, thread_name_prefix="store-reader") as pool:
        for start in range(0, len(uris), READ_AHEAD):
            yield from pool.map(store.get, uris[start : start + READ_AHEAD])


def digest(path: Path) -> FileDigest:
    """Size and SHA-256 of a file."""
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileDigest(name=path.name, size=path.stat().st_size, sha256=sha256)


def upload_folder(store: Store, folder: Path, uri: str) -> list[FileDigest]:
    """Upload the files directly inside `folder`, and return their digests."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    for path in files:
        store.upload(path, f"{uri}/{path.name}")
    return [digest(path) for path in files]


class CorruptFileError(Exception):
    """A downloaded file does not match its manifest, or its name leaves its folder."""


def below(folder: Path, name: str) -> Path:
    """The path of a file in `folder`, by a name from the store or a manifest.

    Raises:
        CorruptFileError: the path would be outside the folder.
    """
    path = folder / name
    if not is_below(name) or not path.resolve().is_relative_to(folder.resolve()):
        raise CorruptFileError(
            f"{shortened(name, 200)!r} is not the name of a file below a folder; rename the object"
        )
    return path


def download_folder(
    store: Store,
    uri: str,
    folder: Path,
    files: Iterable[FileDigest] | None = None,
    without: Sequence[str] = (),
) -> Path:
    """Download a folder, except files that match a pattern of `without`. With `files`, download exactly
    these, and check each against its digest.

    Raises:
        CorruptFileError: a file differs from its digest. Or a file would be outside `folder`; then nothing
            is written.
        ObjectNotFoundError: there is nothing at `uri`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if files is None:
        prefix = uri.rstrip("/") + "/"
        # S3's consoles and some tools mark a folder with an empty object of the same name.
        uris = [item for item in store.list(uri) if not item.endswith("/")]
        if not uris:
            raise ObjectNotFoundError(uri)
        places = [(item, below(folder, item.removeprefix(prefix))) for item in uris]
        for item, path in places:
            if any(path.match(pattern) for pattern in without):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            store.download(item, path)
        return folder
    known = [(expected, below(folder, expected.name)) for expected in files]
    for expected, path in known:
        store.download(f"{uri.rstrip('/')}/{expected.name}", path)
        found = digest(path)
        if found != expected:
            raise CorruptFileError(
                f"{uri}/{expected.name}: expected sha256 {expected.sha256}, found {found.sha256}"
            )
    return folder
