"""Runs sandboxes as processes of this machine, for a job without a cluster. The broker sees them as pods.

Each sandbox has its own loopback address, and inherits a socket there. If this system lets a user create
namespaces, a sandbox has no network except that socket. It then sees neither other processes nor the folder
of its job. Its memory and the size of its files are limited. The isolation is weaker than a pod's: a sandbox
runs as this user, and may read whatever this user may read. Sandboxes end with their broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

from headway_api import names
from headway_api.document import Json
from headway_api.quantity import amount
from headway_sandbox.broker.kube import ApiError, ResourceVersionExpiredError
from headway_sandbox.broker.pods import CONTAINER
from headway_sandbox.http import listen
from headway_sandbox.runner import CHILD

HOME: Final = Path(__file__).resolve().parents[2]
"""The folder that contains the package `headway_sandbox`."""
HOSTS: Final = 0xFFFD
"""Number of addresses that sandboxes use in turn."""
TRIES: Final = 512
EVENTS: Final = 4096
"""Number of events that are kept for a watch that begins late."""
TAIL: Final = 4096
"""Bytes from the end of a sandbox's output that are reported when it ends."""
OPEN_FILES: Final = 256
WALLS: Final = (
    "unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child",
    "--mount-proc",
)  # fmt: skip
WITH_BROKER: Final = ("setpriv", "--pdeathsig", "KILL", "--")
"""Makes a sandbox end with its broker, however the broker ends."""
IF_BROKER_LIVES: Final = ("sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
"""Follows `WITH_BROKER`, with the broker's process id: starts the rest only if the broker still runs. A
broker that ended before `setpriv` ran causes no signal."""
UNPRIVILEGED: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--")
"""Drops capabilities: a sandbox is nominally root in its namespace, and could otherwise undo the mounts."""


@dataclass
class _Running:
    pod: Json
    process: asyncio.subprocess.Process
    folder: tempfile.TemporaryDirectory[str]

    @property
    def log(self) -> Path:
        """The file with the sandbox's stdout and stderr."""
        return Path(self.folder.name, "log")

    @property
    def termination(self) -> Path:
        """The file in which the sandbox says why it ended."""
        return Path(self.folder.name, "termination")


def _files(folder: str) -> BinaryIO:
    """Create the files that a sandbox finds in its folder; returns its open log."""
    Path(folder, "home").mkdir()
    Path(folder, "termination").touch()
    return Path(folder, "log").open("wb")


def _tail(path: Path) -> str:
    """The end of a file that a sandbox may have replaced with anything."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return ""
        file.seek(max(0, found.st_size - TAIL))
        return file.read(TAIL).decode(errors="replace")


@cache
def walls() -> tuple[str, ...]:
    """The command prefix that isolates a sandbox; empty if this system gives a user no namespaces."""
    probe = [*WALLS, "sh", "-c", "mount -t tmpfs tmpfs /tmp && exec setpriv --no-new-privs true"]
    try:
        tried = subprocess.run(probe, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return WALLS if tried.returncode == 0 else ()


def command(limits: Json, hidden: Sequence[Path], within: tuple[str, ...]) -> list[str]:
    """The command that starts a sandbox's server, after the prefix `within`. If it is empty, only
    limits apply."""
    blocks = int(amount(limits["ephemeral-storage"])) // 512
    data = int(amount(limits["memory"])) // 1024
    mount = "mount -t tmpfs -o ro,size=4k tmpfs"
    script = [f"{mount} {shlex.quote(str(folder))} || exit 1" for folder in hidden if within]
    script += [f"ulimit -n {OPEN_FILES}; ulimit -f {blocks}; ulimit -d {data}", 'exec "$@"']
    bound = (*WITH_BROKER, *IF_BROKER_LIVES, str(os.getpid())) if shutil.which(WITH_BROKER[0]) else ()
    drops: tuple[str, ...] = ()
    if within or (bound and os.geteuid() == 0):
        drops = UNPRIVILEGED
    elif bound:
        drops = ("setpriv", "--no-new-privs", "--")
    server = (sys.executable, "-m", "headway_sandbox.server")
    return [*bound, *within, "sh", "-c", "\n".join(script), "sh", *drops, *server]


class ProcessPods:
    """The sandboxes of one broker."""

    def __init__(self, modules: Path, hidden: Sequence[Path], network: int) -> None:
        """
        Args:
            modules: folder of the environment's modules.
            hidden: folders whose content no sandbox sees.
            network: the sandboxes' addresses are 127.`network`.x.y.
        """
        self._modules = modules
        self._hidden = hidden
        self._network = network
        self._host = self._version = 0
        self._running: dict[str, _Running] = {}
        self._events: deque[tuple[int, str, Json]] = deque(maxlen=EVENTS)
        self._changed = asyncio.Condition()
        self._endings: set[asyncio.Task[None]] = set()

    async def create(self, pod: Json) -> Json:
        """Start the process of a pod; returns the pod in its new state.

        Raises:
            ApiError: the process cannot be started.
        """
        name = pod["metadata"]["name"]
        if name in self._running:
            raise ApiError(409, "AlreadyExists", f"pod {name} exists")
        try:
            folder = tempfile.TemporaryDirectory(prefix="headway-sandbox-", ignore_cleanup_errors=True)
        except OSError as error:
            raise ApiError(500, "NotStarted", f"{name}: {error}") from error
        try:
            with self._listener() as listener:
                address: str = listener.getsockname()[0]
                process = await self._start(pod, folder.name, listener)
        except OSError as error:
            folder.cleanup()
            raise ApiError(500, "NotStarted", f"{name}: {error}") from error
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        made: Json = {
            **pod,
            "metadata": {**pod["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": now},
            "status": {"phase": "Running", "podIP": address},
        }
        running = self._running[name] = _Running(made, process, folder)
        ending = asyncio.create_task(self._until_end(name, running))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await self._tell("ADDED", running)
        return running.pod

    async def _start(self, pod: Json, folder: str, listener: socket.socket) -> asyncio.subprocess.Process:
        containers = {each["name"]: each for each in pod["spec"]["containers"]}
        server = containers[CONTAINER]
        with _files(folder) as log:
            variables = self._variables(server, folder, listener.fileno())
            if names.RUNNER in containers:
                variables[names.ENV_RUNNER] = CHILD
            return await asyncio.create_subprocess_exec(
                *command(server["resources"]["limits"], self._hidden, walls()),
                env=variables,
                cwd=variables["HOME"],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def _variables(self, server: Json, folder: str, descriptor: int) -> dict[str, str]:
        home = f"{folder}/home"
        given = {each["name"]: each["value"] for each in server["env"] if "value" in each}
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": home,
            "TMPDIR": home,
            "PYTHONPATH": os.pathsep.join([str(self._modules), str(HOME)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            **given,
            names.ENV_SANDBOX_SOCKET: str(descriptor),
            names.ENV_EPISODE_FILE: f"{home}/episode.json",
            names.ENV_TERMINATION_FILE: f"{folder}/termination",
        }

    async def delete(self, name: str, uid: str | None, grace_seconds: int) -> None:
        """End a pod; with `uid`, only that one. A pod that is gone already is not an error."""
        running = self._running.get(name)
        if running is None or uid not in (None, running.pod["metadata"]["uid"]):
            return
        del self._running[name]
        if running.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
        await running.process.wait()
        await asyncio.to_thread(running.folder.cleanup)
        await self._tell("DELETED", running)

    async def list(self, selector: str) -> tuple[list[Json], str]:
        """All pods, since one broker created them all, and the version to watch from."""
        return [running.pod for running in self._running.values()], str(self._version)

    async def watch(self, selector: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        """Events after `version`, until cancelled.

        Raises:
            ResourceVersionExpiredError: `version` is too old.
        """
        seen = int(version)
        while True:
            async with self._changed:
                while self._version <= seen:
                    await self._changed.wait()
                fresh = [event for event in self._events if event[0] > seen]
            if not fresh or fresh[0][0] > seen + 1:
                raise ResourceVersionExpiredError(f"events after {seen} are no longer kept")
            seen = fresh[-1][0]
            for _, kind, pod in fresh:
                yield kind, pod

    async def close(self) -> None:
        """End all sandboxes."""
        for name in list(self._running):
            await self.delete(name, None, 0)

    async def _until_end(self, name: str, running: _Running) -> None:
        code = await running.process.wait()
        if self._running.get(name) is not running:
            return
        message = await asyncio.to_thread(_tail, running.termination) or await asyncio.to_thread(
            _tail, running.log
        )
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error", "message": message}
        status = {
            "phase": "Failed",
            "containerStatuses": [{"name": CONTAINER, "state": {"terminated": ended}}],
        }
        running.pod = {**running.pod, "status": {**running.pod["status"], **status}}
        await self._tell("MODIFIED", running)

    async def _tell(self, kind: str, running: _Running) -> None:
        async with self._changed:
            self._version += 1
            stamped = {**running.pod["metadata"], "resourceVersion": str(self._version)}
            running.pod = {**running.pod, "metadata": stamped}
            self._events.append((self._version, kind, running.pod))
            self._changed.notify_all()

    def _listener(self) -> socket.socket:
        """A socket at the next free address. Sandboxes of an earlier broker may still be ending.

        Raises:
            OSError: none of the next addresses is free.
        """
        for left in reversed(range(TRIES)):
            self._host = self._host % HOSTS + 1
            try:
                return listen(
                    names.PORT_SANDBOX, f"127.{self._network}.{self._host >> 8}.{self._host & 0xFF}"
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not left:
                    raise
        raise AssertionError("the last try returns or raises")
