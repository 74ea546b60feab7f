"""Which pages are checked, and which are made from code: their words are mended there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

WRITTEN = (
    "*.md",
    "docs/**/*.md",
    "charts/**/*.md",
    "examples/**/*.md",
    "hack/**/*.md",
    "cli/headway_cli/templates/**/*.md",
)
"""Where people write Markdown. Pages in `bench/results` are made by their benchmarks."""
GENERATED = (
    "docs/reference/crds.md",
    "docs/models.md",
    "docs/preflight.md",
    "docs/signals.md",
    "docs/troubleshooting.md",
)
MARK = "<!-- Made from the code by "
"""A page that has it near its beginning is generated."""


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each page that a person writes, by path."""
    found = {path for pattern in WRITTEN for path in root.glob(pattern) if path.is_file()}
    for path in sorted(found):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if name not in GENERATED and MARK not in text[:400]:
            yield name, text
