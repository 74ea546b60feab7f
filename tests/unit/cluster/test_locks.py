"""A lock of one kind makes a second command wait. Locks of different kinds do not block each other."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster.locks import alone


def test_a_second_command_waits_only_for_the_first_of_its_kind(tmp_path: Path) -> None:
    layout: Any = SimpleNamespace(cache=tmp_path)
    entered = {name: threading.Event() for name in ("build", "prometheus")}

    def enter(what: str) -> None:
        with alone(layout, what):
            entered[what].set()

    threads = [threading.Thread(target=enter, args=(what,)) for what in entered]
    with alone(layout, "build"):
        for each in threads:
            each.start()
        assert entered["prometheus"].wait(10)
        assert not entered["build"].is_set()
    assert entered["build"].wait(10)
    for each in threads:
        each.join()
