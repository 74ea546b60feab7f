"""Text of token ids, if a tokenizer is available."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headway_analysis.report.page.episodes import Decode
from headway_cli.runs import RunNotFoundError

FILE: Final = "tokenizer.json"


def decoder(folder: Path | None, base: str | None) -> Decode | None:
    """A function from token ids to text; None if no folder is named and `base` is none with a tokenizer.

    Args:
        folder: folder that a person named, so it must have a tokenizer.
        base: `spec.model.base` of the run, used without a `folder` if it is a folder of this machine.
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
