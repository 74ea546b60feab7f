"""A wrong value of any command's option: the message says what is wrong and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway_cli.app import app
from headway_cli.command_group import words


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("check --output xml", "'--output': \"xml\": write text or json"),
        ("watch x --kind job", "'--kind': \"job\": write training or eval"),
        ("init x --template no", "'--template': \"no\": write replay, stateful, verifiable or agent-http"),
        ("trajectories x --limit all", "'--limit': \"all\": write a whole number"),
        ("serve x --port 99999", "'--port': \"99999\": write 65535 or less"),
        ("replay x --step -1", "'--step': \"-1\": write 0 or more"),
        ("data push a b --output xml", "'--output': \"xml\": write text or json"),
    ],
)
def test_a_wrong_option_says_what_to_write(line: str, says: str) -> None:
    done = CliRunner().invoke(app, line.split(), env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Value error" not in done.stderr
    assert "Input should" not in done.stderr


def test_typers_messages_for_other_mistakes_are_kept() -> None:
    assert words("--x and --y exclude each other", None) == "--x and --y exclude each other"
    assert words("'a' is not one of 'b'.", None) == '"a": write b'


@pytest.mark.parametrize("address", ["s3://", "s3:///"])
def test_an_address_without_a_bucket_is_refused(address: str) -> None:
    done = CliRunner().invoke(app, ["report", address])
    assert (done.exit_code, done.stderr) == (
        2,
        f"headway: {address}: the bucket is missing: write s3://BUCKET/PREFIX\n",
    )


def test_a_file_is_no_folder_for_a_local_job(tmp_path: Path) -> None:
    project, taken = tmp_path / "p", tmp_path / "taken"
    assert CliRunner().invoke(app, ["init", str(project), "--template", "verifiable"]).exit_code == 0
    taken.touch()
    done = CliRunner().invoke(app, ["run", str(project / "job.yaml"), "--local", "--folder", str(taken)])
    assert done.exit_code == 2, done.output
    assert f"{taken} is a file: write another --folder" in done.stderr
