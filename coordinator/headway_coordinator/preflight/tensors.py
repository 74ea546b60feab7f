"""What tensors the base model holds, by the headers of its safetensors files: no weights are fetched."""

from __future__ import annotations

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


def _of_file(store: Store, uri: str) -> Shapes:
    try:
        start = store.get_start(uri, FIRST_BYTES)
        end = 8 + int.from_bytes(start[:8], "little")
        if len(start) < end <= LONGEST_HEADER:
            start = store.get_start(uri, end)
    except NotFound as error:
        raise _incomplete(uri) from error
    except Denied as error:
        what = f"{error}; let the credentials of spec.output read it"
        raise JobError("ModelUnavailable", what, field=FIELD) from error
    try:
        entries: dict[str, Any] = json_within(start[8:end], LONGEST_HEADER)
        return {name: tuple(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(uri, error) from error


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
