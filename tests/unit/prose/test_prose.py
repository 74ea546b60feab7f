"""The linter of words: how it counts sentences, what a fault is, and which faults are allowed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_prose.faults import (
    WORDS,
    Fault,
    allowed,
    faults,
    faults_of_results,
    faults_of_source,
    verdicts,
)
from headway_prose.pages import GENERATED, has_messages, pages, sources
from headway_prose.phrases import PHRASES
from headway_prose.sentences import Sentence, blocks, sentences, without_code

ROOT = Path(__file__).resolve().parents[3]
LONG = "word " * WORDS + "word."
MARKDOWN = st.text(alphabet=st.sampled_from("a b.!?|#-*>`[]()<!->1\n\t"), max_size=300)


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("One two. Three four five.\n", 3),
        ("One two (three.) Four.\n", 3),
        ("- one two\n- three\n  four five\n", 3),
        ("| a b | c d e |\n|---|---|\n", 3),
        ("| a b `x \\| y` c |\n", 4),
        ("1. one\n\n   | a b | c d e |\n   |---|---|\n\n2. two\n", 3),
        ("```\nnot a sentence of any kind\n```\none\n", 1),
        ("- one\n\n  ```\n  not a sentence of any kind\n  ```\n", 1),
        ("<!-- not a sentence\nof any kind -->\none\n", 1),
        ("See [the page](a.md#b) and `a.b. c d`.\n", 5),
        ("See `one\ntwo` and [the\npage](a.md).\n", 5),
        ("> quoted words here\n", 3),
    ],
)
def test_sentences_are_counted_as_a_person_counts_them(text: str, longest: int) -> None:
    assert max(each.words for each in sentences(text)) == longest


def test_a_sentence_has_the_line_where_it_begins() -> None:
    text = "# Title\n\nOne\ntwo. Three `a\nb` four.\nFive.\n\n```\ncode\n```\n- six\n"
    found = [(each.line, each.text) for each in sentences(text)]
    assert found == [(1, "Title"), (3, "One two."), (4, "Three code four."), (6, "Five."), (11, "six")]


@given(MARKDOWN)
def test_any_text_is_split_into_its_own_lines(text: str) -> None:
    count = text.count("\n") + 1
    assert without_code(text).count("\n") + 1 == count
    assert all(1 <= line <= count for line, _ in blocks(text))
    assert all(1 <= each.line <= count and each.words > 0 for each in sentences(text))


@given(st.lists(st.lists(st.sampled_from(["word", "`a b`", "[a link](b.md)"]), min_size=1, max_size=9)))
def test_paragraphs_keep_every_word(paragraphs: list[list[str]]) -> None:
    text = "\n\n".join(" ".join(words) + "." for words in paragraphs)
    wanted = [sum(2 if "link" in word else 1 for word in words) for words in paragraphs]
    assert [each.words for each in sentences(text)] == wanted


def test_a_sentence_of_25_words_is_fine_and_26_are_a_fault() -> None:
    assert [*faults("word " * (WORDS - 1) + "word.")] == []
    [fault] = faults(f"Short.\n{LONG}")
    assert fault == Fault(2, LONG, "26 words: split it into sentences of at most 25")


@pytest.mark.parametrize(
    "text",
    [
        "The learner is told the version.",
        "So is the ledger.",
        "What was said before stands.",
        "The field is\nheeded by the coordinator.",
        "The rows are drawn anew.",
        "The job passes over the broken row.",
        "It leverages the cache.",
        "It ends all the same.",
    ],
)
def test_a_retired_phrase_is_a_fault_with_its_replacement(text: str) -> None:
    [fault] = faults(text)
    assert fault.line == 1
    assert re.fullmatch(r'".+": write .+', fault.advice)


@pytest.mark.parametrize(
    "source", ['"""Its figure."""\n', "# Its Figures.\n", '"' + "word " * 5 + 'figures."\n']
)
def test_a_word_retired_everywhere_is_a_fault_everywhere(source: str) -> None:
    for found in (faults_of_source(source, messages=False), faults(source), faults_of_results(source)):
        [fault] = found
        assert fault.advice.partition(":")[0].casefold() in ('"figure"', '"figures"')


def test_a_page_of_results_may_have_a_long_sentence() -> None:
    assert [*faults_of_results(LONG)] == []


def test_a_string_outside_the_product_may_be_long() -> None:
    assert [*faults_of_source(f'text = "{LONG}"\n', messages=False)] == []


@pytest.mark.parametrize("source", ['"""In `figures`, or figures/1.json."""\n', "# figures: a name.\n"])
def test_a_stored_name_is_not_a_fault_of_a_source(source: str) -> None:
    assert [*faults_of_source(source, messages=False)] == []


@pytest.mark.parametrize(
    "text",
    [
        "Two steps of the same number are told apart by the incarnation.",
        "`kubectl` stands for any client.",
        "Run `is told anew` as it is.",
        "```\nSo is the ledger.\n```",
        "It waits until the pod is ready.",
    ],
)
def test_plain_words_and_code_are_not_faults(text: str) -> None:
    assert [*faults(text)] == []


def test_no_advice_gives_a_retired_phrase() -> None:
    assert [
        each.instead for each in PHRASES if any(other.pattern.search(each.instead) for other in PHRASES)
    ] == []


def test_the_allow_list_is_read_with_its_comments() -> None:
    assert allowed("# why\n\n3 docs/a.md\n12 b.md # later\n") == {"docs/a.md": 3, "b.md": 12}


@pytest.mark.parametrize(
    "line", ["docs/a.md", "0 docs/a.md", "-1 a.md", "x a.md", "1 a.md b.md", "1 a.md\n1 a.md"]
)
def test_a_wrong_line_of_the_allow_list_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"line \d is '.+': write a count and a path"):
        allowed(line)


FAULT = Fault(7, "So is it.", "write it plainly")


def test_a_page_without_allowance_shows_each_fault() -> None:
    assert [*verdicts({"a.md": [FAULT]}, {})] == ["a.md:7: So is it.\n    write it plainly"]


def test_a_page_may_have_exactly_as_many_faults_as_allowed() -> None:
    assert [*verdicts({"a.md": [FAULT, FAULT]}, {"a.md": 2})] == []
    more = [*verdicts({"a.md": [FAULT, FAULT]}, {"a.md": 1})]
    assert more[-1] == "a.md: 2 faults, and 1 are allowed; mend 1"
    [fewer] = verdicts({"a.md": [FAULT]}, {"a.md": 2})
    assert fewer == "a.md: 1 faults, and 2 are allowed; write 1 in the allow-list"


def test_a_mended_page_must_leave_the_allow_list() -> None:
    [verdict] = verdicts({"a.md": []}, {"a.md": 2})
    assert verdict.endswith("remove its line from the allow-list")


def test_the_allow_list_names_only_files_that_are_checked() -> None:
    [verdict] = verdicts({}, {"gone.md": 1})
    assert verdict.startswith("gone.md: no such file")


def test_written_pages_are_checked_and_generated_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "docs" / "runbooks").mkdir(parents=True)
    for name in ("README.md", "docs/a.md", "docs/models.md", "docs/notes.txt", "docs/runbooks/written.md"):
        (tmp_path / name).write_text("text\n")
    (tmp_path / "docs/runbooks/made.md").write_text(
        "# Title\n\n<!-- Made from the code by `make signals` -->\n"
    )
    assert [*pages(tmp_path)] == [
        (name, "text\n") for name in ("README.md", "docs/a.md", "docs/runbooks/written.md")
    ]


def test_sources_of_every_folder_are_checked(tmp_path: Path) -> None:
    for name in ("api/a/b.py", "tests/c.py", "images/d.py", "api/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    assert [*sources(tmp_path)] == [("api/a/b.py", "1\n"), ("tests/c.py", "1\n")]


def test_only_strings_of_the_product_are_messages() -> None:
    names = ["cli/headway_cli/app.py", "hack/house.py", "tests/unit/cli/test_app.py", "client/app.py"]
    assert [has_messages(name) for name in names] == [True, True, False, False]


def test_the_pages_that_are_left_out_exist() -> None:
    assert [name for name in GENERATED if not (ROOT / name).is_file()] == []


def run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "hack" / "prose"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_pages_and_sources_are_in_plain_words() -> None:
    assert run() == (0, "")


def test_a_named_page_is_printed_with_its_faults(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nSo is it.\n")
    code, output = run(str(page))
    assert code == 1
    assert output.startswith(f"{page}:3: So is it.\n")


def test_a_named_source_is_printed_with_its_faults(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text('"""Fine."""\n\n# Not until then.\nTEXT = "so is the ledger, and the batch"\n')
    code, output = run(str(source))
    assert (code, output.splitlines()[0]) == (1, f"{source}:3: Not until then.")
    assert "ledger" not in output


def test_words_of_a_sentence_are_counted() -> None:
    assert Sentence(1, "one two  three").words == 3
