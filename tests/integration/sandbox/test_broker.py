"""The broker on a real cluster: leases, restarts, and its messages when pods cannot start."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import sandbox_broker as rig
import scripted_job
from faulty_servers import serving, weight_agent
from hostile_code import HOSTILE, STAYS, WALLED
from ports import free_port
from role_keys import KEYS

from headway_api.exits import JobError
from headway_api.preflight import CHECK_IDS
from headway_api.sandbox_api import Lease, LeaseRequest, Problem
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.status import JobUpdate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[3]
IMAGE = "localhost/headway/sop-quickstart:dev"
CASE = {"case_id": "amber-otter", "prompt": "Handle case amber-otter."}


@pytest.fixture(scope="module")
def image(cluster: Any) -> str:
    """The example's image, loaded into the cluster."""
    build = [
        ROOT / "hack" / "images" / "build.py",
        "--load",
        "base",
        "sandbox",
        ROOT / "examples/sop-quickstart",
    ]
    subprocess.run(["/usr/bin/python3", *map(str, build)], check=True, timeout=500, cwd=ROOT)
    return IMAGE


@pytest.fixture
def namespace(cluster: Any) -> Iterator[str]:
    """A namespace that admits restricted pods only."""
    name = f"sandbox-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    if cluster.attempt("get", "crd", "rltrainingjobs.headway.dev").returncode:
        cluster.kubectl(
            "apply", "--server-side", "-f", str(ROOT / "crds" / "rltrainingjobs.headway.dev.yaml")
        )
        established = ("wait", "--for=condition=Established", "crd/rltrainingjobs.headway.dev")
        # At first the CRD has no conditions at all, and `kubectl wait` fails instead of waiting for one.
        cluster.wait_until("the kind", lambda: cluster.attempt(*established).returncode == 0)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def job(cluster: Any, namespace: str) -> Any:
    """A function that makes a job's configuration, owned by an object that exists."""
    uid = rig.own(cluster.kubeconfig, namespace)

    def make(image: str, **changes: Any) -> Any:
        return rig.job_config(namespace, image, uid, **changes)

    return make


