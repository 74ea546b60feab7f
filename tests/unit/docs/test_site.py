"""The source of the documentation site: its pages have working links, and lists that its parser can read."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "docs"))

import site_of_docs as site

KNOWN = {
    "README.md": "index.md",
    "docs/cli.md": "cli.md",
    "docs/adr/0001.md": "adr/0001.md",
    "docs/a.png": "a.png",
}


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("docs/cli.md", "[x](adr/0001.md#y)", "[x](adr/0001.md#y)"),
        ("docs/adr/0001.md", "[x](../cli.md)", "[x](../cli.md)"),
        ("docs/adr/0001.md", "[x](../../README.md)", "[x](../index.md)"),
        ("README.md", "![x](docs/a.png) [y](docs/cli.md)", "![x](a.png) [y](cli.md)"),
        ("docs/cli.md", "[x](#y) [z](https://example.com)", "[x](#y) [z](https://example.com)"),
        ("docs/cli.md", "`[x](../api/a.py)`", "`[x](../api/a.py)`"),
        ("docs/cli.md", "```\n[x](../api/a.py)\n```", "```\n[x](../api/a.py)\n```"),
    ],
)
def test_a_link_leads_to_the_page_in_the_site(page: str, text: str, expected: str) -> None:
    assert site.rewritten(text, page, KNOWN, None) == expected


def test_a_link_out_of_the_documentation_leads_to_the_repository() -> None:
    text = "[an example](../examples/promote/README.md#try)"
    rewritten = site.rewritten(text, "docs/cli.md", KNOWN, "https://example.com/blob/main/")
    assert rewritten == "[an example](https://example.com/blob/main/examples/promote/README.md#try)"


def test_without_a_repository_such_a_link_says_the_file() -> None:
    text = "[an example](../examples/a.yaml), [`examples/a.yaml`](../examples/a.yaml)"
    rewritten = site.rewritten(text, "docs/cli.md", KNOWN, None)
    assert rewritten == "an example (`examples/a.yaml`), `examples/a.yaml`"


@given(st.text(alphabet="ab`[]()#./~\n -", max_size=80))
def test_any_text_is_rewritten_once(text: str) -> None:
    once = site.rewritten(text, "docs/cli.md", KNOWN, "https://example.com")
    assert site.rewritten(once, "docs/cli.md", KNOWN, "https://example.com") == once


def test_an_empty_line_is_put_before_a_list() -> None:
    text = "Words:\n- one\n  more\n- two\n\n1. three\n2. four"
    assert site.plain(text) == "Words:\n\n- one\n  more\n- two\n\n1. three\n2. four"


def test_content_of_a_list_item_is_indented() -> None:
    assert site.plain("1. one\n\n   | a |\n   |---|\n") == "1. one\n\n    | a |\n    |---|\n"


def test_code_is_left_unchanged() -> None:
    text = "Words:\n```yaml\na:\n- b\n   c\n```\n"
    assert site.outside_fences(text, site.plain) == text


def named(nav: Any) -> Iterator[str]:
    for each in nav if isinstance(nav, list) else nav.values():
        if isinstance(each, str):
            yield each
        else:
            yield from named(each)


def test_every_page_is_in_the_navigation_once() -> None:
    project = tomllib.loads((site.ROOT / "zensical.toml").read_text())["project"]
    pages = [name for name in site.pages(site.ROOT).values() if name.endswith(".md")]
    listed = [name for name in pages if name.startswith(("runbooks/", "adr/0"))]
    assert Counter(named(project["nav"])) == Counter(set(pages) - set(listed))


def test_the_sources_are_where_the_site_looks_for_them() -> None:
    project = tomllib.loads((site.ROOT / "zensical.toml").read_text())["project"]
    assert site.ROOT / project["docs_dir"] == site.SOURCE


def test_a_page_that_is_gone_is_gone_from_the_sources(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("[a](docs/a.md)")
    (tmp_path / "docs" / "a.md").write_text("# A")
    target = tmp_path / "build"
    assert site.stage(tmp_path, target, None) == 2
    (tmp_path / "docs" / "a.md").unlink()
    assert site.stage(tmp_path, target, None) == 1
    assert [file.name for file in target.iterdir()] == ["index.md"]
    assert (target / "index.md").read_text() == "a (`docs/a.md`)"
