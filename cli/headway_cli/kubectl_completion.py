"""Completes words after `kubectl headway`. kubectl runs it as `kubectl_complete-headway`, with the words
typed.

The output has Cobra's format. A line has one completion, and after a tab its help. The last line says whether
the shell may offer files too.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from typing import Final

from headway_cli.app import app

NO_FILES, FILES = ":4", ":0"
"""Values of Cobra's ShellCompDirective for the last line: offer no files, or offer files."""
PROGRAM: Final = "headway"


def main() -> None:
    """Entry point."""
    print("\n".join(answer(sys.argv[1:])))


def answer(words: list[str]) -> list[str]:
    """The output for the words after `kubectl headway`. The last word is incomplete, and may be empty."""
    *words, incomplete = words or [""]
    found = completions(words, incomplete)
    return [*found, NO_FILES if found else FILES]


def completions(words: list[str], incomplete: str) -> list[str]:
    """Typer's completions for the fish shell, whose lines have the same format."""
    typed = shlex.join([PROGRAM, *words, *([incomplete] if incomplete else [])])
    os.environ["_HEADWAY_COMPLETE"] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ["_TYPER_COMPLETE_ARGS"] = typed if incomplete else f"{typed} "
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        app(prog_name=PROGRAM)
    return [line for line in written.getvalue().splitlines() if line]
