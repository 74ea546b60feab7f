"""Lists the folders of this machine that a kind node must mount, so that pods can use this machine's Python.

The heavy processes of the demo and of end-to-end tests run from the image `host`. This image is Debian 12
without Python packages: pods use the environment, the checkout and the tools from folders of the host. A kind
node is a container, so it must first mount these folders, each at its own path. An interpreter under /usr is
not mounted. The image has its own interpreter there, which must have the same version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError
from .layout import SOURCE, Layout
from .shell import run

CHECKOUT = SOURCE.parents[1]
IMAGE_PYTHON = (3, 11)
IMAGE_LIBC = (2, 36)
"""The glibc version of Debian 12, on which the pods' image is based."""
ASK = "import sys; print(*sys.version_info[:2], sys.base_prefix)"
FIX = (
    "use a Python of uv, which has its own libraries, by its real path: `uv python install 3.11`; "
    '`export HEADWAY_PYTHON="$(realpath "$(uv python find --managed-python 3.11)")"`; `make venv`'
)


@dataclass(frozen=True)
class Interpreter:
    """The Python that the environment was made with."""

    path: Path
    version: tuple[int, int]
    prefix: Path
    """Folder of the interpreter's standard library and shared libraries."""
    libc: tuple[int, int]
    """The newest glibc that the interpreter needs."""

    @property
    def of_the_image(self) -> bool:
        """Whether pods run the image's interpreter, because this machine's has the same path."""
        return self.prefix == Path("/usr")


def interpreter() -> Interpreter:
    """This machine's interpreter: HEADWAY_PYTHON, as for hack/python, or Debian's own."""
    path = Path(os.environ.get("HEADWAY_PYTHON", "/usr/bin/python3"))
    major, minor, prefix = run([path, "-c", ASK]).split(maxsplit=2)
    folder = Path(prefix.strip())
    libraries = [path.resolve(), *folder.glob("lib/libpython3*.so*")]
    libc = newest_libc(library.read_bytes() for library in libraries)
    return Interpreter(path, (int(major), int(minor)), folder, libc)


def newest_libc(programs: Iterable[bytes]) -> tuple[int, int]:
    """The newest glibc version whose symbols `programs` use."""
    named = (match for program in programs for match in re.findall(rb"GLIBC_(\d+)\.(\d+)", program))
    return max(((int(major), int(minor)) for major, minor in named), default=(0, 0))


def check(python: Interpreter) -> None:
    """Check that the interpreter works in a pod.

    Raises:
        ClusterError: it cannot; the message has the reason.
    """
    if python.of_the_image and python.version != IMAGE_PYTHON:
        raise ClusterError(
            f"pods borrow the environment made with {python.path}, Python {_text(python.version)}; "
            f"their image has Python {_text(IMAGE_PYTHON)} there",
            fix=FIX,
        )
    if not python.of_the_image and python.libc > IMAGE_LIBC:
        raise ClusterError(
            f"pods borrow {python.path}, which needs glibc {_text(python.libc)}; "
            f"their image has {_text(IMAGE_LIBC)}",
            fix=FIX,
        )


def lent(layout: Layout, python: Interpreter) -> list[Path]:
    """Folders that a node must mount at their own paths. The cache contains the environment and the tools."""
    folders = [CHECKOUT, layout.cache]
    return folders if python.of_the_image else [*folders, python.prefix]


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
