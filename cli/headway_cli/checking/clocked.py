"""Sandboxes that record how long each of their answers took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headway_analysis.preflight.playing import Reply, Request
from headway_api.bounds import NAME, shortened
from headway_api.sandbox_api import ResetRequest, ToolCall
from headway_sandbox.testing.sandbox import Sandbox, Sandboxes

START, RESET, JUDGEMENT = "start", "reset", "reward and score"


@dataclass(frozen=True)
class Clocked(Sandboxes):
    """`Sandboxes` that record the time of each answer."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each answer, by request: START (process and import), RESET, a tool's name, JUDGEMENT."""

    def start(self) -> Sandbox:
        """A new sandbox for one episode. Use it in a `with`."""
        return _Clocked(self)


class _Clocked(Sandbox):
    def __init__(self, of: Clocked) -> None:
        self._born = self._leased = time.monotonic()
        self._seconds = of.seconds
        super().__init__(of)

    def lease(self) -> None:
        super().lease()
        self._leased = time.monotonic()
        self._note(START, self._leased - self._born)

    def ask(self, request: Request) -> Reply:
        began = time.monotonic()
        reply = super().ask(request)
        ended = time.monotonic()
        if isinstance(request, ResetRequest):  # `ask` has called `lease` first, whose time is noted as START
            self._note(RESET, ended - self._leased)
        elif isinstance(request, ToolCall):
            self._note(shortened(request.name, NAME), ended - began)
        else:
            self._note(JUDGEMENT, ended - began)
        return reply

    def _note(self, what: str, seconds: float) -> None:
        self._seconds.setdefault(what, []).append(seconds)
