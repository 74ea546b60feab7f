"""Tries to connect to addresses every 10 ms for 5 s, because a network policy may take effect late.

The environment starts this at its import. Later it runs code against its own server, as a tool that starts
programs could. A test mounts it beside the example's environment, and fills in TARGETS and CODE.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time

from headway_sandbox.environment import Reward, Transcript
from headway_sandbox.reported import ReportedReward

TARGETS: list[tuple[str, int]] = []
CODE = ""
"""Code that gets the id of the server's process, and prints what it could learn from that process."""
KNOCKING_S = 5.0
PAUSE_S = 0.01
HELD_S = 0.2
"""How long a connection may take to open."""
FEW = 50
"""With fewer attempts at an address, the result would mean nothing."""


class Knocker(threading.Thread):
    """A thread that tries to connect to all targets."""

    def __init__(self, targets: list[tuple[str, int]]) -> None:
        super().__init__(daemon=True)
        self._targets = targets
        self._knocking: list[tuple[float, socket.socket]] = []
        self.rounds = self.opened = 0

    def run(self) -> None:
        ends = time.monotonic() + KNOCKING_S
        while (now := time.monotonic()) < ends or self._knocking:
            if now < ends:
                self.rounds += 1
                for target in self._targets:
                    self._knock(target, now)
            for until, knocking in self._knocking[:]:
                arrived = bool(select.select([], [knocking], [], 0)[1])
                if arrived or now > until:
                    self.opened += arrived and not knocking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    self._knocking.remove((until, knocking))
                    knocking.close()
            time.sleep(PAUSE_S)

    def _knock(self, target: tuple[str, int], now: float) -> None:
        knocking = socket.socket()
        knocking.setblocking(False)
        try:
            knocking.connect(target)
        except BlockingIOError:
            pass
        except OSError:
            knocking.close()
            return
        self._knocking.append((now + HELD_S, knocking))


KNOCKER = Knocker(TARGETS)
KNOCKER.start()


class Knocking(ReportedReward):
    """Reports what opened and what the code got, beside the agent's own reward."""

    def reward(self, transcript: Transcript) -> Reward:
        KNOCKER.join()
        found = super().reward(transcript)
        code = [sys.executable, "-S", "-c", CODE, str(os.getpid())]
        got = json.loads(subprocess.run(code, capture_output=True, text=True, check=True).stdout)
        own_metrics = {
            "knocked": float(KNOCKER.rounds >= FEW),
            "opened": float(KNOCKER.opened),
            "seen": float(got["seen"] and got["users"] == [os.getuid(), os.geteuid()]),
            "got": float(len(got["got"])),
        }
        return Reward(found.value, found.metrics | own_metrics, found.turns)
