"""Python environments for other projects' programs, so that tests run them as their users do."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def guest(name: str) -> Path:
    """The python of the environment for `requirements/guests/NAME.txt`, which is created if it is missing.

    Without a cache, that takes minutes, so mark the test with a timeout that allows it. If the environment
    cannot be created, the test is skipped with the error. In CI, where everything must be tested, it fails.
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
