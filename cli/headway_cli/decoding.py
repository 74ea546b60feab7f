"""Turns token ids into text, if a tokenizer is available."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headway_analysis.report.page.episodes import Decode
from headway_cli.runs import RunNotFoundError

FILE: Final = "tokenizer.json"


def decoder(folder: Path | None, base: str | None) -> Decode | None:
    """A function from token ids to text; None without a `folder` if `base` is no local folder with a
    tokenizer.

    Args:
        folder: folder that a person named, which must have a tokenizer.json.
        base: `spec.model.base` of the run. Without `folder`, its tokenizer.json is used if `base` is a local
            folder that has one.

    Raises:
        RunNotFoundError: the tokenizer cannot be read, or the package tokenizers is not installed.
    """
    if folder is None and base is not None and base.startswith("file://"):
        at = Path(base.removeprefix("file://"))
        return _read(at / FILE) if (at / FILE).is_file() else None
    return None if folder is None else _read(folder / FILE)


def _read(file: Path) -> Decode:
    try:
        from tokenizers import Tokenizer

        found = Tokenizer.from_file(str(file))
    except ModuleNotFoundError as error:
        raise RunNotFoundError(
            "reading tokens needs the package tokenizers: pip install headway[cli]"
        ) from error
    except Exception as error:  # the library raises its own plain Exception
        raise RunNotFoundError(f"--tokenizer: {file} cannot be read: {error}") from error
    return lambda ids: str(found.decode(list(ids), skip_special_tokens=False))
