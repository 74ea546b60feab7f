"""Prometheus' promtool, which checks alerts: the one on PATH, else the one in Debian's package.

The package is not installed, as that would also bring, and start, a Prometheus server.
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
INSIDE = Path("usr/bin/promtool")
FIX = f"install promtool (Debian has it in the package {PACKAGE})"


def provide(layout: Layout) -> Path:
    """Path of a promtool that can be run."""
    if on_path := shutil.which("promtool"):
        return Path(on_path)
    cached = layout.cache / f"promtool-{_system()}" / "promtool"
    if not cached.exists():
        _extract(cached)
    return cached


def _system() -> str:
    """The distribution's release and the machine: what decides which package is taken."""
    release = platform.freedesktop_os_release()
    return f"{release['ID']}{release.get('VERSION_ID', '')}-{platform.machine()}"


def _extract(target: Path) -> None:
    absent = [command for command in ("apt-get", "dpkg-deb") if not shutil.which(command)]
    if absent:
        raise ClusterError(f"promtool is not on PATH, and neither is {' or '.join(absent)}", fix=FIX)
    packages.refresh_lists(fix=FIX)
    with step(f"promtool from the package {PACKAGE}"), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run(["apt-get", "download", "-qq", PACKAGE], cwd=folder, fix=FIX)
        (archive,) = folder.glob("*.deb")
        run(["dpkg-deb", "--extract", archive, folder / "content"], fix=FIX)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        shutil.copy(folder / "content" / INSIDE, partial)
        partial.rename(target)
