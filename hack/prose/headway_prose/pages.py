"""Lists the pages and sources to check. It leaves out pages that are generated from code, which is checked
itself.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from .comments import has_comments

WRITTEN = (
    "*.md",
    "docs/**/*.md",
    "charts/**/*.md",
    "examples/**/*.md",
    "hack/**/*.md",
    "cli/headway_cli/templates/**/*.md",
)
"""Patterns of the Markdown files that people write."""
RESULTS = "bench/results/"
"""Folder of the pages that benchmarks and tests write."""
GENERATED = (
    "docs/reference/crds.md",
    "docs/models.md",
    "docs/preflight.md",
    "docs/signals.md",
    "docs/troubleshooting.md",
)
MADE = ("crds/", "charts/headway/files/")
"""Folders of generated files."""
PRODUCT = (
    "api",
    "analysis",
    "cli",
    "coordinator",
    "hack",
    "operator",
    "rollout",
    "sandbox",
    "trainer",
    "wire",
)
"""Folders of sources whose messages people read."""
OTHERS = ("bench", "examples", "tests")
"""Folders of sources whose strings may be anything, such as a hostile text or a model's answer."""
MARK = "<!-- Made from the code by "
"""The text near the beginning of a page that says that the page is generated."""


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each page that a person writes, by path."""
    found = {path for pattern in WRITTEN for path in root.glob(pattern) if path.is_file()}
    for path in sorted(found):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if name not in GENERATED and MARK not in text[:400]:
            yield name, text


def results(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each page that a benchmark or a test writes, by path."""
    for path in sorted((root / RESULTS).glob("*.md")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def sources(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each Python source, by path."""
    for path in sorted(path for folder in (*PRODUCT, *OTHERS) for path in (root / folder).rglob("*.py")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def other_sources(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each tracked file with comments in another language, by path, without generated
    files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    for name in sorted(listed.stdout.split("\0")):
        if has_comments(name) and not name.startswith(MADE) and (root / name).is_file():
            yield name, (root / name).read_text(encoding="utf-8")


def has_messages(name: str) -> bool:
    """Whether strings are checked as messages in a source with this path from the root."""
    return name.startswith(tuple(f"{folder}/" for folder in PRODUCT))
