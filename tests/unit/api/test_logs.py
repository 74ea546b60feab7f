"""Lines of the log: one JSON object for each event, bounded however long its texts are."""

from __future__ import annotations

import json
import logging

import pytest

from headway_api import logs
from headway_trainer import logs as of_learner


def test_a_log_line_is_bounded_whatever_its_fields_quote(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_field_may_have_any_name() -> None:
    record = json.loads(logs.line("loaded", {"at": 3, "level": "high", "fields": None}, at=1.25))
    assert record == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "high",
        "event": "loaded",
        "at": 3,
        "fields": None,
    }


@pytest.mark.parametrize(("world", "rank"), [("1", None), ("4", 2)])
def test_the_learner_writes_the_same_lines(
    world: str, rank: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("RANK", "2")
    of_learner.log("step", loss=0.5, note="n" * 1_000_000)
    out = capsys.readouterr().out
    line = json.loads(out)
    assert list(line)[:3] == ["time", "level", "event"]
    assert (line["loss"], line.get("rank")) == (0.5, rank)
    assert len(out) < 20_000
