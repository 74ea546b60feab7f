"""Counts the tokens of prompts with a model's own chat template and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headway_analysis.estimate.prompts import Known
from headway_api import rope
from headway_api.base_model import HUB, Source, fetch, read_config
from headway_api.bounds import OutOfBoundsError
from headway_api.chat_template import TODAY, object_arguments
from headway_api.document import Json
from headway_api.store import Store
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import readable

CONFIG: Final = "config.json"


class ModelUnavailableError(Exception):
    """The tokens of a model's prompts cannot be counted on this machine; the message says why."""


def folder_of(model: Source, store: Store, cache: Path) -> Path:
    """A folder with the model's configuration and tokenizer, without its weights.

    Files of a model in a bucket are downloaded into `cache`. Nothing is downloaded from the hub: for a
    `hf://` model the folder of an earlier download is returned.

    Raises:
        ModelUnavailableError: the model is not available.
    """
    if model.base.startswith("file://"):
        return Path(model.base.removeprefix("file://"))
    if model.base.startswith(HUB):
        return _of_hub(model)
    try:
        with readable(model.base):
            return fetch(model, store, cache, weights=False)
    except RunNotFoundError as error:
        raise ModelUnavailableError(str(error)) from error


def _of_hub(model: Source) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError
    except ModuleNotFoundError as error:
        raise ModelUnavailableError("huggingface-hub is missing: pip install headway[coordinator]") from error
    name = model.base.removeprefix(HUB)
    try:
        found = snapshot_download(name, revision=model.revision, local_files_only=True)
    except (OSError, HFValidationError) as error:  # a subclass of OSError if there was no earlier download
        raise ModelUnavailableError(f"{name} was not downloaded to this machine") from error
    return Path(found)


def context_length(folder: Path, asked: int | None) -> int | None:
    """Maximum tokens of an episode: `asked`, else the model's own limit; None if neither is known."""
    if asked is not None:
        return asked
    try:
        config = read_config(folder / CONFIG)
        limit = (config.get("text_config") or config).get("max_position_embeddings")
        return rope.own_length(config, int(limit)) if limit else None
    except (OSError, OutOfBoundsError, ValueError, TypeError, AttributeError):
        return None


def known(folder: Path, asked: int | None) -> Known:
    """A function that counts the tokens of prompts, and the model's context length.

    Args:
        folder: folder with the model's tokenizer and configuration.
        asked: maximum tokens of an episode in the job; None for the model's own limit.

    Raises:
        ModelUnavailableError: the tokenizer, the template or the context's length is missing.
    """
    length = context_length(folder, asked)
    if length is None:
        raise ModelUnavailableError(f"{CONFIG} of the model does not say how many tokens it takes")
    tokenizer = _tokenizer(folder)

    def size(messages: Sequence[Json], tools: Sequence[Json]) -> int:
        text = tokenizer.apply_chat_template(
            [_with_objects(each) for each in messages],
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=False,
            strftime_now=TODAY.strftime,
        )
        return len(tokenizer.encode(str(text), add_special_tokens=False))

    return Known(size, length)


def _tokenizer(folder: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise ModelUnavailableError("transformers is missing: pip install headway[coordinator]") from error
    try:
        found: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the remedy is the same for every error of transformers
        raise ModelUnavailableError(f"the tokenizer in {folder} cannot be loaded: {error}") from error
    if not found.chat_template:
        raise ModelUnavailableError(f"the model in {folder} has no chat template")
    return found


def _with_objects(message: Mapping[str, Any]) -> Json:
    """The message with the arguments of its calls as objects, because chat templates write them as JSON."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    written = [{**call, "function": object_arguments(call["function"])} for call in calls]
    return {**message, "tool_calls": written}
