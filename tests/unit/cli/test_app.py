"""Common to all commands: the version, the exit code for a closed pipe, and a hint on local jobs."""

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
from headway_cli.cluster import JobNotFoundError
from headway_cli.commands import cluster


def test_the_version_is_that_of_the_distribution() -> None:
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


LOCAL = f"{NAME} is a job of this machine: `headway run FILE --local` shows and continues it"
KUBECONFIG = """
current-context: away
contexts: [{name: away, context: {cluster: away, user: me}}]
clusters: [{name: away, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {}}]
"""


def absent(*_: object, **__: object) -> None:
    raise JobNotFoundError(f"namespace default has no RLTrainingJob {NAME}")


@pytest.mark.parametrize("verb", ["watch", "suspend", "resume"])
@pytest.mark.parametrize("cluster_is", ["not configured", "away", "without the job"])
def test_a_local_job_is_recognized_whatever_the_cluster(
    verb: str, cluster_is: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person types the command in a second terminal."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    if cluster_is != "not configured":
        config.write_text(KUBECONFIG)
    if cluster_is == "without the job":
        for method in ("follow", "change", "job"):
            monkeypatch.setattr(cluster.Cluster, method, absent)
    done = CliRunner().invoke(app, [verb, NAME])
    assert done.exit_code == 2
    assert "this machine" not in done.stderr
    FinishedRun(tmp_path / ".headway" / NAME).job()
    named = CliRunner().invoke(app, [verb, NAME])
    assert named.exit_code == 2
    assert named.stderr.startswith(f"headway: {LOCAL}")
    assert named.stderr.endswith(done.stderr.removeprefix("headway: "))
    elsewhere = CliRunner().invoke(app, [verb, NAME, "-n", "default"])
    assert LOCAL not in elsewhere.stderr


@pytest.mark.parametrize("text", ["a: [", None], ids=["half a list", "a folder"])
def test_a_kubeconfig_that_cannot_be_read_is_named(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kubeconfig"
    config.mkdir() if text is None else config.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    done = CliRunner().invoke(app, ["watch", NAME])
    assert done.exit_code == 2, done.output
    assert str(config) in done.stderr
    assert done.stderr.startswith("headway: ")
    assert "name another in KUBECONFIG" in done.stderr
