"""Provides programs for tests and tools, from PATH or else from Debian's packages.

It extracts the packages and does not install them. Installing would also start servers, and leave users and
data behind.
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
"""Debian package -> the programs that are extracted from it."""
PROGRAMS = {program: package for package, programs in PACKAGES.items() for program in programs}
INSIDE = Path("usr/bin")


def provide(layout: Layout, program: str) -> Path:
    """The path of a runnable `program`, which must be one of `PROGRAMS`."""
    if on_path := shutil.which(program):
        return Path(on_path)
    package = PROGRAMS[program]
    folder = layout.cache / f"{package}-{_system()}"
    if not (folder / program).exists():
        _extract(package, folder)
    return folder / program


def _system() -> str:
    """The distribution's release and the machine's architecture, which decide the version of a package."""
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
