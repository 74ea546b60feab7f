"""`headway trajectories`: which episodes it shows, in which order and format, and its error without a run."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import job_with_tasks
import pytest
from episodes import a_group
from finished_run import FinishedRun
from inspect_ai.log import EvalLog, read_eval_log
from learner_rig import group
from typer.testing import CliRunner, Result

from headway_api.job_folder import JobFolder
from headway_api.records import GroupRecord, Outcome, Purpose
from headway_api.store import FileStore
from headway_cli.app import app
from headway_cli.episodes import FAILED, Filter, Task, row, text
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import opened
from headway_cli.where import place_named
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
    """Two groups with rewards 1, 0.25 and a lost episode, and 0 and 1.

    Their scores are 1, 1, none; 0, 0.
    """
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


def test_an_episode_cannot_control_the_terminal() -> None:
    hostile = [{"role": "tool", "content": "a\x1b[2Jb\x1b]0;owned\x07 é \U0001f44b"}]
    [shown, *_] = Filter().of(groups())
    episode = shown.episode.model_copy(update={"messages": hostile})
    assert "tool: a [2Jb ]0;owned é \U0001f44b" in " ".join(text(replace(shown, episode=episode)).split())
    assert not any(each in text(replace(shown, episode=episode)) for each in "\x1b\x07")


def test_all_episodes_are_shown_in_the_order_of_groups() -> None:
    assert len(Filter().of(groups())) == 5


def test_episodes_with_the_largest_gap_come_first() -> None:
    assert ids(Filter(disagree=True).of(groups())) == ["t0-000001-1-100", "t0-000000-1-100"]


@pytest.mark.parametrize(
    ("wanted", "many"),
    [
        (Filter(step=1), 2),
        (Filter(row=0), 3),
        (Filter(outcome=Outcome.INFRA_ERROR), 1),
        (Filter(step=1, row=0), 0),
        (Filter(failed=True), 1),
        (Filter(task=Task("a", frozenset({1}))), 2),
        (Filter(task=Task("a", frozenset({0})), failed=True), 1),
        (Filter(task=Task("a")), 0),
    ],
)
def test_a_filter_selects_the_matching_episodes(wanted: Filter, many: int) -> None:
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
    with pytest.raises(RunNotFoundError, match="has written nothing yet"):
        opened(place_named(str(job.folder), tmp_path))
    shutil.copytree(run, job.folder / "artifacts" / "ns" / "job" / "u")
    for word in (str(run), f"file://{run}", str(job.folder), "job"):
        found = list(opened(place_named(word, tmp_path)).groups(Purpose.TRAIN))
        assert [each.group_id for each in found] == ["t0-000000", "t0-000001"]
    assert list(opened(place_named(str(run), tmp_path)).groups(Purpose.VALIDATION)) == []


def test_output_is_limited_and_says_how_many_are_left(run: Path) -> None:
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


# tasks and failures of runs as their processes write them


def shown(*words: str) -> Result:
    return CliRunner().invoke(app, ["trajectories", *words])


def episode_ids(*words: str) -> list[str]:
    done = shown(*words, "--output", "json", "--limit", "100")
    assert done.exit_code == 0, done.output
    return [json.loads(line)["episode"] for line in done.stdout.splitlines()]


@pytest.fixture
def desk(tmp_path: Path) -> FinishedRun:
    """A local job with tasks and failed episodes."""
    return job_with_tasks.written(tmp_path / "desk", tmp_path)


def test_episodes_of_a_task_are_on_its_rows(desk: FinishedRun) -> None:
    folder = str(desk.folder)
    groups = {each.rpartition("-")[0] for each in episode_ids(folder, "--task", "refund")}
    assert {each[:9] for each in groups} == {"t0-000000", "t0-000002"}
    assert {each[:9] for each in episode_ids(folder, "--task", "change")} == {"t0-000001"}
    held_out = episode_ids(folder, "--task", "change", "--purpose", "validation")
    assert {each[:14] for each in held_out} == {"v000000-000000"}


def test_a_task_that_does_not_exist_has_near_names(desk: FinishedRun) -> None:
    done = shown(str(desk.folder), "--task", "refunds")
    assert done.exit_code == 2
    assert "has no such task in column kind; did you mean refund?" in done.stderr
    done = shown(str(desk.folder), "--task", "x")
    assert "has no such task in column kind; there are change, refund" in done.stderr


def test_a_job_without_tasks_and_rows_that_are_gone_are_errors(tmp_path: Path, desk: FinishedRun) -> None:
    (tmp_path / "train.jsonl").unlink()
    done = shown(str(desk.folder), "--task", "refund")
    assert done.exit_code == 2
    assert f"no object at file://{tmp_path}/train.jsonl" in done.stderr
    assert "Traceback" not in done.output
    plain = FinishedRun(tmp_path / "plain").job().played()
    done = shown(str(plain.folder), "--task", "refund")
    assert done.exit_code == 2
    assert "spec.data.train.taskColumn of desk names no tasks, so leave --task out" in done.stderr


def test_a_run_without_its_job_has_no_tasks(run: Path) -> None:
    done = shown(str(run), "--task", "refund")
    assert done.exit_code == 2
    assert "has no job.json, which names the tasks' column" in done.stderr


def test_failed_episodes_ended_with_an_error(desk: FinishedRun) -> None:
    done = shown(str(desk.folder), "--failed", "--output", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["group"], each["outcome"]) for each in found] == [
        ("t0-000001", "InfraError"),
        ("t0-000002", "AgentError"),
    ]
    assert {Outcome(each["outcome"]) for each in found} == set(FAILED)
    assert shown(str(desk.folder), "--failed", "--outcome", "Completed").exit_code == 2


def test_a_group_that_was_lost_as_a_whole_is_among_the_failed(desk: FinishedRun) -> None:
    folder = str(desk.folder)
    assert len(episode_ids(folder, "--purpose", "validation")) == 1, "it is not a measurement"
    assert [each[:14] for each in episode_ids(folder, "--purpose", "validation", "--failed")] == [
        "v000000-000001"
    ]


@pytest.fixture
def judged(tmp_path: Path) -> FinishedRun:
    """A local evaluation of two candidates on two rows and a sample of a suite."""
    made = FinishedRun(tmp_path / "judged").job(data={"uri": "s3://b/t.jsonl"}, suites=[{"name": "games"}])
    raw = json.loads((made.folder / "job.json").read_text())
    (made.folder / "job.json").write_text(json.dumps({**raw, "kind": "RLEvalJob"}))
    for candidate in ("base", "tuned"):
        for number in range(3):
            played = a_group(f"e-{candidate}-{number:06d}", [1.0, 0.0], purpose=Purpose.EVALUATION)
            suite = "games" if number == 2 else None
            made.play(played.model_copy(update={"row": number, "candidate": candidate, "suite": suite}))
    return made


def test_for_an_evaluation_episodes_of_own_rows_are_shown(judged: FinishedRun) -> None:
    found = episode_ids(str(judged.folder))
    assert len(found) == 2 * 3 * 2
    assert found == episode_ids(str(judged.folder), "--purpose", "evaluation")
    assert episode_ids(str(judged.folder), "--purpose", "train") == []


def test_a_suite_is_a_task(judged: FinishedRun) -> None:
    found = episode_ids(str(judged.folder), "--task", "games")
    assert {each.rpartition("-000002")[0] for each in found} == {"e-base", "e-tuned"}
    done = shown(str(judged.folder), "--task", "refund")
    assert "spec.data.taskColumn of desk names no tasks; write a suite: games" in done.stderr


# logs of Inspect AI


def log_of(run: FinishedRun, out: Path, *words: str) -> EvalLog:
    done = shown(str(run.folder), "--output", "inspect", "--out", str(out), "--limit", "100", *words)
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert f"{out}: " in done.stderr
    return read_eval_log(str(out), resolve_attachments=True)


def test_inspect_reads_the_episodes(desk: FinishedRun, tmp_path: Path) -> None:
    log = log_of(desk, tmp_path / "desk.eval")
    # Inspect orders samples by epoch.
    stored = [
        (group.group_id, episode)
        for group in opened(place_named(str(desk.folder), tmp_path)).groups(Purpose.TRAIN)
        for episode in group.episodes
    ]
    stored.sort(key=lambda each: each[1].index)
    assert log.samples is not None
    assert [(each.id, each.epoch, each.uuid) for each in log.samples] == [
        (group_id, episode.index + 1, episode.episode_id) for group_id, episode in stored
    ]
    for sample, (_, episode) in zip(log.samples, stored, strict=True):
        assert [m.text for m in sample.messages] == [m["content"] for m in episode.messages]
        assert sample.metadata["outcome"] == episode.outcome.value
        lost = episode.outcome is Outcome.INFRA_ERROR
        assert (sample.error is not None, sample.scores is None) == (lost, lost)
        if sample.scores is not None:
            assert sample.scores["reward"].value == episode.reward
    assert (log.status, log.eval.task, log.eval.model) == ("success", "desk", "hf://org/base")
    assert log.eval.dataset.location == f"file://{tmp_path}/train.jsonl"
    assert log.eval.metadata == {"namespace": "team", "uid": "5f0c", "purposes": ["train"]}


def test_inspect_reads_the_selected_episodes(desk: FinishedRun, tmp_path: Path) -> None:
    log = log_of(desk, tmp_path / "desk.eval", "--task", "refund", "--failed")
    assert log.samples is not None
    assert [(each.id, each.metadata["task"]) for each in log.samples] == [("t0-000002", "refund")]


def test_inspect_reads_each_candidate_apart(judged: FinishedRun, tmp_path: Path) -> None:
    log = log_of(judged, tmp_path / "judged.eval")
    assert log.samples is not None
    assert len({(each.id, each.epoch) for each in log.samples}) == len(log.samples) == 12
    assert log.eval.model == "base, tuned"
    for sample in log.samples:
        [model] = sample.model_usage
        assert str(sample.id).startswith(f"e-{model}-")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--output", "inspect"], "write --output inspect and --out FILE.eval together"),
        (["--out", "x.eval"], "write --output inspect and --out FILE.eval together"),
        (["--output", "inspect", "--out", "x.json"], "--out x.json: write a name that ends in .eval"),
        (["--output", "inspect", "--out", "absent/x.eval"], "--out absent/x.eval: there is no folder absent"),
    ],
)
def test_a_file_that_cannot_be_a_log_is_refused(
    desk: FinishedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = shown(str(desk.folder), *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"headway: {says}"), done.output


def test_without_inspect_the_message_says_what_to_install(
    desk: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "inspect_ai"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    done = shown(str(desk.folder), "--output", "inspect", "--out", str(tmp_path / "x.eval"))
    assert done.exit_code == 2
    assert "inspect_ai is not installed" in done.stderr
    assert "pip install 'headway[coordinator]'" in done.stderr
