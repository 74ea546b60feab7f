"""Runs versitygw, a real S3 server over a folder, which the demo also uses."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from ports import free_port

from bench.support.machine import ROOT

BUCKET = "bench"
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret"}
START_SECONDS = 30.0
CLUSTER = ROOT / "hack" / "cluster" / "cluster.py"


def program() -> Path:
    """Path of versitygw, which is built if it is missing."""
    python = os.environ.get("SYSTEM_PYTHON", "/usr/bin/python3")
    done = subprocess.run([python, CLUSTER, "tools"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip()) / "versitygw"


@contextmanager
def objects(folder: Path) -> Iterator[str]:
    """Run a server with the bucket BUCKET during the block, and yield its address.

    The environment of this process then has the server's keys.
    """
    kept, about = folder / "objects", folder / "about"
    for each in (kept, about):
        each.mkdir(parents=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    keys = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    command = [str(program()), "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(about), str(kept)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | keys, stdout=log, stderr=log)
    try:
        with patch.dict(os.environ, KEYS):
            _create(url, process)
            yield url
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _create(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            boto3.client("s3", endpoint_url=url, region_name=REGION).create_bucket(Bucket=BUCKET)
            return
        except (BotoCoreError, ClientError):
            assert process.poll() is None, "versitygw ended"
            assert time.monotonic() < deadline, "versitygw does not answer"
            time.sleep(0.2)
