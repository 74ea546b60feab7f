"""A store for replays that reads a run's folder, but writes to a folder of the replay.

A replay uses the same learner code as a job, which also writes files. None of these writes changes the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from headway_api.store import FileStore, ObjectNotFoundError, Store


class Overlay:
    """A `Store` over a run's store. Objects outside the run's folder, such as a model, are only read."""

    def __init__(self, run: Store, at: str, root: str, hidden: Collection[str]) -> None:
        """
        Args:
            run: the store of the run.
            at: the run's folder in that store.
            root: the folder on this machine (`file://...`) that stands for the run's folder. Writes go there.
            hidden: URIs below `root`, of objects or folders, that are never read from the run.
        """
        self._run = run
        self._at = at.rstrip("/")
        self._own = FileStore()
        self._root = root.rstrip("/")
        self._hidden = tuple(hidden)

    def get(self, uri: str) -> bytes:
        """As `Store.get`."""
        return self._own.get(uri) if self._is_own(uri) else self._run.get(self._there(uri))

    def get_start(self, uri: str, size: int) -> bytes:
        """As `Store.get_start`."""
        if self._is_own(uri):
            return self._own.get_start(uri, size)
        return self._run.get_start(self._there(uri), size)

    def size(self, uri: str) -> int:
        """As `Store.size`."""
        return self._own.size(uri) if self._is_own(uri) else self._run.size(self._there(uri))

    def download(self, uri: str, path: Path) -> None:
        """As `Store.download`."""
        if self._is_own(uri):
            self._own.download(uri, path)
        else:
            self._run.download(self._there(uri), path)

    def list(self, prefix_uri: str) -> list[str]:
        """As `Store.list`: the objects of the run and of the replay."""
        if not self._below(prefix_uri):
            return self._run.list(prefix_uri)
        there = self._at + prefix_uri.removeprefix(self._root)
        found = (self._root + uri.removeprefix(self._at) for uri in self._run.list(there))
        return sorted({uri for uri in found if not self._is_hidden(uri)} | {*self._own.list(prefix_uri)})

    def put(self, uri: str, data: bytes) -> None:
        """As `Store.put`."""
        self._own.put(self._writable(uri), data)

    def put_new(self, uri: str, data: bytes) -> bool:
        """As `Store.put_new`. It also returns False if the run has the object."""
        try:
            self.size(self._writable(uri))
        except ObjectNotFoundError:
            return self._own.put_new(uri, data)
        return False

    def delete(self, uris: Iterable[str]) -> None:
        """As `Store.delete`, for objects that the replay wrote. Objects of the run remain."""
        self._own.delete(map(self._writable, uris))

    def upload(self, path: Path, uri: str) -> None:
        """As `Store.upload`."""
        self._own.upload(path, self._writable(uri))

    def _below(self, uri: str) -> bool:
        return uri == self._root or uri.startswith(f"{self._root}/")

    def _is_own(self, uri: str) -> bool:
        """Whether the replay wrote the object."""
        return self._below(uri) and Path(uri.removeprefix("file://")).exists()

    def _is_hidden(self, uri: str) -> bool:
        return any(uri == each or uri.startswith(f"{each}/") for each in self._hidden)

    def _there(self, uri: str) -> str:
        """The URI in the run's store of an object that the replay did not write."""
        if not self._below(uri):
            return uri
        if self._is_hidden(uri):
            raise ObjectNotFoundError(uri)
        return self._at + uri.removeprefix(self._root)

    def _writable(self, uri: str) -> str:
        if not self._below(uri):
            raise PermissionError(f"{uri} is outside of {self._root}: a replay writes nothing there")
        return uri
