"""The example's notebook, run cell by cell: a real job trains, and the notebook reads its results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import ROOT

from headway_api.records import EpisodeRecord
from headway_cli.client import child
from headway_cli.local.pod import left_over

NOTEBOOK = ROOT / "examples" / "notebooks" / "first_run.ipynb"
STEPS = 3
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the notebook writes to. Its job is ended, whatever happens."""
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setenv("HEADWAY_NOTEBOOK_FOLDER", str(tmp_path))
    monkeypatch.setenv("HEADWAY_NOTEBOOK_STEPS", str(STEPS))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield tmp_path
    while child.children:
        child.children.popitem()[1].end()


def executed() -> dict[str, Any]:
    """The notebook's variables by name, after its last cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, cell {number}", "exec"), names)
    return names


def test_every_cell_of_the_notebook_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = executed()
    assert (names["status"].state, names["status"].progress.step) == ("Complete", STEPS)
    assert [*names["metrics"].index] == [*range(1, STEPS + 1)]
    assert {0, 2} <= {*names["validations"].index}
    training, held_out = names["axes"].get_lines()
    assert [*training.get_ydata()] == [*names["metrics"]["rollout/reward/mean"]]
    assert [*held_out.get_ydata()] == [*names["validations"]["reward"]]
    first, second = (each.episode for each in names["episodes"])
    assert isinstance(first, EpisodeRecord)
    assert first.episode_id != second.episode_id
    assert float(names["bill"].cost) > 0
    assert "first-run" in (folder / "report.html").read_text()
    output = capsys.readouterr().out
    assert f"Complete after {STEPS} steps" in output
    assert first.episode_id in output
    assert left_over(folder / "first-run") == [], "what the job ran is gone"
