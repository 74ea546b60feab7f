"""Programs that tests and tools run: those on PATH, else those in Debian's packages.

The packages are not installed, as that would also start servers, and leave users and data behind.
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

PACKAGES = {"prometheus": ("prometheus", "promtool"), "docker-registry": ("docker-registry",)}
"""Debian's package -> its programs that are taken."""
PROGRAMS = {program: package for package, programs in PACKAGES.items() for program in programs}
INSIDE = Path("usr/bin")


def provide(layout: Layout, program: str) -> Path:
    """Path of one of `PROGRAMS` that can be run."""
    if on_path := shutil.which(program):
        return Path(on_path)
    package = PROGRAMS[program]
    folder = layout.cache / f"{package}-{_system()}"
    if not (folder / program).exists():
        _extract(package, folder)
    return folder / program


def _system() -> str:
    """The distribution's release and the machine: what decides which package is taken."""
    release = platform.freedesktop_os_release()
    return f"{release['ID']}{release.get('VERSION_ID', '')}-{platform.machine()}"


def _extract(package: str, target: Path) -> None:
    programs = " and ".join(PACKAGES[package])
    fix = f"install {programs} (Debian has this in the package {package})"
    absent = [command for command in ("apt-get", "dpkg-deb") if not shutil.which(command)]
    if absent:
        raise ClusterError(f"{programs} is not on PATH, and neither is {' or '.join(absent)}", fix=fix)
    packages.refresh_lists(fix=fix)
    with step(f"programs of the package {package}"), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run(["apt-get", "download", "-qq", package], cwd=folder, fix=fix)
        (archive,) = folder.glob("*.deb")
        run(["dpkg-deb", "--extract", archive, folder / "content"], fix=fix)
        target.mkdir(parents=True, exist_ok=True)
        for program in PACKAGES[package]:
            partial = target / f"{program}.partial"
            shutil.copy(folder / "content" / INSIDE / program, partial)
            partial.rename(target / program)
