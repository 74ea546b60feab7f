"""Runs a test's program as the ranks of one learner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import learner_rig as rig


def run(
    program: str,
    arguments: Sequence[str],
    folder: Path,
    processes: int,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Start `program` as `processes` ranks, and wait for all of them. Their logs go to `folder`.

    Args:
        environ: variables that are added to this process's own, or replace them.

    Raises:
        AssertionError: with the log of the rank that failed.
    """
    rig.require_accelerators(processes)
    folder.mkdir(parents=True, exist_ok=True)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rig.free_port()), "OMP_NUM_THREADS": "1"}
    running = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        with (folder / f"rank{rank}.log").open("wb") as log:
            given = {**os.environ, **shared, **place, **(environ or {})}
            command = [sys.executable, program, *arguments]
            running.append(subprocess.Popen(command, env=given, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=500) for process in running]
    finally:
        for process in running:
            process.kill()
    for rank, code in enumerate(codes):
        assert code == 0, (folder / f"rank{rank}.log").read_text()[-6000:]
