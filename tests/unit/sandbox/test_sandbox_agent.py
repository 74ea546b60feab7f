"""An agent as a program beside the server. It starts once, sees little, and ends with its episode."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_server import Server

from headway_api import names, sandbox_api
from headway_api.sandbox_api import AgentRequest, AgentState, Problem
from headway_sandbox import agent, session

PYTHON = os.path.realpath(sys.executable)
WORKSHOP = """
import sys
from counter import Counter
from headway_sandbox.environment import tool

class Workshop(Counter):
    @tool
    def loaded(self) -> list:
        return sorted({"subprocess", "ctypes", "headway_sandbox.agent"} & sys.modules.keys())

    @tool
    def shell(self, script: str) -> int:
        import subprocess
        return subprocess.run(["sh", "-c", script]).returncode
"""


def workshop(folder: Path, user: int | None = None) -> Server:
    (folder / "workshop.py").write_text(WORKSHOP)
    return Server(folder, "workshop:Workshop", user=user).start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = workshop(tmp_path)
    yield running
    running.close()


def ask(server: Server, *command: str, **environment: str) -> tuple[int, Any]:
    request = AgentRequest(command=list(command), episode={"prompt": "count"}, environment=environment)
    return server.post("/agent", request.model_dump())


def run(server: Server, script: str, **environment: str) -> AgentState:
    """Start a Python program as the agent. Returns its state."""
    status, body = ask(server, PYTHON, "-S", "-c", script, **environment)
    assert status == 200, body
    return AgentState.model_validate(body)


def wait(server: Server, seconds: float = 30) -> AgentState:
    status, body = server.post("/agent/wait", {"seconds": seconds})
    assert status == 200, body
    return AgentState.model_validate(body)


def appears(path: Path) -> str:
    """Wait until the agent has written a line to the file. Returns the text."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.strip()
        time.sleep(0.01)
    raise TimeoutError(path)


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether the process ends within this many seconds. A zombie counts as ended."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_both_sides_use_the_same_file_and_maximum_wait() -> None:
    assert (agent.EPISODE_FILE, agent.ENV_EPISODE_FILE) == (names.EPISODE_FILE, names.ENV_EPISODE_FILE)
    assert session.MAX_AGENT_WAIT == sandbox_api.MAX_AGENT_WAIT


def test_an_agent_sees_its_episode_and_url_not_server_settings(server: Server) -> None:
    server.begin()
    run(
        server,
        "import json, os\n"
        "with open(os.environ['HEADWAY_EPISODE_FILE']) as file:\n"
        "    print(json.dumps([dict(os.environ), json.load(file)]))",
        OPENAI_BASE_URL="http://10.0.0.1:8110/e/t/v1",
    )
    ended = wait(server)
    assert (ended.running, ended.exit_code) == (False, 0), ended.output
    variables, episode = json.loads(ended.output)
    assert episode == {"prompt": "count"}
    assert variables["OPENAI_BASE_URL"] == "http://10.0.0.1:8110/e/t/v1"
    assert variables["PATH"] == os.environ["PATH"]
    assert variables["HOME"] == variables["TMPDIR"] == str(server.folder)
    assert [name for name in variables if name.startswith("HEADWAY_")] == [names.ENV_EPISODE_FILE]


def test_an_agent_is_started_once_however_often_requested(server: Server) -> None:
    server.begin()
    script = f"open({str(server.folder / 'starts')!r}, 'a').write('started\\n')"
    run(server, script)
    wait(server)
    assert run(server, script) == wait(server)
    assert (server.folder / "starts").read_text() == "started\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137), ("1/0", 1)],
)
def test_an_agents_exit_code_is_that_of_a_shell(server: Server, script: str, code: int) -> None:
    server.begin()
    run(server, script)
    assert wait(server).exit_code == code


def test_the_output_tail_is_kept_and_all_of_it_is_in_the_pod_log(server: Server) -> None:
    server.begin()
    run(server, "import os; os.write(1, b'x' * 100_000); os.write(2, 'the last words: ä'.encode())")
    output = wait(server).output
    assert output.endswith("xthe last words: ä")
    assert len(output.encode()) == agent.TAIL
    assert server.log.count("x" * 1000) == 100


def test_tools_run_beside_an_agent_and_reap_their_own_children(server: Server) -> None:
    server.begin()
    assert server.tool("loaded").content == "[]", "an episode without an agent pays for its imports"
    assert run(server, "import time; time.sleep(60)").running
    assert server.tool("add", amount=2).content == '{"total": 5}'
    assert server.tool("shell", script="exit 7").content == "7"
    assert "headway_sandbox.agent" in server.tool("loaded").content
    begun = time.monotonic()
    assert wait(server, 0.2) == AgentState(running=True, exit_code=None, output="")
    assert time.monotonic() - begun < 10


def test_a_wait_for_the_agent_ends_with_its_program(server: Server) -> None:
    server.begin()
    begun = time.monotonic()
    run(server, "import time; time.sleep(0.5)")
    assert wait(server, 60).exit_code == 0
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("program", ["no-such-program", "/etc/passwd", "/etc"])
def test_a_command_that_cannot_start_is_refused_permanently(server: Server, program: str) -> None:
    server.begin()
    for _ in range(2):
        status, body = ask(server, program, "--help")
        problem = Problem.model_validate(body)
        assert (status, problem.reason, problem.permanent) == (500, "AgentNotStarted", True)
        assert problem.field == "spec.agent.sandboxed.command"
        assert program in problem.message
    assert server.tool("stop").done


