"""Computes one hash over all inputs of an image. The same inputs have the same key, and are built once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from .catalogue import Image
from .settings import EPOCH, ROOT, SUITE


def key(image: Image, images: Mapping[str, Image], root: Path = ROOT) -> str:
    """Hash of all inputs of the image. It includes the image's base, which is looked up in `images`."""
    state = hashlib.sha256(f"{SUITE} {EPOCH} {image.arguments}".encode())
    if image.base:
        state.update(key(images[image.base], images, root).encode())
    for top in (image.folder, *image.inputs):
        for file in files_of(root / top):
            state.update(f"{file.relative_to(root / top)}\0{file.stat().st_mode & 0o111}\0".encode())
            content = file.read_bytes()
            if image.target and file.name == "Dockerfile":
                content = content.partition(b"\nFROM ${DEPS}\n")[0]
            state.update(content)
    return state.hexdigest()[:16]


def files_of(path: Path) -> Iterator[Path]:
    """The file at `path`, or all files of the folder at `path` in a fixed order."""
    if path.is_file():
        yield path
        return
    for child in sorted(path.rglob("*")):
        if child.is_file() and "__pycache__" not in child.parts:
            yield child
