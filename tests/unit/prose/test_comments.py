"""The comments that the linter reads in files other than Python, with their lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_prose.comments import comments, has_comments
from headway_prose.faults import WORDS, faults_of_comments
from headway_prose.pages import other_sources

ROOT = Path(__file__).resolve().parents[3]
LONG = "word " * WORDS + "word."
NAMES = ("a/b.yaml", "Makefile", "c.sh", "go/d.go", "e.lua", "f.tpl", "g.j2", "h.toml", ".ci/run")


def read(name: str, source: str) -> list[tuple[int, str]]:
    return [(each.line, each.text) for each in comments(name, source)]


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("a.yaml", "# One\n# two.\na: 1  # Three.\n", [(1, "One\ntwo."), (3, "Three.")]),
        ("a.yaml", "a: 1  # One.\nb: 2  # Two.\n      # Three.\n", [(1, "One."), (2, "Two.\nThree.")]),
        ("a.yaml", "a: 'x # y'\nb: x#y\nc: don't  # it's\n", [(3, "it's")]),
        ("a.yaml", "{{- /* One\ntwo. */ -}}\n# {{ x }} three\n", [(3, "{{ x }} three"), (1, "One\ntwo.")]),
        ("Makefile", "all: a ## make all\n\t@echo '# no'\n", [(1, "make all")]),
        (".ci/run", "#!/bin/sh\n# shellcheck disable=SC1\n# One.\necho ${#a} $#\n", [(3, "One.")]),
        ("images/Dockerfile", "# syntax=x\n# One.\nRUN a\n", [(2, "One.")]),
        ("a.go", '//go:build x\n// One.\na := "// no" // Two.\nb := `// no`\n', [(2, "One."), (3, "Two.")]),
        ("a.lua", "-- One.\nlocal a = '-- no' -- Two.\n", [(1, "One."), (2, "Two.")]),
        ("a.j2", "<p># no</p>{# One. #}\n{#- Two. -#}\n", [(1, "One."), (2, "Two.")]),
    ],
)
def test_comments_are_read_with_their_lines(name: str, source: str, found: list[tuple[int, str]]) -> None:
    assert read(name, source) == found


@given(st.sampled_from(NAMES), st.text(alphabet=st.sampled_from("ab: #/-'\"`{}*\n\\"), max_size=80))
def test_comments_of_any_text_are_from_its_own_lines(name: str, source: str) -> None:
    count = source.count("\n") + 1
    assert all(line >= 1 and line + text.count("\n") <= count for line, text in read(name, source))


def test_a_long_sentence_of_a_comment_is_a_fault_with_its_line() -> None:
    [fault] = faults_of_comments("a.yaml", f"a: 1\n# Short.\n# {LONG}\n")
    assert (fault.line, fault.sentence) == (3, LONG)


@pytest.mark.parametrize("name", ["a.py", "a.md", "a.json", "requirements/a.txt", "a/Dockerfile.png"])
def test_other_files_have_no_comments_to_read(name: str) -> None:
    assert not has_comments(name)
    assert read(name, "# a\n// b\n") == []


def test_files_that_git_knows_are_read_without_generated_ones(tmp_path: Path) -> None:
    for name in ("a.yaml", "crds/b.yaml", "charts/headway/files/c.yaml", "Makefile", "unknown.sh", "gone.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "add", "--", ".", ":!unknown.sh"], cwd=tmp_path, check=True)
    (tmp_path / "gone.sh").unlink()
    assert dict(other_sources(tmp_path)) == {"Makefile": "# Makefile\n", "a.yaml": "# a.yaml\n"}


def test_the_repository_has_comments_in_every_language() -> None:
    sources = dict(other_sources(ROOT))
    ends = (".yaml", ".go", ".sh", ".toml", ".lua", ".tpl", "Makefile", "Dockerfile", ".in", ".ci/run")
    for end in ends:
        assert any([*comments(name, text)] for name, text in sources.items() if name.endswith(end)), end
