"""The real cluster that integration tests share: a running one, or one that is started for the session."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CLUSTER = Path(__file__).parents[2] / "hack" / "cluster" / "cluster.py"
PYTHON = "/usr/bin/python3"
FIRST_BUILD_S = 2400


@dataclass(frozen=True)
class Cluster:
    """A cluster, and how to run kubectl on it."""

    kubeconfig: Path
    programs: Path
    """Folder with this cluster's own kubectl."""

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 200) -> str:
        """Standard output of one kubectl call; AssertionError with all its output where it fails."""
        done = self.attempt(*args, input=input, timeout=timeout)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}{done.stdout}"
        return done.stdout

    def attempt(
        self, *args: str, input: str | None = None, timeout: float = 200
    ) -> subprocess.CompletedProcess[str]:
        """One kubectl call that may fail."""
        command = [str(self.programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *args]
        return subprocess.run(command, input=input, text=True, capture_output=True, timeout=timeout)

    def apply(self, *objects: dict[str, Any]) -> None:
        for one in objects:
            self.kubectl("apply", "-f", "-", input=json.dumps(one))

    def wait_until(self, what: str, holds: Callable[[], bool], *, deadline: float = 60) -> None:
        """Return once `holds()`; AssertionError naming `what` after `deadline` seconds."""
        ends = time.monotonic() + deadline
        while not holds():
            assert time.monotonic() < ends, f"waited {deadline:.0f} s for {what}"
            time.sleep(0.1)


def cluster_command(*args: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run `cluster.py` as a user would."""
    command = [PYTHON, str(CLUSTER), *args]
    return subprocess.run(command, text=True, capture_output=True, timeout=timeout)


def cluster_obstacle() -> str | None:
    """Why no cluster can run here, or None if one can."""
    if os.geteuid() == 0 or _docker_answers():
        return None
    return "no cluster: its processes need root, and no Docker engine answers that kind could use instead"


def _docker_answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=15).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


def _described() -> Cluster:
    exports = dict(
        line.removeprefix("export ").split("=", 1) for line in cluster_command("env").stdout.splitlines()
    )
    kubeconfig = os.environ.get("KUBECONFIG") or exports["KUBECONFIG"]
    return Cluster(Path(kubeconfig), Path(exports["PATH"].removesuffix(":$PATH")))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster of this machine. It is started and stopped here only if none was running."""
    if obstacle := cluster_obstacle():
        # On a machine that must run every test, a skipped test would look like a passed one.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(obstacle)
    was_up = cluster_command("status").returncode == 0
    if not was_up:
        started = cluster_command("up", timeout=FIRST_BUILD_S)
        assert started.returncode == 0, started.stderr
    yield _described()
    if not was_up:
        stopped = cluster_command("down", "--keep-images")
        assert stopped.returncode == 0, stopped.stderr


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"test-{time.time_ns() // 1_000_000:x}"
    cluster.kubectl("create", "namespace", name)
    ready = ("get", "serviceaccount", "default", "--namespace", name)
    cluster.wait_until("the default service account", lambda: cluster.attempt(*ready).returncode == 0)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
