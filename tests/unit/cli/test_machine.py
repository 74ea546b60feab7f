"""The objects of a plan on one machine: their processes start, answer, end and restart as pods do."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway_api import names
from headway_api.document import Json
from headway_api.keys import Key
from headway_cli.local import pod as pods
from headway_cli.local.machine import Machine, MachineBusyError, Network
from headway_operator.plan.context import Mode, Wanted

JOB = {"kind": "RLTrainingJob", "metadata": {"name": "tune", "namespace": "team"}, "spec": {}}
PORT = 8345
SERVER = f"""
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists(os.environ["MARK"] + self.path) else 200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer((os.environ["HEADWAY_BIND_ADDRESS"], {PORT}), Handler).serve_forever()
"""
PATIENCE_SECONDS = 30.0


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with Machine(tmp_path / "job", tmp_path, JOB) as made:
        yield made


def body(kind: str, name: str, **more: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": "team"}, **more}


def template(program: str, **more: Any) -> Json:
    """The template of a pod with one process that runs a program."""
    env = [{"name": name, "value": value} for name, value in more.pop("env", {}).items()]
    env += [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    container = {
        "name": "main",
        "command": ["python", "-c", program],
        "env": env,
        "ports": [{"name": "http", "containerPort": PORT}],
        "volumeMounts": more.pop("mounts", []),
        **more.pop("probes", {}),
    }
    spec = {"containers": [container], "volumes": more.pop("volumes", []), **more}
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"terminationGracePeriodSeconds": 5, **spec}}


def deployment(program: str, replicas: int = 1, **more: Any) -> Wanted:
    spec = {"replicas": replicas, "template": template(program, **more)}
    return Wanted(body("Deployment", "servers", spec=spec), Mode.PIN)


def a_job(program: str, limit: int = 0, **more: Any) -> Wanted:
    rule = {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}}
    spec = {
        "completions": 1,
        "backoffLimit": limit,
        "podFailurePolicy": {"rules": [rule]},
        "template": template(program, restartPolicy="Never", **more),
    }
    return Wanted(body("Job", "once", spec=spec), Mode.PIN)


def probes(**periods: int) -> Json:
    return {
        f"{kind}Probe": {"httpGet": {"path": f"/{kind}", "port": "http"}, "periodSeconds": period,
                         "failureThreshold": 2}
        for kind, period in periods.items()
    }  # fmt: skip


async def until(machine: Machine, wanted: list[Wanted], ready: Callable[[list[Json]], bool]) -> list[Json]:
    """Carry out the plan repeatedly until `ready` accepts the observed objects, and return them."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            await machine.carry_out(wanted, ())
            seen = list(machine.observed({}).objects)
            if ready(seen):
                return seen
            await asyncio.sleep(0.05)


def of(kind: str, seen: list[Json]) -> list[Json]:
    return [each for each in seen if each["kind"] == kind]


def container(pod: Json) -> Json:
    (found,) = pod["status"]["containerStatuses"]
    return dict(found)


def is_ready(seen: list[Json], many: int = 1) -> bool:
    states = [each["status"]["conditions"][0]["status"] for each in of("Pod", seen)]
    return states.count("True") == many


async def test_a_server_is_ready_and_in_its_service_once_it_answers(machine: Machine, tmp_path: Path) -> None:
    service = Wanted(body("Service", "servers", spec={"selector": {"app": "x"}}))
    mark = tmp_path / "not"
    wanted = [service, deployment(SERVER, env={"MARK": str(mark)}, probes=probes(readiness=1))]
    (mark / "readiness").mkdir(parents=True)
    hosts = tmp_path / "job" / "hosts"
    await until(
        machine, wanted, lambda seen: any("running" in container(p)["state"] for p in of("Pod", seen))
    )
    await asyncio.sleep(1.5)
    await machine.carry_out(wanted, ())
    assert hosts.read_text() == ""
    (mark / "readiness").rmdir()
    seen = await until(machine, wanted, is_ready)
    (pod,) = of("Pod", seen)
    await machine.carry_out(wanted, ())
    assert hosts.read_text() == f"{pod['status']['podIP']} servers.team.svc\n"
    assert of("Deployment", list(machine.observed({}).objects))[0]["status"]["readyReplicas"] == 1


