"""Lines of the log: one of JSON an event, however long its texts are."""

from __future__ import annotations

import json
import logging

import pytest

from headway_api import logs


def test_a_line_has_a_length_whatever_its_fields_quote(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        logs.setup()
        logs.event(logging.getLogger("x"), "answered", error="start" + "y" * 1_000_000 + "end", seconds=1.5)
        try:
            raise ValueError("z" * 1_000_000)
        except ValueError:
            logging.getLogger("x").exception("failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    first, second = capsys.readouterr().out.splitlines()
    assert len(first) < 20_000
    assert len(second) < 40_000
    line = json.loads(first)
    assert line["event"] == "answered"
    assert line["seconds"] == 1.5
    assert line["error"].startswith("start")
    assert line["error"].endswith("end")
    assert "ValueError" in json.loads(second)["exception"]
