"""Reports in a real browser: no script error occurs, the keyboard works, and axe-core finds no fault."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import finished_evaluation as ended
import pytest
import written_run
from browser import visit

from headway_analysis.report.document import document
from headway_analysis.report.page import comparison, evaluation, reading, training
from headway_analysis.report.page.html import LARGEST
from headway_api.artifacts import Layout
from headway_api.run_files import RunFiles
from headway_api.store import FileStore

PICTURES = "REPORT_PICTURES"
"""Environment variable that names a folder in which pictures of the pages are kept."""
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]


def files(layout: Layout) -> RunFiles:
    return RunFiles(FileStore(), layout)


def good(folder: Path) -> str:
    made = written_run.write(folder)
    return training.page(reading.training(files(made.layout), written_run.decode))


def collapsed(folder: Path) -> str:
    made = written_run.write(folder, "collapsed", steps=40, remedy_at=30)
    return training.page(reading.training(files(made.layout), written_run.decode))


def empty(folder: Path) -> str:
    layout = Layout(f"file://{folder}", "team", "new", "uid")
    return training.page(reading.training(files(layout)))


def large(folder: Path) -> str:
    made = written_run.write(folder, steps=625, groups=2, size=16, every=125)
    assert made.episodes == 20_000
    return training.page(reading.training(files(made.layout), written_run.decode))


def judged(folder: Path) -> str:
    layout, store = Layout(f"file://{folder}", "team", "judged", "uid"), FileStore()
    store.put(layout.report, json.dumps(document(ended.finished(), ended.compared())).encode())
    for name in ended.CHANCE:
        for group in ended.groups(name):
            text = gzip.compress(group.model_dump_json().encode())
            store.put(layout.evaluation_group(name, group.group_id), text)
    run = reading.evaluation(files(layout), written_run.decode)
    assert run is not None
    return evaluation.page(run)


def compared(folder: Path) -> str:
    runs = [
        written_run.write(folder / "a"),
        written_run.write(folder / "b", "collapsed", name="spoilt", seed=7),
    ]
    return comparison.page([reading.curves(files(each.layout)) for each in runs])


@pytest.mark.parametrize(
    ("made", "dark", "width"),
    [
        (good, False, 1280),
        (collapsed, True, 1280),
        (empty, False, 360),
        (large, False, 1280),
        (judged, True, 1280),
        (compared, False, 360),
    ],
    ids=["good", "collapsed-dark", "empty-narrow", "20000-episodes", "evaluation-dark", "comparison-narrow"],
)
def test_a_browser_finds_no_fault(
    made: Callable[[Path], str], dark: bool, width: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page = tmp_path / "report.html"
    page.write_text(made(tmp_path), encoding="utf-8")
    assert page.stat().st_size <= LARGEST
    picture = Path(os.environ.get(PICTURES) or tmp_path) / f"{request.node.callspec.id}.png"
    found = visit(page, dark=dark, width=width, picture=picture)
    assert found.errors == []
    assert found.violations == []
    assert found.seen["first_focus"] == "Skip to the content"
    assert found.seen["wider_than_the_window"] is False
    assert picture.stat().st_size > 10_000
    if not found.seen["episodes"]:
        return
    assert found.seen["opened_by_enter"] is True
    assert found.seen["apart_text"] == f"{found.seen['apart']} episodes"
    assert found.seen["open"] == found.seen["episodes"]
    assert found.seen["coloured_by"] == "worth"