async def test_a_server_that_dies_is_started_again_in_its_pod(machine: Machine, tmp_path: Path) -> None:
    wanted = [deployment(SERVER, env={"MARK": str(tmp_path)}, probes=probes(readiness=1))]
    (before,) = of("Pod", await until(machine, wanted, is_ready))
    (found,) = [p for p in psutil.process_iter() if p.pid in pods.left_over(tmp_path / "job")]
    found.kill()
    seen = await until(machine, wanted, lambda now: container(of("Pod", now)[0])["restartCount"] == 1)
    (after,) = of("Pod", await until(machine, wanted, is_ready))
    assert after["metadata"]["name"] == before["metadata"]["name"]
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert container(of("Pod", seen)[0])["lastState"]["terminated"]["exitCode"] == 137


async def test_a_server_that_hangs_is_killed(machine: Machine, tmp_path: Path) -> None:
    wanted = [deployment(SERVER, env={"MARK": str(tmp_path / "not")}, probes=probes(liveness=1))]
    await until(machine, wanted, is_ready)
    (tmp_path / "not" / "liveness").mkdir(parents=True)
    await until(machine, wanted, lambda seen: container(of("Pod", seen)[0])["restartCount"] == 1)


async def test_fewer_replicas_end_the_last_servers(machine: Machine, tmp_path: Path) -> None:
    def servers(many: int) -> list[Wanted]:
        return [deployment(SERVER, many, env={"MARK": str(tmp_path)}, probes=probes(readiness=1))]

    seen = await until(machine, servers(2), lambda now: is_ready(now, 2))
    assert len({each["status"]["podIP"] for each in of("Pod", seen)}) == 2
    await until(machine, servers(1), lambda now: len(of("Pod", now)) == 1)
    assert len(pods.left_over(tmp_path / "job")) == 1


async def test_a_job_that_succeeds_is_complete(machine: Machine) -> None:
    seen = await until(
        machine, [a_job("pass")], lambda now: "conditions" in of("Job", now)[0].get("status", {})
    )
    (condition,) = of("Job", seen)[0]["status"]["conditions"]
    assert condition["type"] == "Complete"
    assert of("Pod", seen)[0]["status"]["phase"] == "Succeeded"


