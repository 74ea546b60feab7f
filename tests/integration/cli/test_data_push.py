"""`headway data push` to a real S3 server: a job reads exactly the rows that were uploaded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import ROOT
from ports import free_port
from typer.testing import CliRunner

from headway_api import rows
from headway_api.spec.data import Dataset
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import open_store
from headway_cli.commands.data import app

BUILD_SECONDS = 900
"""Seconds for the first test: on a fresh machine the server is built first."""
START_SECONDS = 20.0
KEYS = {"AWS_ACCESS_KEY_ID": "headway", "AWS_SECRET_ACCESS_KEY": "secret-of-headway"}
pytestmark = [pytest.mark.integration, pytest.mark.timeout(BUILD_SECONDS + 60)]


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real S3 server with the bucket `rows`; this process has its credentials."""
    for name, value in {**KEYS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    command = ["/usr/bin/python3", str(ROOT / "hack" / "cluster" / "cluster.py"), "tools"]
    tools = subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
    (tmp_path / "buckets" / "rows").mkdir(parents=True)
    port = free_port()
    server = subprocess.Popen(
        [f"{tools.stdout.strip()}/versitygw", "--port", f"127.0.0.1:{port}", "posix", "--nometa", "buckets"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        },
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None, f"versitygw ended with status {server.returncode}"
            assert time.monotonic() < ends, f"versitygw does not listen after {START_SECONDS:g} s"
            time.sleep(0.05)


def test_rows_that_were_pushed_are_read_by_a_job(tmp_path: Path, endpoint: str) -> None:
    written = [{"prompt": f"case {number}", "n": number} for number in range(20_000)]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in written))
    done = CliRunner().invoke(
        app, ["push", str(file), "s3://rows/team", "--endpoint-url", endpoint, "--output", "json"]
    )
    assert done.exit_code == 0, done.stderr
    uri = json.loads(done.stdout)["data"]["train"]["uri"]
    assert uri == "s3://rows/team/train.jsonl"
    store = open_store(OutputSpec(uri="s3://rows", endpoint_url=endpoint))
    assert rows.load(Dataset(uri=uri), store, "spec.data.train") == written


def test_an_absent_bucket_and_wrong_keys_are_reported(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"prompt": "a"}\n')
    push = ["push", str(file), "--endpoint-url", endpoint]
    done = CliRunner().invoke(app, [*push, "s3://absent/team"])
    assert done.exit_code == 2
    assert "bucket 'absent' cannot be used: there is no such bucket" in done.stderr
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # the default session still has the right keys
    done = CliRunner().invoke(app, [*push, "s3://rows/team"])
    assert done.exit_code == 2
    assert "the store refuses the credentials" in done.stderr
    assert "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in this shell" in done.stderr
