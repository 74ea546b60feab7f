"""Ranks that wait while one of them works: two real processes over gloo."""

from __future__ import annotations

import subprocess
import sys

import learner_rig as rig
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SCRIPT = """
import os, sys, time
from datetime import timedelta
from headway_trainer import ranks

ranks.COLLECTIVE_TIMEOUT = timedelta(seconds=5)
child = os.fork()
rank = 0 if child else 1
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
here = ranks.Ranks.join()
if here.first:
    time.sleep(8)
here.barrier()
shared = here.share("converted" if here.first else None)
os.write(1, f"{rank} {shared}\\n".encode())  # both write to one pipe: a line at once
os._exit(0 if rank else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_ranks_wait_for_work_longer_than_the_collective_timeout() -> None:
    command = [sys.executable, "-c", SCRIPT, str(rig.free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(done.stdout.split("\n")) == ["", "0 converted", "1 converted"]