async def test_a_process_says_why_it_ends(machine: Machine) -> None:
    words = json.dumps({"reason": "NoRows", "field": "spec.data", "message": "write rows"})
    program = f"""
import os, sys
open(os.environ["{names.ENV_TERMINATION_FILE}"], "w").write({words!r})
sys.exit(42)
"""
    seen = await until(
        machine, [a_job(program, 3)], lambda now: "conditions" in of("Job", now)[0].get("status", {})
    )
    assert of("Job", seen)[0]["status"]["conditions"][0]["reason"] == "PodFailurePolicy"
    ended = container(of("Pod", seen)[0])["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (42, words)


@pytest.mark.parametrize(("own", "expected"), [(None, "home/headway/vllm"), ("mine", "mine")])
async def test_jobs_share_the_users_vllm_cache(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, own: str | None, expected: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "home")
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    if own is not None:
        monkeypatch.setenv("VLLM_CACHE_ROOT", own)
    program = "import os, sys; sys.exit(os.environ['VLLM_CACHE_ROOT'])"
    seen = await until(machine, [a_job(program)], lambda now: of("Job", now)[0]["status"].get("failed") == 1)
    assert container(of("Pod", seen)[0])["state"]["terminated"]["message"] == f"{expected}\n"


async def test_the_message_of_a_silent_failure_is_the_end_of_its_log(machine: Machine) -> None:
    program = "import sys; print('x' * 5000); sys.exit('it is broken')"
    seen = await until(machine, [a_job(program)], lambda now: of("Job", now)[0]["status"].get("failed") == 1)
    ended = container(of("Pod", seen)[0])["state"]["terminated"]
    assert ended["message"].endswith("it is broken\n")
    assert len(ended["message"]) == pods.LOG_TAIL


async def test_paths_of_a_pod_are_folders_of_this_machine(machine: Machine, tmp_path: Path) -> None:
    program = """
import json, os
from pathlib import Path
variables = ("HEADWAY_CONFIG", "HEADWAY_KEYS_DIR", "HEADWAY_JUDGES_DIR", "POD")
seen = {name: os.environ[name] for name in variables}
seen["job"] = Path(os.environ["HEADWAY_CONFIG"]).read_text()
seen["key"] = len(Path(os.environ["HEADWAY_KEYS_DIR"], "leases").read_text())
seen["token"] = Path(os.environ["HEADWAY_JUDGES_DIR"], "strict", "token").read_text()
print(json.dumps(seen))
"""
    mounts = {
        "config": (names.CONFIG_DIR, {"configMap": {"name": "tune-config"}}),
        "keys": (names.KEYS_DIR, {"projected": {"sources": [{"secret": {"name": "tune-keys-1"}}]}}),
        "strict": (
            f"{names.JUDGES_DIR}/strict",
            {"secret": {"secretName": "judge", "items": [{"key": "api", "path": "token"}]}},
        ),
    }
    wanted = [
        Wanted(body("ConfigMap", "tune-config", data={"job.json": "{}"})),
        Wanted(body("Secret", "tune-keys-1"), Mode.SECRET),
        a_job(
            program,
            env={names.ENV_CONFIG: names.CONFIG_FILE},
            mounts=[{"name": name, "mountPath": at} for name, (at, _) in mounts.items()],
            volumes=[{"name": name, **volume} for name, (_, volume) in mounts.items()],
        ),
    ]
    (tmp_path / "job" / "secrets" / "judge").mkdir()
    (tmp_path / "job" / "secrets" / "judge" / "api").write_text("told")
    seen = await until(machine, wanted, lambda now: "conditions" in of("Job", now)[0].get("status", {}))
    (log,) = (tmp_path / "job" / "logs").iterdir()
    assert of("Pod", seen)[0]["status"]["phase"] == "Succeeded", log.read_text()
    output = json.loads(log.read_text())
    assert output["HEADWAY_CONFIG"] == str(tmp_path / "job" / "config-maps" / "tune-config" / "job.json")
    assert output["POD"] == of("Pod", seen)[0]["metadata"]["name"]
    assert (output["job"], output["token"]) == ("{}", "told")
    assert output["key"] > 30


async def test_keys_are_made_once(machine: Machine, tmp_path: Path) -> None:
    secret = Wanted(body("Secret", "tune-keys-1"), Mode.SECRET)
    await machine.carry_out([secret], ())
    folder = tmp_path / "job" / "secrets" / "tune-keys-1"
    first = {path.name: path.read_text() for path in folder.iterdir()}
    await machine.carry_out([secret], ())
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    assert set(first) == {key.value for key in Key}
    assert len(set(first.values())) == len(Key)


async def test_nothing_is_left_of_what_processes_have_started(tmp_path: Path) -> None:
    program = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
{SERVER}
"""
    folder = tmp_path / "job"
    async with Machine(folder, tmp_path, JOB) as machine:
        await until(
            machine,
            [deployment(program, env={"MARK": str(tmp_path)}, probes=probes(readiness=1))],
            is_ready,
        )
        assert len(pods.left_over(folder)) == 2
    assert pods.left_over(folder) == []


async def test_processes_that_a_killed_engine_left_are_ended(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    environ = os.environ | {names.ENV_LOCAL_JOB: str(folder)}
    left = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(600)", env=environ, start_new_session=True
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while pods.left_over(folder) != [left.pid]:  # just after exec, /proc shows no environment yet
            await asyncio.sleep(0.01)
    async with Machine(folder, tmp_path, JOB):
        assert await asyncio.wait_for(left.wait(), PATIENCE_SECONDS) == -9


async def test_a_process_that_lost_its_environment_is_known_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, at = tmp_path / "job", tmp_path / f"{pods.FOLDER_PREFIX}x"
    at.mkdir()
    (at / "job").write_text(str(folder))
    (at / "pod").write_text("server")
    left = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(600)", env={}, cwd=at, start_new_session=True
    )
    assert pods.left_over(folder) == pods.left_over(folder, "server") == [left.pid]
    assert pods.left_over(folder, "another") == pods.left_over(tmp_path / "other") == []
    async with Machine(folder, tmp_path, JOB):
        assert await asyncio.wait_for(left.wait(), PATIENCE_SECONDS) == -9
    assert not at.exists()


def test_each_job_has_a_network_of_its_own() -> None:
    one, two = Network.take(), Network.take()
    try:
        assert one.number != two.number
    finally:
        one.lock.close()
        two.lock.close()


def test_when_no_network_is_free_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError

    monkeypatch.setattr(socket, "socket", Taken)
    with pytest.raises(MachineBusyError, match="wait until one of them has ended"):
        Network.take()


async def test_the_service_of_a_users_agent_is_this_machine(tmp_path: Path) -> None:
    agent = {"http": {"service": {"name": "desk", "port": 8100}}}
    job = {**JOB, "spec": {**JOB["spec"], "agent": agent}}
    async with Machine(tmp_path / "job", tmp_path, job):
        assert (tmp_path / "job" / "hosts").read_text() == "127.0.0.1 desk.team.svc\n"
