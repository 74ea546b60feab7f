"""Measures the operator with running jobs in which nothing happens."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ports import free_port

from bench.idle import jobs
from bench.idle.control_plane import OPERATOR, ControlPlane, control_plane, tally
from bench.idle.processes import memory_mib, started, weigh
from bench.support.report import Goal, Row, Section, Table, prose
from headway_operator.config import OperatorConfig

COUNTS = tuple(int(count) for count in os.environ.get("IDLE_JOBS", "1,10,100").split(","))
SECONDS = float(os.environ.get("IDLE_SECONDS", "15"))
NEVER = 86400
GOAL = 0.02
PROBES = {"/readyz": 5, "/healthz": 20}
"""Path of a probe -> seconds between two probes, as in the chart's Deployment."""
SETTLED_SECONDS = 3.0
"""Seconds without requests, except for the Lease, after which the operator counts as idle."""
RESYNCS = 2
"""Number of resyncs in a measured window with resyncs."""
RESYNC = float(OperatorConfig.model_fields["resync_seconds"].default)


def measure(folder: Path) -> Section:
    """Measure the operator's CPU, memory and requests, by number of idle jobs."""
    rows: list[Row] = []
    shares: dict[int, float] = {}
    asked: dict[int, list[tuple[str, int]]] = {}
    with control_plane(folder / "plane") as plane:
        jobs.prepare(plane)
        there = 0
        for count in COUNTS:
            row, shares[count], asked[count] = _with_jobs(plane, folder, there, count)
            rows.append(row)
            there = count
    limit = max(COUNTS)
    requests = [{"request": name, "in the window": times} for name, times in asked[limit][:12]]
    return Section(
        title="Operator",
        read=prose(f"""
            The real operator runs on a real API server and etcd of its own. It has the Lease of a replica
            that leads, and is probed and scraped as in a cluster. Each job trains: its four pods are ready,
            by their records, and nothing changes. Nobody else acts on the cluster. A window is {SECONDS:g} s
            long.

            Every {RESYNC:g} s the operator compares every job with its plan again, and applies a part of the
            objects again. "Quiet" is a window without that. "A resync" is what it takes more, by a window of
            twice the length with {RESYNCS} of them. "Share of a core" and "requests a minute" are of both:
            quiet + resync / {RESYNC:g} s. Requests are counted by the API server's audit log.
        """),
        tables=[
            Table("By number of jobs", rows),
            Table(f"Requests of a window with {RESYNCS} resyncs, {limit} jobs", requests),
        ],
        goals=[
            Goal(
                f"operator with {count} idle job{'' if count == 1 else 's'} under {GOAL:.0%} of a core",
                f"{share:.2%}",
                share < GOAL,
            )
            for count, share in shares.items()
            if count
        ],
    )


def _with_jobs(
    plane: ControlPlane, folder: Path, there: int, count: int
) -> tuple[Row, float, list[tuple[str, int]]]:
    """The table's row, the share of a core, and the requests of the window with resyncs."""
    began = time.time()
    with _operator(plane, folder, resync=NEVER) as process:
        if count > there:
            jobs.set_to_work(plane, range(there, count))
        settle(plane, began)
        quiet = weigh(process.pid, plane, OPERATOR, SECONDS)
        memory = memory_mib(process.pid)
    began = time.time()
    with _operator(plane, folder, resync=SECONDS) as process:
        settle(plane, began)
        # Wherever this window begins, it contains the beginnings of exactly RESYNCS resyncs.
        busy = weigh(process.pid, plane, OPERATOR, RESYNCS * SECONDS)
    times = busy.seconds / quiet.seconds
    resync_cpu = max(0.0, busy.cpu_seconds - times * quiet.cpu_seconds) / RESYNCS
    resync_requests = max(0.0, len(busy.requests) - times * len(quiet.requests)) / RESYNCS
    share = quiet.core_share + resync_cpu / RESYNC
    row = {
        "jobs": count,
        "share of a core": f"{share:.2%}",
        "requests a minute": f"{quiet.requests_a_minute + 60 * resync_requests / RESYNC:.0f}",
        "quiet: share of a core": f"{quiet.core_share:.2%}",
        "quiet: requests a minute": f"{quiet.requests_a_minute:.0f}",
        "a resync: s of a core": f"{resync_cpu:.2f}",
        "a resync: requests": f"{resync_requests:.0f}",
        "MiB": f"{memory:.0f}",
    }
    return row, share, tally(busy.requests)


@contextmanager
def _operator(plane: ControlPlane, folder: Path, resync: float) -> Iterator[subprocess.Popen[bytes]]:
    image = "registry.invalid/headway:1"
    port = free_port()
    config = {
        "images": dict.fromkeys(("coordinator", "broker", "learner", "rollout"), image),
        "port": port,
        "resyncSeconds": resync,
        "leaseNamespace": jobs.NAMESPACE,
    }
    path = folder / "operator.yaml"
    path.write_text(json.dumps(config))
    environment = {
        "HEADWAY_OPERATOR_CONFIG": str(path),
        "KUBECONFIG": str(plane.kubeconfig(OPERATOR)),
        "POD_NAME": "operator-0",
    }
    url, log = f"http://127.0.0.1:{port}", folder / "operator.log"
    with started(["-m", "headway_operator"], environment, log, url, PROBES) as process:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"the operator has ended: {log.read_text()[-2000:]}")


def settle(plane: ControlPlane, began: float) -> None:
    """Wait until the operator, started at `began`, has only renewed its Lease for `SETTLED_SECONDS`."""
    deadline = time.monotonic() + jobs.SECONDS
    while time.monotonic() < deadline:
        time.sleep(SETTLED_SECONDS)
        now = time.time()
        found = [each for each in plane.requests(OPERATOR, began, now) if each.resource != "leases"]
        if found and max(each.at for each in found) < now - SETTLED_SECONDS:
            return
    raise RuntimeError(f"the operator has not come to rest within {jobs.SECONDS} s")
