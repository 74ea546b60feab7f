"""Builds the base image without a registry, from Debian packages with mmdebstrap."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from .engines import Engine
from .settings import ROOT, SUITE
from .shell import require, run

NEVER_READ = ("doc", "doc-base", "info", "lintian", "locale", "man")


def bootstrap(engine: Engine, name: str) -> None:
    """Build the base image from Debian packages, and store it as `name`."""
    require("mmdebstrap")
    packages = (ROOT / "images/base/packages.txt").read_text().split()
    provide = shlex.quote(str(ROOT / "images/base/provide.sh"))
    with tempfile.TemporaryDirectory(prefix="headway-base-") as scratch:
        layer = Path(scratch) / "base.tar"
        run(
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in NEVER_READ),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            f'--customize-hook=chroot "$1" sh -s < {provide}',
            '--customize-hook=cd "$1/var" && rm -rf log/* cache/ldconfig/* cache/debconf/*-old',
            SUITE,
            layer,
        )
        dockerfile = Path(scratch) / "Dockerfile"
        dockerfile.write_text("FROM scratch\nADD base.tar /\nENV LANG=C.UTF-8\n")
        engine.build("-t", name, "-f", dockerfile, scratch)
