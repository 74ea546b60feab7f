"""What the linter reads in a Python source: docstrings, comments and messages, with their lines."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_prose.faults import WORDS, faults_of_source
from headway_prose.python_source import FEWEST_WORDS, comments, paragraphs, passages

ROOT = Path(__file__).resolve().parents[3]
LINES = st.lists(st.text(alphabet=st.sampled_from("ab: .`|-$>"), max_size=20), max_size=12)
PRAGMA = re.compile(r"#\s*(noqa|type:|fmt:|!|$)")
SENTENCE = "word " * WORDS + "word."


def read(source: str, messages: bool = True) -> list[tuple[int, str]]:
    return [(each.line, each.text) for each in passages(source, messages=messages)]


def test_docstrings_of_everything_are_read_with_their_lines() -> None:
    source = '''"""Module."""

class A:
    """Class."""

    def f(self):
        """Method."""
        if self:
            """Branch."""

    x = 1
    """Attribute."""

y = 1
"""Attribute
of the module."""
'''
    assert read(source) == [
        (1, "Module."),
        (4, "Class."),
        (7, "Method."),
        (9, "Branch."),
        (12, "Attribute."),
        (15, "Attribute\nof the module."),
    ]


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("One.\n\n    Two\n    lines.\n", [(1, "One."), (3, "Two\nlines.")]),
        ("Args:\n    a: first\n        line.\n    *b: second.\n", [(2, "first\nline."), (4, "second.")]),
        ("Raises:\n    a.E: why.\n\n    Note: kept.", [(2, "why."), (4, "Note: kept.")]),
        ("One\nx  two\n   lines\nNext.", [(1, "One"), (2, "x"), (2, "two\nlines"), (4, "Next.")]),
        ("    $ run this command\n    >>> f()\nText.", [(3, "Text.")]),
        ("Text.\n```\ncode of any\n\nkind\n```\nMore.", [(1, "Text."), (7, "More.")]),
    ],
)
def test_sections_tables_and_code_end_a_sentence(docstring: str, found: list[tuple[int, str]]) -> None:
    assert read(f'"""{docstring}"""\n') == found


@given(LINES, st.integers(1, 9))
def test_paragraphs_keep_their_lines_in_order(lines: list[str], first: int) -> None:
    found = [*paragraphs(lines, first)]
    assert [each.line for each in found] == sorted(each.line for each in found)
    for each in found:
        assert each.text.split("\n")[-1] in lines[each.line - first + each.text.count("\n")]


def test_comments_of_consecutive_lines_belong_together() -> None:
    source = "# One\n# two.\n\nx = 1  # Three.\n# Four.\n#\n# Five.\n"
    assert read(source) == [(1, "One\ntwo."), (4, "Three."), (5, "Four."), (7, "Five.")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("x = 1  # noqa: E402", []),
        ("x = 1  # type: ignore[arg-type]  # why", ["why"]),
        ("x = [1]  # fmt: skip", []),
        ("#!/usr/bin/env python3", []),
        ("x = '# no comment'", []),
        ("x = 'it''s'  # a \"comment\"", ['a "comment"']),
        ('x = f"{1}#"  # why', ["why"]),
        ("x = r'\\'  # still in the string'", []),
    ],
)
def test_pragmas_and_strings_are_not_comments(line: str, text: list[str]) -> None:
    assert [each for _, each in read(f"{line}\n", messages=False)] == text


def test_the_comments_found_are_those_that_tokenize_finds() -> None:
    for path in sorted((ROOT / "hack").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found = [each.line + line for each in comments(source) for line in range(each.text.count("\n") + 1)]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts = {each.start[0]: each.string for each in tokens if each.type == tokenize.COMMENT}
        assert set(found) <= texts.keys(), path
        assert not [text for line, text in texts.items() if line not in found and not PRAGMA.match(text)], (
            path
        )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise E('the field is 0: write more')", ["the field is 0: write more"]),
        ("raise E(f'{x} is {y}: write {z} or more')", ["{} is {}: write {} or more"]),
        ("raise E('the field is 0: '\n  f'write {x} or more')", ["the field is 0: write {} or more"]),
        ("x = 'only four words here'", []),
        ("x = 'has(self.a) && has(self.b) || true or not'", []),
        ("x = '{%- if it %} is a chat template'", []),
        ("x = 'a text with {named} fields in it'", ["a text with {named} fields in it"]),
        ("x = f'a text with {{named}} fields in it'", ["a text with {named} fields in it"]),
        ("x = 'a page of <b>bold</b> words'", ["a page of <b>bold</b> words"]),
        ("x = 'two lines\\nof a longer text'", ["two lines\nof a longer text"]),
        ("x = b'bytes are no message of any kind'", []),
    ],
)
def test_messages_are_strings_of_five_words_or_more(code: str, text: list[str]) -> None:
    assert [each for _, each in read(f"{code}\n")] == text
    assert read(f"{code}\n", messages=False) == []


def test_a_docstring_is_not_counted_as_a_message() -> None:
    text = "word " * FEWEST_WORDS
    assert len(read(f'"""{text}"""\n')) == 1


def test_a_fault_has_the_line_of_the_source() -> None:
    source = f'x = 1\n\n\n"""Short.\n\nShort.\n{SENTENCE}\n"""\n# So is this.\n'
    found = [*faults_of_source(source, messages=False)]
    assert [(each.line, each.sentence) for each in found] == [(7, SENTENCE), (9, "So is this.")]


def test_a_fault_of_a_string_of_lines_has_its_own_line() -> None:
    source = f'x = f"""Short.\n  - Short.\n\n  {SENTENCE}\n"""\n'
    assert [(each.line, each.sentence) for each in faults_of_source(source, messages=True)] == [(4, SENTENCE)]


def test_a_source_that_is_not_python_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        passages("def", messages=False)
