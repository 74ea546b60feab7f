"""An environment that asks judges, in a real sandbox server, and the coordinator's code that answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from lease_service import LeaseService, lease_service
from sandbox_server import Server
from scripted_model import ANSWER, ScriptedModel

from headway_api.artifacts import Layout
from headway_api.records import GroupRecord, Purpose
from headway_api.sandbox_api import Question
from headway_api.spec.judge import Judge as JudgeSpec
from headway_api.store import FileStore
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.dataset import Slot
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Episodes, Rules
from headway_coordinator.faults import Cause
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.connected import connected
from headway_coordinator.judges.question import PreparedQuestion, prepared
from headway_coordinator.sandboxes import Broker
from headway_coordinator.trajectory.render import choose

GRADE = {"type": "object", "properties": {"grade": {"type": "number"}}, "required": ["grade"]}
ENVIRONMENT = """
import asyncio
import threading
from headway_sandbox import judges
from headway_sandbox.environment import Environment, Observation, tool, user

class Grader(Environment):
    def reset(self, row, seed):
        self.row = row
        if "reset" in row:
            eval(row["reset"])
        return Observation([user("?")])

    @tool
    def ask(self) -> str:
        '''Ask a judge, which no tool may.'''
        return self.judge("style", [user("?")])

    def reward(self, transcript):
        return eval(self.row.get("reward", "0.0"))

    async def score(self, transcript):
        found = eval(self.row.get("score", "0.0"))
        return await found if hasattr(found, "__await__") else found

    def swallowed(self):
        try:
            return self.judge("style", [user("?")])
        except BaseException:
            return 0.0

    def left(self):
        threading.Thread(target=self.judge, args=("style", [user("?")]), daemon=True).start()
        import time; time.sleep(0.5)
        return 0.0

    def deep(self, levels):
        return [self.deep(levels - 1)] if levels else []

    def many(self, count):
        return sum(self.judge("style", [user(str(n))], {"type": "number"}) for n in range(count))

    async def both(self):
        ask = lambda text: asyncio.to_thread(self.judge, "style", [user(text)], {"type": "number"})
        return sum(await asyncio.gather(ask("a"), ask("b")))
"""
ASKS = "self.judge('style', [user('Grade: ' + str(transcript.row.get('case')))], " + f"{GRADE})['grade']"
"""An expression for a reward that is a judge's grade."""


def grader(folder: Path) -> Server:
    """Start a sandbox server with the environment."""
    (folder / "grader.py").write_text(ENVIRONMENT)
    return Server(folder, "grader:Grader").start()


def spec(url: str = "http://127.0.0.1:9/v1", **other: Any) -> JudgeSpec:
    """The spec of the judge `style`."""
    given = {"name": "style", "endpoint": {"url": url, "model": "frontier-1"}, "timeoutSeconds": 20}
    return JudgeSpec.model_validate(given | other)


def question(text: str = "Grade this.", schema: Any = None, of: JudgeSpec | None = None) -> PreparedQuestion:
    """A question of an environment to the judge `style`."""
    messages = [{"role": "user", "content": text}]
    found = Question.model_validate({"id": 0, "name": "style", "messages": messages, "schema": schema})
    return prepared(found, of or spec())


@asynccontextmanager
async def judges(folder: Path, *specs: JudgeSpec) -> AsyncIterator[Judges]:
    """The judges of a job whose store is a folder."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        layout = Layout(f"file://{folder}/store", "ns", "job", "uid")
        yield connected(specs, http, FileStore(), layout, folder / "tokens")


@dataclass
class Rig:
    run: groups.Run
    leases: LeaseService
    causes: list[Cause]


@asynccontextmanager
async def rig(tok: Any, folder: Path, judges: Judges, timeout: float = 40.0) -> AsyncIterator[Rig]:
    """Run episodes of one turn each, whose rewards ask `judges`."""
    (folder / "grader.py").write_text(ENVIRONMENT)
    causes: list[Cause] = []
    async with AsyncExitStack() as stack:
        leases = await stack.enter_async_context(lease_service(folder, "grader:Grader", "t"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        agent = Builtin(Gateway(choose(tok, "qwen3"), ScriptedModel(tok, [ANSWER]), 1000, timeout), 4, None)
        rules = Rules(timeout, 120, (0.0, 1.0))
        episodes = Episodes(
            rules,
            agent,
            Broker(http, leases.url, "t", "me"),
            Router(),
            lambda episode, cause: causes.append(cause),
            judges,
        )
        yield Rig(episodes.run, leases, causes)


def plan(size: int = 1, **row: Any) -> groups.Plan:
    return groups.Plan(
        slot=Slot(position=0, epoch=0, row=0),
        purpose=Purpose.TRAIN,
        step=0,
        row={"reward": ASKS, **row},
        size=size,
        sampling=Sampling(1.0, 1.0, 24),
        job_seed=7,
    )


async def ran(rig: Rig, of: groups.Plan, retries: int = 0) -> GroupRecord:
    return await groups.run(of, rig.run, AdaptiveSemaphore(8), start_number=0, max_retries=retries)
