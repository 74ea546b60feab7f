"""Lists all images, with the inputs of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .shell import BuildError


@dataclass(frozen=True)
class Image:
    """One image and its inputs."""

    name: str
    folder: str
    """Folder of its Dockerfile, relative to the repository."""
    base: str | None = "base"
    """Name of the image below it; None for the base image."""
    inputs: tuple[str, ...] = ()
    """Further input files and folders besides its own folder, relative to the repository."""
    arguments: tuple[str, ...] = ()
    """Build arguments, as NAME=VALUE."""
    target: str | None = None
    """The stage of the Dockerfile at which to stop; None for the last one."""
    base_argument: str = "BASE"
    own_context: bool = False
    """Whether the build context is only the image's own folder, as for an environment's image."""


PULLED = ("operator", "coordinator", "sandbox", "trainer", "rollout")
"""Images of Headway that a cluster pulls. `base` is their base, and `host` never leaves this machine."""
EXAMPLES = ("examples/sop-quickstart",)
"""Folders of the environment images that the examples' jobs name."""
ROOMS = ("api", "analysis", "coordinator", "operator", "rollout", "trainer", "sandbox", "wire")
PACKAGES = (*(f"{room}/headway_{room}" for room in ROOMS), "images/copy.sh")


INSTALL = "images/install.sh"
COMPILERS = {"rollout-gpu": ("EXTRA_PACKAGES=gcc libc6-dev python3-dev",)}
"""Lock of the rollout image -> further build arguments. vLLM on GPUs needs a compiler for kernels at run
time."""


def locks_of(lock: str) -> tuple[str, ...]:
    """The requirement files that install.sh reads."""
    return tuple(f"requirements/{file}.txt" for file in ("bootstrap", "build", lock))


def python_image(name: str, lock: str, *arguments: str) -> tuple[Image, Image]:
    """An image with the dependencies, and the final image on top.

    So after a change of Headway's code, no dependency is installed again.
    """
    folder = f"images/{name}"
    inputs = (INSTALL, *locks_of(lock))
    deps = Image(f"{name}-deps", folder, inputs=inputs, arguments=arguments, target="deps")
    return deps, Image(name, folder, deps.name, PACKAGES, arguments, base_argument="DEPS")


def catalogue(rollout_lock: str) -> dict[str, Image]:
    """Headway's images by name. Each image comes after its base."""
    images = (
        Image("base", "images/base", base=None),
        Image("host", "images/host"),
        Image("sandbox", "images/sandbox", inputs=("sandbox/headway_sandbox",)),
        Image("suite", "images/suite", base="sandbox", inputs=(INSTALL, *locks_of("guests/suite"))),
        *python_image("operator", "operator"),
        *python_image("coordinator", "coordinator"),
        *python_image("trainer", "trainer"),
        *python_image("rollout", rollout_lock, f"LOCK={rollout_lock}", *COMPILERS.get(rollout_lock, ())),
    )
    return {image.name: image for image in images}


def environment_image(folder: Path) -> Image:
    """The image of an environment or a suite, from a folder with a Dockerfile.

    The Dockerfile starts with `ARG BASE=headway-NAME` and `FROM ${BASE}`.
    """
    folder = folder.resolve()  # `.` has no name
    if not (folder / "Dockerfile").is_file():
        raise BuildError(f"{folder} is neither an image of Headway nor a folder with a Dockerfile")
    named = re.search(r"^ARG BASE=headway-(\w+)$", (folder / "Dockerfile").read_text(), re.MULTILINE)
    base = named[1] if named else "sandbox"
    return Image(folder.name, str(folder), base=base, own_context=True)
