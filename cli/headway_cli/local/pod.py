"""Runs one pod as a process of this machine: starts, probes, restarts and ends it like a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from headway_api import names
from headway_api.document import Json
from headway_cli.local.workloads import PodState, backoff, moment
from headway_cli.user_cache import user_cache

LOG_TAIL: Final = 2048
"""Number of last bytes of the log that become the termination message if a process wrote none. Kubernetes
does the same for a container."""
TERMINATION_BYTES: Final = 4096
"""Maximum bytes of a termination message."""
LOOK_SECONDS: Final = 0.05
NOT_STARTED: Final = 128
"""Exit code of a process that this machine could not start."""
KILLED_SECONDS: Final = 10.0
"""Maximum seconds to wait until a killed process is gone."""
FOLDER_PREFIX: Final = "headway-pod-"


@dataclass(frozen=True)
class PodPlace:
    """A pod's workload, and its address and folders on this machine."""

    workload: str
    """Name of the pod's Job or Deployment."""
    index: int
    """Index of the pod in its workload."""
    address: str
    """Loopback address of the pod."""
    log: Path
    """File for the output of the pod's process."""
    mounts: Mapping[str, Path]
    """Folder of this machine for each mounted path of the container."""
    variables: Mapping[str, str]
    """Environment variables that the pod's manifest lacks."""
    lent: tuple[int, ...] = ()
    """File descriptors that the pod's process inherits. One is the lock of the job's network, so the job
    keeps its network while any of its processes runs."""


@dataclass
class Pod:
    """A pod with one container. Call `start` once; `end` ends it permanently."""

    body: Json
    place: PodPlace
    http: aiohttp.ClientSession
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    _process: asyncio.subprocess.Process | None = None
    _life: asyncio.Task[None] | None = None
    _phase: str = "Pending"
    _ready: bool = False
    _ready_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _restarts: int = 0
    _state: Json = field(default_factory=dict)
    _last_state: Json = field(default_factory=dict)
    _ends: datetime | None = None

    def __post_init__(self) -> None:
        self._created = datetime.now(UTC)
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        (self._folder / "tmp").mkdir()
        (self._folder / "job").write_text(self.place.variables.get(names.ENV_LOCAL_JOB, ""))
        (self._folder / "pod").write_text(self.name)
        self._termination = self._folder / "termination"

    @property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.body["metadata"]["name"])

    @property
    def ready(self) -> bool:
        """Whether the pod passes its readiness probe and is not ending."""
        return self._ready and self._ends is None

    @property
    def state(self) -> PodState:
        """The pod's state, as its workload's controller sees it."""
        ended = self._state.get("terminated")
        return PodState(
            name=self.name,
            index=self.place.index,
            phase="Running" if self._phase == "Pending" else self._phase,
            exit_code=ended["exitCode"] if ended else None,
            ended=datetime.fromisoformat(ended["finishedAt"]) if ended else None,
        )

    def seen(self) -> Json:
        """The pod as an API server would show it."""
        metadata = {**self.body["metadata"], "uid": self.uid, "creationTimestamp": moment(self._created)}
        if self._ends is not None:
            metadata["deletionTimestamp"] = moment(self._ends)
        container = {
            "name": self._container["name"],
            "ready": self._ready,
            "restartCount": self._restarts,
            "state": self._state,
            "lastState": self._last_state,
        }
        ready = {
            "type": "Ready",
            "status": "True" if self._ready else "False",
            "lastTransitionTime": moment(self._ready_at),
        }
        status = {
            "phase": self._phase,
            "podIP": self.place.address,
            "startTime": moment(self._created),
            "conditions": [ready],
            "containerStatuses": [container],
        }
        return {**self.body, "metadata": metadata, "status": status}

    def start(self) -> None:
        """Start the pod."""
        self._life = asyncio.create_task(self._live())

    async def end(self) -> None:
        """Send SIGTERM, wait at most the grace period, then send SIGKILL to the remaining processes."""
        grace = float(self.body["spec"].get("terminationGracePeriodSeconds", 30))
        self._ends = datetime.fromtimestamp(time.time() + grace, UTC)
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """End the pod at once, with all processes that it started."""
        self._ends = self._ends or datetime.now(UTC)
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        await asyncio.to_thread(kill_all, self._processes())
        if self._process is not None:
            await self._process.wait()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def _container(self) -> Json:
        container: Json = self.body["spec"]["containers"][0]
        return container

    async def _live(self) -> None:
        failures = 0
        while True:
            try:
                code = await self._run()
            except OSError as error:  # such as no memory left, or too many processes
                self._state, code = _terminated(NOT_STARTED, self._created, str(error)), NOT_STARTED
            if self.body["spec"].get("restartPolicy") == "Never":
                self._phase = "Succeeded" if code == 0 else "Failed"
                return
            failures += 1
            self._last_state, self._state = self._state, {"waiting": {"reason": "CrashLoopBackOff"}}
            await asyncio.sleep(backoff(failures))
            self._restarts += 1

    async def _run(self) -> int:
        """Run the container once. Return its exit code."""
        self._termination.write_text("")
        started = datetime.now(UTC)
        with self.place.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._container["command"][1:],
                env=self._variables(),
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self.place.lent,
                start_new_session=True,
            )
        self._phase, self._state = "Running", {"running": {"startedAt": moment(started)}}
        probing = asyncio.create_task(self._probe(self._process))
        try:
            code = await self._process.wait()
        finally:
            probing.cancel()
            self._set_ready(False)
        # When a container's main process ends, all its other processes end too, also those in another
        # session.
        await asyncio.to_thread(kill_all, self._processes())
        code = code if code >= 0 else 128 - code
        self._state = _terminated(code, started, self._last_words() if code else "")
        return code

    def _last_words(self) -> str:
        output = self._termination.read_bytes()[:TERMINATION_BYTES]
        if not output:
            with self.place.log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL))
                output = log.read()
        return output.decode(errors="replace")

    async def _probe(self, process: asyncio.subprocess.Process) -> None:
        """Run the container's probes: set whether the pod is ready, and kill a process that hangs."""
        startup, readiness = self._container.get("startupProbe"), self._container.get("readinessProbe")
        liveness = self._container.get("livenessProbe")
        if startup is not None:
            failed = 0
            while not await self._asked(startup):
                failed += 1
                if failed >= int(startup["failureThreshold"]):
                    process.kill()
                    return
                await asyncio.sleep(float(startup["periodSeconds"]))
        due, failed = time.monotonic() + float(liveness["periodSeconds"]) if liveness else float("inf"), 0
        unready = 0
        while True:
            answered = readiness is None or await self._asked(readiness)
            unready = 0 if answered else unready + 1
            if readiness is None or answered or unready >= int(readiness.get("failureThreshold", 3)):
                self._set_ready(answered)
            if liveness is not None and time.monotonic() > due:
                failed = 0 if await self._asked(liveness) else failed + 1
                due = time.monotonic() + float(liveness["periodSeconds"])
                if failed >= int(liveness["failureThreshold"]):
                    process.kill()
                    return
            await asyncio.sleep(1.0)

    async def _asked(self, probe: Json) -> bool:
        ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
        asked = probe["httpGet"]
        url = f"http://{self.place.address}:{ports[asked['port']]}{asked['path']}"
        limit = aiohttp.ClientTimeout(total=float(probe.get("timeoutSeconds", 5)))
        try:
            async with self.http.get(url, timeout=limit) as answer:
                return answer.status < 400
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready, self._ready_at = ready, datetime.now(UTC)

    def _processes(self) -> list[int]:
        """The pod's process and all that it started, found as descendants or by inherited variables."""
        found = left_over(Path(self.place.variables[names.ENV_LOCAL_JOB]), self.name)
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                leader = psutil.Process(self._process.pid)
                found += [leader.pid, *(each.pid for each in leader.children(recursive=True))]
        return found

    def _variables(self) -> dict[str, str]:
        outside = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HEADWAY_", "KUBERNETES_"))
        }
        # vLLM inspects a model class for seconds, unless this folder has the result from an earlier job.
        outside.setdefault("VLLM_CACHE_ROOT", str(user_cache(os.environ, "vllm")))
        found: dict[str, str] = {}
        for each in self._container["env"]:
            found[each["name"]] = self._here(each["value"]) if "value" in each else self._field(each)
        return {
            **outside,
            **found,
            "TMPDIR": str(self._folder / "tmp"),
            names.ENV_LOCAL_POD: self.name,
            names.ENV_BIND_ADDRESS: self.place.address,
            names.ENV_TERMINATION_FILE: str(self._termination),
            **self.place.variables,
        }

    def _here(self, value: str) -> str:
        """The path on this machine for a path in the container. Any other value is returned unchanged."""
        for at, folder in self.place.mounts.items():
            if value == at or value.startswith(f"{at}/"):
                return f"{folder}{value[len(at) :]}"
        return value

    def _field(self, variable: Json) -> str:
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        if path == "metadata.name":
            return self.name
        return self.place.address if path == "status.podIP" else str(self.place.index)


