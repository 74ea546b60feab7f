"""What environments may ask of the runner, as a process. test_out_of_reach.py tests the runner's
isolation."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway_api import names
from headway_sandbox import runner
from headway_sandbox.runner import CommandStartError, Limits, NoRunnerError, RunnerLostError, client

PYTHON = [os.path.realpath(sys.executable), "-S"]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(client.ENV_EPISODE_FILE, str(tmp_path / "episode.json"))
    monkeypatch.setenv("HEADWAY_ENVIRONMENT_CONFIG", '{"answer": 42}')
    runner.awaited(runner.CHILD)
    yield tmp_path
    runner.close()


def python(code: str, **more: object) -> runner.Completed:
    return runner.run([*PYTHON, "-c", code], **more)  # type: ignore[arg-type]


def test_both_sides_use_the_same_names_of_files_and_variables() -> None:
    assert (runner.ENV_RUNNER, client.EPISODE_FILE) == (names.ENV_RUNNER, names.EPISODE_FILE)
    assert client.ENV_EPISODE_FILE == names.ENV_EPISODE_FILE


def test_a_command_gets_input_and_returns_its_output_and_code() -> None:
    code = "import sys; data = sys.stdin.read(); print(len(data)); print('no', file=sys.stderr); sys.exit(3)"
    done = python(code, stdin="x" * 3_000_000)
    assert (done.code, done.stdout, done.stderr) == (3, "3000000\n", "no\n")
    assert (done.timed_out, done.truncated) == (False, False)
    assert runner.run(["cat"], stdin=b"\xff").stdout == "\N{REPLACEMENT CHARACTER}"


def test_input_for_a_command_that_reads_nothing_is_bounded() -> None:
    assert python("print('done')", stdin="x" * 3_000_000).stdout == "done\n"


def test_a_command_has_its_folder_and_no_variable_of_the_servers(work: Path) -> None:
    code = "import os; print(os.getcwd(), os.environ['HOME'], os.environ['ADDED'])\n"
    code += "print([name for name in os.environ if name.startswith('HEADWAY_')])"
    done = python(code, variables={"ADDED": "yes"})
    assert done.stdout == f"{work} {work} yes\n['HEADWAY_EPISODE_FILE']\n"
    assert runner.run(["pwd"], folder="/").stdout == "/\n"
    assert runner.work_folder() == str(work)


def test_a_command_is_killed_at_its_timeout_with_its_group() -> None:
    code = (
        "import os, time\nprint(os.getpid(), flush=True)\nif os.fork() == 0: time.sleep(600)\ntime.sleep(600)"
    )
    done = python(code, timeout=1.0)
    assert (done.timed_out, done.code) == (True, 137)
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        try:
            os.killpg(int(done.stdout), 0)
        except ProcessLookupError:
            return
    pytest.fail("the group lives")


def test_endless_output_ends_with_the_timeout_and_is_cut() -> None:
    done = runner.run(["yes"], timeout=1.0, limits=Limits(output_bytes=1000))
    assert (len(done.stdout), done.truncated, done.timed_out) == (1000, True, True)


def test_a_child_left_behind_does_not_delay_the_result() -> None:
    """A child that the command leaves behind holds the pipes open."""
    code = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)\nprint('gone', flush=True)"
    done = python(code, timeout=300)
    assert (done.stdout, done.code, done.timed_out) == ("gone\n", 0, False)


def test_a_command_has_its_limits(work: Path) -> None:
    large = python("'x' * 2**30", limits=Limits(memory_bytes=2**28))
    assert "MemoryError" in large.stderr, large
    assert python("while True: pass", limits=Limits(cpu_seconds=1), timeout=300).code == 128 + signal.SIGKILL
    python("open('big', 'wb').write(b'x' * 5000)", limits=Limits(file_bytes=1000))
    assert (work / "big").stat().st_size == 1000


def test_limits_hold_before_the_command_begins(work: Path) -> None:
    """Otherwise a command that forks at once would leave a child without limits."""
    limits = Limits(memory_bytes=2**28, cpu_seconds=7, file_bytes=2**20)
    shown = ["sh", "-c", "ulimit -v; ulimit -t; ulimit -Hv"]
    found = {runner.run(shown, limits=limits).stdout for _ in range(40)}
    assert found == {f"{2**18}\n7\n{2**18}\n"}


@pytest.mark.parametrize("name", ["memory_bytes", "cpu_seconds", "file_bytes", "output_bytes"])
def test_a_limit_must_be_above_zero(name: str) -> None:
    """A limit of -1 would mean no limit at all."""
    for limit in (0, -1):
        with pytest.raises(ValueError, match="above 0"):
            Limits(**{name: limit})


@pytest.mark.parametrize(
    ("command", "folder", "says"),
    [
        (["no-such-program"], None, "No such file"),
        (["/etc/passwd"], None, "Permission denied"),
        (["true"], "/nowhere", "No such file"),
        (["true", "a\0b"], None, "null byte"),
        (["true", "x" * 100_000], None, "write long data to a file or to stdin"),
    ],
)
def test_a_command_that_cannot_be_started_says_why(command: list[str], folder: str | None, says: str) -> None:
    with pytest.raises(CommandStartError, match=says):
        runner.run(command, folder=folder)
    assert runner.run(["true"]).code == 0


def test_files_pass_through_the_runner(work: Path) -> None:
    content = os.urandom(300_000)
    runner.put("given", content)
    assert (work / "given").read_bytes() == content
    assert runner.get("given") == content
    runner.put("text", "ä")
    assert (runner.get("text"), runner.get("missing")) == ("ä".encode(), None)
    with pytest.raises(OSError, match="more than 10 bytes"):
        runner.get("given", 10)
    with pytest.raises(OSError, match="No such file"):
        runner.put("nowhere/given", b"")


def test_no_link_or_pipe_leads_out_of_the_folder(work: Path) -> None:
    outside = work.parent / "outside"
    outside.write_text("kept")
    (work / "link").symlink_to(outside)
    os.mkfifo(work / "pipe")
    runner.put("link", "new")
    assert (outside.read_text(), (work / "link").read_text()) == ("kept", "new")
    with pytest.raises(OSError, match="not a regular file"):
        runner.get("pipe")


def test_without_a_runner_the_field_is_named() -> None:
    runner.close()
    with pytest.raises(NoRunnerError, match=r"set spec\.environment\.sandbox\.runsCode: true"):
        runner.run(["true"])


def test_a_runner_that_has_ended_is_named_as_the_cause() -> None:
    with pytest.raises(RunnerLostError, match="has ended"):
        python("import os; os.kill(os.getppid(), 9)")
    with pytest.raises(RunnerLostError, match=r"spec\.environment\.sandbox\.resources"):
        runner.run(["true"])


def test_a_runner_of_the_servers_own_user_is_refused(tmp_path: Path) -> None:
    """Without a separate user there is no isolation, and a pod template could cause that."""
    path = str(tmp_path / "socket")
    listener = client.listen(path)
    child = os.fork()
    if child == 0:
        connection = client.socket.socket(client.socket.AF_UNIX, client.socket.SOCK_SEQPACKET)
        connection.connect(path)
        time.sleep(0.5)
        os._exit(0)
    with pytest.raises(RunnerLostError, match="the server's own user"):
        client.accept(listener, path)
    os.waitpid(child, 0)
    assert not os.path.exists(path)


def test_the_wait_for_a_runner_ends_in_time(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with pytest.raises(RunnerLostError, match=r"has not connected within 0\.1 s"):
        client.accept(client.listen(path), path, 0.1)
