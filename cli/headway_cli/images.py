"""Builds an environment's image, and pushes it, with the builder that this machine has."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway_cli.local.manifest import ManifestError

BUILDERS: Final = ("buildah", "docker")
"""Programs that build images, in the order of preference."""
LOCAL: Final = "localhost/headway"
"""Prefix of images that stay on this machine."""
TAG: Final = "dev"
PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
REFERENCE: Final = re.compile(
    rf"(?P<host>[a-z0-9.-]+(?::[0-9]+)?)(?P<path>(?:/{PART})+)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
)
BASE: Final = re.compile(r"^ARG BASE=(\S+)", re.MULTILINE)
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
LAST: Final = 100
"""Maximum last lines of a program's output that `run` returns."""
Show = Callable[[str], None]


class ImageError(ManifestError):
    """The image cannot be built from these options; the message says what to write or install."""


class ImageBuildError(Exception):
    """The builder ran and failed; its output says why."""


@dataclass(frozen=True)
class Order:
    """An image to build."""

    folder: Path
    """The folder with the Dockerfile, which is also the build context."""
    reference: str
    """Name and tag of the image."""
    base: str | None = None
    """Replaces the Dockerfile's `ARG BASE`."""


def order(folder: Path, tag: str | None, base: str | None, *, push: bool) -> Order:
    """The image that the options of `headway image` describe, checked before anything is started.

    Args:
        folder: the folder with the Dockerfile.
        tag: name of the image; None for `localhost/headway/FOLDER:dev`.
        base: image to build on; None for the Dockerfile's own.
        push: whether the image will be pushed, so that its name must have a registry.

    Raises:
        ImageError: the folder has no Dockerfile, or the reference cannot be built or pushed.
    """
    if not (folder / "Dockerfile").is_file():
        lack = f"{folder} has no Dockerfile" if folder.is_dir() else f"{folder} is not a folder"
        raise ImageError(f"{lack}: name the folder of an environment that `headway init` has made")
    reference = tag or f"{LOCAL}/{folder.resolve().name}"
    found = REFERENCE.fullmatch(reference)
    if found is None:
        raise ImageError(
            f"{reference} is not REGISTRY/NAME:TAG with a name in lower case: write "
            "--tag registry.example.com/team/desk:1"
        )
    host = found["host"]
    if push and (host == "localhost" or not ("." in host or ":" in host)):
        raise ImageError(
            f"{reference} names no registry to push to: write --tag registry.example.com/team/desk:1"
        )
    return Order(folder, reference if found["tag"] else f"{reference}:{TAG}", base)


def base_of(wanted: Order) -> str | None:
    """The image in the Dockerfile's `ARG BASE`; None if the order names another base."""
    if wanted.base is not None:
        return None
    found = BASE.search((wanted.folder / "Dockerfile").read_text(errors="replace"))
    return found[1] if found else None


def builder() -> str:
    """The first program of `BUILDERS` that is installed.

    Raises:
        ImageError: none is installed.
    """
    for program in BUILDERS:
        if shutil.which(program):
            return program
    raise ImageError("no program here builds images: install buildah (apt-get install buildah) or docker")


def build(program: str, wanted: Order, show: Show) -> None:
    """Build an image, and show the program's output line by line.

    Raises:
        ImageBuildError: the build failed.
    """
    based = [] if wanted.base is None else ["--build-arg", f"BASE={wanted.base}"]
    file = ["-f", str(wanted.folder / "Dockerfile")]
    run([program, "build", *based, "-t", wanted.reference, *file, str(wanted.folder)], show)


def push(program: str, reference: str, show: Show) -> str:
    """Push an image with the program's own login. Return its reference by digest.

    Raises:
        ImageBuildError: the push failed, or the program reported no digest.
    """
    with tempfile.TemporaryDirectory(prefix="headway-image-") as scratch:
        file = Path(scratch) / "digest"
        if program == "buildah":
            run(["buildah", "push", "--digestfile", str(file), reference, f"docker://{reference}"], show)
            output = file.read_text() if file.exists() else ""
        else:
            output = run(["docker", "push", reference], show)
    found = DIGEST.search(output)
    if found is None:
        raise ImageBuildError(f"{program} pushed {reference} but reported no digest")
    return f"{reference.rpartition(':')[0]}@{found[0]}"


def run(command: Sequence[str], show: Show) -> str:
    """Run a program, and show its output as it comes. Return the last lines of the output.

    Raises:
        ImageBuildError: the program's exit status was not 0, or it could not be started.
    """
    try:
        running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ImageBuildError(f"{command[0]} cannot be started: {error.strerror}") from error
    last: deque[str] = deque(maxlen=LAST)
    with running:
        try:
            for line in running.stdout or ():
                last.append(line)
                show(line.rstrip("\n"))
        except BaseException:  # Ctrl-C, or the reader of our output has ended
            running.terminate()
            raise
    if running.returncode != 0:
        raise ImageBuildError(f"`{' '.join(command[:2])}` ended with status {running.returncode}")
    return "".join(last)
