"""An evaluation with a suite, but without a cluster.

Sandboxes, Inspect AI and the coordinator's process are real. The candidates are endpoints that do sums; one
of them makes mistakes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import one_question_environment
from aiohttp import web
from endpoint_service import Service, says, serving
from lease_service import LeaseService, lease_service
from ports import free_port
from role_keys import TO_BROKER

from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.spec.suite import ENTRYPOINT
from headway_api.status import ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator.spool import Spool

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "suites" / "arithmetic.py"
MAIN = Path(__file__).parent / "eval_coordinator_main.py"
SUITE, TASK = "sums", "arithmetic.py@arithmetic"
QUESTION = re.compile(r"What is (\d+) ([-+*]) (\d+)\?")


def answer_of(question: str) -> int:
    """Return the right answer to a question."""
    found = QUESTION.search(question)
    assert found is not None, question
    a, sign, b = int(found[1]), found[2], int(found[3])
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def sums(off_by: Mapping[str, int]) -> Any:
    """Make an endpoint's answers: sums, and "It is gold." to all else.

    `off_by` maps a sign to the error in sums with that sign.
    """

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        asked = body["messages"][-1]["content"]
        if (found := QUESTION.search(asked)) is None:
            return await says("It is gold.")(request, body)
        return await says(str(answer_of(asked) + off_by.get(found[2], 0)))(request, body)

    return answer


@dataclass
class SuiteRig:
    """A job in a folder, and the services that it calls."""

    folder: Path
    job: EvalConfig
    own: LeaseService
    suite: LeaseService
    endpoints: dict[str, Service]

    @property
    def layout(self) -> Layout:
        return Layout(self.job.spec.output.uri, self.job.namespace, self.job.name, self.job.uid)

    async def coordinator(self) -> asyncio.subprocess.Process:
        """Start a coordinator process."""
        run = {
            "broker_url": self.own.url,
            "suite_broker_urls": {SUITE: self.suite.url},
            "port": free_port(),
            "gateway_port": free_port(),
        }
        (self.folder / "run.json").write_text(json.dumps(run))
        (self.folder / "job.json").write_text(self.job.model_dump_json(by_alias=True))
        log = (self.folder / "coordinator.log").open("ab")
        with log:
            return await asyncio.create_subprocess_exec(
                sys.executable, str(MAIN), str(self.folder), stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return (self.folder / "coordinator.log").read_text()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return found

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(FileStore().get(self.layout.report))
        return found

    def groups(self) -> list[str]:
        """Return the ids of the durable groups."""
        spool = Spool(FileStore(), self.layout)
        return [group.group_id for name in self.endpoints for group in spool.evaluated(name)]


@asynccontextmanager
async def suite_rig(
    folder: Path, off_by: Mapping[str, Mapping[str, int]], *, limit: int = 3, rows: int = 2, **changes: Any
) -> AsyncIterator[SuiteRig]:
    """Make a job whose candidates make the mistakes that `off_by` gives for each."""
    shutil.copy(EXAMPLE, folder)
    shutil.copy(one_question_environment.__file__, folder)
    lines = [json.dumps({"prompt": f"Which metal is thing {number}?"}) for number in range(rows)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # `python3` is this Python
    async with AsyncExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"PATH": path}))
        endpoints = {
            name: await stack.enter_async_context(serving(sums(wrong))) for name, wrong in off_by.items()
        }
        suite = {"name": SUITE, "image": "i", "task": TASK, "limit": limit, "args": {"maximum": 20}}
        spec = {
            "candidates": [
                {"name": name, "endpoint": {"url": each.url, "model": "m"}}
                for name, each in endpoints.items()
            ],
            "data": {"uri": f"file://{folder}/rows.jsonl"},
            "environment": {"image": "i", "entrypoint": "one_question_environment:OneQuestion"},
            "suites": [suite | changes],
            "rollout": {"maxConcurrency": 2, "timeoutSeconds": 120, "maxRetries": 1},
            "output": {"uri": f"file://{folder}/runs"},
        }
        job = EvalConfig.model_validate(
            {
                "name": "kept",
                "namespace": "ns",
                "uid": "0123456789abcdef",
                "spec": spec,
                "candidates": [ResolvedCandidate(name=name, kind="Endpoint") for name in endpoints],
            }
        )
        config = job.spec.suites[0].environment.config
        own = await stack.enter_async_context(
            lease_service(folder, "one_question_environment:OneQuestion", TO_BROKER)
        )
        sampled = await stack.enter_async_context(lease_service(folder, ENTRYPOINT, TO_BROKER, config=config))
        yield SuiteRig(folder, job, own, sampled, endpoints)
