"""Runs commands on the host, and reports steps with the time that they take."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .settings import EPOCH, ROOT


class BuildError(Exception):
    """An image cannot be built; the message says what to do."""


def say(text: str) -> None:
    """Write one line of progress to standard error, so that standard output has only results."""
    print(f"[images] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Announce the step `what`, and after it the seconds that it took."""
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.1f} s")


def run(*command: str | Path, quiet: bool = False) -> None:
    """Run a command. If `quiet`, its output is shown only if it fails.

    Raises:
        BuildError: the command fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        stdout=subprocess.PIPE if quiet else sys.stderr,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{done.stdout or ''}failed ({done.returncode}): {shlex.join(words)}")


def require(*programs: str) -> None:
    """Install Debian's packages of these programs if they are missing.

    Raises:
        BuildError: some are missing, and this process cannot install them.
    """
    missing = [program for program in programs if not shutil.which(program)]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise BuildError(
            f"missing: {', '.join(missing)}; as root on Debian: apt-get install -y {' '.join(missing)}. "
            "With Docker: docker build -f images/NAME/Dockerfile ."
        )
    with step(f"apt-get install {' '.join(missing)}"):
        patient = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120")  # another process may install as well
        run(*patient, "update", quiet=True)
        run(*patient, "install", "-y", "--no-install-recommends", *missing, quiet=True)


def answers(*command: str) -> bool:
    """Whether a command exits with 0. Its output is discarded."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
