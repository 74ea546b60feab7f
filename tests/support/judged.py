"""An environment that asks judges, in a real sandbox server, and what a coordinator needs to answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from sandbox_server import Server

from headway_api.artifacts import Layout
from headway_api.records import Judgement
from headway_api.sandbox_api import FinishReply, Lease, Question
from headway_api.spec.judge import Judge as JudgeSpec
from headway_api.store import FileStore
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.connected import connected
from headway_coordinator.judges.question import Asked, asked
from headway_coordinator.sandboxes import Sandbox

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

    def many(self, count):
        return sum(self.judge("style", [user(str(n))], {"type": "number"}) for n in range(count))

    async def both(self):
        ask = lambda text: asyncio.to_thread(self.judge, "style", [user(text)], {"type": "number"})
        return sum(await asyncio.gather(ask("a"), ask("b")))
"""
ASKS = "self.judge('style', [user('Grade: ' + str(transcript.row.get('case')))], " + f"{GRADE})['grade']"
"""A reward that is a judge's grade."""


def grader(folder: Path) -> Server:
    """The environment in a sandbox's server of its own."""
    (folder / "grader.py").write_text(ENVIRONMENT)
    return Server(folder, "grader:Grader").start()


def spec(url: str = "http://127.0.0.1:9/v1", **other: Any) -> JudgeSpec:
    """Judge `style`."""
    given = {"name": "style", "endpoint": {"url": url, "model": "frontier-1"}, "timeoutSeconds": 20}
    return JudgeSpec.model_validate(given | other)


def question(text: str = "Grade this.", schema: Any = None, of: JudgeSpec | None = None) -> Asked:
    """One of an environment's."""
    messages = [{"role": "user", "content": text}]
    found = Question.model_validate({"id": 0, "name": "style", "messages": messages, "schema": schema})
    return asked(found, of or spec())


@asynccontextmanager
async def judges(folder: Path, *specs: JudgeSpec) -> AsyncIterator[Judges]:
    """Those of a job whose store is a folder."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        layout = Layout(f"file://{folder}/store", "ns", "job", "uid")
        yield connected(specs, http, FileStore(), layout, folder / "tokens")


async def judged(server: Server, of: Judges, row: dict[str, Any], told: list[Judgement]) -> FinishReply:
    """Have the environment judge an episode of a row that a coordinator leased."""
    lease = Lease(lease="e1", pod="pod-0", url=f"http://127.0.0.1:{server.port}", token="secret",
                  waited_seconds=0.0)  # fmt: skip
    await asyncio.to_thread(server.lease)
    async with aiohttp.ClientSession() as http:
        sandbox = Sandbox(http, lease, 30.0)
        await sandbox.reset(row, 0)

        async def finish(names: list[str]) -> FinishReply:
            return await sandbox.finish([], False, judges=names)

        return await of.finished(sandbox, finish, told.append)
