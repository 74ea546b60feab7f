"""Waits until a server that a test started answers over HTTP."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from pathlib import Path

START_S = 120
PAUSE_S = 0.1


def until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Return once `url` answers 200; fail with the server's log if it ends or takes too long."""
    ends = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(PAUSE_S)
