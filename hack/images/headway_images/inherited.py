"""Settings of this machine that a build takes over, as a secret that no layer keeps."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

INHERITED = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Prefixes of their names, in any case."""


def lines(environ: Mapping[str, str]) -> list[str]:
    """Assignments for a shell. Folders of this machine are left out: a build does not see them."""
    return [
        f"{name}={shlex.quote(value)}\n"
        for name, value in sorted(environ.items())
        if name.upper().startswith(INHERITED) and "FIND_LINKS" not in name and "CACHE" not in name
    ]


@contextlib.contextmanager
def build_settings() -> Iterator[Path]:
    """A file of the package settings in this machine's environment, for images/install.sh to source."""
    with tempfile.NamedTemporaryFile("w", prefix="headway-build-", suffix=".env") as file:
        file.writelines(lines(os.environ))
        file.flush()
        yield Path(file.name)
