"""How a coordinator's process ends if the artifact store stays unavailable."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from role_keys import KEYS

from headway_api.exits import RETRIABLE
from headway_api.store_unavailable import Patience, StoreUnavailableError
from headway_coordinator import __main__ as entry
from headway_coordinator import lifetime, process


class Ended:
    """A coordinator whose work a background task has ended."""

    def __init__(self) -> None:
        self.fault = StoreUnavailableError("no good answer for 600 s")

    async def run(self) -> None:
        raise asyncio.CancelledError


def test_waiting_store_requests_are_given_up_at_the_end() -> None:
    """Otherwise the interpreter would wait for the threads of these requests before it exits."""
    over = threading.Event()
    with pytest.raises(StoreUnavailableError):
        asyncio.run(lifetime.serve(cast(process.Process, Ended()), over.set))
    assert over.is_set()


def test_the_coordinator_reports_that_the_store_stayed_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = list[Patience | None]()

    def open_store(output: object, patience: Patience | None = None) -> None:
        opened.append(patience)

    job = SimpleNamespace(spec=SimpleNamespace(output=None))
    monkeypatch.setattr(entry.config, "load_any", lambda environ: job)
    monkeypatch.setattr(entry.keys, "load", lambda environ, role: KEYS)
    monkeypatch.setattr(entry, "open_store", open_store)
    monkeypatch.setattr(entry, "stored_job", lambda job, environ: None)

    def made(*arguments: Any, **named: Any) -> Ended:
        return Ended()

    monkeypatch.setattr(entry, "Coordinator", made)
    monkeypatch.setattr(entry.logs, "setup", lambda: None)
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == RETRIABLE
    assert "StoreUnavailable: no good answer for 600 s" in capsys.readouterr().err
    assert opened[0] is not None
    assert opened[0].over.is_set()
