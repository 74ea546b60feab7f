"""Fetches the base model of a job: the same folder for the learner, the rollout servers and the preflight."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from headway_api.bounds import MIB, OutOfBoundsError, json_within
from headway_api.exits import JobError
from headway_api.store import CorruptFileError, ObjectNotFoundError, Store, StoreDeniedError, download_folder
from headway_api.store_refused import ERRNO

FIELD: Final = "spec.model.base"
HUB: Final = "hf://"
UNWANTED: Final = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.msgpack", "*.h5", "original/*")
"""Files with other formats of the same weights, which are not downloaded: only safetensors are read."""
WEIGHTS: Final = "*.safetensors"
MAX_CONFIG: Final = 4 * MIB
"""Maximum bytes of one file that describes a model."""
OFFLINE: Final = "let the job's processes reach it, or copy the model's folder to s3:// and name it here"
GATED: Final = (
    "correct name or revision, or put an HF_TOKEN that may read it into the Secret of spec.output.secretRef"
)
"""`OFFLINE` and `GATED`: what to do in a job if the hub does not answer, and if it refuses. A command that
fetches a model on a person's machine replaces both texts."""
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a write to a volume without room."""


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in a file that describes a model or an adapter, such as config.json.

    The model's author wrote the file. It may contain Infinity, as configurations of some families do.

    Raises:
        OutOfBoundsError: the file exceeds the bounds, or is not a JSON object.
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        found = json_within(stream.read(MAX_CONFIG + 1), MAX_CONFIG, finite=False)
    if not isinstance(found, dict):
        raise OutOfBoundsError("not a JSON object")
    return found


class Source(Protocol):
    """Where a model comes from."""

    @property
    def base(self) -> str:
        """Address of the model, hf:// or s3://."""

    @property
    def revision(self) -> str | None:
        """Revision of a hf:// model."""


def fetch(model: Source, store: Store, cache: Path, *, weights: bool = True, field: str = FIELD) -> Path:
    """Folder with the files of `model.base`, in Hugging Face layout. A complete folder is not fetched again.

    Without `weights` it has only the configuration and the tokenizer. `field` is the field that errors name.

    Raises:
        JobError: `ModelUnavailable`, if there is nothing at that address or it may not be read.
            `ModelNotFetched`, retriable, if the hub does not answer.
            `DiskFull`, retriable, if `cache` has no room for the model.
    """
    with _room(model.base):
        return _fetched(model, store, cache, weights, field)


@contextmanager
def _room(base: str) -> Iterator[None]:
    """Context for writes of a model's files: a full volume becomes a JobError."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise JobError(
            "DiskFull",
            f"cacheSizeLimit of the chart's values: the volume for models has no room for {base} "
            f"({error.strerror}); ask an administrator for a larger limit or larger disks",
            permanent=False,
        ) from error


def _fetched(model: Source, store: Store, cache: Path, weights: bool, field: str) -> Path:
    if model.base.startswith(HUB):
        return _from_hub(model, cache, weights, field)
    digest = hashlib.sha256(model.base.encode()).hexdigest()[:16]
    folder = cache / "models" / (digest if weights else f"{digest}-config")
    complete = folder.with_suffix(".complete")
    if complete.exists():
        return folder
    try:
        download_folder(store, model.base, folder, without=_unwanted(weights))
    except ObjectNotFoundError as error:
        raise JobError(
            "ModelUnavailable",
            f"there is nothing at {model.base}; upload a Hugging Face folder there, or correct the address",
            field=field,
        ) from error
    except StoreDeniedError as error:
        raise JobError(
            "ModelUnavailable",
            f"{error}; correct the address, or let the credentials of spec.output read it",
            field=field,
        ) from error
    except CorruptFileError as error:
        raise JobError(
            "ModelUnavailable", f"{model.base} cannot be fetched: {error}, or remove it", field=field
        ) from error
    complete.touch()
    return folder


def _from_hub(model: Source, cache: Path, weights: bool, field: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = model.base.removeprefix(HUB)
    try:
        return Path(
            snapshot_download(
                name, revision=model.revision, cache_dir=cache / "hub", ignore_patterns=_unwanted(weights)
            )
        )
    except (GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise JobError(
            "ModelUnavailable",
            f"{name} at revision {model.revision or 'main'} cannot be read ({error}); {GATED}",
            field=field,
        ) from error
    except OSError as error:  # huggingface_hub raises nothing else if the hub does not answer
        if error.errno in FULL:
            raise
        known, first = ERRNO.search(str(error)), str(error).partition("\n")[0]
        why = known[1].strip() if known else f"{type(error).__name__}: {first}"
        raise JobError(
            "ModelNotFetched",
            f"{name} could not be fetched from the hub ({why}); {OFFLINE}",
            field=field,
            permanent=False,
        ) from error


def _unwanted(weights: bool) -> list[str]:
    return [*UNWANTED] if weights else [*UNWANTED, WEIGHTS]
