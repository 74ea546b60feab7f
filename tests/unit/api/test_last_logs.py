"""The end of a process's log is kept beside its job's results, bounded and without secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway_api import names
from headway_api.config import JobConfig
from headway_api.last_logs import HIDDEN, MAX_BYTES, LastLogs
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store_unavailable import StoreUnavailableError

PROCESS = """
import os, sys
from headway_api import config, exits, last_logs, logs
job = config.load_any(os.environ)
last_logs.begin(os.environ, job, ["token-of-the-job"], "coordinator")
logs.setup()
try:
    print("the token is", "token-of-the-job", os.environ["AWS_SECRET_ACCESS_KEY"])
    {ends}
finally:
    last_logs.keep_at_end()
"""


def kept(*written: str, secrets: tuple[str, ...] = ()) -> str:
    """The kept log of a process that wrote this."""
    found: list[bytes] = []
    logs = LastLogs(found.append, secrets)
    for text in written:
        logs.hear(text)
    logs.keep()
    return found[-1].decode() if found else ""


def test_the_end_is_kept_from_the_beginning_of_a_line() -> None:
    lines = [f"line {number}\n" for number in range(100_000)]
    found = kept(*lines)
    assert len(found.encode()) <= MAX_BYTES
    assert found.startswith("line ")
    assert found.endswith(lines[-1])


def test_one_long_line_is_bounded_too() -> None:
    assert len(kept("x" * 10 * MAX_BYTES, "\nend\n").encode()) <= MAX_BYTES


@pytest.mark.parametrize("secret", ["hunter2hunter2", "a/b+c=="])
def test_no_secret_is_kept(secret: str) -> None:
    found = kept(f"key {secret[:3]}", f"{secret[3:]} used\n", secrets=(secret, "is"))
    shown = secret if len(secret) < 8 else HIDDEN
    assert found == f"key {shown} used\n"


def test_an_unchanged_log_is_written_once() -> None:
    puts: list[bytes] = []
    logs = LastLogs(puts.append)
    logs.keep()
    logs.hear("a")
    logs.keep()
    logs.keep()
    assert puts == [b"a"]


def test_a_log_that_the_store_refused_is_written_at_the_end() -> None:
    puts: list[bytes] = []

    def put(content: bytes) -> None:
        puts.append(content)
        if len(puts) == 1:
            raise StoreUnavailableError("away")

    logs = LastLogs(put)
    logs.hear("a")
    logs.keep()
    logs.keep_at_end()
    logs.keep_at_end()
    assert puts == [b"a", b"a"]


def test_an_unavailable_store_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(content: bytes) -> None:
        raise StoreUnavailableError("away")

    logs = LastLogs(refuse)
    for text in ("a", "b"):
        logs.hear(text)
        logs.keep_at_end()


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ('exits.leave(exits.JobError("ToolFailed", "tool pay raised"))', "ToolFailed: tool pay raised"),
        ('raise KeyError("a bug")', "KeyError: 'a bug'"),
        ("pass", "the token is"),
    ],
)
def test_a_process_leaves_its_log_however_it_ends(tmp_path: Path, ends: str, message: str) -> None:
    spec = RLTrainingJobSpec.model_validate(
        {
            "model": {"base": "hf://Qwen/Qwen3-8B"},
            "data": {"train": {"uri": "s3://b/train.jsonl"}},
            "environment": {"image": "i", "entrypoint": "m:C"},
            "evaluation": {"everySteps": 0, "atStart": False},
            "output": {"uri": f"file://{tmp_path}/out"},
        }
    )
    config = JobConfig(name="refunds", namespace="team", uid="u", spec=spec)
    (tmp_path / "config.json").write_text(config.model_dump_json(by_alias=True))
    env = os.environ | {
        names.ENV_CONFIG: str(tmp_path / "config.json"),
        names.ENV_POD_NAME: "refunds-coordinator-x1",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    }
    done = subprocess.run([sys.executable, "-c", PROCESS.format(ends=ends)], env=env, capture_output=True)
    assert b"token-of-the-job" in done.stdout, "the pod's own log is as it was"
    log = (tmp_path / "out/team/refunds/u/logs/refunds-coordinator-x1/coordinator.log").read_text()
    assert message in log
    assert f"the token is {HIDDEN} {HIDDEN}" in log
