"""Rows, and the order in which they become groups."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing_bucket import refusing_store

from headway_api import bounds
from headway_api.exits import JobError
from headway_api.records import Purpose
from headway_api.rows import check_prompts, load, parse
from headway_api.sandbox_api import ResetRequest
from headway_api.spec.data import Dataset
from headway_api.store import FileStore
from headway_coordinator.dataset import Order, digest, position_of

ROWS = [{"prompt": "a", "answer": 1, "nested": {"x": [1]}}, {"prompt": "b", "answer": 2, "nested": {"x": []}}]


@given(rows=st.integers(1, 40), seed=st.integers(0, 1000), epoch=st.integers(0, 3))
def test_every_epoch_visits_every_row_once(rows: int, seed: int, epoch: int) -> None:
    order = Order(rows, seed)
    slots = [order.slot(epoch * rows + i) for i in range(rows)]
    assert sorted(slot.row for slot in slots) == list(range(rows))
    assert {slot.epoch for slot in slots} == {epoch}


@given(rows=st.integers(1, 40), seed=st.integers(0, 1000), position=st.integers(0, 200))
def test_a_position_gives_every_caller_the_same_slot(rows: int, seed: int, position: int) -> None:
    assert Order(rows, seed).slot(position) == Order(rows, seed).slot(position)
    group_id = Order(rows, seed).slot(position).group_id(Purpose.TRAIN)
    assert position_of(group_id) == position


def test_the_order_of_a_seed_never_changes() -> None:
    order = Order(rows=8, seed=7)
    assert [order.slot(p).row for p in range(16)] == [0, 3, 6, 2, 4, 1, 7, 5, 4, 7, 1, 5, 3, 2, 0, 6]
    assert [Order(8, 7, shuffle=False).slot(p).row for p in range(9)] == [0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_group_ids_contain_purpose_step_and_position() -> None:
    slot = Order(rows=4, seed=0).slot(5)
    assert slot.group_id(Purpose.TRAIN) == "t1-000005"
    assert slot.group_id(Purpose.VALIDATION, step=10) == "v000010-000005"
    named = slot.group_id(Purpose.EVALUATION, candidate="tuned-2-base")
    assert named == "e-tuned-2-base-000005"
    assert position_of(named) == 5


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet"])
def test_every_column_is_kept(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif form == "csv":
        path.write_text("prompt,answer\na,1\nb,2\n")
    else:
        path.write_text(json.dumps(ROWS) if form == "json" else "\n".join(map(json.dumps, ROWS)) + "\n\n")
    rows = load(Dataset(uri=f"file://{path}"), FileStore(), "spec.data.train")
    assert rows == (
        [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}] if form == "csv" else ROWS
    )


def test_prompt_column_is_the_named_one_else_prompt_if_present() -> None:
    plain, named = Dataset(uri="s3://b/x.csv"), Dataset(uri="s3://b/x.csv", prompt_column="question")
    check_prompts(plain, [{"question": None, "prompt": "p"}], "spec.data.train")
    check_prompts(plain, [{"note": None, "case_id": "a"}], "spec.data.train")
    check_prompts(named, [{"question": "q", "prompt": ""}], "spec.data.train")
    for dataset, rows in ((plain, [{"prompt": ""}]), (named, [{"question": "q"}, {"prompt": "p"}])):
        with pytest.raises(JobError, match="has no"):
            check_prompts(dataset, rows, "spec.data.train")


@pytest.mark.parametrize(
    ("content", "reason", "says"),
    [
        (None, "DatasetNotFound", "no object"),
        ("", "DatasetEmpty", "no rows"),
        ("not json", "DatasetUnreadable", "jsonl"),
        ("[1]", "DatasetUnreadable", "JSON object a row"),
        ('{"a": 1, "prompt": ""}', "PromptColumnMissing", "row 0"),
    ],
)
def test_bad_data_is_refused_with_what_to_do(
    content: str | None, reason: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(JobError, match=says) as caught:
        load(Dataset(uri=f"file://{path}"), FileStore(), "spec.data.validation")
    assert caught.value.termination.reason == reason
    assert str(caught.value.termination.field).startswith("spec.data.validation")


@pytest.mark.parametrize(("code", "status"), [("NoSuchBucket", 404), ("AccessDenied", 403)])
def test_an_unreadable_bucket_is_not_reported_as_a_broken_file(code: str, status: int) -> None:
    with pytest.raises(JobError, match="correct the URI, or let the credentials") as caught:
        load(Dataset(uri="s3://typo/data.jsonl"), refusing_store(code, status), "spec.data.train")
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("DatasetNotFound", "spec.data.train.uri")
    assert code in termination.message


def test_a_scheme_that_cannot_be_read_says_what_to_do() -> None:
    dataset = Dataset.model_construct(uri="hf://org/data.parquet", format=None, prompt_column=None)
    with pytest.raises(JobError, match="copy the file to s3://"):
        load(dataset, FileStore(), "spec.data.train")


def test_a_byte_order_mark_is_not_part_of_the_first_column() -> None:
    assert parse("\ufeffprompt,b\nx,y\n".encode(), "csv") == [{"prompt": "x", "b": "y"}]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("prompt,b\nx,y\nHello, you,z\n", "row 1 has more cells"),
        ("prompt,b\nx\n", "row 0 ends before column 'b'"),
        ("prompt,b,prompt\nx,y,z\n", "two columns are named 'prompt'; rename one"),
    ],
)
def test_a_csv_with_rows_of_unequal_length_is_refused(data: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(data)
    with pytest.raises(JobError, match=says) as caught:
        load(Dataset(uri=f"file://{tmp_path}/data.csv"), FileStore(), "spec.data.train")
    assert caught.value.termination.reason == "DatasetUnreadable"


@pytest.mark.parametrize("value", [b"\x89PNG", "\ud83d"])
def test_a_value_that_is_not_json_names_row_and_column(value: object, tmp_path: Path) -> None:
    if isinstance(value, bytes):
        path = tmp_path / "data.parquet"
        pq.write_table(
            pa.Table.from_pylist([{"prompt": "a", "image": b"ok"}, {"prompt": "b", "image": value}]), path
        )
    else:
        path = tmp_path / "data.jsonl"
        path.write_text('{"prompt": "a", "image": "ok"}\n' + json.dumps({"prompt": "b", "image": value}))
    with pytest.raises(JobError, match="column 'image' of row 1") as caught:
        load(Dataset(uri=f"file://{path}"), FileStore(), "spec.data.train")
    assert caught.value.termination.reason == "DatasetUnreadable"


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    with pytest.raises(JobError) as caught:
        load(Dataset(uri="s3://bucket/data.jsonl"), refusing_store("SlowDown", 503), "spec.data.train")
    assert (caught.value.termination.reason, caught.value.permanent) == ("DatasetNotFetched", False)


def test_a_missing_number_of_a_table_is_null_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "a", "x": float("nan")}]), path)
    [row] = load(Dataset(uri=f"file://{path}"), FileStore(), "spec.data.train")
    assert ResetRequest(row=row, seed=0).model_dump(mode="json")["row"] == {"prompt": "a", "x": None}


def test_a_digest_says_whether_rows_are_the_same() -> None:
    one, two = {"prompt": "a", "n": 1}, {"prompt": "b", "n": math.nan, "on": date(2026, 1, 2)}
    assert digest([one, two]) == digest([dict(one), dict(two)])
    others = [[two, one], [one], [one, two, two], [one, {**two, "n": 2}], [{"n": 1, "prompt": "a"}, two]]
    assert len({digest(rows) for rows in [[one, two], *others]}) == 1 + len(others)


DEEP = json.dumps({"prompt": "a", "x": json.loads("[" * 40 + "]" * 40)})
GOOD = json.dumps({"prompt": "a"})
WIDE = json.dumps({"prompt": "a" * 1_100_000})


@pytest.mark.parametrize(
    ("form", "content", "says"),
    [
        ("jsonl", f"{GOOD}\n{DEEP}\n", "row 1 cannot be read: nested more than 32 levels deep; correct"),
        ("jsonl", f"{GOOD}\n" + "[" * 2000, "row 1 cannot be read: nested more than 32"),
        (
            "jsonl",
            f"{GOOD}\n{WIDE}\n",
            "row 1 cannot be read: more than 1048576 bytes",
        ),
        (
            "json",
            f"[{GOOD}, {WIDE}]",
            "row 1 is more than 1048576 bytes with column 'prompt'",
        ),
        ("json", f"[{GOOD}, {DEEP}]", "nested more than 33 levels"),
        ("json", f"[{GOOD}, 7]", "row 1 is int; expected one JSON object a row"),
        ("json", "{}", "expected a list"),
        ("csv", f"prompt\na\n{'b' * 1_100_000}\n", "row 1: field larger than field limit"),
        ("parquet", "", "row 1 is more than 1048576 bytes with column 'prompt'"),
        ("parquet", "bomb", "a row from 0 on is more than 1048576 bytes"),
    ],
    ids=lambda value: value[:20],
)
def test_a_row_out_of_bounds_is_named_with_what_to_do(
    form: str, content: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / f"data.{form}"
    if form == "parquet":
        # Parquet's dictionary encoding stores equal text once, so a thousand such rows are a small file.
        rows = ["a" * 1_100_000] * 1000 if content else ["a", "a" * 1_100_000]
        pq.write_table(pa.table({"prompt": rows}), path)
        assert path.stat().st_size < 200_000
    else:
        path.write_text(content)
    with pytest.raises(JobError) as caught:
        load(Dataset(uri=f"file://{path}"), FileStore(), "spec.data.train")
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("DatasetUnreadable", "spec.data.train.uri")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_dataset_has_a_limit_of_rows_and_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.csv"
    path.write_text("prompt\n" + "a\n" * 10)
    for name, limit, says in (
        ("ROWS", 9, "more than 9 rows; split it"),
        ("DATASET", 20, "has more than 20 bytes; split it"),
        ("DATASET", 100, "its rows up to 6 are more than 100 bytes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(bounds, name, limit)
            with pytest.raises(JobError, match=says):
                load(Dataset(uri=f"file://{path}"), FileStore(), "spec.data.train")


def test_only_a_line_feed_ends_a_row() -> None:
    """JSON's strings may contain Unicode's other line ends without an escape."""
    row = {"prompt": "one\u2028two\x85three"}
    assert parse(json.dumps(row, ensure_ascii=False).encode() + b"\r\n", "jsonl") == [row]


def test_nan_in_a_row_becomes_null() -> None:
    [row] = parse(b'{"prompt": "a", "x": NaN}', "jsonl")
    assert ResetRequest(row=row, seed=0).model_dump(mode="json")["row"] == {"prompt": "a", "x": None}
