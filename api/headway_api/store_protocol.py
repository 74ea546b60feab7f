"""The operations of the artifact store, as a protocol."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """The operations of the artifact store. Every object has a URI."""

    def get(self, uri: str) -> bytes:
        """Content of an object.

        Raises:
            ObjectNotFoundError: there is no such object.
            StoreDeniedError: there is no such bucket, or the credentials may not read the object.
            JobError: `RecordUnreadable`: the object has more than `bounds.OBJECT` bytes.
        """

    def get_start(self, uri: str, size: int) -> bytes:
        """The first `size` bytes of an object, or all if it has fewer; raises as `get` does."""

    def size(self, uri: str) -> int:
        """Bytes of an object; raises as `get` does."""

    def put(self, uri: str, data: bytes) -> None:
        """Write a whole object, replacing an earlier one."""

    def put_new(self, uri: str, data: bytes) -> bool:
        """Write an object unless one exists; returns whether it was written."""

    def list(self, prefix_uri: str) -> list[str]:
        """URIs of all objects under a folder, in key order. Raises a JobError, `RecordUnreadable`, if there
        are more than any job writes."""

    def delete(self, uris: Iterable[str]) -> None:
        """Delete objects; missing ones are not errors."""

    def download(self, uri: str, path: Path) -> None:
        """Copy an object to a file; raises as `get` does."""

    def upload(self, path: Path, uri: str) -> None:
        """Copy a file to an object."""
