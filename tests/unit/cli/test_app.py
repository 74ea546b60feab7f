"""What every command has: a version, an exit code for a closed pipe, and a word on jobs of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from finished_run import NAME, FinishedRun
from typer.testing import CliRunner

from headway_cli.app import app
from headway_cli.cluster import ClusterError
from headway_cli.commands import cluster


def test_the_version_is_the_distributions() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"headway {version('headway')}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--version",), ("logs", "here"), ("artifacts", "here"),
        (), ("--help",), ("submit", "--help"), ("data", "push", "--help"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_closed_pipe_ends_every_command_with_141(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "here"
    FinishedRun(folder).job().identity()
    (folder / "logs").mkdir()
    (folder / "logs" / f"{NAME}-coordinator-a.log").write_text("a line\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headway_cli", *words],
            stdout=writer, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("verb", ["watch", "suspend", "resume"])
def test_without_a_cluster_a_local_job_is_recognized(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise ClusterError("no cluster is configured")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "Cluster", absent)
    done = CliRunner().invoke(app, [verb, NAME])
    assert (done.exit_code, done.stderr) == (2, "headway: no cluster is configured\n")
    FinishedRun(tmp_path / ".headway" / NAME).job()
    done = CliRunner().invoke(app, [verb, NAME])
    assert done.exit_code == 2
    assert (
        f"{NAME} is a job of this machine: `headway run FILE --local` shows and continues it" in done.stderr
    )
