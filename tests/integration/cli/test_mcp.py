"""`headway mcp` as a client starts it: a process that uses its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_project
import psutil
import pytest
import stub_cluster
from mcp.shared.exceptions import MCPError
from mcp_project import STEPS, answer, error, over_stdio
from stub_cluster import NAMESPACE, StubCluster

from headway_api.document import Json
from headway_cli import scaffold
from headway_cli.mcp_server import catalogue
from headway_cli.scaffold import Template

pytestmark = [pytest.mark.integration, pytest.mark.ci]
READS = [
    "jobs",
    "status",
    "logs",
    "trajectories",
    "cost",
    "report",
    "compare",
    "timeline",
    "artifacts",
    "estimate",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with jobs, and with the project `desk` of a template. Tests must not change it."""
    folder = mcp_project.written(tmp_path_factory.mktemp("project"))
    scaffold.write(folder / "desk", Template.VERIFIABLE)
    (folder / "desk" / "test_environment.py").write_text("def test_it() -> None:\n    assert 1 + 1 == 2\n")
    return folder


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[tuple[StubCluster, Path]]:
    made = StubCluster()
    metadata = {"name": "far", "namespace": NAMESPACE, "uid": "u"}
    made.jobs["rltrainingjobs", "far"] = {
        "kind": "RLTrainingJob",
        "metadata": metadata,
        "spec": {},
        "status": {},
    }
    with stub_cluster.served(made, tmp_path) as kubeconfig:
        yield made, kubeconfig


async def test_each_tool_that_reads_answers(project: Path) -> None:
    asked: dict[str, Json] = {
        "jobs": {},
        "status": {"job": "good"},
        "logs": {"job": "desk", "tail": 3},
        "trajectories": {"job": "good", "step": 0, "limit": 2},
        "cost": {"job": "desk"},
        "report": {"job": "good"},
        "compare": {"jobs": ["good", "bad"]},
        "timeline": {"job": "good"},
        "artifacts": {"job": "good"},
        "estimate": {"file": "desk/job.yaml", "set": ["spec.model.contextLength=4096"]},
    }
    async with over_stdio(project) as client:
        assert [each.name for each in (await client.list_tools()).tools] == [*asked]
        found = {name: answer(await client.call_tool(name, arguments)) for name, arguments in asked.items()}
        refused = error(await client.call_tool("submit", {"file": "desk/job.yaml"}))
        with pytest.raises(MCPError, match="there is no tool 'jbs'; did you mean jobs"):
            await client.call_tool("jbs", {})
        assert "did you mean good?" in error(await client.call_tool("status", {"job": "goodd"}))
        assert error(await client.call_tool("logs", {"job": "desk", "tail": -1})).startswith(
            "tail is -1: write 1 or more"
        )
        assert client.instructions is not None
        assert "untrusted" in client.instructions
    assert refused.startswith("submit is not offered here")
    assert len(found["logs"]["lines"]) == 3
    assert len(found["trajectories"]["episodes"]) == 2
    assert found["report"]["steps"][-1] == STEPS
    assert found["estimate"]["currency"] == "USD"


async def test_with_changes_allowed_jobs_are_changed(project: Path, stub: tuple[StubCluster, Path]) -> None:
    there, kubeconfig = stub
    job = (project / "desk" / "job.yaml").read_text()
    (project / "stored.yaml").write_text(job.replace(f"file://{project}/desk", "s3://bucket"))
    async with over_stdio(project, "--allow-changes", kubeconfig=kubeconfig) as client:
        listed = [each.name for each in (await client.list_tools()).tools]
        assert listed == [tool.name for tool in catalogue.TOOLS]
        assert answer(await client.call_tool("submit", {"file": "stored.yaml"}))["kind"] == "RLTrainingJob"
        assert there.applied[-1]["spec"]["environment"]["entrypoint"]
        answer(await client.call_tool("suspend", {"job": "far"}))
        answer(await client.call_tool("resume", {"job": "far"}))
        assert [each["spec"]["suspend"] for each in there.applied[-2:]] == [True, False]
        found = answer(
            await client.call_tool("eval", {"from": "stored.yaml", "name": "again", "max_rows": 4})
        )
        assert (found["job"], there.applied[-1]["kind"]) == ("again", "RLEvalJob")


async def test_a_project_is_checked_by_its_own_code(project: Path) -> None:
    """Anything that the project's code prints during the check does not reach the client."""
    async with over_stdio(project, "--allow-changes") as client:
        found = answer(await client.call_tool("check", {"file": "desk/job.yaml", "rows": 1}))
        assert {each["check"]: each["verdict"] for each in found["checks"]}["tests"] == "Pass"
        message = error(await client.call_tool("check", {"file": "desk/job.yaml", "set": ["rows=1"]}))
        assert message == "--set rows=1: write spec.FIELD=VALUE, such as spec.schedule.maxSteps=3"


