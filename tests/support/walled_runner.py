"""A sandbox on this machine, set up as in its pod: server and runner are two users in two PID namespaces.

It needs root. Server and runner have no capability and gain no new privileges. Files and descriptors are
divided between them as the pod's volumes divide them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox_server import ROOT, Server

from headway_api.names import ENV_EPISODE_FILE, ENV_RUNNER
from headway_sandbox import process
from headway_sandbox.broker.pods import RUNNER_USER, USER

PYTHON = os.path.realpath(sys.executable)
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def scope() -> str:
    """Say how far this kernel lets processes of one user trace one another."""
    return f"ptrace_scope {YAMA.read_text().strip()}" if YAMA.exists() else "no Yama, as ptrace_scope 0"


def as_user(user: int, *command: str, namespace: bool = False) -> list[str]:
    """Return a command line that runs `command` as `user`, with no rights.

    With `namespace`, it is the first process of a new PID namespace.
    """
    apart = ["unshare", "--pid", "--fork", "--mount-proc"] if namespace else []
    rights = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return [*apart, "setpriv", f"--reuid={user}", f"--regid={user}", *rights, *command]


def kill_runner(server: Server) -> None:
    """Kill the runner from outside, as the kernel does when memory is exhausted."""
    assert server.beside is not None
    for pid in process.living(server.beside.pid):
        process.kill(pid)
    server.beside.wait(timeout=10)


@contextmanager
def walled(environment: str, entrypoint: str) -> Iterator[Server]:
    """Start a server with its runner, and do not wait for it.

    `environment` is the source of the module `walled`.
    """
    folder = Path(tempfile.mkdtemp())
    shared, work = folder / "shared", folder / "work"
    try:
        folder.chmod(0o755)
        for place, user in ((shared, USER), (work, RUNNER_USER)):
            place.mkdir(mode=0o755)
            os.chown(place, user, user)
        (folder / "walled.py").write_text(environment)
        server = Server(folder, entrypoint, user=USER, runner=str(shared / "socket"), work=work)
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "sandbox"),
            ENV_RUNNER: str(shared / "socket"),
            ENV_EPISODE_FILE: str(work / "episode.json"),
        }
        command = as_user(RUNNER_USER, PYTHON, "-S", "-m", "headway_sandbox.runner", namespace=True)
        with (folder / "runner.log").open("wb") as log:
            server.beside = subprocess.Popen(command, env=variables, stderr=log)
        try:
            yield server
        finally:
            server.close()
            kill_runner(server)
    finally:
        shutil.rmtree(folder)
