"""Checks the job in a manifest, and reads a price book from a file."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from headway_api import price_file
from headway_api.document import Json
from headway_api.mistakes import mistakes
from headway_api.price_file import PriceBookError
from headway_api.prices import DEFAULT, PriceBook
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_cli.local.manifest import KINDS, ManifestError


def checked(document: Json) -> RLTrainingJob | RLEvalJob:
    """The job in a manifest.

    Raises:
        ManifestError: a field is wrong.
    """
    model = KINDS[document["kind"]]
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ManifestError("; ".join(mistakes(error, model))) from error


def book_of(path: Path | None) -> PriceBook:
    """The price book of a file, or the built-in one.

    Raises:
        ManifestError: the file is not a price book.
    """
    if path is None:
        return DEFAULT
    try:
        return price_file.parse(path.read_bytes())
    except OSError as error:
        why = f"{error.strerror}; name a price book, as in docs/prices.md"
        raise ManifestError(f"--prices {path}: {why}") from error
    except PriceBookError as fault:
        raise ManifestError(f"--prices {path}: {fault}") from fault
