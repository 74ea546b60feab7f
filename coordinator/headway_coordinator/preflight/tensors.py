"""What tensors the base model holds, by the headers of its safetensors files: no weights are fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headway_api.base_model import FIELD, HUB
from headway_api.bounds import json_within
from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_api.store import Denied, NotFound, Store
from headway_api.weights_format import LONGEST_HEADER, MODEL_FILE

INDEX_FILE: Final = f"{MODEL_FILE}.index.json"
FIRST_BYTES: Final = 1 << 17
"""Asked for at first: most headers are shorter."""

Shapes = dict[str, tuple[int, ...]]


def shapes(model: ModelSpec, folder: Path, store: Store) -> Shapes:
    """Shape of each tensor of `spec.model.base`, whose configuration lies in `folder`. Blocking.

    Raises:
        JobError: `ModelIncomplete` where there are no safetensors weights, `ModelNotLoadable` where their
            headers cannot be read, `ModelUnavailable` where they may not be.
    """
    if model.base.startswith(HUB):
        return _of_hub(model)
    found: Shapes = {}
    for name in _files(folder):
        found |= _of_file(store, f"{model.base.rstrip('/')}/{name}")
    return found


def _files(folder: Path) -> list[str]:
    """Names of the files that hold the weights."""
    index = folder / INDEX_FILE
    if not index.exists():
        return [MODEL_FILE]
    try:
        return sorted(set(json_within(index.read_bytes(), LONGEST_HEADER)["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(INDEX_FILE, error) from error


def whole(model: ModelSpec, folder: Path, store: Store) -> str:
    """Hold the size of each file of the weights against its header; returns what to say of them. Blocking.

    A file that is not there is left to whoever loads it. The hub's are held against its digests when they are
    fetched.

    Raises:
        JobError: `ModelNotLoadable` where a file is cut short, too long, or has no header; `ModelUnavailable`
            where it may not be read.
    """
    if model.base.startswith(HUB):
        return "the hub's files are checked when they are fetched"
    total = 0
    for name in _files(folder):
        uri = f"{model.base.rstrip('/')}/{name}"
        try:
            with _readable():
                size = store.size(uri)
        except NotFound:
            continue
        described = _end(store, uri)
        if size != described:
            what = f"{uri} has {size} bytes, and by its header {described}; upload the file again"
            raise JobError("ModelNotLoadable", what, field=FIELD)
        total += size
    return f"{total} bytes of weights, as their headers say"


def weights(model: ModelSpec, folder: Path, store: Store) -> dict[str, str]:
    """What tells the weights of `spec.model.base` from others at the same address, by file. Blocking.

    Size and first bytes of each file: the header, and the tensors after it. Of the hub's the commit.

    Raises:
        JobError: `ModelUnavailable` where a file may not be read.
    """
    if model.base.startswith(HUB):
        return {"commit": folder.name}  # a snapshot's folder is named by it
    found = {}
    for name in _files(folder):
        uri = f"{model.base.rstrip('/')}/{name}"
        try:
            with _readable():
                start = store.get_start(uri, FIRST_BYTES)
                found[name] = f"{store.size(uri)} {hashlib.sha256(start).hexdigest()}"
        except NotFound:
            continue
    return found


def _end(store: Store, uri: str) -> int:
    """Bytes that a file has by its header."""
    header, entries = _header(store, uri)
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise _unreadable(uri, error) from error
    return header + max(ends, default=0)


def _of_file(store: Store, uri: str) -> Shapes:
    try:
        _, entries = _header(store, uri)
        return {name: tuple(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    except NotFound as error:
        raise _incomplete(uri) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(uri, error) from error


def _header(store: Store, uri: str) -> tuple[int, dict[str, Any]]:
    """Bytes of a safetensors file before its tensors, and what is said of each.

    Raises:
        NotFound: there is no such file.
        JobError: it may not be read, or has no header.
    """
    with _readable():
        start = store.get_start(uri, FIRST_BYTES)
        end = 8 + int.from_bytes(start[:8], "little")
        if len(start) < end <= LONGEST_HEADER:
            start = store.get_start(uri, end)
    try:
        entries = json_within(start[8:end], LONGEST_HEADER)
        if not isinstance(entries, dict):
            raise TypeError("the header is no object")
        return end, entries
    except (ValueError, TypeError) as error:
        raise _unreadable(uri, error) from error


@contextmanager
def _readable() -> Iterator[None]:
    """Around a request: a file that may not be read is the model's fault."""
    try:
        yield
    except Denied as error:
        what = f"{error}; let the credentials of spec.output read it"
        raise JobError("ModelUnavailable", what, field=FIELD) from error


def _of_hub(model: ModelSpec) -> Shapes:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    name = model.base.removeprefix(HUB)
    try:
        found = HfApi().get_safetensors_metadata(name, revision=model.revision)
    except NotASafetensorsRepoError as error:
        raise _incomplete(name) from error
    except SafetensorsParsingError as error:
        raise _unreadable(name, error) from error
    files = found.files_metadata.values()
    return {tensor: tuple(info.shape) for file in files for tensor, info in file.tensors.items()}


def _incomplete(where: str) -> JobError:
    what = f"{where}: no such weights; upload the whole Hugging Face folder, in the safetensors format"
    return JobError("ModelIncomplete", what, field=FIELD)


def _unreadable(where: str, error: Exception) -> JobError:
    what = f"{where} does not describe weights ({type(error).__name__}: {error}); upload the folder again"
    return JobError("ModelNotLoadable", what, field=FIELD)
