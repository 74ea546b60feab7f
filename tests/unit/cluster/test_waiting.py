"""A wait ends, and its error says what was awaited."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster.errors import ClusterError
from headway_cluster.waiting import wait_for


def test_the_error_names_what_was_awaited_and_shows_the_log(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.write_text("starting\nno space left on device\n")
    with pytest.raises(ClusterError, match=r"(?s)waited for the daemon: nothing after.*no space left"):
        wait_for("the daemon", lambda: False, log=log, deadline_s=0, every_s=0.01)


def test_a_death_is_reported_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(ClusterError, match="the process ended"):
        wait_for("the daemon", lambda: False, alive=lambda: False, deadline_s=60)
    assert time.monotonic() - began < 30
