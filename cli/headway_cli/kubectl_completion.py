"""Completion of `kubectl headway`: kubectl runs this as `kubectl_complete-headway`, with the words so far.

The form is Cobra's. A line is a completion, and after a tab its help. The last line says whether files may
follow.
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
"""Last lines: the shell offers nothing else, or it offers files. Cobra's name is ShellCompDirective."""
PROGRAM: Final = "headway"


def main() -> None:
    """Entry point."""
    print("\n".join(answer(sys.argv[1:])))


def answer(words: list[str]) -> list[str]:
    """Lines for the words after `kubectl headway`. The last word is incomplete, and may be empty."""
    *words, incomplete = words or [""]
    found = completions(words, incomplete)
    return [*found, NO_FILES if found else FILES]


def completions(words: list[str], incomplete: str) -> list[str]:
    """What Typer offers to fish, whose lines have the same form."""
    typed = shlex.join([PROGRAM, *words, *([incomplete] if incomplete else [])])
    os.environ["_HEADWAY_COMPLETE"] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ["_TYPER_COMPLETE_ARGS"] = typed if incomplete else f"{typed} "
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        app(prog_name=PROGRAM)
    return [line for line in written.getvalue().splitlines() if line]
