"""Runs the real broker on this machine. It creates real pods in a namespace of the local cluster."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from role_keys import LEASES, TO_BROKER

from headway_api import names
from headway_api.config import JobConfig
from headway_api.sandbox_api import Lease, LeaseRequest, PoolState
from headway_sandbox.broker import pods, pool
from headway_sandbox.broker.__main__ import limits
from headway_sandbox.broker.kube import Credentials, Pods
from headway_sandbox.broker.leases import Leases
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.service import Service
from headway_sandbox.broker.warm import WarmPool

SMALL = {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"cpu": "500m", "memory": "48Mi"}}


def kubectl(kubeconfig: Path, *arguments: str, stdin: str | None = None) -> str:
    command = ["kubectl", "--kubeconfig", str(kubeconfig), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, timeout=60).stdout


def api(http: aiohttp.ClientSession, kubeconfig: Path, namespace: str) -> Pods:
    """A client for the pods of a namespace, with an administrator's client certificate."""
    view = json.loads(kubectl(kubeconfig, "config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
    cluster, user = view["clusters"][0]["cluster"], view["users"][0]["user"]
    ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=ca)
    with tempfile.NamedTemporaryFile() as chain:
        for part in ("client-certificate-data", "client-key-data"):
            chain.write(base64.b64decode(user[part]))
        chain.flush()
        tls.load_cert_chain(chain.name)
    return Pods(http, cluster["server"], namespace, tls, Credentials(None))


def job_config(namespace: str, image: str, uid: str, *, entrypoint: str = "environment:RefundDesk",
               sandbox: dict[str, Any] | None = None) -> JobConfig:  # fmt: skip
    """A job in which only the environment matters."""
    spec = {
        "model": {"base": "s3://none/model"},
        "data": {"train": {"uri": "s3://none/train.jsonl"}},
        "evaluation": {"everySteps": 0, "atStart": False},
        "environment": {"image": image, "entrypoint": entrypoint, "sandbox": sandbox or {}},
        "output": {"uri": "s3://none/out"},
    }
    return JobConfig.model_validate({"name": "churn", "namespace": namespace, "uid": uid, "spec": spec})


def own(kubeconfig: Path, namespace: str) -> str:
    """Create a job that no operator manages, as the pods' owner; returns its uid.

    Without an existing owner, the pods would be garbage collected. The sandboxes' service account is created
    too.
    """
    job = {
        "apiVersion": "headway.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": {"name": "churn", "namespace": namespace},
        "spec": {
            "managedBy": "tests.headway.dev/nobody",
            "model": {"base": "s3://none/model"},
            "data": {"train": {"uri": "s3://none/train.jsonl"}},
            "evaluation": {"everySteps": 0, "atStart": False},
            "environment": {"image": "none", "entrypoint": "environment:RefundDesk"},
            "output": {"uri": "s3://none/out"},
        },
    }
    kubectl(kubeconfig, "create", "serviceaccount", names.child("churn", names.SANDBOX), "-n", namespace)
    made = kubectl(kubeconfig, "create", "-f", "-", "-o", "json", stdin=json.dumps(job))
    return str(json.loads(made)["metadata"]["uid"])


@dataclass
class Broker:
    """A running broker and a client of it."""

    http: aiohttp.ClientSession
    url: str
    warm: WarmPool

    async def call(self, method: str, path: str, body: Any = None, key: str = TO_BROKER) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.request(method, self.url + path, json=body, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if text[:1] == "{" else text

    async def lease(self, name: str, owner: str = "one", seconds: float = 60.0) -> Lease:
        request = LeaseRequest(lease=name, owner=owner, deadline_seconds=seconds)
        async with asyncio.timeout(90):
            while True:
                status, answer = await self.call("POST", "/v1/leases", request.model_dump())
                if status == 201:
                    return Lease.model_validate(answer)
                assert status == 503, answer

    async def release(self, name: str) -> None:
        status, _ = await self.call("DELETE", f"/v1/leases/{name}")
        assert status == 204

    async def pool(self) -> PoolState:
        return PoolState.model_validate((await self.call("GET", "/v1/pool"))[1])

    async def until(self, condition: Any, seconds: float = 60.0) -> PoolState:
        async with asyncio.timeout(seconds):
            while not condition(state := await self.pool()):
                await asyncio.sleep(0.1)
        return state


@asynccontextmanager
async def running(
    kubeconfig: Path, config: JobConfig, *, resources: dict[str, Any] = SMALL, starting_at_once: int = 16
) -> AsyncIterator[Broker]:
    """Run a broker for `config`. Its pods remain when it ends, as when its process is killed."""
    metrics = Metrics(config)
    kind = pods.SandboxKind(config)
    chosen = limits(kind)
    bounded = pool.Limits(chosen.minimum, chosen.maximum, starting_at_once)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        platform = pods.Platform({}, resources, [])
        warm = WarmPool(api(http, kubeconfig, config.namespace), http, kind, platform, bounded, metrics)
        leases = Leases(warm, http, LEASES, metrics)
        runner = web.AppRunner(
            Service(warm, leases, metrics, TO_BROKER).app(), access_log=None, shutdown_timeout=0.1
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        tasks = [asyncio.create_task(warm.run()), asyncio.create_task(leases.run())]
        try:
            yield Broker(http, f"http://127.0.0.1:{port}", warm)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5)
            await runner.cleanup()
