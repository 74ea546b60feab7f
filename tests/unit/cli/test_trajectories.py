"""`headway trajectories`: which episodes are shown, how, and what is said where there is no run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from learner_rig import group
from typer.testing import CliRunner

from headway_api.job_folder import JobFolder
from headway_api.records import GroupRecord, Outcome, Purpose
from headway_api.store import FileStore
from headway_cli.app import app
from headway_cli.episodes import Filter, row, text
from headway_cli.runs import NoRun
from headway_cli.stored_run import opened
from headway_cli.where import meant
from headway_coordinator.spool import encode

CALL = {"function": {"name": "look", "arguments": '{"at": 1}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": [{"type": "text", "text": "nothing"}]},
    {"role": "assistant", "content": "done\nnow"},
]
SAID = {"messages": MESSAGES, "metrics": {"form": 0.5}}


def groups() -> list[GroupRecord]:
    """Two groups: rewards 1, 0.25 and a lost one; 0 and 1. Scores are 1, 1, -; 0, 0."""
    made = [group("t0-000000", [1.0, 0.25, None], step=0), group("t0-000001", [0.0, 1.0], step=1)]
    scores = iter([1.0, 1.0, None, 0.0, 0.0])
    return [
        each.model_copy(
            update={
                "row": number,
                "episodes": [
                    one.model_copy(
                        update={"score": next(scores), "messages": MESSAGES, "metrics": {"form": 0.5}}
                    )
                    for one in each.episodes
                ],
            }
        )
        for number, each in enumerate(made)
    ]


def ids(found: list[Any]) -> list[str]:
    return [each.episode.episode_id for each in found]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for each in groups():
        FileStore().put(f"file://{folder}/trajectories/train/{each.group_id}.json.gz", encode(each))
    return folder


def test_all_are_shown_in_the_order_of_their_groups() -> None:
    assert len(Filter().of(groups())) == 5


def test_those_that_differ_come_furthest_apart_first() -> None:
    assert ids(Filter(disagree=True).of(groups())) == ["t0-000001-1-100", "t0-000000-1-100"]


@pytest.mark.parametrize(
    ("wanted", "many"),
    [
        (Filter(step=1), 2),
        (Filter(row=0), 3),
        (Filter(outcome=Outcome.INFRA_ERROR), 1),
        (Filter(step=1, row=0), 0),
    ],
)
def test_a_filter_takes_those_that_are_meant(wanted: Filter, many: int) -> None:
    assert len(wanted.of(groups())) == many


def test_an_episode_is_read_turn_by_turn() -> None:
    first, _, lost, *_ = Filter().of(groups())
    assert text(first).splitlines() == [
        "t0-000000-0-100  step 0  row 0  Completed",
        "       user: go",
        '  assistant: -> look({"at": 1})',
        '       tool: [{"type": "text", "text": "nothing"}]',
        "  assistant: done now",
        "  reward 1, external score 1, form 0.5",
    ]
    assert text(lost).splitlines()[-1] == "  lost: no reason was given"
    assert row(first)["messages"] == MESSAGES
    assert json.dumps(row(lost))


def test_a_run_is_found_by_its_artifacts_or_by_its_jobs_folder(run: Path, tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job")
    job.write(
        {"kind": "RLTrainingJob", "metadata": {"namespace": "ns", "name": "job", "uid": "u"}, "spec": {}}
    )
    with pytest.raises(NoRun, match="has written nothing yet"):
        opened(meant(str(job.folder), tmp_path))
    shutil.copytree(run, job.folder / "artifacts" / "ns" / "job" / "u")
    for word in (str(run), f"file://{run}", str(job.folder), "job"):
        found = list(opened(meant(word, tmp_path)).groups(Purpose.TRAIN))
        assert [each.group_id for each in found] == ["t0-000000", "t0-000001"]
    assert list(opened(meant(str(run), tmp_path)).groups(Purpose.VALIDATION)) == []


def test_the_command_shows_so_many_and_says_how_many_are_left(run: Path) -> None:
    done = CliRunner().invoke(app, ["trajectories", str(run), "--limit", "2", "--output", "json"])
    assert done.exit_code == 0
    assert [json.loads(line)["episode"] for line in done.stdout.splitlines()] == [
        "t0-000000-0-100",
        "t0-000000-1-100",
    ]
    assert done.stderr == "3 more; write --limit 5 for all\n"


def test_a_folder_without_a_run_says_what_to_name(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["trajectories", str(tmp_path)])
    assert done.exit_code == 2
    assert "name the folder of a local job (.headway/NAME)" in done.stderr


def test_a_run_that_cannot_be_read_names_the_object(run: Path) -> None:
    (run / "trajectories" / "train" / "t0-000000.json.gz").write_bytes(b"odd")
    done = CliRunner().invoke(app, ["trajectories", str(run)])
    assert done.exit_code == 2
    assert "t0-000000.json.gz" in done.stderr
    assert "Traceback" not in done.output
