"""Runs commands on the host, and turns a failure into an error that shows the command's output."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import ClusterError


def run(
    command: Sequence[str | Path],
    *,
    fix: str = "read the message above; the command can be run by hand to see it again",
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 600,
) -> str:
    """Run `command`, and return its standard output.

    Raises:
        ClusterError: the command fails; the message has the end of its error output.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, input=stdin, env=env, cwd=cwd, timeout=timeout_s, text=True, capture_output=True
        )
    except FileNotFoundError as missing:
        raise ClusterError(f"{words[0]} is not installed", fix=fix) from missing
    except subprocess.TimeoutExpired as late:
        raise ClusterError(f"{shlex.join(words)} took over {timeout_s:.0f} s", fix=fix) from late
    if done.returncode != 0:
        output = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise ClusterError(f"{shlex.join(words)} exited {done.returncode}:\n{output}", fix=fix)
    return done.stdout


def succeeds(command: Sequence[str | Path], *, timeout_s: float = 60) -> bool:
    """Whether `command` can be run and exits with 0. Its output is discarded."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, timeout=timeout_s)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
