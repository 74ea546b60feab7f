"""Starts the cluster's daemons, and finds them again by process id *and* start time.

The system may later give the same process id to another process. The start time from /proc distinguishes
them, so a stale record never causes the wrong process to be killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .cgroups import ControlGroup
from .layout import Layout
from .waiting import wait_for

POD_PARENT = "containerd"
"""The daemon that starts the pods' processes. They inherit its priority."""


@dataclass(frozen=True)
class Daemon:
    """A started daemon, as recorded under `<state>/processes`."""

    name: str
    pid: int
    started_ticks: int

    def alive(self) -> bool:
        return _started_ticks(self.pid) == self.started_ticks


def _started_ticks(pid: int) -> int | None:
    """Clock ticks since boot at which process `pid` started; None if it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat.rpartition(")")[2].split()
    return None if after_name[0] in ("Z", "X") else int(after_name[19])


def start(layout: Layout, name: str, command: Sequence[str | Path]) -> Daemon:
    """Start `command` as a detached daemon called `name`. Its output goes to `<state>/logs/<name>.log`.

    Daemons that start no pods get a higher priority. So the cluster responds even if pods, training or builds
    keep the machine busy.
    """

    def settle() -> None:
        ControlGroup(layout.name).join()
        if name != POD_PARENT:
            os.nice(-5)

    layout.logs.mkdir(parents=True, exist_ok=True)
    layout.processes.mkdir(parents=True, exist_ok=True)
    with open(log_of(layout, name), "ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=layout.state,
            preexec_fn=settle,
        )
    daemon = Daemon(name, process.pid, _started_ticks(process.pid) or -1)
    (layout.processes / f"{name}.json").write_text(json.dumps(asdict(daemon)))
    return daemon


def log_of(layout: Layout, name: str) -> Path:
    return layout.logs / f"{name}.log"


def recorded(layout: Layout) -> dict[str, Daemon]:
    """All recorded daemons, alive or not, in the order of their starts."""
    found: dict[str, Daemon] = {}
    for path in sorted(layout.processes.glob("*.json")):
        try:
            found[path.stem] = Daemon(**json.loads(path.read_text()))
        except (json.JSONDecodeError, TypeError):
            path.unlink()  # `up` was killed while writing it; the control group still has the process
    return dict(sorted(found.items(), key=lambda item: item[1].started_ticks))


def wait_ready(layout: Layout, daemon: Daemon, ready: Callable[[], bool], *, deadline_s: float = 60) -> None:
    """Wait until a daemon answers. Fail at once if it has ended."""
    wait_for(
        f"{daemon.name} to answer",
        ready,
        log=log_of(layout, daemon.name),
        alive=daemon.alive,
        deadline_s=deadline_s,
    )


def stop(layout: Layout, name: str, *, patience_s: float = 1.5) -> None:
    """End daemon `name` with SIGTERM, and with SIGKILL after `patience_s`. Do nothing if it is not alive."""
    daemon = recorded(layout).get(name)
    if daemon is None:
        return
    for order, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10.0)):
        if not daemon.alive():
            break
        os.kill(daemon.pid, order)
        ends = time.monotonic() + patience
        while daemon.alive() and time.monotonic() < ends:
            time.sleep(0.02)
    (layout.processes / f"{name}.json").unlink(missing_ok=True)
