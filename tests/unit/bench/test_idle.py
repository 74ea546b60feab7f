"""What the benchmark of idle jobs counts: requests in an audit log, and CPU seconds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from bench.idle.control_plane import ControlPlane, tally
from bench.idle.processes import Weighed, cpu_seconds, memory_mib

BEGAN = 1793534400.0


def line(verb: str, stage: str, *, user: str = "operator", second: int = 1, **ref: str) -> str:
    return json.dumps(
        {
            "stage": stage,
            "verb": verb,
            "user": {"username": user},
            "requestURI": "/healthz",
            "requestReceivedTimestamp": f"2026-11-01T12:00:{second:02d}.250000Z",
            **({"objectRef": ref} if ref else {}),
        }
    )


def plane(folder: Path, *lines: str) -> ControlPlane:
    (folder / "audit.log").write_text("\n".join(lines))
    return ControlPlane(folder, "https://127.0.0.1:1")


def test_a_request_counts_once_and_a_watch_when_it_begins(tmp_path: Path) -> None:
    found = plane(
        tmp_path,
        line("get", "ResponseComplete", resource="leases"),
        line("watch", "ResponseStarted", resource="pods"),
        line("watch", "ResponseComplete", resource="pods", second=9),
        line("patch", "ResponseComplete", resource="rltrainingjobs", subresource="status"),
        line("get", "ResponseComplete", resource="leases", second=2),
        line("get", "ResponseComplete"),
        '{"stage": "Respo',
    ).requests("operator", BEGAN, BEGAN + 60)
    assert tally(found) == [
        ("get leases", 2),
        ("watch pods", 1),
        ("patch rltrainingjobs/status", 1),
        ("get /healthz", 1),
    ]


def test_requests_of_other_users_and_times_are_left_out(tmp_path: Path) -> None:
    lines = [
        line("get", "ResponseComplete", resource="pods", user="administrator"),
        line("get", "ResponseComplete", resource="pods", second=3),
        line("get", "ResponseComplete", resource="pods", second=5),
    ]
    found = plane(tmp_path, *lines).requests("operator", BEGAN + 2, BEGAN + 5)
    assert [request.at for request in found] == [BEGAN + 3.25]


def test_a_share_of_a_core_is_relative_to_the_window() -> None:
    assert Weighed(seconds=20.0, cpu_seconds=0.1, requests=[]).core_share == 0.005


def test_cpu_seconds_are_those_of_the_process() -> None:
    before, began = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() - began < 0.1:
        pass
    took = cpu_seconds(os.getpid()) - before
    assert abs(took - (time.process_time() - began)) < 0.05
    assert memory_mib(os.getpid()) > 1