def _terminated(code: int, started: datetime, message: str) -> Json:
    """The state of a container that has ended."""
    return {
        "terminated": {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": moment(started),
            "finishedAt": moment(datetime.now(UTC)),
            "message": message,
        }
    }


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes, and wait until they are gone, at most KILLED_SECONDS."""
    left = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.kill()
            left.append(process)
    ends = time.monotonic() + KILLED_SECONDS
    while any(map(is_alive, left)) and time.monotonic() < ends:
        time.sleep(LOOK_SECONDS)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs. A zombie has ended, and only waits for its parent to collect it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def left_over(folder: Path, pod: str | None = None) -> list[int]:
    """The ids of a job's running processes, or of those of one pod, even if their parents have ended.

    A process is recognized by its environment variables, or by its working directory in the pod's folder. The
    latter is needed because a process that renames itself, such as vLLM's engine, may overwrite its
    environment.
    """
    found, folders = [], _pod_folders(folder)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid():
                continue
            variables = process.environ()
            its = variables.get(names.ENV_LOCAL_POD)
            if variables.get(names.ENV_LOCAL_JOB) != str(folder):
                at = Path(process.cwd())
                its = next((name for below, name in folders.items() if at.is_relative_to(below)), None)
                if its is None:
                    continue
            if pod in (None, its):
                found.append(process.pid)
    return found


def _pod_folders(job: Path) -> dict[Path, str]:
    """Names of a job's pods, by each pod's folder in the system's temporary folder."""
    found = {}
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if (folder / "job").read_text() == str(job):
                found[folder] = (folder / "pod").read_text()
    return found


def remove_folders(job: Path) -> None:
    """Remove the folders that a job's pods have left in the system's temporary folder."""
    for folder in _pod_folders(job):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
