"""Counts the size of code: `python hack/house.py [FOLDER ...]` prints a table in Markdown.

Without folders it counts the packages of this repository. With folders it counts those, for a comparison with
other repositories. The lines of a function are those from its first decorator to its end. Standard library
only.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("api", "analysis", "cli", "coordinator", "operator", "rollout", "sandbox", "trainer", "wire")
NOT_CODE = {"templates", ".venv", "node_modules", "__pycache__"}
"""Folders to skip: templates for users' files, and files that are not part of the project."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Counts:
    """Counts over some files."""

    files: list[int] = field(default_factory=list)
    """Number of lines of each file."""
    functions: list[int] = field(default_factory=list)
    """Number of lines of each function."""
    annotated: int = 0
    """Number of functions whose parameters and result all have a type."""
    comments: int = 0

    def row(self, name: str) -> str:
        """The row of the table for these counts, with `name` in its first column."""
        lines = sum(self.files)
        return (
            f"| {name} | {lines:,} | {spread(self.files)} | {spread(self.functions)} | "
            f"{share(self.annotated, len(self.functions))} % | {100 * self.comments / max(1, lines):.1f} |"
        )


HEAD = (
    "| | lines | lines a file, median (max) | lines a function, median (max) | functions annotated | "
    "comments in 100 lines |\n|---|---|---|---|---|---|"
)


def spread(counts: list[int]) -> str:
    """Median and largest of `counts`; `-` if there are none."""
    return f"{median(counts):.0f} ({max(counts)})" if counts else "-"


def share(part: int, whole: int) -> str:
    """Per cent, rounded down, so that 100 means all."""
    return "-" if not whole else str(100 * part // whole)


def is_annotated(function: Function) -> bool:
    """Whether the result and all parameters except self and cls have a type."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    rest = [each for each in (given.vararg, given.kwarg) if each is not None]
    untyped = [each for each in (*named, *rest) if each.annotation is None]
    return function.returns is not None and all(each.arg in ("self", "cls") for each in untyped)


def count(text: str, counts: Counts) -> None:
    """Add the text of a file to `counts`.

    Raises:
        SyntaxError: the text is not Python.
    """
    counts.files.append(text.count("\n") + (not text.endswith("\n") and bool(text)))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            counts.functions.append((node.end_lineno or node.lineno) - first + 1)
            counts.annotated += is_annotated(node)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    counts.comments += sum(token.type == tokenize.COMMENT for token in tokens)


def python_files(folder: Path) -> Iterator[Path]:
    """Python files below a folder, without the folders in `NOT_CODE`."""
    for path in sorted(folder.rglob("*.py")):
        if not NOT_CODE & set(path.relative_to(folder).parts):
            yield path


def main(named: list[str]) -> int:
    folders = {name: Path(name) for name in named} or {name: ROOT / name for name in PACKAGES}
    missing = [name for name, folder in folders.items() if not folder.is_dir()]
    if missing:
        print(f"{', '.join(missing)}: no such folder", file=sys.stderr)
        return 2
    print(HEAD)
    whole = Counts()
    for name, folder in folders.items():
        own = Counts()
        for path in python_files(folder):
            for counts in (own, whole):
                count(path.read_text(encoding="utf-8"), counts)
        print(own.row(name))
    print(whole.row("all"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
