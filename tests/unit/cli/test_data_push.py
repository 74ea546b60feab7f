"""`headway data push`: its output, the files that it refuses, and the spec blocks that it prints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from absent_bucket import AbsentBucket
from click.testing import Result
from refusing_bucket import refusing_store
from typer.testing import CliRunner

from headway_api import bounds
from headway_api.store import FileStore
from headway_cli import uploads
from headway_cli.commands.data import app
from headway_cli.uploads import Column, InvalidRowsError, PushError

ROWS = [{"prompt": "a", "n": 1}, {"prompt": "b", "n": "two", "tags": [1]}]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[AbsentBucket]:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "eu-test-1"),
    ):
        monkeypatch.setenv(name, value)
    made = AbsentBucket()
    yield made
    made.close()


def written(path: Path, text: str = "") -> Path:
    path.write_text(text or "\n".join(map(json.dumps, ROWS)) + "\n")
    return path


def push(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["push", *map(str, arguments)])


def test_files_are_described_uploaded_and_named_in_the_spec(tmp_path: Path) -> None:
    train = written(tmp_path / "train.jsonl")
    more = written(tmp_path / "more.jsonl", '{"prompt": "c"}')
    target = tmp_path / "there" / "rows"
    done = push(more, train, f"file://{target}/")
    assert done.exit_code == 0, done.stderr
    assert (target / "train.jsonl").read_bytes() == train.read_bytes()
    sha256 = hashlib.sha256(train.read_bytes()).hexdigest()
    assert done.stdout.splitlines()[-11:] == [
        f"  is file://{target}/more.jsonl",
        f"{train}: 2 rows, {train.stat().st_size} bytes, sha256 {sha256}",
        "  prompt  string",
        "  n       integer or string",
        "  tags    list, in 1 of 2 rows",
        f"  is file://{target}/train.jsonl",
        "",
        "write in the job's spec:",
        "  data:",
        f"    train: {{uri: file://{target}/train.jsonl}}",
        f"    # train, validation or test: {{uri: file://{target}/more.jsonl}}",
    ]


def test_json_output_has_every_file_and_the_spec_blocks(tmp_path: Path) -> None:
    files = [
        written(tmp_path / f"{split}.jsonl", f'{{"id": "{split}"}}')
        for split in ("validation", "train", "odd")
    ]
    done = push(*files, f"file://{tmp_path}/there", "--output", "json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["data"] == {
        split: {"uri": f"file://{tmp_path}/there/{split}.jsonl"} for split in ("train", "validation")
    }
    assert [(each["rows"], each["columns"]) for each in found["files"]] == [
        (1, [{"name": "id", "kinds": ["string"], "rows": 1}])
    ] * 3


def test_rows_reach_a_bucket_at_an_endpoint(tmp_path: Path, bucket: AbsentBucket) -> None:
    file = written(tmp_path / "train.jsonl")
    done = push(file, "s3://rows/team", "--endpoint-url", bucket.url)
    assert done.exit_code == 0, done.stderr
    assert bucket.objects == {"/rows/team/train.jsonl": file.read_bytes()}
    assert "    train: {uri: s3://rows/team/train.jsonl}" in done.stdout
    assert f"  output: {{endpointUrl: {bucket.url}}}" in done.stdout


def test_a_model_goes_beside_the_rows_and_is_named_in_the_spec(tmp_path: Path, bucket: AbsentBucket) -> None:
    file = written(tmp_path / "train.jsonl")
    (tmp_path / "tiny").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "tiny" / name).write_text(name)
    options = ("s3://rows/team", "--model", tmp_path / "tiny", "--endpoint-url", bucket.url)
    done = push(file, *options)
    assert done.exit_code == 0, done.stderr
    assert bucket.objects == {
        "/rows/team/train.jsonl": file.read_bytes(),
        "/rows/team/tiny/config.json": b"config.json",
        "/rows/team/tiny/model.safetensors": b"model.safetensors",
    }
    assert "  model: {base: s3://rows/team/tiny}  # beside its other fields" in done.stdout.splitlines()
    found = json.loads(push(file, *options, "--output", "json").stdout)
    assert found["model"] == {"base": "s3://rows/team/tiny"}


def test_a_folder_without_a_model_is_refused_before_any_upload(tmp_path: Path, bucket: AbsentBucket) -> None:
    file = written(tmp_path / "train.jsonl")
    done = push(file, "s3://rows/team", "--model", tmp_path, "--endpoint-url", bucket.url)
    assert done.exit_code == 2
    assert "it has no config.json: name the folder of a model" in " ".join(done.stderr.split())
    assert bucket.objects == {}


def test_a_bucket_that_refuses_is_an_error_with_the_fix(tmp_path: Path) -> None:
    table = uploads.read(written(tmp_path / "train.jsonl"))
    with pytest.raises(PushError, match=r"correct AWS_ACCESS_KEY_ID and .* in this shell"):
        uploads.push(refusing_store("AccessDenied", 403), table, "s3://rows/team")
    with pytest.raises(PushError, match=r"s3://rows/team/train.jsonl: .*InternalError"):
        uploads.push(refusing_store("InternalError", 500), table, "s3://rows/team")


def test_an_unavailable_store_is_an_error(tmp_path: Path, bucket: AbsentBucket) -> None:
    bucket.close()
    done = push(written(tmp_path / "train.jsonl"), "s3://rows/team", "--endpoint-url", bucket.url)
    assert done.exit_code == 2
    assert "headway: s3://rows/team: bucket 'rows' cannot be used" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "a"}\n\n{"prompt": \n', "line 3: row 1 cannot be read: not JSON"),
        ('{"prompt": "a"}\n[1]\n', "line 2: row 1 is list; expected one JSON object a row"),
        ('{"prompt": "a"}\n\n\n{"prompt": ""}\n', "line 4: row 1 has no 'prompt': fill the column"),
        ('{"prompt": "a"}\n{"n": 1}\n', "line 2: row 1 has no 'prompt'"),
        ('{"n": 1}\n{}\n', "line 2: row 1 has no columns"),
        ('{"n": "\\ud83d"}\n', "line 1: column 'n' of row 0 cannot be written as JSON"),
        ("\n\n", "has no rows: write one JSON object a line"),
    ],
)
def test_a_row_jobs_refuse_is_named_by_line_before_any_upload(tmp_path: Path, text: str, says: str) -> None:
    good, bad = written(tmp_path / "train.jsonl"), written(tmp_path / "test.jsonl", text)
    done = push(good, bad, f"file://{tmp_path}/there")
    assert done.exit_code == 2
    assert says in done.stderr
    assert str(bad) in done.stderr
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('prompt,n\n"a\nb",1\nc,1,2\n', r"rows.csv, line 4: row 1 has more cells"),
        ("prompt,n\na,1\n\nb\n", r"rows.csv, line 4: row 1 ends before column 'n'"),
    ],
)
def test_csv_line_numbers_count_line_breaks_within_cells(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidRowsError, match=says):
        uploads.read(written(tmp_path / "rows.csv", text))


def test_table_columns_are_those_that_a_row_keeps(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [
        {"day": date(2026, 1, 1), "share": 0.5, "right": True, "labels": {"a": 1}, "none": None},
        {"day": date(2026, 1, 2), "share": None, "right": False, "labels": {"a": 2}, "none": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    table = uploads.read(path)
    assert table.columns == (
        Column("day", ("string",), 2),
        Column("share", ("number",), 1),
        Column("right", ("boolean",), 2),
        Column("labels", ("object",), 2),
        Column("none", (), 0),
    )


def test_an_absent_or_unknown_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRowsError, match="No such file"):
        uploads.read(tmp_path / "absent.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InvalidRowsError, match="Is a directory"):
        uploads.read(tmp_path / "folder.jsonl")
    with pytest.raises(InvalidRowsError, match=r"end it in .parquet, .jsonl, .json, .csv"):
        uploads.read(written(tmp_path / "rows.txt"))
    with pytest.raises(InvalidRowsError, match=r"rows.parquet: .*[Pp]arquet"):
        uploads.read(written(tmp_path / "rows.parquet"))
    monkeypatch.setattr(bounds, "DATASET", 10)
    with pytest.raises(InvalidRowsError, match="more than 10 bytes: split it over several jobs"):
        uploads.read(written(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("target", ["there", "s3://", "file://there", "gs://bucket", "/there"])
def test_a_target_that_no_job_could_read_from_is_refused(tmp_path: Path, target: str) -> None:
    done = push(written(tmp_path / "train.jsonl"), target)
    assert done.exit_code == 2
    assert "write s3://BUCKET/PREFIX, or file:///FOLDER" in done.stderr


def test_an_endpoint_that_is_not_an_address_is_refused(tmp_path: Path) -> None:
    done = push(written(tmp_path / "train.jsonl"), "s3://b/p", "--endpoint-url", "localhost:9000")
    assert done.exit_code == 2
    assert "--endpoint-url localhost:9000: write http://HOST:PORT" in done.stderr


def test_two_files_of_one_name_would_overwrite_each_other(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = written(tmp_path / "train.jsonl"), written(tmp_path / "other" / "train.jsonl")
    done = push(*files, f"file://{tmp_path}/there")
    assert done.exit_code == 2
    assert "two files have the same name: rename one" in done.stderr


def test_rows_that_two_files_share_are_warned_of(tmp_path: Path) -> None:
    train = written(tmp_path / "train.jsonl")
    held_out = written(tmp_path / "validation.jsonl", '{"n": 1, "prompt": "a"}\n{"n": 3, "prompt": "c"}')
    done = push(train, held_out, f"file://{tmp_path}/there")
    assert done.exit_code == 0
    assert f"warning: {held_out} has 1 of the rows of {train}: a job refuses" in done.stderr


def test_a_file_changed_after_its_check_is_not_pushed(tmp_path: Path) -> None:
    file = written(tmp_path / "train.jsonl")
    table = uploads.read(file)
    file.write_text('{"prompt": "another"}\n')
    with pytest.raises(PushError, match="was changed while it was uploaded: push it again"):
        uploads.push(FileStore(), table, f"file://{tmp_path}/there")
