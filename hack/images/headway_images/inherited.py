"""Passes package settings of this machine to a build, as a build secret that no layer contains."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

INHERITED = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Prefixes of the environment variables that a build gets, in upper or lower case."""


def lines(environ: Mapping[str, str]) -> list[str]:
    """Shell assignments for these variables. Variables for folders are left out: a build cannot read them."""
    return [
        f"{name}={shlex.quote(value)}\n"
        for name, value in sorted(environ.items())
        if name.upper().startswith(INHERITED) and "FIND_LINKS" not in name and "CACHE" not in name
    ]


@contextlib.contextmanager
def build_settings() -> Iterator[Path]:
    """Yield a file with the package settings of this machine's environment. images/install.sh sources it."""
    with tempfile.NamedTemporaryFile("w", prefix="headway-build-", suffix=".env") as file:
        file.writelines(lines(os.environ))
        file.flush()
        yield Path(file.name)
