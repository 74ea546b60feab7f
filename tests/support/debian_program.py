"""Finds or installs programs of Debian that some tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest


@cache
def program(name: str) -> str:
    """The path of a program, which has the name of its package. On Debian, root installs a missing package.

    If the program cannot be had, the test is skipped. In CI, where everything must be tested, it fails.
    """
    if found := shutil.which(name):
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        # Wait for the lock: the build of the cluster may install packages at the same time.
        patient = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
        for command in (["update"], ["install", "-y", "--no-install-recommends", name]):
            subprocess.run([*patient, *command], check=False, capture_output=True)
        if found := shutil.which(name):
            return found
    why = f"no {name}: as root on Debian, apt-get install {name}"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
