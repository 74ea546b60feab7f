"""A shell of a user who has nothing of ours yet: its folder and variables last from block to block."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LENT: Final = (
    "PIP_",
    "UV_",
    "GOPROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_",
    "REQUESTS_CA_",
    "CURL_CA_",
)
"""Prefixes of variables by which this machine reaches the package registries, in any case."""
MAX_SECONDS: Final = 3600.0
BEFORE: Final = """
source "$NEWCOMER_STATE/variables" 2> /dev/null
cd -- "$(cat "$NEWCOMER_STATE/folder")" || exit
trap 'ended=$?; export -p > "$NEWCOMER_STATE/variables"; pwd > "$NEWCOMER_STATE/folder"; exit $ended' EXIT
"""
STOP: Final = "ended=$?; [ $ended -eq 0 ] || exit $ended"
"""Typed after each line: a reader goes no further when something fails."""


@dataclass(frozen=True)
class Typed:
    """The result of some lines."""

    code: int
    """Exit status of the last line that was run."""
    seconds: float
    printed: str


def variables(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """The variables of a new user on this machine."""
    lent = {name: value for name, value in environ.items() if name.upper().startswith(LENT)}
    return lent | {"HOME": str(home), "PATH": PATH, "USER": "newcomer", "LANG": "C.UTF-8"}


class Shell:
    """Types lines. Use it in a `with`: afterwards nothing runs that was started in the background."""

    def __init__(self, folder: Path, state: Path, variables: Mapping[str, str]) -> None:
        """`folder`: the first working folder. `state`: a folder for the shell's own files."""
        self._state = state
        self._variables = {**variables, "NEWCOMER_STATE": str(state)}
        self._background: list[int] = []
        self._blocks = 0
        state.mkdir(parents=True, exist_ok=True)
        (state / "folder").write_text(str(folder))

    @property
    def folder(self) -> Path:
        """The present working folder."""
        return Path((self._state / "folder").read_text().strip())

    def type(self, lines: Sequence[str]) -> Typed:
        """Run lines until one fails.

        Raises:
            subprocess.TimeoutExpired: the lines took too long, and were ended.
        """
        text = BEFORE + "".join(f"{line}\n{STOP}\n" for line in lines)
        self._blocks += 1
        output = self._state / f"{self._blocks}.txt"
        begun = time.monotonic()
        with output.open("wb") as printed:
            # A file and no pipe: background processes keep writing after the last line.
            running = subprocess.Popen(
                ["bash", "--norc", "--noprofile", "-c", text],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if any(line.rstrip().endswith("&") for line in lines):
                self._background.append(running.pid)
            try:
                code = running.wait(MAX_SECONDS)
            except BaseException:  # Ctrl-C too
                _end(running.pid)
                running.wait()
                raise
        return Typed(code, time.monotonic() - begun, output.read_text(errors="replace"))

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._background:
            _end(group)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
