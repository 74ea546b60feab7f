"""Measures a coordinator that waits for the first rollout server and for the learner's first weights."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path

from ports import free_port
from role_keys import TO_BROKER
from rollout_server import job_config
from tiny_model import write_model

from bench.idle import jobs
from bench.idle.control_plane import COORDINATOR, ControlPlane, control_plane, tally
from bench.idle.operator import GOAL, SECONDS
from bench.idle.processes import memory_mib, started, weigh
from bench.support.report import Goal, Section, Table, prose
from bench.support.sandboxes import warm_pool

PROBES = {"/readyz": 2, "/healthz": 10}
"""Path of a probe -> seconds between two probes, as in the operator's plan."""
ROWS = 1000
READY_SECONDS = 120
SETTLED_SECONDS = 15.0
"""Seconds to wait until the start is over. The coordinator delays its last status writes by some seconds."""


def measure(folder: Path) -> Section:
    """Measure the CPU, memory and requests of a coordinator that waits for its learner."""
    return asyncio.run(_beside_a_broker(folder))


async def _beside_a_broker(folder: Path) -> Section:
    async with warm_pool(TO_BROKER, size=0) as broker:
        return await asyncio.to_thread(_measure, folder, broker.url)


def _measure(folder: Path, broker_url: str) -> Section:
    with control_plane(folder / "plane") as plane:
        jobs.prepare(plane)
        jobs.create(plane, 0)
        port = _prepare(plane, folder, broker_url)
        command = ["-m", "bench.idle.coordinator_process", str(folder)]
        url, log = f"http://127.0.0.1:{port}", folder / "coordinator.log"
        with started(command, {}, log, url, PROBES) as process:
            _ready(url, log)
            time.sleep(SETTLED_SECONDS)
            found = weigh(process.pid, plane, COORDINATOR, SECONDS)
            memory = memory_mib(process.pid)
            if process.poll() is not None:
                raise RuntimeError(f"the coordinator has ended: {log.read_text()[-2000:]}")
    row = {
        "share of a core": f"{found.core_share:.2%}",
        "requests a minute": f"{found.requests_a_minute:.1f}",
        "MiB": f"{memory:.0f}",
    }
    requests = [{"request": name, "in the window": times} for name, times in tally(found.requests)]
    return Section(
        title="Coordinator",
        read=prose(f"""
            The coordinator of a training job of {ROWS} rows whose learner has published nothing yet, and
            which has no rollout server. Its status goes to a real API server. It is probed and scraped
            as in a cluster. A window of {SECONDS:g} s, {SETTLED_SECONDS:g} s after it was ready.
        """),
        tables=[Table("While it waits", [row])] + ([Table("Its requests", requests)] if requests else []),
        goals=[
            Goal(
                f"a waiting coordinator under {GOAL:.0%} of a core",
                f"{found.core_share:.2%}",
                found.core_share < GOAL,
            )
        ],
    )


def _prepare(plane: ControlPlane, folder: Path, broker_url: str) -> int:
    """Write the files that the coordinator's process reads. Return its port."""
    base = write_model(folder / "model")
    rows = [{"prompt": f"Handle case {number:06d}."} for number in range(ROWS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"preflight": {"policy": "Off"}, "model": {"lora": {"rank": 8}}}
    job = job_config(folder, base, **spec)
    named = job.model_copy(update={"name": jobs.name_of(0), "namespace": jobs.NAMESPACE})
    (folder / "job.json").write_text(named.model_dump_json(by_alias=True))
    port = free_port()
    run = {
        "port": port,
        "gateway_port": free_port(),
        "broker_url": broker_url,
        "kubeconfig": str(plane.kubeconfig(COORDINATOR)),
    }
    (folder / "run.json").write_text(json.dumps(run))
    return port


def _ready(url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the coordinator is not ready: {log.read_text()[-2000:]}")
