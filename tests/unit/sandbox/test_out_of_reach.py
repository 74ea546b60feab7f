"""Code that the model runs cannot reach the server that judges it. Each test is an attack that must fail."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import walled_runner
from hostile_code import CAREFUL, HOSTILE, STAYS, WALLED
from sandbox_server import Server

from headway_api.exits import PERMANENT
from headway_api.sandbox_api import AgentRequest

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes processes of two other users")
SECRET = "the-token-of-the-lease"


def begun(server: Server, answer: str = "42") -> Server:
    assert server.lease(token=SECRET)[0] == 204
    status, body = server.post("/reset", {"row": {"answer": answer}, "seed": 0}, token=SECRET)
    assert status == 200, body
    return server


def tool(server: Server, name: str, **arguments: Any) -> Any:
    status, body = server.post("/tool", {"name": name, "arguments": arguments}, token=SECRET)
    assert status == 200, body
    return json.loads(body["content"])


def python(server: Server, code: str, argument: str = "") -> dict[str, Any]:
    found: dict[str, Any] = tool(server, "python", code=code, argument=argument)
    return found


def judged(server: Server, answer: str) -> float:
    messages = [{"role": "assistant", "content": answer}]
    status, body = server.post("/finish", {"messages": messages, "truncated": False}, token=SECRET)
    assert status == 200, body
    return float(body["reward"])


@pytest.fixture
def beside() -> Iterator[Server]:
    """A server whose tools run code as the server's own user, as may happen with the `builtin` agent."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o777)
        (folder / "careful.py").write_text(CAREFUL)
        server = Server(folder, "careful:Careful", user=os.geteuid() or walled_runner.USER)
        try:
            yield server.start()
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def apart() -> Iterator[Server]:
    """A server with a separate runner, as in a pod."""
    with walled_runner.walled(WALLED, "walled:Walled") as server:
        yield server.start()


def test_code_of_the_servers_own_user_cannot_read_it(beside: Server) -> None:
    print(f"this kernel: {walled_runner.scope()}")
    begun(beside)
    found = tool(beside, "code")
    assert found["seen"], "it is the same PID namespace"
    assert (found["got"], found["variables"]) == ([], ["HEADWAY_EPISODE_FILE"])
    assert len(found["files"]) <= 3, "standard streams alone"
    assert judged(beside, "41") == 0.0


def test_the_server_can_still_read_its_own_proc_files(beside: Server) -> None:
    assert tool(begun(beside), "own") == {"status": True, "maps": True, "fd": True}


@AS_ROOT
def test_code_in_the_runner_sees_no_server_process(apart: Server) -> None:
    print(f"this kernel: {walled_runner.scope()}")
    begun(apart)
    server = tool(apart, "pid")
    done = python(apart, HOSTILE, str(server))
    found = json.loads(done["out"] or done["error"])
    assert found["users"] == [walled_runner.RUNNER_USER] * 2
    assert not found["seen"] or server < 10, "a number of the runner's own namespace"
    assert found["got"] == []
    assert found["variables"] == ["HEADWAY_EPISODE_FILE"]
    assert len(found["files"]) <= 3
    assert sorted(found["processes"])[:1] == ["1"]
    assert len(found["processes"]) == 2, "the runner and the code itself"


@AS_ROOT
def test_code_in_the_runner_cannot_read_or_end_the_runner(apart: Server) -> None:
    begun(apart)
    assert json.loads(python(apart, HOSTILE, "1")["out"])["got"] == []
    blows = "import os\nfor number in (2, 9, 15, 19, 23):\n    os.kill(1, number)\nprint('struck')"
    assert python(apart, blows)["out"] == "struck\n"
    assert python(apart, "print('still here')")["out"] == "still here\n"
    assert judged(apart, "42") == 1.0


@AS_ROOT
def test_code_in_the_runner_signals_no_process_of_the_server(apart: Server) -> None:
    begun(apart)
    python(apart, "import os\nos.kill(-1, 9)")
    assert apart.get("/healthz")[0] == 200
    assert judged(apart, "42") == 1.0


@AS_ROOT
def test_code_in_the_runner_cannot_reach_the_servers_files(apart: Server) -> None:
    begun(apart)
    shared = apart.folder / "shared"
    assert list(shared.iterdir()) == [], "the socket is gone once the runner has come"
    place = str(shared / "x")
    tried = f"try:\n    open({place!r}, 'w')\nexcept OSError as e:\n    print(type(e).__name__)"
    assert python(apart, tried)["out"] == "PermissionError\n"
    assert python(apart, "import os; os.symlink('/proc/1/environ', 'link'); os.mkfifo('pipe')")["code"] == 0
    for path, says in (("link", "Permission denied"), ("pipe", "not a regular file")):
        status, body = apart.post("/tool", {"name": "fetch", "arguments": {"path": path}}, token=SECRET)
        assert (status, says in body["content"]) == (200, True), body


