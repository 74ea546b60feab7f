"""Reads and checks the headers of the base model's safetensors files, without fetching the weights."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headway_api.base_model import FIELD, HUB, read_config
from headway_api.bounds import json_within
from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError
from headway_api.weights_format import LONGEST_HEADER, MODEL_FILE

INDEX_FILE: Final = f"{MODEL_FILE}.index.json"
FIRST_BYTES: Final = 1 << 17
"""Bytes that are requested first. Most headers are shorter, so one request is usually enough."""

LAYER: Final = re.compile(r"(.*?)\.(\d{1,5})\.")
"""Matches a tensor's name. The groups are the name of the list of layers, and the layer's number."""

Shapes = dict[str, tuple[int, ...]]


def shapes(model: ModelSpec, folder: Path, store: Store) -> Shapes:
    """Tensor -> its shape, for `spec.model.base`, whose configuration is in `folder`. Blocking.

    Raises:
        JobError: `ModelIncomplete`: there are no safetensors weights; `ModelNotLoadable`: their headers
            cannot be read; `ModelUnavailable`: reading them is not allowed.
    """
    if model.base.startswith(HUB):
        return _of_hub(model)
    found: Shapes = {}
    for name in _files(folder):
        found |= _of_file(store, f"{model.base.rstrip('/')}/{name}")
    return found


def _files(folder: Path) -> list[str]:
    """The names of the files that hold the weights."""
    return sorted(set(_index(folder).values())) or [MODEL_FILE]


def _index(folder: Path) -> dict[str, str]:
    """Tensor -> its file, from the index; empty if the model has one file without an index."""
    index = folder / INDEX_FILE
    if not index.exists():
        return {}
    try:
        found = json_within(index.read_bytes(), LONGEST_HEADER)["weight_map"]
        return {name: f"{file}" for name, file in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(INDEX_FILE, error) from error


def whole(model: ModelSpec, folder: Path, store: Store) -> str:
    """Check the files of the weights against their headers, the index and config.json. Returns a summary.

    Blocking. Files of the hub are compared with the hub's digests when they are fetched. Tensors that are
    missing within a layer are not detected here: the learner refuses them when it builds the model.

    Raises:
        JobError: `ModelNotLoadable`: a file is cut short, too long, or has no header. `ModelIncomplete`: a
            tensor of the index or a whole layer is missing. `ModelUnavailable`: a file may not be read.
    """
    if model.base.startswith(HUB):
        return "the hub's files are checked when they are fetched"
    total, stored, index = 0, set[str](), _index(folder)
    for name in sorted(set(index.values())) or [MODEL_FILE]:
        uri = f"{model.base.rstrip('/')}/{name}"
        try:
            with _readable():
                size = store.size(uri)
        except ObjectNotFoundError as error:
            if index:
                raise _incomplete(uri) from error
            continue  # the process that loads the model reports what is missing
        header, entries = _header(store, uri)
        if size != (described := header + _length(uri, entries)):
            what = f"{uri} has {size} bytes, but its header describes {described}; upload the file again"
            raise JobError("ModelNotLoadable", what, field=FIELD)
        stored |= entries.keys()
        total += size
    if stored and (lost := _lost(index, stored) or _without(stored, _layers(folder))):
        what = f"{model.base} {lost}; upload the whole Hugging Face folder again"
        raise JobError("ModelIncomplete", what, field=FIELD)
    return f"{total} bytes of weights, as their headers say"


def _lost(index: dict[str, str], stored: set[str]) -> str | None:
    """The message about tensors that are in the index but not in the files."""
    if not (lost := index.keys() - stored):
        return None
    first = min(lost)
    return f"lacks {len(lost)} of the tensors in {INDEX_FILE}, {first} of {index[first]} among them"


def _without(stored: Iterable[str], wanted: int) -> str | None:
    """The message about layers without any tensor.

    A model may have several parts with layers, and no name shows which one is its language model. One of them
    must have all layers.

    Args:
        stored: names of the tensors.
        wanted: number of layers of the language model; 0: unknown.
    """
    parts = defaultdict[str, set[int]](set)
    for name in stored:
        if (found := LAYER.match(name)) and int(found[2]) < wanted:
            parts[found[1]].add(int(found[2]))
    if not parts:
        return None
    part, layers = max(parts.items(), key=lambda each: (len(each[1]), each[0]))
    if len(layers) == wanted:
        return None
    lost = min(set(range(wanted)) - layers)
    return f"has no tensor of {part}.{lost}, and config.json says num_hidden_layers: {wanted}"


def _layers(folder: Path) -> int:
    """The number of the language model's layers, from config.json; 0 if it is unknown."""
    try:
        config = read_config(folder / "config.json")
    except (OSError, ValueError):
        return 0  # another check reports what is wrong with config.json
    for part in (config.get("text_config"), config):
        if isinstance(part, dict) and isinstance(found := part.get("num_hidden_layers"), int):
            return found
    return 0


def weights(model: ModelSpec, folder: Path, store: Store) -> dict[str, str]:
    """Identifies the weights of `spec.model.base`, which may change at the same address. Blocking.

    The result maps each file to its size and the hash of its first bytes, which are the header and some
    tensors. For a model of the hub, the result has the commit.

    Raises:
        JobError: `ModelUnavailable`: reading a file is not allowed.
    """
    if model.base.startswith(HUB):
        return {"commit": folder.name}  # the commit names the folder of a snapshot
    found = {}
    for name in _files(folder):
        uri = f"{model.base.rstrip('/')}/{name}"
        try:
            with _readable():
                start = store.get_start(uri, FIRST_BYTES)
                found[name] = f"{store.size(uri)} {hashlib.sha256(start).hexdigest()}"
        except ObjectNotFoundError:
            continue
    return found


def _length(uri: str, entries: dict[str, Any]) -> int:
    """The number of bytes that the tensors of a file take, by its header."""
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise _unreadable(uri, error) from error
    return max(ends, default=0)


def _of_file(store: Store, uri: str) -> Shapes:
    try:
        _, entries = _header(store, uri)
        return {name: tuple(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    except ObjectNotFoundError as error:
        raise _incomplete(uri) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(uri, error) from error


def _header(store: Store, uri: str) -> tuple[int, dict[str, Any]]:
    """The number of bytes before the tensors of a safetensors file, and the header's entries by name.

    Raises:
        ObjectNotFoundError: there is no such file.
        JobError: reading the file is not allowed, or it has no header.
    """
    with _readable():
        start = store.get_start(uri, FIRST_BYTES)
        end = 8 + int.from_bytes(start[:8], "little")
        if len(start) < end <= LONGEST_HEADER:
            start = store.get_start(uri, end)
    try:
        entries = json_within(start[8:end], LONGEST_HEADER)
        if not isinstance(entries, dict):
            raise TypeError("the header is not an object")
        return end, entries
    except (ValueError, TypeError) as error:
        raise _unreadable(uri, error) from error


@contextmanager
def _readable() -> Iterator[None]:
    """Turn a denied request for a file into a `JobError` about the model."""
    try:
        yield
    except StoreDeniedError as error:
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
