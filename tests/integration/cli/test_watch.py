"""`headway watch` as people run it: in a terminal of changing size, and in a pipe that is closed early."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import shown_jobs
from debian_program import program
from stub_cluster import StubCluster, served

from headway_api.document import Json

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 60
WATCH = (sys.executable, "-m", "headway_cli", "watch", "refund-desk")
SESSION = ("new-session", "-d", "-x", "100", "-y", "70", "sh")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "sop-quickstart" / "job.yaml"


@dataclass
class Played:
    """A simulated cluster with one job."""

    stub: StubCluster
    env: dict[str, str]

    def put(self, job: Json, *, step: int | None = None) -> None:
        """Replace the job in the cluster by this one."""
        known = self.stub.jobs.get(("rltrainingjobs", "refund-desk"))
        version = 1 if known is None else int(known["metadata"]["resourceVersion"]) + 1
        job["metadata"]["resourceVersion"] = str(version)
        if step is not None:
            job["status"]["progress"]["step"] = step
        self.stub.jobs["rltrainingjobs", "refund-desk"] = job


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    stub = StubCluster()
    with served(stub, tmp_path) as config:
        env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        found = Played(stub, {**env, "KUBECONFIG": str(config), "PYTHONPATH": os.pathsep.join(sys.path)})
        found.put(shown_jobs.training())
        yield found


def until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait until the condition holds, or fail with `what()` after the deadline."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


# a terminal


@dataclass
class Tmux:
    """A terminal with a shell in it. Only tmux simulates a size and a scrollback."""

    tmux: str
    """Path of the tmux program."""
    socket: Path

    def __call__(self, *words: str) -> str:
        command = [self.tmux, "-S", str(self.socket), "-f", os.devnull, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def text(self) -> str:
        """What the terminal shows."""
        return self("capture-pane", "-p")

    def history(self) -> str:
        """What the terminal shows, and what has scrolled out of view."""
        return self("capture-pane", "-p", "-S", "-")

    def type(self, *keys: str) -> None:
        self("send-keys", *keys)

    def shows(self, *texts: str) -> None:
        until(lambda: all(text in self.text() for text in texts), self.text)

    def has_cursor(self) -> bool:
        return self("display-message", "-p", "#{cursor_flag}").strip() == "1"


@pytest.fixture
def tmux(played: Played) -> Iterator[Tmux]:
    """A terminal of 100 columns and 70 lines, with the prompt `ready$`."""
    with tempfile.TemporaryDirectory(prefix="tmux-") as folder:  # a socket's path must be short
        there = Tmux(program("tmux"), Path(folder) / "s")
        command = [there.tmux, "-S", str(there.socket), "-f", os.devnull, *SESSION]
        subprocess.run(command, env={**played.env, "LC_ALL": "C.UTF-8"}, check=True, timeout=20)
        try:
            there.type("PS1='ready$ '; clear", "Enter")
            there.shows("ready$")
            yield there
        finally:
            there("kill-server")


def started(tmux: Tmux, *options: str) -> None:
    tmux.type("clear; " + shlex.join([*WATCH, *options]) + "; echo exit $?", "Enter")


def test_a_terminal_is_drawn_on_in_place_at_any_size(played: Played, tmux: Tmux) -> None:
    started(tmux)
    tmux.shows("42 of 100; validation of step 40 runs", "about 8.1 for the whole job (6.2 to 11)")
    assert not tmux.has_cursor()
    for step in range(43, 48):
        played.put(shown_jobs.training(), step=step)
        tmux.shows(f"{step} of 100")
    assert tmux.history().count("RLTrainingJob team/refund-desk") == 1
    assert "42 of 100" not in tmux.history()

    tmux("resize-window", "-x", "60")
    tmux.shows("about 8.1 for the whole job (6.2 to 11);", "0.08 (0.05 to 0.12) against a threshold of 0.05;")
    played.put(shown_jobs.training(), step=48)
    tmux.shows("48 of 100")
    lines = tmux.text().splitlines()
    assert max(map(len, lines)) <= 60
    assert tmux.text().count("RLTrainingJob team/refund-desk") == 1
    assert [line[:11].strip() for line in lines if line[:1].strip()][:3] == ["job", "state", "step"]

    tmux("resize-window", "-x", "120", "-y", "12")
    played.put(shown_jobs.training(), step=49)
    tmux.shows("49 of 100", "tokens ")
    assert tmux.text().count("RLTrainingJob team/refund-desk") == 1

    tmux.type("C-c")
    tmux.shows("exit 130", "ready$")
    assert tmux.has_cursor()
    assert "throughput: the learner has taken no step" in tmux.history()  # lines that did not fit
    tmux.type("echo all is well", "Enter")
    tmux.shows("\nall is well")


def test_the_last_screen_stays_when_the_job_ends(played: Played, tmux: Tmux) -> None:
    started(tmux)
    tmux.shows("42 of 100")
    played.put(shown_jobs.complete())
    tmux.shows("exit 0", "100 of 100; no step follows (MaxSteps)", "test split 0.8 (0.75 to 0.85) at step 90")
    assert tmux.has_cursor()
    assert tmux.history().count("RLTrainingJob team/refund-desk") == 1


def test_a_local_job_is_drawn_too(tmux: Tmux, tmp_path: Path) -> None:
    """The job is suspended, so that no process of it starts."""
    words = ("run", str(EXAMPLE), "--local", "--set", "spec.suspend=true", "--folder", str(tmp_path / "job"))
    tmux.type(f"clear; {shlex.join([sys.executable, '-m', 'headway_cli', *words])}; echo exit $?", "Enter")
    tmux.shows("exit 3", "RLTrainingJob headway-demo/sop-quickstart", "state      Suspended for ", "files: ")
    assert tmux.has_cursor()


def test_a_terminal_has_plain_lines_when_they_are_asked_for(played: Played, tmux: Tmux) -> None:
    started(tmux, "--plain")
    tmux.shows("state Training  step 42/100")
    played.put(shown_jobs.training(), step=43)
    tmux.shows("step 42/100", "step 43/100")
    tmux.type("C-c")
    tmux.shows("exit 130")


def test_a_terminated_command_gives_the_cursor_back(played: Played, tmux: Tmux) -> None:
    tmux.type(f"clear; {shlex.join(WATCH)} & echo $!; wait $!; echo exit $?", "Enter")
    tmux.shows("42 of 100")
    pid = next(int(line) for line in tmux.history().splitlines() if line.strip().isdigit())
    os.kill(pid, signal.SIGTERM)
    tmux.shows("exit 130")
    assert tmux.has_cursor()


# a pipe


@pytest.mark.parametrize("options", [(), ("--output", "json")])
def test_a_pipe_that_is_closed_ends_the_command_at_once(played: Played, options: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [*WATCH, *options], env=played.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert "Training" in process.stdout.readline()
    until(lambda: played.stub.watches > 0, lambda: "nothing is watched")
    process.stdout.close()  # the job does not change after that
    try:
        assert process.wait(10) == 141
        assert process.stderr.read() == ""
    finally:
        process.kill()


def test_a_pipe_closed_before_the_first_line_ends_the_command(played: Played) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{{ {shlex.join(WATCH)}; echo $? >&2; }} | true"],
        env=played.env,
        text=True,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.stderr == "141\n"


def test_a_pipe_that_reads_one_line_gets_one(played: Played) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(WATCH)} | head -1"],
        env=played.env,
        text=True,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert len(done.stdout.splitlines()) == 1
    assert "state Training  step 42/100" in done.stdout
    assert done.stderr == ""