async def started(project: Path, *options: str) -> asyncio.subprocess.Process:
    asked = mcp_project.process(project, *options)
    return await asyncio.create_subprocess_exec(
        asked.command,
        *asked.args,
        env=asked.env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def line(method: str, number: int | None = None, **params: Any) -> bytes:
    """A message of the handshake that older clients send."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if number is None else {**message, "id": number}).encode() + b"\n"


HELLO = (
    line(
        "initialize",
        0,
        protocolVersion="2025-06-18",
        capabilities={},
        clientInfo={"name": "t", "version": "1"},
    ),
    line("notifications/initialized"),
)


async def send(server: asyncio.subprocess.Process, *lines: bytes) -> None:
    assert server.stdin is not None
    server.stdin.write(b"".join(lines))
    await server.stdin.drain()


async def heard(server: asyncio.subprocess.Process) -> Json:
    assert server.stdout is not None
    found: Json = json.loads(await asyncio.wait_for(server.stdout.readline(), 60))
    return found


async def ended(server: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Close the server's input, wait for its end, and return the rest of its output."""
    assert server.stdin is not None
    server.stdin.close()
    return await asyncio.wait_for(server.communicate(), 30)


async def test_stdout_has_only_the_protocol_and_eof_ends_the_server(project: Path) -> None:
    server = await started(project)
    await send(server, *HELLO)
    assert (await heard(server))["result"]["serverInfo"]["name"] == "headway"
    await send(server, b"no json\n", line("tools/call", 1, name="status", arguments={"job": "good"}))
    answers = [await heard(server)]
    while answers[-1].get("id") != 1:
        answers.append(await heard(server))
    assert answers[-1]["result"]["structuredContent"]["job"] == "good"
    out, _ = await ended(server)
    assert out == b""
    assert server.returncode == 0


def below(process: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).children(recursive=True)
    return []


async def checking(folder: Path) -> tuple[asyncio.subprocess.Process, list[psutil.Process]]:
    """A server with a running check that would take minutes, and the processes that it started for it."""
    scaffold.write(folder / "slow", Template.VERIFIABLE)
    slow = "import time\ndef test_it() -> None:\n    time.sleep(500)\n"
    (folder / "slow" / "test_environment.py").write_text(slow)
    server = await started(folder, "--allow-changes")
    await send(server, *HELLO)
    await heard(server)
    await send(server, line("tools/call", 1, name="check", arguments={"file": "slow/job.yaml"}))
    until = time.monotonic() + 60
    while len(children := below(server.pid)) < 2:
        assert time.monotonic() < until
        await asyncio.sleep(0.2)
    return server, children


async def test_a_check_that_is_cancelled_ends_and_its_server_goes_on(tmp_path: Path) -> None:
    server, children = await checking(tmp_path)
    await send(server, line("notifications/cancelled", requestId=1))
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 30)
    assert not alive
    await send(server, line("tools/call", 2, name="jobs", arguments={}))
    while (reply := await heard(server)).get("id") != 2:
        assert reply.get("id") in (None, 1)
    assert reply["result"]["structuredContent"]["jobs"] == []
    await ended(server)
    assert server.returncode == 0


async def test_a_check_ends_with_its_server(tmp_path: Path) -> None:
    server, children = await checking(tmp_path)
    begun = time.monotonic()
    await ended(server)
    assert time.monotonic() - begun < 10
    _, alive = psutil.wait_procs(children, 10)
    assert not alive


async def test_a_call_that_hangs_does_not_hold_up_the_end(project: Path, tmp_path: Path) -> None:
    """The cluster accepts the connection and never answers."""
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(600), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with stub_cluster.served(StubCluster(), tmp_path) as kubeconfig:
        text = kubeconfig.read_text()
    address = next(word for word in text.split() if word.startswith("http://"))
    kubeconfig.write_text(text.replace(address, f"http://127.0.0.1:{port}"))
    asked = mcp_project.process(project, kubeconfig=kubeconfig)
    server = await asyncio.create_subprocess_exec(
        asked.command, *asked.args, env=asked.env, stdin=-1, stdout=-1, stderr=-1
    )
    await send(server, *HELLO)
    await heard(server)
    await send(server, line("tools/call", 1, name="status", arguments={"job": "far"}))
    await asyncio.sleep(1)
    begun = time.monotonic()
    await ended(server)
    assert time.monotonic() - begun < 5
    assert server.returncode == 0
    silent.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_server_quietly(project: Path, number: int) -> None:
    server = await started(project)
    await send(server, *HELLO)
    await heard(server)
    os.kill(server.pid, number)
    _, noted = await asyncio.wait_for(server.communicate(), 30)
    assert server.returncode == 128 + number
    assert b"Traceback" not in noted


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--project", "/no/such"], "--project /no/such: No such file or directory: name the folder"),
        (["--store", "bucket"], "--store bucket: write an address, such as s3://bucket/runs"),
    ],
)
async def test_a_wrong_option_is_reported_on_stderr(options: list[str], says: str) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway_cli", "mcp", *options, stdin=-1, stdout=-1, stderr=-1
    )
    out, noted = await asyncio.wait_for(server.communicate(), 30)
    assert (server.returncode, out) == (2, b"")
    assert says in noted.decode()
