"""Starts an idle process, sends it probes and scrapes, and measures its usage."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.idle.control_plane import ControlPlane, Request

SCRAPE_SECONDS = 30
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Weighed:
    """The usage of a process during some seconds."""

    seconds: float
    cpu_seconds: float
    requests: list[Request]

    @property
    def core_share(self) -> float:
        """Mean share of one CPU core."""
        return self.cpu_seconds / self.seconds

    @property
    def requests_a_minute(self) -> float:
        """Requests per minute to the API server."""
        return 60 * len(self.requests) / self.seconds


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process and its threads have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int) -> float:
    """The process's resident memory in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def weigh(pid: int, plane: ControlPlane, user: str, seconds: float) -> Weighed:
    """Measure the usage of a process during `seconds`."""
    began, before = time.time(), cpu_seconds(pid)
    time.sleep(seconds)
    after, ended = cpu_seconds(pid), time.time()
    return Weighed(ended - began, after - before, plane.requests(user, began, ended))


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], log: Path, url: str, probes: Mapping[str, float]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python process during the block, and request its probes.

    `probes` maps each path below `url` to the seconds between two requests. /metrics is scraped too.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | {"PYTHONPATH": path} | environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    over = threading.Event()
    askers = [
        threading.Thread(target=_ask, args=(f"{url}{path}", seconds, over), daemon=True)
        for path, seconds in (probes | {"/metrics": SCRAPE_SECONDS}).items()
    ]
    for asker in askers:
        asker.start()
    try:
        yield process
    finally:
        over.set()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def _ask(url: str, seconds: float, over: threading.Event) -> None:
    while not over.wait(seconds):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                answer.read()
        except OSError:
            continue  # an error status, such as "not ready", is a normal answer to a probe
