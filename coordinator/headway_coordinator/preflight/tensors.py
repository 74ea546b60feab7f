"""What tensors the base model holds, by the headers of its safetensors files: no weights are fetched."""

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
from headway_api.store import Denied, NotFound, Store
from headway_api.weights_format import LONGEST_HEADER, MODEL_FILE

INDEX_FILE: Final = f"{MODEL_FILE}.index.json"
FIRST_BYTES: Final = 1 << 17
"""Asked for at first: most headers are shorter."""

LAYER: Final = re.compile(r"(.*?)\.(\d{1,5})\.")
"""In a tensor's name: what the layers are called, and which one it is of."""

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
    return sorted(set(_index(folder).values())) or [MODEL_FILE]


def _index(folder: Path) -> dict[str, str]:
    """Tensor -> the file that holds it; empty where there is one file, and no index."""
    index = folder / INDEX_FILE
    if not index.exists():
        return {}
    try:
        found = json_within(index.read_bytes(), LONGEST_HEADER)["weight_map"]
        return {name: f"{file}" for name, file in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(INDEX_FILE, error) from error


def whole(model: ModelSpec, folder: Path, store: Store) -> str:
    """Hold the weights' files against their headers, index and config.json; returns what to say of them.

    Blocking. The hub's files are held against its digests when they are fetched. Tensors that are missing
    within a layer are for the learner to refuse, which builds the model.

    Raises:
        JobError: `ModelNotLoadable` where a file is cut short, too long, or has no header; `ModelIncomplete`
            where a tensor of the index or a whole layer is missing; `ModelUnavailable` where a file may not
            be read.
    """
    if model.base.startswith(HUB):
        return "the hub's files are checked when they are fetched"
    total, held, index = 0, set[str](), _index(folder)
    for name in sorted(set(index.values())) or [MODEL_FILE]:
        uri = f"{model.base.rstrip('/')}/{name}"
        try:
            with _readable():
                size = store.size(uri)
        except NotFound as error:
            if index:
                raise _incomplete(uri) from error
            continue  # left to whoever loads it
        header, entries = _header(store, uri)
        if size != (described := header + _length(uri, entries)):
            what = f"{uri} has {size} bytes, and by its header {described}; upload the file again"
            raise JobError("ModelNotLoadable", what, field=FIELD)
        held |= entries.keys()
        total += size
    if held and (lost := _lost(index, held) or _without(held, _layers(folder))):
        what = f"{model.base} {lost}; upload the whole Hugging Face folder again"
        raise JobError("ModelIncomplete", what, field=FIELD)
    return f"{total} bytes of weights, as their headers say"


def _lost(index: dict[str, str], held: set[str]) -> str | None:
    """What to say of tensors that the index has and the files have not."""
    if not (lost := index.keys() - held):
        return None
    first = min(lost)
    return f"lacks {len(lost)} of the tensors in {INDEX_FILE}, {first} of {index[first]} among them"


def _without(held: Iterable[str], wanted: int) -> str | None:
    """What to say of layers of which there is no tensor.

    A model may have several parts with layers, and no name tells which is its language model: one of them is
    to have all.

    Args:
        held: names of the tensors.
        wanted: how many layers the language model has; 0: not known.
    """
    parts = defaultdict[str, set[int]](set)
    for name in held:
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
    """Layers of the language model, as config.json says; 0 where it does not."""
    try:
        config = read_config(folder / "config.json")
    except (OSError, ValueError):
        return 0  # a check of its own says what is wrong with it
    for part in (config.get("text_config"), config):
        if isinstance(part, dict) and isinstance(found := part.get("num_hidden_layers"), int):
            return found
    return 0


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


def _length(uri: str, entries: dict[str, Any]) -> int:
    """Bytes of the tensors that a header describes."""
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise _unreadable(uri, error) from error
    return max(ends, default=0)


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
