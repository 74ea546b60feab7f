"""Fetches the base model that a URI names into a folder in Hugging Face layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError

from headway_api import base_model
from headway_api.exits import JobError, not_final

if TYPE_CHECKING:
    from pathlib import Path

    from headway_api.base_model import Source
    from headway_api.store import Store

STORE_FAILURES: Final = (OSError, ClientError, BotoCoreError, Boto3Error)
"""Errors that a read from the artifact store may raise, besides `ObjectNotFoundError`."""


def fetch(model: Source, store: Store, cache: Path, field: str = base_model.FIELD) -> Path:
    """Fetch the base model from the artifact store or the hub. `field` is the field that errors name.

    Raises:
        JobError: `ModelUnavailable` if no usable model is at the URI, `ModelNotFetched` if the transfer
            failed; both are retriable and name `field`.
    """
    try:
        with not_final():  # the preflight has checked that the model exists, so a failure may pass
            return base_model.fetch(model, store, cache, field=field)
    except STORE_FAILURES as error:
        raise JobError("ModelNotFetched", f"{model.base}: {error}", field=field, permanent=False) from error


def read_config(folder: Path, field: str = base_model.FIELD) -> dict[str, Any]:
    """The model's config.json; for a multimodal model, the part that describes its text model.

    Raises:
        JobError: `ModelNotLoadable` if the file is missing or is not JSON.
    """
    path = folder / "config.json"
    try:
        config = base_model.read_config(path)
    except (FileNotFoundError, ValueError) as error:
        raise JobError(
            "ModelNotLoadable",
            f"{path.name} is missing or not JSON ({error}); name a folder in Hugging Face layout",
            field=field,
        ) from error
    return cast("dict[str, Any]", config.get("text_config") or config)
