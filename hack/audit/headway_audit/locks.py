"""Lists the lock files, says which are shipped, and reads their pins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
REQUIREMENTS: Final = ROOT / "requirements"
SHIPPED: Final[tuple[str, ...]] = (
    *("operator", "coordinator", "trainer", "rollout-cpu", "rollout-gpu"),
    "guests/suite",
    "cli",
)
"""Locks whose packages are in an image, or that users install with the command line. Their licences
matter."""


class AuditError(Exception):
    """The audit cannot be made; the message says what to do."""


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    version: str
    lines: str
    """The package's lines in the lock file, hashes included."""

    @property
    def hashes(self) -> frozenset[str]:
        """SHA-256 of the files that may be installed, in hexadecimal."""
        return frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", self.lines))


def normal(name: str) -> str:
    """A package's name in the normalized form by which package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: str) -> Mapping[str, Pin]:
    """The packages of a lock, by their normalized names. `lock` is the text of the file.

    Raises:
        AuditError: a requirement is not pinned, or has no hash.
    """
    found: dict[str, Pin] = {}
    blocks = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    for block in blocks:
        lines = "\n".join(line for line in block.splitlines() if not line.lstrip().startswith("#"))
        if not lines.strip():
            continue
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lines)
        pin = Pin(match[2], lines) if match else None
        if match is None or pin is None or not pin.hashes:
            raise AuditError(f"{lines.split()[0]} is not pinned with a hash: run `make lock`")
        found[normal(match[1])] = pin
    return found


def names() -> list[str]:
    """The names of all locks: their paths below requirements/ without `.txt`."""
    found = REQUIREMENTS.rglob("*.txt")
    return sorted(
        str(file.relative_to(REQUIREMENTS).with_suffix("")) for file in found if "--hash=" in file.read_text()
    )


def read(name: str) -> Mapping[str, Pin]:
    """The packages that the lock called `name` pins."""
    file = REQUIREMENTS / f"{name}.txt"
    if not file.is_file():
        raise AuditError(f"requirements/{name}.txt does not exist: write one of {', '.join(names())}")
    return pins(file.read_text())
