"""A shell of a user without any Headway software. Its folder and variables last from block to block."""

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
"""Prefixes of this machine's variables for package registries, proxies and certificates, in upper or lower
case."""
MAX_SECONDS: Final = 3600.0
BEFORE: Final = """
source "$NEWCOMER_STATE/variables" 2> /dev/null
cd -- "$(cat "$NEWCOMER_STATE/folder")" || exit
trap 'ended=$?; export -p > "$NEWCOMER_STATE/variables"; pwd > "$NEWCOMER_STATE/folder"; exit $ended' EXIT
"""
STOP: Final = "ended=$?; [ $ended -eq 0 ] || exit $ended"
"""Shell code after each line, which stops at the first failure, as a reader would."""


@dataclass(frozen=True)
class Typed:
    """The result of typed lines."""

    code: int
    """Exit status of the last line that ran."""
    seconds: float
    printed: str


def variables(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment variables of a new user on this machine."""
    lent = {name: value for name, value in environ.items() if name.upper().startswith(LENT)}
    return lent | {"HOME": str(home), "PATH": PATH, "USER": "newcomer", "LANG": "C.UTF-8"}


class Shell:
    """Runs lines in bash. Use it in a `with` block: at its end, processes in the background are ended."""

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
            # Use a file instead of a pipe: background processes continue to write after the last line.
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
