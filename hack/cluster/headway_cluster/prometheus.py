"""Prometheus and its promtool, which tests run: those on PATH, else those in Debian's package.

The package is not installed, as that would also start a server, and leave a user and data behind.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

from . import packages
from .errors import ClusterError
from .layout import Layout
from .shell import run
from .steps import step

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")
INSIDE = Path("usr/bin")
FIX = f"install {' and '.join(PROGRAMS)} (Debian has both in the package {PACKAGE})"


def provide(layout: Layout, program: str) -> Path:
    """Path of one of `PROGRAMS` that can be run."""
    if on_path := shutil.which(program):
        return Path(on_path)
    folder = layout.cache / f"{PACKAGE}-{_system()}"
    if not (folder / program).exists():
        _extract(folder)
    return folder / program


def _system() -> str:
    """The distribution's release and the machine: what decides which package is taken."""
    release = platform.freedesktop_os_release()
    return f"{release['ID']}{release.get('VERSION_ID', '')}-{platform.machine()}"


def _extract(target: Path) -> None:
    absent = [command for command in ("apt-get", "dpkg-deb") if not shutil.which(command)]
    if absent:
        raise ClusterError(f"Prometheus is not on PATH, and neither is {' or '.join(absent)}", fix=FIX)
    packages.refresh_lists(fix=FIX)
    with step(f"programs of the package {PACKAGE}"), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run(["apt-get", "download", "-qq", PACKAGE], cwd=folder, fix=FIX)
        (archive,) = folder.glob("*.deb")
        run(["dpkg-deb", "--extract", archive, folder / "content"], fix=FIX)
        target.mkdir(parents=True, exist_ok=True)
        for program in PROGRAMS:
            partial = target / f"{program}.partial"
            shutil.copy(folder / "content" / INSIDE / program, partial)
            partial.rename(target / program)
