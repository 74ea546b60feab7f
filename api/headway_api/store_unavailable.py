"""Waits for an unavailable artifact store: retries a request until the store answers or patience ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from headway_api.exits import JobError, job_error
from headway_api.store_protocol import Store

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

BUSY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""HTTP statuses of a store that is too busy to handle the request."""
PATIENCE: Final = 600.0
"""Seconds without success after which a process that waits for the store gives up a request."""
PAUSE = 5.0
"""Seconds between two attempts of a patient request, after botocore's own faster retries."""
DELETED_AT_ONCE: Final = 1000
"""Objects that one request may delete; S3 allows no more."""

P = ParamSpec("P")
T = TypeVar("T")


class StoreUnavailableError(Exception):
    """The store did not answer, or failed internally, for as long as a process waits. The message is for
    people."""


@dataclass(frozen=True)
class Patience:
    """How long a request waits for an unavailable store."""

    seconds: float = PATIENCE
    over: threading.Event = field(default_factory=threading.Event)
    """Set by a process that ends, so that no request waits any longer."""

    def pause(self, since: float, now: float, why: object) -> float:
        """Seconds until the next attempt of a request that has had no success `since`.

        Raises:
            StoreUnavailableError: it has waited long enough; `why` is the last error.
        """
        if self.over.is_set() or now - since >= self.seconds:
            raise StoreUnavailableError(
                f"the artifact store has been unavailable for {now - since:.0f} s ({why}); durable data is "
                "safe, and work continues from it once the store is available"
            )
        return PAUSE


class Patient:
    """Wraps a store, and retries transient errors that botocore does not retry.

    Examples: the body of an answer breaks off, or the cloud's identity service gives no credentials.
    `wait_for` extends botocore's own retries of a request.
    """

    def __init__(self, store: Store, patience: Patience) -> None:
        self._store = store
        self._patience = patience

    def get(self, uri: str) -> bytes:
        return self._patiently(self._store.get, uri)

    def get_start(self, uri: str, size: int) -> bytes:
        return self._patiently(self._store.get_start, uri, size)

    def size(self, uri: str) -> int:
        return self._patiently(self._store.size, uri)

    def put(self, uri: str, data: bytes) -> None:
        self._patiently(self._store.put, uri, data)

    def put_new(self, uri: str, data: bytes) -> bool:
        return self._patiently(self._store.put_new, uri, data)

    def list(self, prefix_uri: str) -> list[str]:
        return self._patiently(self._store.list, prefix_uri)

    def delete(self, uris: Iterable[str]) -> None:
        for batch in batches(uris):
            self._patiently(self._store.delete, batch)

    def download(self, uri: str, path: Path) -> None:
        self._patiently(self._store.download, uri, path)

    def upload(self, path: Path, uri: str) -> None:
        self._patiently(self._store.upload, path, uri)

    def _patiently(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        since: float | None = None
        while True:
            try:
                return call(*args, **kwargs)
            except Exception as error:
                if not may_pass(error):
                    raise
                now = time.monotonic()
                since = now if since is None else since
                try:
                    pause = self._patience.pause(since, now, error)
                except StoreUnavailableError as given_up:
                    raise given_up from error
            time.sleep(pause)


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """`items` in their order, in batches that are deleted together."""
    left = iter(items)
    while batch := list(islice(left, DELETED_AT_ONCE)):
        yield batch


def wait_for(client: Any, patience: Patience) -> None:
    """Make each request of an S3 client retry for as long as `patience` allows.

    All requests of a client share one quota for botocore's own retries. The threads of one large upload use
    up this quota in half a minute. Here each request, and so each part of an upload, waits independently.
    """

    def again(
        *, response: Any, caught_exception: Exception | None, operation: Any, request_dict: Any, **_: Any
    ) -> float | None:
        why = _trouble(response, caught_exception)
        # Do not wait again for the clean-up of an upload that was given up.
        if why is None or operation.name == "AbortMultipartUpload":
            return None
        now = time.monotonic()
        since = request_dict["context"].setdefault("headway_unavailable_since", now)
        return patience.pause(since, now, why)

    client.meta.events.register_last("needs-retry.s3", again, unique_id="headway-patience")


def _trouble(response: Any, caught: Exception | None) -> str | None:
    """The transient problem that prevented an answer; None if there was an answer, even a refusal."""
    if caught is not None:
        return str(caught) if may_pass(caught) else None
    status = response[0].status_code
    return f"HTTP {status}" if _is_trouble(status) else None


def may_pass(error: Exception) -> bool:
    """Whether an error may go away: the store could not be reached or failed internally, instead of refusing
    the request."""
    from boto3.exceptions import RetriesExceededError
    from botocore.exceptions import (
        ClientError,
        ConnectionError,
        CredentialRetrievalError,
        HTTPClientError,
        IncompleteReadError,
        MetadataRetrievalError,
    )

    if isinstance(error, ClientError):
        return _is_trouble(status_of(error))
    # The cloud's identity service did not answer, which happens on a node that has just joined.
    identity = (CredentialRetrievalError, MetadataRetrievalError)
    # The body of an answer broke off: once, or in several tries of a download.
    cut_off = (IncompleteReadError, RetriesExceededError)
    return isinstance(error, (ConnectionError, HTTPClientError, *identity, *cut_off))


def _is_trouble(status: int) -> bool:
    # 501: a request that an S3 server does not know never succeeds.
    failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    return failed or status in BUSY


@contextmanager
def store_explained() -> Iterator[None]:
    """Context for the life of a process. It turns the error of an unavailable store into a JobError.

    Raises:
        JobError: `StoreUnavailable`, retriable.
    """
    try:
        yield
    except (Exception, BaseExceptionGroup) as error:
        absence = _absence(error)
        if absence is None or job_error(error) is not None:
            raise
        raise JobError("StoreUnavailable", str(absence), permanent=False) from error


def _absence(error: BaseException) -> Exception | None:
    """`error` if an unavailable store caused it; for a group, the first such error in it. Otherwise None."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for found in map(_absence, error.exceptions) if found is not None), None)
    if isinstance(error, StoreUnavailableError) or (isinstance(error, Exception) and may_pass(error)):
        return error
    return None


def status_of(error: ClientError) -> int:
    """HTTP status of an error response."""
    return error.response["ResponseMetadata"]["HTTPStatusCode"]
