"""Errors of the store, and the bounds of what is read from it."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from headway_api import bounds
from headway_api.bounds import shortened
from headway_api.exits import JobError
from headway_api.store_refused import SHELL, StoreRefusal, refusal
from headway_api.store_unavailable import may_pass


class ObjectNotFoundError(KeyError):
    """No object at this URI."""


class StoreDeniedError(PermissionError):
    """There is no such bucket, or the credentials do not allow the request; the text says which."""


def bucket_unavailable(uri: str, error: Exception) -> JobError:
    """The error for the author of `spec.output` if the bucket of `uri` cannot be read or written."""
    return JobError(
        "BucketUnavailable",
        _unusable(uri, refusal(error)),
        field="spec.output.uri",
        permanent=not may_pass(error),
    )


def unavailable_here(uri: str, error: JobError) -> str:
    """Why `open_store` failed, for a person whose command reads or writes from this machine."""
    cause = error.__cause__
    return _unusable(uri, refusal(cause, SHELL)) if isinstance(cause, Exception) else str(error)


def _unusable(uri: str, why: StoreRefusal) -> str:
    return f"bucket {urlsplit(uri).netloc!r} cannot be used: {why.wrong}; {why.fix}"


def unreadable(uri: str, why: str) -> JobError:
    """The error for an object, or a folder, that is not what the job wrote."""
    return JobError(
        "RecordUnreadable",
        f"{shortened(uri, 1200)} cannot be read: {shortened(why, 500)}; restore what the job wrote there, "
        "and let only its pods write below spec.output.uri",
        field="spec.output.uri",
    )


def require_small(uri: str, size: int) -> None:
    """Raise a JobError if an object is too large to be read whole."""
    if size > bounds.OBJECT:
        raise unreadable(uri, f"it has more than {bounds.OBJECT} bytes")


def listed(folder: str, uris: Iterable[str]) -> list[str]:
    """The URIs as a list. Raises a JobError if their number or total length exceeds that of any job's
    folder."""
    found: list[str] = []
    characters = 0
    for uri in uris:
        characters += len(uri)
        if len(found) >= bounds.KEYS or characters > bounds.LISTING:
            raise unreadable(folder, f"it holds more than {len(found)} objects")
        found.append(uri)
    return found