async def play(broker: rig.Broker, lease: Lease) -> dict[str, Any]:
    """Reset and finish an episode."""
    headers = {"Authorization": f"Bearer {lease.token}"}
    steps = [("reset", {"row": CASE, "seed": 0}), ("finish", {"messages": [], "truncated": False})]
    for path, body in steps:
        async with broker.http.post(f"{lease.url}/{path}", json=body, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
    return answer


def pods_of(cluster: Any, namespace: str) -> set[str]:
    return set(cluster.kubectl("get", "pods", "-n", namespace, "-o", "name").split())


async def test_every_episode_has_its_own_pod_that_is_gone_afterwards(
    cluster: Any, namespace: str, image: str, job: Any
) -> None:
    async with rig.running(
        cluster.kubeconfig, job(image, sandbox={"warmPool": {"min": 1, "max": 2}})
    ) as broker:
        used = set()
        for number in range(3):
            lease = await broker.lease(f"e{number}")
            assert await broker.lease(f"e{number}") == lease
            assert (await play(broker, lease))["reward"] == 0.0
            used.add(lease.pod)
            await broker.release(f"e{number}")
        assert len(used) == 3
        cluster.wait_until(
            "used pods to be gone",
            lambda: not {f"pod/{name}" for name in used} & pods_of(cluster, namespace),
            deadline=120,
        )


@pytest.mark.long
async def test_the_pool_never_exceeds_its_maximum(cluster: Any, image: str, job: Any) -> None:
    async with rig.running(
        cluster.kubeconfig, job(image, sandbox={"warmPool": {"min": 1, "max": 2}})
    ) as broker:
        await asyncio.gather(broker.lease("a"), broker.lease("b"))
        request = LeaseRequest(lease="c", owner="one", deadline_seconds=60).model_dump()
        status, body = await broker.call("POST", "/v1/leases", request)
        assert (status, body["reason"]) == (503, "PoolEmpty")
        waiting = asyncio.create_task(broker.lease("c"))
        await broker.release("a")
        await waiting
        assert (await broker.pool()).leased == 2


async def test_a_new_broker_knows_what_the_old_one_lent(cluster: Any, image: str, job: Any) -> None:
    config = job(image, sandbox={"warmPool": {"min": 1, "max": 4}})
    async with rig.running(cluster.kubeconfig, config) as broker:
        kept, lost = await broker.lease("kept"), await broker.lease("lost")
        await play(broker, lost)
    async with rig.running(cluster.kubeconfig, config) as again:
        held = await again.until(lambda state: state.leased == 2)
        assert held.leased == 2
        found = await again.lease("kept")
        assert (found.pod, found.token, found.url) == (kept.pod, kept.token, kept.url)
        await play(again, found)
        fresh = await again.lease("fresh")
        assert fresh.pod not in (kept.pod, lost.pod)
        assert (await again.call("POST", "/v1/owners", {"owner": "two"}))[0] == 204
        assert (await again.pool()).leased == 0
        request = LeaseRequest(lease="late", owner="one", deadline_seconds=60).model_dump()
        status, body = await again.call("POST", "/v1/leases", request)
        assert (status, body["reason"]) == (409, "NotOwner")


async def test_the_pod_of_an_expired_lease_is_deleted(
    cluster: Any, namespace: str, image: str, job: Any
) -> None:
    async with rig.running(
        cluster.kubeconfig, job(image, sandbox={"warmPool": {"min": 0, "max": 1}})
    ) as broker:
        lease = await broker.lease("short", seconds=3)
        await broker.until(lambda state: state.leased == 0)
        cluster.wait_until(
            "the pod to be gone", lambda: f"pod/{lease.pod}" not in pods_of(cluster, namespace), deadline=120
        )


async def test_an_unimportable_environment_is_refused_permanently(cluster: Any, image: str, job: Any) -> None:
    async with rig.running(cluster.kubeconfig, job(image, entrypoint="environment:Nothing")) as broker:
        request = LeaseRequest(lease="a", owner="one", deadline_seconds=60).model_dump()
        async with asyncio.timeout(120):
            while (answer := await broker.call("POST", "/v1/leases", request))[0] == 503:
                pass
        assert answer[0] == 409
        problem = Problem.model_validate(answer[1])
        assert problem.reason == "EnvironmentNotImportable"
        assert problem.field == "spec.environment.entrypoint"
        assert "no attribute 'Nothing'" in problem.message
        assert problem.permanent


async def test_a_missing_image_is_reported_in_the_kubelets_words(cluster: Any, job: Any) -> None:
    missing = job("localhost/headway/missing:none", sandbox={"warmPool": {"min": 1, "max": 2}})
    async with rig.running(cluster.kubeconfig, missing) as broker:
        state = await broker.until(lambda state: state.problem is not None, seconds=120)
        assert state.problem is not None
        assert "Image" in state.problem.reason
        assert state.problem.field == "spec.environment.image"


async def test_an_exceeded_quota_shows_the_api_servers_message(
    cluster: Any, namespace: str, image: str, job: Any
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": namespace},
    }
    cluster.apply(quota | {"spec": {"hard": {"pods": "0"}}})
    async with rig.running(cluster.kubeconfig, job(image)) as broker:
        state = await broker.until(lambda state: state.problem is not None)
        assert state.problem is not None
        assert (state.problem.reason, "exceeded quota" in state.problem.message) == ("Forbidden", True)
        assert state.starting == 0


async def test_only_the_coordinators_key_is_answered(cluster: Any, image: str, job: Any) -> None:
    async with rig.running(
        cluster.kubeconfig, job(image, sandbox={"warmPool": {"min": 0, "max": 1}})
    ) as broker:
        assert (await broker.call("GET", "/v1/pool", key="wrong"))[0] == 401
        assert (await broker.call("GET", "/healthz", key="wrong"))[0] == 200
        async with aiohttp.ClientSession() as http, http.get(f"{broker.url}/metrics") as response:
            assert "headway_sandbox_pool_size" in await response.text()


def with_module(name: str, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A ConfigMap that holds a module, and the parts of a pod template that mount it."""
    held = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {f"{name}.py": source},
    }
    container = {
        "name": "sandbox",
        "env": [{"name": "PYTHONPATH", "value": "/opt/headway/sandbox:/code"}],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    volumes = [{"name": "code", "configMap": {"name": name}}]
    return held, {"spec": {"containers": [container], "volumes": volumes}}


@pytest.mark.hostile
async def test_code_of_the_models_reaches_nothing_of_its_judge(
    cluster: Any, namespace: str, image: str, job: Any
) -> None:
    held, template = with_module("walled", WALLED)
    cluster.apply({**held, "metadata": {"name": "walled", "namespace": namespace}})
    sandbox = {"runsCode": True, "podTemplate": template, "warmPool": {"min": 1, "max": 1}}
    config = job(image, entrypoint="walled:Walled", sandbox=sandbox)
    async with rig.running(cluster.kubeconfig, config) as broker:
        lease = await broker.lease("e", seconds=120)
        headers = {"Authorization": f"Bearer {lease.token}"}

        async def ask(path: str, body: Any) -> Any:
            async with broker.http.post(f"{lease.url}/{path}", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                return await response.json()

        async def python(code: str, argument: str = "") -> Any:
            call = {"name": "python", "arguments": {"code": code, "argument": argument}}
            return json.loads((await ask("tool", call))["content"])

        await ask("reset", {"row": {"answer": "42"}, "seed": 0})
        found = json.loads((await python(HOSTILE, "1"))["out"])
        assert found["users"] == [65533, 65533]
        assert found["got"] == [], "the first process is the runner, and as closed as the server"
        assert found["variables"] == ["HEADWAY_EPISODE_FILE"]
        assert len(found["processes"]) == 2, "the runner and the code itself: the server is not seen"
        assert (await python("import os\nos.kill(1, 9)\nos.kill(os.getpid(), 9)"))["code"] == 137
        assert (await python(STAYS))["out"] == "left\n"
        answered = [{"role": "assistant", "content": "42"}]
        assert (await ask("finish", {"messages": answered, "truncated": False}))["reward"] == 1.0
        rights = cluster.kubectl(
            *("exec", "-n", namespace, lease.pod, "-c", "runner", "--"),
            *("grep", "-E", "^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):", "/proc/1/status"),
        )
        assert [line.split()[1] for line in rights.splitlines()] == ["65533", "0" * 16, "0" * 16, "1", "2"]


EVIL = """
import http.server

class Evil(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

http.server.ThreadingHTTPServer(("", 8080), Evil).serve_forever()
"""


@pytest.mark.hostile
async def test_a_pod_that_answers_otherwise_ends_itself_alone(
    cluster: Any, namespace: str, image: str, job: Any
) -> None:
    held, template = with_module("evil", EVIL)
    cluster.apply({**held, "metadata": {"name": "evil", "namespace": namespace}})
    sandbox = {"podTemplate": template, "warmPool": {"min": 1, "max": 1}}
    async with rig.running(cluster.kubeconfig, job(image, entrypoint="evil:Evil", sandbox=sandbox)) as broker:
        state = await broker.until(lambda state: state.problem is not None, 120)
        assert state.problem is not None
        assert (state.problem.reason, state.problem.field) == ("SandboxUnfit", "spec.environment.image")
        assert (await broker.call("GET", "/healthz"))[0] == 200


def checked(folder: Path, job: Any) -> Any:
    """A job whose preflight checks only isolation, with rows of the example."""
    checks = {**dict.fromkeys(CHECK_IDS, "Off"), "isolated": "Enforce"}
    environment = job(IMAGE, sandbox={"warmPool": {"min": 1, "max": 2}}).spec.environment.as_object()
    made = scripted_job.job(
        folder,
        environment=environment,
        preflight={"episodes": 8, "checks": checks},
        evaluation={"everySteps": 0, "atStart": False},
    )
    # The toy tokenizer makes many tokens of the example's long prompt.
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 65536}))
    for name in ("train", "validation"):
        rows = [CASE | {"prompt": f"{CASE['prompt']} ({name} {number})"} for number in range(4)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    owner = job(IMAGE)
    return made.model_copy(update={"name": owner.name, "namespace": owner.namespace, "uid": owner.uid})


@pytest.mark.long
async def test_what_a_pod_reaches_as_it_starts_fails_the_preflight(
    cluster: Any, image: str, job: Any, tmp_path: Path
) -> None:
    """No network policy applies in this namespace.

    This machine is not a pod, and does not know the API server's address in the cluster. Only what a pod
    tries by itself at its start can name that address.
    """
    where = ("get", "service", "kubernetes", "-n", "default", "-o", "jsonpath={.spec.clusterIP}")
    api = f"{cluster.kubectl(*where)}:443"
    config, statuses = checked(tmp_path, job), list[dict[str, Any]]()

    def sink(status: dict[str, Any]) -> JobUpdate:
        statuses.append(status)
        return JobUpdate()

    async with (
        rig.running(cluster.kubeconfig, config) as broker,
        serving(scripted_job.speaking_engine(tmp_path)) as engine,
        serving(weight_agent()) as agent,
    ):

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        coordinator = Coordinator(
            *(config, KEYS, FileStore(), tmp_path / "cache", sink),
            broker_url=broker.url,
            discover=discover,
            port=free_port(),
        )
        async with asyncio.timeout(240):
            with pytest.raises(JobError) as ended:
                await coordinator.run()
    assert ended.value.termination.reason == "PreflightFailed"
    [found] = [each for each in statuses[-1]["preflight"]["findings"] if each["check"] == "isolated"]
    assert found["verdict"] == "Fail"
    assert "NetworkPolicyNotEnforced: a sandbox reached" in found["message"]
    assert f"({api})" in found["message"]
