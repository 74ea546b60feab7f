"""Everything that CONTRIBUTING.md, the glossary and the architecture pages name exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from headway_prose.sentences import FENCE, SPAN

ROOT = Path(__file__).resolve().parents[2]
HOPS = sorted((ROOT / "docs" / "architecture").glob("*.md"))
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "glossary.md", ROOT / "docs" / "architecture.md", *HOPS]
PLACE = "NAME"
"""A word for a file that the reader writes."""


def of_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def hops(text: str) -> list[tuple[int, str]]:
    """Number and text of each numbered item."""
    found = re.findall(r"^(\d+)\. (.*(?:\n {2,}\S.*)*)", FENCE.sub("", text), re.MULTILINE)
    return [(int(number), item) for number, item in found]


def code(text: str) -> list[str]:
    """The code spans outside of code blocks."""
    return SPAN.findall(FENCE.sub("", text))


def named(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of file and name, from `file.py:Class.method` and from `NAME` in `file.py`.

    The name may be empty.
    """
    for span in code(text):
        if found := re.fullmatch(r"([\w./-]+\.py):([A-Za-z_][\w.]*)", span):
            yield found[1], found[2]
        elif "/" in span and re.fullmatch(r"[\w./-]+", span) and is_path(span):
            yield span, ""
    flat = re.sub(r"\s+", " ", FENCE.sub("", text))
    yield from ((file, name) for name, file in re.findall(r"`([A-Za-z_]\w*)` in `([\w./-]+\.py)`", flat))


def is_path(span: str) -> bool:
    """Whether a code span names a file or folder of the repository, and not of the artifact store."""
    return span.endswith(".py") or (ROOT / span.split("/")[0]).is_dir()


@cache
def defined(file: Path) -> frozenset[str]:
    """Names that a module defines: functions, classes with their members, and constants."""

    def of(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from of(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else ()
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))

    return frozenset(of(ast.parse(file.read_text()).body))


def targets(text: str) -> set[str]:
    """Make targets that a page names in code."""
    lines = [*code(text), *(line for fence in FENCE.findall(text) for line in fence.splitlines())]
    calls = [call for line in lines for call in re.findall(r"\bmake((?: [\w=-]+)+)", line)]
    words = {word for call in calls for word in call.split()}
    return {word for word in words if "=" not in word and not word.startswith("-")}


NAMED = sorted({(of_page(page), *each) for page in PAGES for each in named(page.read_text())})
TARGETS = sorted({(of_page(page), target) for page in PAGES for target in targets(page.read_text())})
PLAIN_FILES = sorted(
    {span for page in PAGES for span in code(page.read_text()) if re.fullmatch(r"\w+\.py", span)}
)


@pytest.mark.parametrize(("page", "file", "name"), NAMED)
def test_a_file_that_a_page_names_exists_with_what_it_defines(page: str, file: str, name: str) -> None:
    path = ROOT / file
    if PLACE in path.name:
        path = path.parent
    assert path.exists(), f"{page} names {file}, which does not exist"
    assert not name or name in defined(path), f"{page} names {name}, which {file} does not define"


@pytest.mark.parametrize("name", PLAIN_FILES)
def test_a_file_without_its_folder_exists_somewhere(name: str) -> None:
    folders = ("analysis", "api", "cli", "coordinator", "examples", "hack", "trainer")
    assert any(next((ROOT / folder).rglob(name), None) for folder in folders)


@pytest.mark.parametrize(("page", "target"), TARGETS)
def test_a_make_target_that_a_page_names_exists(page: str, target: str) -> None:
    found = re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, f"{page} names make {target}, which the Makefile does not have"


@pytest.mark.parametrize("page", HOPS, ids=of_page)
def test_a_page_of_hops_has_a_diagram_and_says_what_is_durable(page: Path) -> None:
    text = page.read_text()
    assert "```mermaid\nsequenceDiagram\n" in text
    assert re.search(r"^## .*survives when a process dies$", text, re.MULTILINE)


@pytest.mark.parametrize("page", HOPS, ids=of_page)
def test_hops_are_numbered_and_say_where_they_happen(page: Path) -> None:
    found = hops(page.read_text())
    assert len(found) > 15
    for (before, _), (number, _) in pairwise([(0, ""), *found]):
        assert number in (before + 1, 1), f"hop {number} follows hop {before}"
    assert [text for _, text in found if not re.search(r"`[\w./-]+\.py(?::[\w.]+)?`", text)] == []


@pytest.mark.parametrize("page", HOPS, ids=of_page)
def test_a_diagram_is_one_that_mermaid_draws(page: Path) -> None:
    [diagram] = re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    known: set[str] = set()
    depth = 0
    for line in diagram.splitlines()[1:]:
        line = line.strip()
        if found := re.fullmatch(r"participant (\w+) as [\w ]+", line):
            known.add(found[1])
        elif re.fullmatch(r"loop [\w, ]+", line):
            depth += 1
        elif line == "end":
            depth -= 1
        else:
            message = re.fullmatch(r"(\w+)--?>>(\w+): ([^;#]+)", line)
            assert message, f"mermaid does not take: {line}"
            assert {message[1], message[2]} <= known, line
            assert not re.search(r"\bend\b", message[3]), f"mermaid takes `end` for the end of a loop: {line}"
    assert depth == 0


def test_the_layout_says_what_each_folder_may_import() -> None:
    tree = ast.parse((ROOT / "tests" / "unit" / "test_architecture.py").read_text())
    [also] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALSO_IMPORTS"
    ]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| \[`(\w+)/`\]\(\w+/\) \|[^|]*\| ?([^|]*)\|$", text, re.MULTILINE)
    documented = {f"headway_{folder}": set(re.findall(r"\w+", imports)) for folder, imports in rows}
    packages = {
        name: documented[name]
        for name in documented
        if (ROOT / name.removeprefix("headway_") / name).is_dir()
    }
    wanted = {name: {each.removeprefix("headway_") for each in also.get(name, ())} for name in packages}
    assert len(packages) == 9
    assert packages == wanted


def test_the_patterns_find_what_the_pages_name() -> None:
    """This shows that none of the tests above is empty."""
    assert {page for page, _, name in NAMED if name} == {of_page(page) for page in PAGES} - {
        "docs/glossary.md"
    }
    assert ("CONTRIBUTING.md", "crds") in TARGETS
    assert ("CONTRIBUTING.md", "api/headway_api/spec/algorithm.py", "LOSSES") in NAMED
    assert len(NAMED) > 150


def test_what_a_page_names_is_read_from_its_code() -> None:
    text = "`a/b.py:C.d` and `X` in `a/b.py`; `make format lint`, and in the store `usage/ID.jsonl`"
    assert {*named(text)} == {("a/b.py", "C.d"), ("a/b.py", "X"), ("a/b.py", "")}
    assert targets(text) == {"format", "lint"}


def test_a_name_that_a_file_only_imports_is_not_defined_there() -> None:
    found = defined(Path(__file__))
    assert {"defined", "ROOT"} <= found
    assert "pairwise" not in found
