"""Builds an image, and writes its archive into the cache."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from .base import bootstrap
from .catalogue import Image
from .content import key
from .engines import Engine
from .inherited import build_settings
from .settings import CACHE, ROOT
from .shell import step


class Builder:
    """Builds images and their base images, each once."""

    def __init__(self, engine: Callable[[], Engine], images: dict[str, Image], prefix: str, tag: str) -> None:
        self.choose = engine
        self.images = images
        self.prefix = prefix
        self.tag = tag
        self.folder = CACHE / "images"
        self.folder.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine, chosen at its first use: if all archives exist, nothing has to be installed."""
        return self.choose()

    def key(self, image: Image) -> str:
        """Hash of all inputs of the image, its base included."""
        return key(image, self.images)

    def reference(self, image: Image) -> str:
        """The full name of the image, by which a cluster refers to it."""
        return f"{self.prefix}/{image.name}:{self.tag}"

    def archive(self, image: Image) -> Path:
        """Path of the image's archive, which depends on the image's inputs and name."""
        named = hashlib.sha256(f"{self.key(image)} {self.reference(image)}".encode()).hexdigest()
        return self.folder / f"{image.name}-{named[:16]}.tar"

    def build(self, image: Image) -> Path:
        """Path of the image's archive, which is built if it does not exist."""
        archive = self.archive(image)
        if archive.exists():
            return archive
        with self.alone(f"{image.name}.archive"):
            if not archive.exists():
                stored = self.stored(image)
                with step(f"archive {archive.name}"):
                    partial = archive.with_suffix(".partial")
                    partial.unlink(missing_ok=True)
                    self.engine.save(stored, self.reference(image), partial)
                    partial.rename(archive)
                for old in self.folder.glob(f"{image.name}-{'[0-9a-f]' * 16}.tar"):
                    if old != archive:
                        old.unlink()
        return archive

    def push(self, image: Image) -> None:
        """Push the image to the registry in its name. Build it first if necessary."""
        stored = self.stored(image)
        with step(f"push {self.reference(image)}"):
            self.engine.push(stored, self.reference(image))

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Hold a lock, so that only one process of this machine builds `what` at a time."""
        with (self.folder / f"{what}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def stored(self, image: Image) -> str:
        """The image's name in the engine's store. If it is missing, build it or load its archive."""
        name = f"localhost/headway-build/{image.name}:{self.key(image)}"
        with self.alone(image.name):
            if not self.engine.has(name):
                self.obtain(image, name)
                self.engine.forget_older(name)
        return name

    def obtain(self, image: Image, name: str) -> None:
        """Put the image into the engine's store as `name`, from its archive or by a build."""
        if self.archive(image).exists():
            self.engine.load(self.archive(image), self.reference(image), name)
            return
        base = self.stored(self.images[image.base]) if image.base else None
        with step(image.name):
            if base is None and self.engine.own_base:
                bootstrap(self.engine, name)
            else:
                self.dockerfile(image, base, name)

    def dockerfile(self, image: Image, base: str | None, name: str) -> None:
        """Build from the image's Dockerfile, on `base` if the image has a base of Headway."""
        folder = ROOT / image.folder
        arguments = [f"{image.base_argument}={base}"] if base else []
        with build_settings() as settings:
            self.engine.build(
                f"--secret=id=build-env,src={settings}",
                *(f"--build-arg={argument}" for argument in (*arguments, *image.arguments)),
                *([f"--target={image.target}"] if image.target else []),
                "-t",
                name,
                "-f",
                folder / "Dockerfile",
                folder if image.own_context else ROOT,
            )