def test_a_temporary_failure_to_start_is_retriable() -> None:
    problem = agent.not_started("agent", b"11 Resource temporarily unavailable").problem
    assert (problem["reason"], problem["permanent"], problem["field"]) == ("AgentNotStarted", False, None)
    assert not agent.not_started("agent", b"").problem["permanent"]


def test_an_agent_may_run_only_between_reset_and_finish(server: Server) -> None:
    server.lease()
    assert ask(server, "true")[1]["reason"] == "EpisodeNotOpen"
    server.post("/reset", {"row": {"prompt": "x"}, "seed": 0})
    assert server.post("/agent/wait", {"seconds": 0})[1]["reason"] == "NoAgent"
    assert server.post("/agent", {"command": ["true"], "episode": {}}, token="other")[0] == 401
    server.finish()
    assert ask(server, "true")[1]["reason"] == "EpisodeNotOpen"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/agent", {"command": [], "episode": {}}),
        ("/agent", {"command": "true", "episode": {}}),
        ("/agent", {"command": ["true"]}),
        ("/agent", {"command": ["true"], "episode": {}, "environment": {"A": 1}}),
        ("/agent/wait", {}),
        ("/agent/wait", {"seconds": -1}),
        ("/agent/wait", {"seconds": sandbox_api.MAX_AGENT_WAIT + 1}),
        ("/finish", {"messages": [], "truncated": False, "reported": []}),
        ("/finish", {"messages": [], "truncated": False, "reported": [True]}),
        ("/finish", {"messages": [], "truncated": False, "reported": [float("nan")]}),
        ("/finish", {"messages": [], "truncated": False, "reported_metrics": {"a": "1"}}),
    ],
)
def test_an_invalid_request_is_refused(server: Server, path: str, body: dict[str, Any]) -> None:
    server.begin()
    status, answer = server.post(path, body)
    assert (status, Problem.model_validate(answer).reason) == (400, "MalformedRequest")


DAEMON = """
import os, sys, time
daemon, mine = sys.argv[1:]
warden = os.getppid()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for _ in range(500):
            if os.getppid() == warden:
                break
            time.sleep(0.01)
        open(daemon, "w").write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
os.wait()
open(mine, "w").write(f"{os.getpid()}\\n")
while not os.path.exists(daemon):
    time.sleep(0.01)
"""


def with_a_daemon(server: Server, then: str) -> tuple[int, int]:
    """Start an agent that leaves a daemon behind and then runs `then`.

    Returns the pids of agent and daemon.
    """
    daemon, mine = server.folder / "daemon", server.folder / "agent"
    status, body = ask(server, PYTHON, "-S", "-c", DAEMON + then, str(daemon), str(mine))
    assert status == 200, body
    return int(appears(mine)), int(appears(daemon))


SLEEP = "time.sleep(600)"


def test_every_process_of_the_agent_ends_before_judgement(server: Server) -> None:
    server.begin()
    pids = with_a_daemon(server, SLEEP)
    assert server.finish()[0] == 200
    assert all(gone(pid, within=0.1) for pid in pids)
    assert wait(server, 0).exit_code == 137


def test_an_agents_daemon_ends_with_it_and_delays_nothing(server: Server) -> None:
    server.begin()
    pids = with_a_daemon(server, "os._exit(0)")
    assert wait(server).exit_code == 0
    assert all(gone(pid, within=0.1) for pid in pids)


def test_an_agent_ends_with_the_server(server: Server) -> None:
    server.begin()
    pids = with_a_daemon(server, SLEEP)
    server.process.kill()
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_gains_nothing_by_killing_its_parent(server: Server, number: int) -> None:
    server.begin()
    mine = server.folder / "agent"
    run(
        server,
        f"import os, time; open({str(mine)!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        f"os.kill(os.getppid(), {number:d}); time.sleep(600)",
    )
    pid = int(appears(mine))
    assert server.finish()[0] == 200
    assert gone(pid), "killed with its group; its parent is not there to have waited for it"
    assert wait(server, 0).exit_code == 137


ORPHANS = """
import os, sys, time
ended, held = os.pipe()
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.wait()
os.close(held)
os.read(ended, 1)  # there is nothing to read: all that held the other end are gone
time.sleep(0.1)
state = lambda pid: open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
for _ in range(100):
    left = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if state(pid)[:2] == ["Z", sys.argv[1]] or state(pid)[:2] == ["Z", str(os.getppid())]:
                left.append(pid)
        except OSError:
            pass
    if not left:
        break
    time.sleep(0.1)
print(f"zombies: {left}")
"""


def test_an_agents_orphans_are_reaped_while_the_agent_runs(server: Server) -> None:
    server.begin()
    ask(server, PYTHON, "-S", "-c", ORPHANS, str(server.process.pid))
    assert wait(server).output == "zombies: []\n"


THIEF = """
import os, sys
server = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
for part in sys.argv[1:]:
    try:
        path = f"/proc/{server}/{part}"
        print(part, len(os.listdir(path) if part == "fd" else os.readlink(path) if part == "cwd"
                        else open(path, "rb").read(1)))
    except OSError as error:
        print(part, type(error).__name__)
"""


def test_a_program_of_the_same_user_cannot_read_the_server() -> None:
    folder, parts = Path(tempfile.mkdtemp()), ("environ", "mem", "maps", "fd", "cwd")
    user = os.getuid() or 65532  # root may read everything
    try:
        folder.chmod(0o777)
        server = workshop(folder, user)
        try:
            environ = Path(f"/proc/{server.process.pid}/environ")
            assert environ.stat().st_uid == 0, "closed to its user before an environment is imported"
            server.begin()
            assert ask(server, PYTHON, "-S", "-c", THIEF, *parts)[0] == 200
            output = wait(server).output
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)
    assert output.splitlines() == [f"{part} PermissionError" for part in parts]
