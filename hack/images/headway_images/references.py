"""Checks the names of images in clusters and registries: PREFIX/IMAGE:TAG."""

from __future__ import annotations

import re
from typing import Final

from .shell import BuildError

LOCAL: Final = "localhost/headway"
"""Prefix of images that stay on this machine."""
TAG: Final = "dev"

PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
PREFIX_FORM: Final = re.compile(rf"[a-z0-9.-]+(?::[0-9]+)?(?:/{PART})*")
TAG_FORM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def check(prefix: str, tag: str, *, push: bool) -> None:
    """Check, before any build, that clusters and registries accept the names.

    Raises:
        BuildError: the prefix or tag is not valid in a name, or `push` is set and the prefix names no
            registry.
    """
    if not PREFIX_FORM.fullmatch(prefix):
        raise BuildError(
            f"--prefix {prefix!r}: write a registry and a path in lower case, as registry.example.com/headway"
        )
    if not TAG_FORM.fullmatch(tag):
        raise BuildError(f"--tag {tag!r}: write letters, digits, dots, dashes and underscores, at most 128")
    host = prefix.partition("/")[0]
    if push and not ("." in host or ":" in host):
        raise BuildError(
            f"--push needs a registry, and --prefix {prefix} names none: write registry.example.com/headway, "
            "or localhost:5000/headway for a registry on this machine"
        )
