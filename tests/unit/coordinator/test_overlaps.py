"""Held-out rows that are training rows are refused or cause a warning with examples, as the spec says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from preflight_bench import Bench, spec, write_inputs

from headway_analysis.splits import Split, check, of_job
from headway_api.exits import JobError

CASES = [{"prompt": f"Handle case {n}.", "id": n} for n in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_inputs(tmp_path)


def splits(train: list[dict[str, Any]], validation: list[dict[str, Any]]) -> list[Split]:
    return [Split("train", train), Split("validation", validation)]


def test_splits_that_share_nothing_are_not_reported() -> None:
    assert check(splits(CASES[:4], CASES[4:]), allowed=False) == []


def test_a_held_out_training_row_is_refused_with_its_number() -> None:
    with pytest.raises(JobError) as caught:
        check(splits(CASES, CASES[1:]), allowed=False)
    found = caught.value.termination
    assert (found.reason, found.field) == ("SplitsOverlap", "spec.data.validation")
    assert found.message == (
        "5 of 5 rows of spec.data.validation are also rows of spec.data.train: "
        'row 0 and row 1, "Handle case 1."; row 1 and row 2, "Handle case 2."; '
        'row 2 and row 3, "Handle case 3."; remove them from one of the two, or write '
        "spec.data.allowOverlap: true"
    )


def test_an_overlap_that_is_allowed_gives_a_warning() -> None:
    [warning] = check(splits(CASES, CASES[:1]), allowed=True)
    assert warning.startswith("1 of 1 rows of spec.data.validation are also rows of spec.data.train")


def test_prompts_that_differ_only_in_form_give_a_warning() -> None:
    held_out = [{"prompt": "handle case 2", "id": 99}, {"prompt": "Something else", "id": 98}]
    [warning] = check(splits(CASES, held_out), allowed=False)
    assert warning == (
        "1 of 2 rows of spec.data.validation have the same prompt, except for case and punctuation, as "
        'rows of spec.data.train: row 0 and row 2, "handle case 2"'
    )


def test_rows_without_a_prompt_column_are_compared_without_ids() -> None:
    train = [{"id": f"tr-{n}", "split": "train", "question": f"What is {n} plus 1?"} for n in range(5)]
    copied = [row | {"id": f"va-{n}", "split": "validation"} for n, row in enumerate(train[2:4])]
    fresh = [{"id": f"va-{n}", "split": "validation", "question": f"What is {n} times 3?"} for n in range(5)]
    [warning] = check(splits(train, [*fresh, *copied]), allowed=False)
    assert warning.startswith("2 of 7 rows of spec.data.validation have the same prompt")
    assert 'row 5 and row 2, "What is 2 plus 1?"' in warning
    assert check(splits(train, fresh), allowed=False) == []
    [twice] = check(splits(train, [*fresh, fresh[1] | {"id": "va-9"}]), allowed=False)
    assert 'row 5 and row 1, "What is 1 times 3?"' in twice


def test_rows_of_ids_alone_are_compared_by_their_first_column() -> None:
    train = [{"case_id": f"amber-{n}", "label": n % 2} for n in range(4)]
    held_out = [{"case_id": "Amber-2", "label": 1}, {"case_id": "blue-1", "label": 0}]
    [warning] = check(splits(train, held_out), allowed=False)
    assert warning.startswith("1 of 2 rows of spec.data.validation have the same prompt")


def test_the_prompt_is_in_the_column_that_the_split_names() -> None:
    held_out = [{"id": 7, "question": "Handle case 3"}]
    named = [Split("train", CASES, "prompt"), Split("test", held_out, "question")]
    [warning] = check(named, allowed=False)
    assert "spec.data.test have the same prompt" in warning


def test_repeated_rows_warn_in_held_out_splits_not_in_training() -> None:
    twice = [CASES[4], CASES[5], CASES[4]]
    [warning] = check(splits([CASES[0], CASES[0]], twice), allowed=False)
    assert warning.startswith("1 of 3 rows of spec.data.validation repeat the prompt")
    assert "earlier rows: row 2 and row 0" in warning


def test_held_out_splits_that_share_rows_give_a_warning() -> None:
    of = of_job({"train": CASES[:2], "validation": CASES[2:4], "test": CASES[3:]}, {})
    [warning] = check(of, allowed=False)
    assert warning.startswith("1 of 3 rows of spec.data.test are also rows of spec.data.validation")


def test_a_long_prompt_is_cut() -> None:
    long = [{"prompt": "a " * 100}]
    with pytest.raises(JobError, match=r'"(a ){29}a \.\.\."'):
        check(splits(long, long), allowed=False)


def held_out(folder: Path, **blocks: Any) -> Bench:
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    (folder / "held-out.jsonl").write_text(json.dumps(rows[1]) + "\n")
    data = {
        "train": {"uri": f"file://{folder}/train.jsonl"},
        "validation": {"uri": f"file://{folder}/held-out.jsonl"},
    }
    return Bench(spec(folder, data=data | blocks.pop("data", {}), **blocks))


def test_preflight_refuses_validation_on_training_rows(folder: Path) -> None:
    bench = held_out(folder)
    with pytest.raises(JobError, match="row 0 and row 1"):
        bench.basics(folder)
    assert bench.failed == [("Overlap", "spec.data.validation")]
    assert bench.reports[-1].state == "Failed"


@pytest.mark.parametrize(
    ("blocks", "result"),
    [
        ({"preflight": {"policy": "Warn"}}, (False, False)),
        ({"data": {"allowOverlap": True}}, (True, True)),
        ({"preflight": {"policy": "Off"}}, None),
    ],
)
def test_the_spec_may_allow_an_overlap(
    folder: Path, blocks: dict[str, Any], result: tuple[bool, bool] | None
) -> None:
    bench = held_out(folder, **blocks)
    bench.basics(folder)
    found = [(check.passed, check.warning) for check in bench.runner.results if check.name == "Overlap"]
    assert found == ([] if result is None else [result])
