"""`headway logs`: whose lines it shows, for a local job, a stored run, and pods on a cluster."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from finished_run import NAME, FinishedRun
from stub_cluster import StubCluster, pod, served
from typer.testing import CliRunner, Result

from headway_cli import log_lines, pod_logs
from headway_cli.commands.logs import logs
from headway_cli.log_lines import Growing, Line, Role, Wanted, role_of, stems
from headway_cli.where import Stored, place_named

DESK = stems("RLTrainingJob", NAME)
app = typer.Typer()
app.command()(logs)


def shown(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local job below .headway of the current folder, with the logs of two processes."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".headway" / NAME
    FinishedRun(folder).job().identity()
    (folder / "logs").mkdir()
    for number, (name, lines) in enumerate({"learner-0-b": "l1\nl2\n", "coordinator-a": "c1\n"}.items()):
        path = folder / "logs" / f"{NAME}-{name}.log"
        path.write_text(lines)
        os.utime(path, (number, number))
    return folder


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("desk-coordinator-x7", "coordinator"),
        ("desk-learner-0", "learner"),
        ("desk-rollout-validation-1-a", "rollout"),
        ("desk-broker-2-z", "broker"),
        ("desk-judge-1-z", "judge"),
        ("desk-sandbox-abc", "sandbox"),
        ("desk-eval-coordinator-x", None),
        ("other-learner-0", None),
        ("desk-learners", None),
    ],
)
def test_a_pods_name_says_its_role(name: str, role: str | None) -> None:
    assert role_of(name, DESK) == role


def test_without_a_kind_both_kinds_of_names_are_known() -> None:
    assert role_of("desk-eval-coordinator-x", stems(None, "desk")) == "coordinator"


def test_an_agent_in_its_sandbox_has_the_role_runner() -> None:
    wanted = Wanted(Role.AGENT)
    assert wanted.takes("sandbox", "runner")
    assert not wanted.takes("sandbox", "sandbox")
    assert not Wanted(Role.SANDBOX).takes("sandbox", "runner")
    assert Wanted(Role.SANDBOX).takes("sandbox", "sandbox")
    assert Wanted().takes(None, "runner")


@pytest.mark.parametrize(("tail", "many"), [(None, 3), (0, 0), (2, 2), (9, 3)])
def test_tail_bounds_the_number_of_lines(tail: int | None, many: int) -> None:
    assert Wanted(tail=tail).last("a\nb\nc\n") == ["a", "b", "c"][3 - many :]


def test_a_local_jobs_lines_name_their_process_newest_last(job: Path) -> None:
    done = shown(str(job))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "desk-learner-0-b: l1", "desk-learner-0-b: l2", "desk-coordinator-a: c1"
    ]  # fmt: skip


def test_a_log_cannot_control_the_terminal(job: Path) -> None:
    (job / "logs" / f"{NAME}-coordinator-a.log").write_text("a\tb\x1b[2Jc\x9bd\n")
    done = shown(str(job), "--role", "coordinator")
    assert done.stdout == "desk-coordinator-a: a\tb [2Jc d\n"


def test_json_has_an_object_for_each_line(job: Path) -> None:
    done = shown(str(job), "--output", "json", "--role", "learner")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"writer": "desk-learner-0-b", "text": "l1"},
        {"writer": "desk-learner-0-b", "text": "l2"},
    ]


def test_a_local_job_is_found_by_its_name(job: Path) -> None:
    done = shown(NAME, "--role", "learner", "--tail", "1")
    assert (done.exit_code, done.stdout) == (0, "desk-learner-0-b: l2\n")


def test_a_role_that_wrote_nothing_is_named(job: Path) -> None:
    done = shown(NAME, "--role", "rollout")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no such process has written anything\n"


def test_a_growing_log_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntw")
    log = Growing(path)
    assert log.new() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n\xff\n")
    assert log.new() == ["two", "\N{REPLACEMENT CHARACTER}"]
    assert log.new() == []


def test_later_lines_and_new_processes_are_followed(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job / "logs"

    def later(seconds: float) -> None:
        with (folder / f"{NAME}-coordinator-a.log").open("a") as file:
            file.write("c2\n")
        (folder / f"{NAME}-rollout-9.log").write_text("r1\n")

    monkeypatch.setattr(log_lines.time, "sleep", later)
    lines = log_lines.followed(folder, DESK, Wanted(tail=1))
    assert [*itertools.islice(lines, 2)] == [Line("desk-learner-0-b", "l2"), Line("desk-coordinator-a", "c1")]
    assert {*itertools.islice(lines, 2)} == {Line("desk-coordinator-a", "c2"), Line("desk-rollout-9", "r1")}


def test_ctrl_c_ends_following(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log_lines.time, "sleep", interrupted)
    done = shown(NAME, "--follow")
    assert done.exit_code == 130
    assert "desk-coordinator-a: c1" in done.stdout


def test_a_store_has_the_last_log_of_each_process(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).identity()
    for pod_name, container in (("desk-coordinator-a", "coordinator"), ("desk-learner-0", "learner")):
        run.store.put(run.layout.last_log(pod_name, container), b"x\ny\n")
    run.store.put(f"{run.layout.logs}/candidate.eval", b"no log")
    run.store.put(f"{run.layout.logs}/odd.log", b"of nobody")
    done = shown(run.uri, "--role", "learner", "--tail", "1")
    assert (done.exit_code, done.stdout) == (0, "desk-learner-0: y\n")
    assert len(shown(run.uri).stdout.splitlines()) == 4


def test_a_store_is_not_followed(tmp_path: Path) -> None:
    done = shown(FinishedRun(tmp_path).identity().uri, "--follow")
    assert done.exit_code == 2
    assert "--follow is for running jobs" in done.stderr


def test_an_unknown_run_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = shown("No/Such")
    assert done.exit_code == 2
    assert "No/Such does not exist: name the folder of a local job (.headway/NAME)" in done.stderr


def test_logs_finds_a_stored_run_by_its_folder(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).identity()
    assert place_named(str(run.place), tmp_path) == Stored(run.uri)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    monkeypatch.chdir(tmp_path)
    run = FinishedRun(tmp_path / "store").identity()
    run.store.put(run.layout.last_log("desk-learner-0", "learner"), b"kept\n")
    done = [{"type": "Complete", "status": "True"}]
    job = {
        "kind": "RLTrainingJob",
        "metadata": {"name": NAME, "uid": "u"},
        "spec": {"output": {"uri": run.layout.output_uri}},
        "status": {"artifacts": {"uri": run.uri}, "conditions": done},
    }
    made = StubCluster(jobs={("rltrainingjobs", NAME): job})
    made.pods = [
        pod("desk-learner-0", "learner"),
        pod("desk-sandbox-1", "sandbox", containers=("sandbox", "runner")),
        pod("desk-rollout-1", "rollout", waits=True),
        pod("desk-coordinator-9", "coordinator", uid="another"),
    ]
    made.logs = {
        ("desk-learner-0", "learner"): ["one", "two"],
        ("desk-sandbox-1", "sandbox"): ["served"],
        ("desk-sandbox-1", "runner"): ["agent"],
    }
    with served(made, tmp_path) as kubeconfig:
        monkeypatch.setattr(pod_logs, "LOOK_SECONDS", 0.2)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        yield made


def test_pods_of_the_job_that_have_begun_are_read(stub: StubCluster) -> None:
    done = shown(NAME)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "desk-learner-0: one",
        "desk-learner-0: two",
        "desk-sandbox-1/sandbox: served",
        "desk-sandbox-1/runner: agent",
    ]


def test_a_role_and_the_last_lines_are_asked_of_the_cluster(stub: StubCluster) -> None:
    done = shown(NAME, "--role", "learner", "--tail", "1")
    assert done.stdout == "desk-learner-0: two\n"
    assert [each["tailLines"] for each in stub.asked] == ["1"]
    assert shown(NAME, "--role", "agent").stdout == "desk-sandbox-1/runner: agent\n"


def test_a_pod_that_goes_meanwhile_is_skipped(stub: StubCluster) -> None:
    del stub.logs["desk-learner-0", "learner"]
    done = shown(NAME)
    assert done.exit_code == 0
    assert "desk-learner-0" not in done.stdout


def test_a_job_that_has_ended_is_followed_to_the_end_of_its_pods(stub: StubCluster) -> None:
    done = shown(NAME, "--follow", "--role", "learner")
    assert (done.exit_code, done.stdout) == (0, "desk-learner-0: one\ndesk-learner-0: two\n")
    assert stub.asked[0]["follow"] == "true"


def test_kept_logs_of_gone_pods_are_shown_with_a_note(stub: StubCluster) -> None:
    stub.pods = []
    done = shown(NAME)
    assert (done.exit_code, done.stdout) == (0, "desk-learner-0: kept\n")
    assert (
        "desk has no such pod now; these are the last logs that its processes kept in file://" in done.stderr
    )


def test_a_store_that_this_machine_does_not_reach_is_an_error(stub: StubCluster, tmp_path: Path) -> None:
    stub.pods = []
    stub.jobs["rltrainingjobs", NAME]["status"]["artifacts"]["uri"] = f"file://{tmp_path}/absent"
    done = shown(NAME)
    assert done.exit_code == 2
    assert "there is no such pod now, and its last logs cannot be read" in done.stderr
    assert "--endpoint-url" in done.stderr


def test_a_user_without_log_rights_learns_what_to_request(stub: StubCluster) -> None:
    stub.refused = "pods/log is forbidden"
    for words in ([NAME], [NAME, "--follow"]):
        done = shown(*words)
        assert done.exit_code == 2
        assert "pods/log is forbidden; ask for the role `edit` in namespace team" in done.stderr


def test_a_job_that_is_not_there_is_answered_with_near_names(stub: StubCluster) -> None:
    done = shown("dusk")
    assert done.exit_code == 2
    near = "namespace team has no RLTrainingJob dusk; did you mean"
    assert near in done.stderr or "write -n for another namespace" in done.stderr
