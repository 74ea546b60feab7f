"""A stopped demo leaves nothing behind: every way to stop it ends what it started."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hack" / "demo"))

import demo


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_that_was_started(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unwound = []

    def runs(settings: object) -> None:
        try:
            signal.raise_signal(number)
            pytest.fail("the signal was ignored")
        finally:
            unwound.append(settings)

    monkeypatch.setattr(demo, "demo", runs)
    assert demo.main() == 130
    assert unwound, "the cluster would stay"
    assert "interrupted" in "".join(capsys.readouterr())
