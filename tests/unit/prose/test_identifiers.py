"""The linter finds retired words in names and suggests a plain word. It skips names of other projects."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from headway_prose.faults import faults_of_names
from headway_prose.identifiers import FOREIGN, retired_names, words
from headway_prose.pages import sources
from headway_prose.phrases import NAMES, PHRASES

ROOT = Path(__file__).resolve().parents[3]
PATH = "api/headway_api/plain.py"


def found(source: str, path: str = PATH) -> list[tuple[int, str, str]]:
    return [(each.line, each.name, each.word) for each in retired_names(path, source)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stop_doomed", "stop doomed"),
        ("_lacks_for_good", "lacks for good"),
        ("StoreAway", "store away"),
        ("VALIDATION_PARTED", "validation parted"),
        ("HTTPServer2", "http server 2"),
        ("maxStepsOffPolicy", "max steps off policy"),
    ],
)
def test_a_name_is_split_into_words(name: str, text: str) -> None:
    assert words(name) == text


@pytest.mark.parametrize(
    ("source", "name", "word"),
    [
        ("def stop_doomed(): ...", "stop_doomed", "doomed"),
        ("async def _stands(): ...", "_stands", "stands"),
        ("class StoreAway(Exception): ...", "StoreAway", "store away"),
        ("def get(path, most): ...", "most", "most"),
        ("def get(*, most_bytes=1): ...", "most_bytes", "most"),
        ("MOST_BYTES: int = 1", "MOST_BYTES", "most"),
        ("SHOWN_MOST = 1", "SHOWN_MOST", "most"),
        ("self.at_work = True", "at_work", "at work"),
        ("for news in (): ...", "news", "news"),
        ("from a import b as dearest", "dearest", "dearest"),
        ('JOBS = "JobsUnheard"', "JobsUnheard", "unheard"),
    ],
)
def test_a_retired_word_in_a_name_is_found(source: str, name: str, word: str) -> None:
    assert found(source) == [(1, name, word)]


def test_a_string_of_a_test_is_not_a_name_of_the_api() -> None:
    assert found('JOBS = "JobsUnheard"', "tests/unit/test_jobs.py") == []


def test_the_name_of_a_module_is_read_too() -> None:
    assert found("x = 1\n", "analysis/judges/conduct.py") == [(1, "conduct", "conduct")]


@pytest.mark.parametrize(
    "source",
    [
        "def at_most(limit): ...",
        "def test_most_runs_are_clean(): ...",
        "must_beat = None",
        "import most",
        "others.most(dearest.stands)",
        'text = "anew"',
    ],
)
def test_plain_names_and_names_only_used_are_not_faults(source: str) -> None:
    assert found(source) == []


def test_a_name_is_reported_once_at_its_first_line() -> None:
    assert found("x = 1\nhopeless = 2\nhopeless = 3\n") == [(2, "hopeless", "hopeless")]


def test_the_message_names_file_line_name_and_plain_word() -> None:
    [fault] = faults_of_names(PATH, "\ndef salvage(): ...\n")
    assert (fault.line, fault.sentence) == (2, "the name salvage")
    assert re.fullmatch(r'"salvage": write ".+"', fault.advice)


def test_every_retired_phrase_of_prose_is_retired_in_names() -> None:
    assert found("def is_told(): ...") == [(1, "is_told", "is told")]
    assert found("def begin_anew(): ...") == [(1, "begin_anew", "anew")]


def test_no_advice_gives_a_retired_word() -> None:
    retired = [*PHRASES, *NAMES]
    advised = [(each.instead, each.instead.replace("_", " ")) for each in NAMES]
    assert [
        instead for instead, text in advised if any(other.pattern.search(text) for other in retired)
    ] == []


def test_every_foreign_name_is_used_and_has_its_reason() -> None:
    used = Counter(name for _, text in sources(ROOT) for name in FOREIGN if re.search(rf"\b{name}\b", text))
    assert used.keys() == FOREIGN.keys()
    assert all(FOREIGN.values())
