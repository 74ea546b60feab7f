"""Every link between pages of the repository leads to an existing file and section."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[(?:`[^`\n]*`|[^\[\]`\n]|\[[^\]]*\])*\]\(([^)\s]+)\)|`[^`\n]*`")
ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


PAGES = tracked()


def links(text: str) -> Iterator[str]:
    """Targets of a page's links, without links in code and to other sites."""
    for match in LINK.finditer(FENCE.sub("", text)):
        if match[1] and not ELSEWHERE.match(match[1]):
            yield match[1]


def anchor(title: str) -> str:
    """The anchor of a heading: letters, digits, hyphens and underscores, in lower case."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page. A repeated title gets a number."""
    found: Counter[str] = Counter()
    names = set()
    for title in re.findall(r"^#+ +(.+?)(?: +#+)?$", FENCE.sub("", page.read_text()), re.MULTILINE):
        name = anchor(title)
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return frozenset(names)


def broken(page: Path, link: str) -> str:
    """What is wrong with a link of a page, or an empty text."""
    path, _, section = link.partition("#")
    place = page.parent.joinpath(path).resolve() if path else page
    if not place.exists():
        return f"{link}: there is no {path}"
    if section and place.suffix == ".md" and section not in anchors(place):
        return f"{link}: {place.name} has no section {section}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert [wrong for link in links(page.read_text()) if (wrong := broken(page, link))] == []


def test_there_are_pages_with_links_and_sections() -> None:
    found = [link for page in PAGES for link in links(page.read_text())]
    assert len(PAGES) > 100
    assert sum("#" in link for link in found) > 100
    assert sum("#" not in link for link in found) > 300


def test_a_link_in_code_is_not_a_link() -> None:
    text = "[a](a.md) `[b](b.md)`\n```\n[c](c.md)\n```\n[`d`](d.md#e) [f](https://example.com/f.md)"
    assert list(links(text)) == ["a.md", "d.md#e"]


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three, four\n## Again\n## Again\n")
    good = ["", "#one-two-three-four", "page.md#again-1", "page.md"]
    assert [broken(page, link) for link in good] == [""] * 4
    assert all(broken(page, link) for link in ("#one", "other.md", "page.md#again-2"))
