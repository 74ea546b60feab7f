"""`headway watch` and `submit` in a pipe: a line or an object for each change, and the exit code."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import shown_jobs
import typer
import yaml
from rich.console import Console, ConsoleDimensions
from stub_cluster import StubCluster, served
from typer.testing import CliRunner, Result

from headway_api.document import Json
from headway_cli.app import app
from headway_cli.commands import following
from headway_cli.commands.common import Form
from headway_cli.commands.following import Mode, mode
from headway_cli.terminal import REDRAW_SECONDS, Terminal

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 30
NAME = "refund-desk"


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    found = StubCluster()
    with served(found, tmp_path) as config:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
        yield found


def put(stub: StubCluster, job: Json, version: int = 1) -> None:
    job["metadata"]["resourceVersion"] = str(version)
    plural = "rltrainingjobs" if job["kind"] == "RLTrainingJob" else "rlevaljobs"
    stub.jobs[plural, job["metadata"]["name"]] = copy.deepcopy(job)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def then(stub: StubCluster, *jobs: Callable[[], Json], then_deleted: bool = False) -> threading.Thread:
    """Change the job once the command watches it, and then once more."""

    def change() -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not stub.watches and time.monotonic() < end:
            time.sleep(0.02)
        for version, make in enumerate(jobs, 2):
            time.sleep(0.2)
            put(stub, make(), version)
        if then_deleted:
            stub.jobs.clear()

    thread = threading.Thread(target=change)
    thread.start()
    return thread


def ended(kind: str) -> Json:
    job = shown_jobs.complete()
    if kind == "Failed":
        job["status"]["state"] = "Failed"
        job["status"]["conditions"][-1] |= {"type": "Failed", "message": "the learner has no memory left"}
    return job


@pytest.mark.parametrize(("end", "code"), [("Complete", 0), ("Failed", 1)])
def test_a_pipe_has_a_line_for_each_change(stub: StubCluster, end: str, code: int) -> None:
    put(stub, shown_jobs.training())
    later = then(stub, shown_jobs.training, lambda: ended(end))
    done = run("watch", NAME)
    later.join()
    assert done.exit_code == code, done.output
    lines = [line for line in done.stdout.splitlines() if "state " in line]
    assert len(lines) == 2, done.stdout
    assert (
        "state Training  step 42/100  reward 0.4375  held-out 0.62 ± 0.06 (step 40)  tokens 5,989,557"
        in lines[0]
    )
    assert f"state {end}  step 100/100" in lines[1]
    assert ("the learner has no memory left" in done.stdout) == (end == "Failed")
    assert "\x1b" not in done.stdout


def test_json_has_an_object_for_each_change(stub: StubCluster) -> None:
    put(stub, shown_jobs.training())
    later = then(stub, shown_jobs.training, shown_jobs.complete)
    done = run("watch", NAME, "--output", "json")
    later.join()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert [each.pop("status") for each in found] == [
        shown_jobs.training()["status"],
        shown_jobs.complete()["status"],
    ]
    for each in found:
        assert datetime.fromisoformat(each.pop("time")).tzinfo is not None
        assert each == {"kind": "RLTrainingJob", "namespace": "team", "name": NAME}


def test_an_evaluation_has_its_candidates_in_the_line(stub: StubCluster) -> None:
    put(stub, shown_jobs.evaluation())

    def complete() -> Json:
        job = shown_jobs.evaluation()
        job["status"] |= {"state": "Complete", "conditions": [{"type": "Complete", "status": "True"}]}
        return job

    later = then(stub, complete)
    done = run("watch", f"{NAME}-eval", "--kind", "eval")
    later.join()
    assert done.exit_code == 0
    line = "state Evaluating  rows 358/480  base 0.62 ± 0.06  tuned 0.83 ± 0.05  gate Pending"
    assert line in done.stdout.splitlines()[0]


def test_a_job_that_is_deleted_ends_its_watch(stub: StubCluster) -> None:
    put(stub, shown_jobs.training())
    later = then(stub, then_deleted=True)
    done = run("watch", NAME)
    later.join()
    assert done.exit_code == 1
    assert f"RLTrainingJob {NAME} was deleted" in done.stderr


@pytest.mark.parametrize("form", list(Form))
def test_submit_says_what_it_applied(stub: StubCluster, tmp_path: Path, form: Form) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"kind": "RLTrainingJob", "metadata": {"name": NAME}, "spec": {}}))
    done = run("submit", str(path), "--output", form.value)
    assert done.exit_code == 0, done.output
    if form is Form.JSON:
        assert json.loads(done.stdout) == {"kind": "RLTrainingJob", "namespace": "team", "name": NAME}
    else:
        assert done.stdout == f"RLTrainingJob team/{NAME}\n"


EXAMPLE = ROOT / "examples" / "sop-quickstart" / "job.yaml"


@pytest.mark.parametrize("form", list(Form))
def test_a_local_job_is_shown_in_a_pipe_too(tmp_path: Path, form: Form) -> None:
    """The job is suspended, so that no process of it starts."""
    where = tmp_path / "job"
    options = ("--set", "spec.suspend=true", "--folder", str(where), "--output", form.value)
    done = run("run", str(EXAMPLE), "--local", *options)
    assert done.exit_code == 3, done.output
    assert "the job is not running: " in done.stderr
    if form is Form.JSON:
        last = json.loads(done.stdout.splitlines()[-1])
        assert (last["name"], last["status"]["state"]) == ("sop-quickstart", "Suspended")
    else:
        assert "state Suspended  step 0/" in done.stdout
        assert done.stdout.endswith(f"files: {where}\n")


def test_only_a_terminal_has_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mode(Form.TEXT, plain=False) is Mode.LINES
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert mode(Form.TEXT, plain=False) is Mode.SCREEN
    assert mode(Form.TEXT, plain=True) is Mode.LINES
    assert mode(Form.JSON, plain=False) is Mode.JSON
    monkeypatch.setenv("TERM", "dumb")
    assert mode(Form.TEXT, plain=False) is Mode.LINES


def test_a_pipe_that_is_closed_ends_a_command_at_its_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(typer, "echo", closed)
    monkeypatch.setattr("headway_cli.closed_pipe.discard_output", lambda: None)
    with pytest.raises(typer.Exit) as left, following.shown(Mode.JSON) as show:
        show(shown_jobs.training())
    assert left.value.exit_code == 141


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """A console that writes to a file as if to a terminal."""
    with (tmp_path / "terminal").open("w+") as out:
        yield Console(file=out, force_terminal=True, width=80, height=50)


def written(console: Console) -> str:
    console.file.flush()
    return Path(console.file.name).read_text()


def until_written(console: Console, text: str) -> None:
    """Return once the console has written the text."""
    end = time.monotonic() + DEADLINE_SECONDS
    while text not in written(console):
        assert time.monotonic() < end, written(console)
        time.sleep(REDRAW_SECONDS / 10)


def test_an_unchanged_job_is_not_drawn_again(console: Console) -> None:
    with Terminal(console, now=lambda: shown_jobs.NOW) as there:
        there.show(shown_jobs.training())
        until_written(console, "held-out")
        there.show(shown_jobs.training())
        time.sleep(3 * REDRAW_SECONDS)  # a redraw would happen in this time
    assert written(console).count("held-out") == 2  # once at the start, and once at the end
    assert written(console).endswith("\x1b[?25h")


def test_a_terminal_of_a_new_size_is_cleared_first(console: Console) -> None:
    """A terminal may wrap the old lines again, and then shows more lines than were written."""
    clear = "\x1b[H\x1b[2J"
    with Terminal(console, now=lambda: shown_jobs.NOW) as there:
        there.show(shown_jobs.training())
        until_written(console, "held-out")
        assert clear not in written(console)
        console.size = ConsoleDimensions(60, 50)
        until_written(console, "EntropyFalling since step 31;\x1b[0m\n")
    assert written(console).count(clear) == 1
    assert "EntropyFalling since step 31;\x1b[0m\n" in written(console).partition(clear)[2]


def test_a_terminal_is_restored_if_a_job_is_not_found(console: Console) -> None:
    with Terminal(console):
        pass
    assert written(console) == ""


@pytest.mark.parametrize("form", list(Form))
def test_suspend_and_resume_say_what_they_changed(stub: StubCluster, form: Form) -> None:
    job = shown_jobs.training()
    job["status"]["pause"] = {"time": "2026-01-01T00:00:00Z", "signal": "GradientSpiking", "step": 3}
    put(stub, job)
    suspended, resumed = (run(verb, NAME, "--output", form.value) for verb in ("suspend", "resume"))
    assert (suspended.exit_code, resumed.exit_code) == (0, 0), suspended.output + resumed.output
    assert [each["spec"]["suspend"] for each in stub.applied] == [True, False]
    if form is Form.JSON:
        of = {"kind": "RLTrainingJob", "namespace": "team", "name": NAME}
        assert json.loads(suspended.stdout) == {**of, "suspend": True}
        pause = {"suspend": False, "resumedPause": "2026-01-01T00:00:00Z"}
        assert json.loads(resumed.stdout) == {**of, **pause}
    else:
        assert suspended.stdout.startswith(f"{NAME}: spec.suspend is true; ")
        assert resumed.stdout.endswith("; the pause of 2026-01-01T00:00:00Z is over\n")


WITHOUT_JSON = {
    "mcp": "its output is a protocol",
    "serve": "its output is vLLM's log, and with --print a command for a shell",
}
"""Command -> the reason why it has no `--output json`."""


def test_every_command_that_prints_data_has_json() -> None:
    page = " ".join((ROOT / "docs" / "cli.md").read_text(encoding="utf-8").split())
    group: Any = typer.main.get_command(app)
    with_json = {
        name
        for name, each in group.commands.items()
        if any("--output" in option.opts for option in each.params)
    }
    assert group.commands.keys() - with_json - {"data"} == WITHOUT_JSON.keys()
    none = " and ".join(f"`{name}`" for name in sorted(WITHOUT_JSON))
    assert f"All commands except {none} take `--output json`." in page
    assert any("--output" in option.opts for option in group.commands["data"].commands["push"].params)
