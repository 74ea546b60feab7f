"""Builds the images that every cluster needs at its start, from programs of this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .binaries import DNS, PAUSE, sources_digest
from .containerd import import_image
from .layout import Layout
from .oci import PAUSE_IMAGE, Image, write_archive
from .shell import run

DNS_IMAGE = "localhost/headway/coredns:1"
TESTBOX_IMAGE = "localhost/headway/testbox:1"


def load_builtin(layout: Layout, programs: Path) -> None:
    """Load the images of pause, CoreDNS and the test box, unless containerd has them from the same build."""
    version = f"{programs.name} {sources_digest(DNS)} {sources_digest(PAUSE)}"
    kept_from = layout.containerd_root / "headway-build"
    if kept_from.exists() and kept_from.read_text() == version:
        return
    pause, dns = programs / PAUSE.name, programs / DNS.name
    _build_and_import(layout, lambda root: _one_program(PAUSE_IMAGE, pause, root))
    _build_and_import(layout, lambda root: _one_program(DNS_IMAGE, dns, root))
    _build_and_import(layout, _testbox)
    kept_from.write_text(version)


def build_testbox(folder: Path) -> Path:
    """Build only the test box, as an archive in `folder`."""
    return _build(folder, _testbox)


def _build_and_import(layout: Layout, fill: Callable[[Path], Image]) -> None:
    with tempfile.TemporaryDirectory(prefix="headway-image-") as scratch:
        import_image(layout, _build(Path(scratch), fill))


def _build(folder: Path, fill: Callable[[Path], Image]) -> Path:
    root = folder / "root"
    root.mkdir()
    return write_archive(fill(root), root, folder / "image.tar")


def _one_program(name: str, program: Path, root: Path) -> Image:
    shutil.copy(program, root / program.name)
    (root / program.name).chmod(0o755)
    return Image(name, entrypoint=[f"/{program.name}"])


def _testbox(root: Path) -> Image:
    """A small userland for test pods: busybox, with a link for each of its commands."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is among the packages that were installed"
    for folder in ("bin", "etc", "tmp"):
        (root / folder).mkdir()
    (root / "tmp").chmod(0o1777)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in run([busybox, "--list"]).split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\n")
    return Image(TESTBOX_IMAGE, command=["/bin/sh"])
