"""Sandboxes as local processes: their pool, what they see of the machine, and that all of them end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from sandbox_broker import job_config

from headway_api import names
from headway_cli.local.pod import is_alive
from headway_sandbox.broker import pods
from headway_sandbox.broker.kube import ApiError, ResourceVersionExpiredError
from headway_sandbox.broker.processes import (
    EVENTS,
    IF_BROKER_LIVES,
    WITH_BROKER,
    ProcessPods,
    command,
    walls,
)

LIMITS = {"limits": {"cpu": "250m", "memory": "256Mi"}}
NETWORK = 250
"""The number of a sandbox network that no local job uses."""
ENVIRONMENT = '''
import os, socket
from pathlib import Path
from headway_sandbox.environment import Environment, Observation, tool, user

class Prober(Environment):
    """Tells what it can reach."""

    def reset(self, row, seed):
        return Observation([user("go")])

    @tool
    def connect(self, host: str, port: int) -> str:
        """Connect."""
        try:
            socket.create_connection((host, port), timeout=2).close()
        except OSError as error:
            return type(error).__name__
        return "connected"

    @tool
    def look(self, folder: str) -> list[str]:
        """List."""
        return sorted(os.listdir(folder))

    @tool
    def write(self, size: int) -> str:
        """Write a file."""
        try:
            Path("big").write_bytes(b"x" * size)
        except OSError as error:
            return type(error).__name__
        return "written"

    @tool
    def grow(self, size: int) -> str:
        """Take memory."""
        try:
            bytearray(size)
        except MemoryError as error:
            return type(error).__name__
        return "grown"

    def reward(self, transcript):
        return 0.0

    def score(self, transcript):
        return 0.0
'''


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "prober.py").write_text(ENVIRONMENT)
    return folder


@pytest.fixture
async def made(tmp_path: Path, modules: Path) -> AsyncIterator[ProcessPods]:
    secret = tmp_path / "job"
    secret.mkdir()
    (secret / "key").write_text("of the job")
    sandboxes = ProcessPods(modules, [secret], NETWORK)
    try:
        yield sandboxes
    finally:
        await sandboxes.close()


def pod(name: str, entrypoint: str = "prober:Prober") -> dict[str, Any]:
    config = job_config("team", "image", "u-1", entrypoint=entrypoint)
    return pods.manifest(pods.SandboxKind(config), pods.Platform({}, LIMITS, []), name)


async def ask(http: aiohttp.ClientSession, made: dict[str, Any], tool: str, **arguments: Any) -> Any:
    url = pods.url_of(made["status"]["podIP"])
    body = {"name": tool, "arguments": arguments}
    async with http.post(f"{url}/tool", json=body, headers={"Authorization": "Bearer t"}) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["content"]


async def leased(http: aiohttp.ClientSession, made: dict[str, Any]) -> None:
    url = pods.url_of(made["status"]["podIP"])
    body = {"lease": "l", "token": "t", "deadline": time.time() + 60}
    async with asyncio.timeout(30):
        async with http.post(f"{url}/lease", json=body) as answer:
            assert answer.status == 204, await answer.text()
        asked = {"row": {}, "seed": 1}
        async with http.post(f"{url}/reset", json=asked, headers={"Authorization": "Bearer t"}) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.skipif(not walls(), reason="this system gives a user no namespaces")
async def test_a_sandbox_has_no_network_and_does_not_see_its_job(made: ProcessPods, tmp_path: Path) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, aiohttp.ClientSession() as http:
        one = await made.create(pod("one"))
        await leased(http, one)
        assert await ask(http, one, "connect", host="127.0.0.1", port=port) == "OSError"
        assert await ask(http, one, "look", folder=str(tmp_path / "job")) == "[]"
        processes = await ask(http, one, "look", folder="/proc")
        assert str(os.getpid()) not in processes


async def test_a_sandbox_is_bounded_in_memory_and_files(made: ProcessPods) -> None:
    async with aiohttp.ClientSession() as http:
        one = await made.create(pod("one"))
        await leased(http, one)
        assert await ask(http, one, "grow", size=1 << 20) == "grown"
        assert await ask(http, one, "grow", size=1 << 34) == "MemoryError"
        assert await ask(http, one, "write", size=1 << 20) == "written"


async def test_watch_events_come_in_order_from_the_requested_version(made: ProcessPods) -> None:
    listed, version = await made.list("")
    assert listed == []
    one = await made.create(pod("one"))
    two = await made.create(pod("two"))
    assert one["status"]["podIP"] != two["status"]["podIP"]
    await made.delete("one", "another uid", 1)
    await made.delete("one", one["metadata"]["uid"], 1)
    await made.delete("one", None, 1)
    events = []
    async with asyncio.timeout(10):
        async for kind, item in made.watch("", version):
            events.append((kind, item["metadata"]["name"]))
            if len(events) == 3:
                break
    assert events == [("ADDED", "one"), ("ADDED", "two"), ("DELETED", "one")]
    listed, _ = await made.list("")
    assert [item["metadata"]["name"] for item in listed] == ["two"]


async def test_a_watch_from_an_expired_version_fails(made: ProcessPods) -> None:
    made._events.clear()
    made._version = EVENTS + 1
    with pytest.raises(ResourceVersionExpiredError):
        async for _ in made.watch("", "1"):
            pass


async def test_a_pods_name_cannot_be_used_twice(made: ProcessPods) -> None:
    await made.create(pod("one"))
    with pytest.raises(ApiError) as refused:
        await made.create(pod("one"))
    assert refused.value.status == 409


async def test_an_environment_that_cannot_be_imported_says_so(made: ProcessPods) -> None:
    await made.create(pod("one", "absent:Desk"))
    async with asyncio.timeout(30):
        async for kind, item in made.watch("", "1"):
            assert kind == "MODIFIED"
            problem = pods.problem_of(item)
            break
    assert problem is not None
    assert problem.reason == "EnvironmentNotImportable"
    assert problem.permanent
    assert "absent" in problem.message


async def test_a_closed_sandbox_leaves_no_process_or_folder(made: ProcessPods) -> None:
    await made.create(pod("one"))
    running = made._running["one"]
    await made.close()
    assert running.folder.name not in [each.path for each in os.scandir(tempfile.gettempdir())]
    assert running.process.returncode is not None


def test_without_namespaces_only_limits_apply() -> None:
    limits = {"memory": "512Mi", "ephemeral-storage": "1Mi"}
    plain = command(limits, [Path("/job")], ())
    [script] = [word for word in plain if "ulimit" in word]
    assert "unshare" not in plain
    assert "mount" not in script
    assert "ulimit -d 524288" in script
    assert "ulimit -f 2048" in script


def test_a_sandbox_does_not_begin_after_its_broker_has_ended() -> None:
    """Otherwise another process would be its parent, and the end of the broker would not end the sandbox."""
    begun = [
        subprocess.run([*WITH_BROKER, *IF_BROKER_LIVES, str(pid), "true"], timeout=10, check=False)
        for pid in (os.getpid(), os.getppid())
    ]
    assert [each.returncode == 0 for each in begun] == [True, False]


async def test_a_sandbox_ends_with_a_broker_that_is_killed(modules: Path, tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
from pathlib import Path
from test_processes import NETWORK, pod
from headway_sandbox.broker.processes import ProcessPods

async def main():
    sandboxes = ProcessPods(Path({str(modules)!r}), [], NETWORK + 1)
    await sandboxes.create(pod("one"))
    print("made", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    broker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=environ, stdout=asyncio.subprocess.PIPE
    )
    assert broker.stdout is not None
    assert await asyncio.wait_for(broker.stdout.readline(), 30) == b"made\n"
    of_it = psutil.Process(broker.pid).children(recursive=True)
    assert of_it
    broker.kill()
    await broker.wait()
    async with asyncio.timeout(10):
        while any(map(is_alive, of_it)):
            await asyncio.sleep(0.05)


def test_a_broker_makes_processes_where_its_config_says(tmp_path: Path) -> None:
    from headway_sandbox.broker.__main__ import processes

    assert processes({}) is None
    variables = {
        names.ENV_ENVIRONMENT_MODULES: str(tmp_path),
        names.ENV_JOB_FOLDER: str(tmp_path),
        names.ENV_SANDBOX_NETWORK: "77",
    }
    assert isinstance(processes(variables), ProcessPods)
