"""Programs of Debian that some tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest


@cache
def program(name: str) -> str:
    """The path of a program. Its package has the same name, and is installed where this is Debian and the
    user root.

    Skips the test where that cannot be; where everything is meant to be tested (CI), fails it.
    """
    if found := shutil.which(name):
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        # The cluster's build, beside the tests, installs packages too.
        patient = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
        for command in (["update"], ["install", "-y", "--no-install-recommends", name]):
            subprocess.run([*patient, *command], check=False, capture_output=True)
        if found := shutil.which(name):
            return found
    why = f"no {name}: as root on Debian, apt-get install {name}"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
