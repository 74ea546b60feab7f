"""The base model: from its URI to a folder in Hugging Face layout."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError

from headway_api.exits import JobError
from headway_api.store import FileStore, NotFound, Store, open_store
from headway_rollout.logs import event

if TYPE_CHECKING:
    from pathlib import Path

    from headway_api.spec.lifecycle import OutputSpec
    from headway_api.spec.model import ModelSpec

log = logging.getLogger(__name__)

FIELD: Final = "spec.model.base"
STORE_FAILURES: Final = (OSError, ClientError, BotoCoreError, Boto3Error)
"""What reading from the artifact store may raise besides `NotFound`."""

PATTERNS: Final = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
"""What vLLM reads of a model; other formats of the same weights are not fetched."""


def fetch(model: ModelSpec, output: OutputSpec, folder: Path) -> Path:
    """Fetch the base model, or use it where it lies (`file://`).

    Raises:
        JobError: `ModelNotFound` where nothing of use lies there, `ModelNotFetched` (retriable) where the
            way to it failed; both name `spec.model.base`.
    """
    parts = urlsplit(model.base)
    try:
        if parts.scheme == "hf":
            return _from_hub(f"{parts.netloc}{parts.path}", model.revision, folder)
        store: Store = FileStore() if parts.scheme == "file" else open_store(output)
        return from_store(store, model.base, folder)
    except STORE_FAILURES as error:
        raise JobError("ModelNotFetched", f"{model.base}: {error}", field=FIELD, permanent=False) from error


def from_store(store: Store, uri: str, folder: Path) -> Path:
    """Fetch the files directly inside `uri` that vLLM reads."""
    prefix = uri.rstrip("/") + "/"
    names = [item.removeprefix(prefix) for item in store.list(uri)]
    suffixes = tuple(pattern.removeprefix("*") for pattern in PATTERNS)
    wanted = [name for name in names if "/" not in name and name.endswith(suffixes)]
    if not wanted:
        raise JobError(
            "ModelNotFound", f"nothing lies at {uri}; upload the model's folder there", field=FIELD
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        event(log, "downloading", uri=prefix + name)
        try:
            store.download(prefix + name, folder / name)
        except NotFound as error:
            raise JobError(
                "ModelNotFound", f"{prefix}{name} went away while it was read", field=FIELD
            ) from error
    return folder


def _from_hub(repository: str, revision: str | None, folder: Path) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        snapshot_download(repository, revision=revision, local_dir=folder, allow_patterns=list(PATTERNS))
    except RepositoryNotFoundError as error:
        raise JobError(
            "ModelNotFound",
            f"hf://{repository} does not exist, or may not be read; correct the name, or put an HF_TOKEN "
            "that may read it into the Secret of spec.output.secretRef",
            field=FIELD,
        ) from error
    except RevisionNotFoundError as error:
        raise JobError(
            "ModelNotFound", f"hf://{repository} has no revision {revision!r}", field="spec.model.revision"
        ) from error
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config.json; of a multimodal model, the part that describes its text model."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise JobError(
            "ModelNotLoadable",
            f"{path.name} is missing or not JSON ({error}); name a folder in Hugging Face layout",
            field=FIELD,
        ) from error
    return cast("dict[str, Any]", config.get("text_config") or config)