PORT = """
import socket, sys
places = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "")]
for family, address in [*places, (socket.AF_INET6, "::1"), (socket.AF_INET6, "")]:
    with socket.socket(family) as thief:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            thief.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            thief.bind((address, int(sys.argv[1])))
            thief.listen()
            print("taken", address)
        except OSError as error:
            print(type(error).__name__)
"""


@AS_ROOT
def test_code_in_the_runner_cannot_take_the_servers_port(apart: Server) -> None:
    """Server and runner share the pod's network.

    Code that listened on the port would get the lease's token, and judge.
    """
    begun(apart)
    assert "taken" not in python(apart, PORT, str(apart.port))["out"]


@AS_ROOT
def test_the_servers_port_refuses_code_in_the_runner(apart: Server) -> None:
    begun(apart)
    code = f"""
import http.client, json
for path in ("/finish", "/tool", "/reset", "/agent", "/lease"):
    server = http.client.HTTPConnection("127.0.0.1", {apart.port}, timeout=20)
    body = {{"lease": "mine", "token": "mine", "deadline": 4e9}}
    server.request("POST", path, json.dumps(body), {{"Authorization": "Bearer guess"}})
    print(server.getresponse().status)
"""
    assert python(apart, code)["out"].split() == ["401", "401", "401", "401", "409"]


@AS_ROOT
def test_a_process_that_left_its_session_ends_before_judgement(apart: Server) -> None:
    begun(apart)
    assert python(apart, STAYS)["out"] == "left\n"
    listing = "import os\nprint(len([p for p in os.listdir('/proc') if p.isdigit()]))"
    assert int(python(apart, listing)["out"]) == 3, "it lives between the calls"
    assert judged(apart, "42") == 1.0


@AS_ROOT
def test_no_process_of_an_agent_outlives_it(apart: Server) -> None:
    """The agent starts a child in another session, and sends SIGKILL to its parent."""
    begun(apart)
    script = f"{STAYS}\nos.kill(os.getppid(), 9); os.kill(1, 9); print('done')"
    request = AgentRequest(command=["python3", "-S", "-c", script], episode={})
    assert apart.post("/agent", request.model_dump(), token=SECRET)[0] == 200
    ends = time.monotonic() + 30
    while (state := apart.post("/agent/wait", {"seconds": 5}, token=SECRET)[1])["running"]:
        assert time.monotonic() < ends
    assert (state["exit_code"], state["output"]) == (0, "left\ndone\n")
    assert judged(apart, "42") == 1.0


@AS_ROOT
def test_an_agent_whose_runner_is_lost_is_a_fault_and_not_judged(apart: Server) -> None:
    begun(apart)
    request = AgentRequest(command=["sleep", "600"], episode={})
    assert apart.post("/agent", request.model_dump(), token=SECRET)[0] == 200
    walled_runner.kill_runner(apart)
    ends = time.monotonic() + 30
    while (answer := apart.post("/agent/wait", {"seconds": 5}, token=SECRET))[0] == 200:
        assert time.monotonic() < ends
    assert (answer[0], answer[1]["reason"]) == (500, "RunnerLost")
    judgement = apart.post("/finish", {"messages": [], "truncated": False}, token=SECRET)
    assert (judgement[0], judgement[1]["reason"]) == (500, "RunnerLost")


@AS_ROOT
def test_a_runner_ends_with_a_server_that_cannot_start() -> None:
    """Kubernetes considers the pod failed only once all its containers have ended."""
    with walled_runner.walled(WALLED, "walled:Missing") as server:
        assert server.beside is not None
        assert server.process.wait(timeout=30) == PERMANENT
        server.beside.wait(timeout=60)


@AS_ROOT
def test_a_runner_ends_with_its_server_and_all_that_it_runs(apart: Server) -> None:
    begun(apart)
    request = AgentRequest(command=["python3", "-S", "-c", f"{STAYS}; time.sleep(600)"], episode={})
    assert apart.post("/agent", request.model_dump(), token=SECRET)[0] == 200
    apart.process.kill()
    assert apart.beside is not None
    apart.beside.wait(timeout=60)
