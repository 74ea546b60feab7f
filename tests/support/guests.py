"""Somebody else's programs, run as their users run them: each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def guest(name: str) -> Path:
    """The python of `requirements/guests/NAME.txt`, created where it is missing, once a machine.

    That takes minutes where nothing is cached, so mark the test with a timeout that allows it. If it cannot
    be created, the test is skipped with what the set-up said. Where everything is meant to be tested (CI),
    the test fails.
    """
    done = subprocess.run(
        ["/usr/bin/python3", str(ROOT / "hack" / "python" / "env.py"), "guest", name],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"no environment for {name}: {done.stderr[-500:]}"
        )
    return Path(done.stdout.strip())
