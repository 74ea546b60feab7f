"""One contract, three kinds of agent: the same episode has the same outcome with each of them.

The sandbox is a real one. The http agent is a service in this process, and the sandboxed agent is a program
in the sandbox. Both run the same loop as the platform's own agent, and know only what they receive.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tool_loop
from aiohttp import web
from gateway_rig import GatewayRig, a_task, gateway_rig, sandboxes, token_truth
from lease_service import LeaseService
from one_question_environment import UNFINISHED
from scripted_model import ANSWER, CALL

from headway_api.records import EpisodeRecord, Outcome
from headway_coordinator.agents.agent import Agent
from headway_coordinator.agents.sandboxed import SandboxedAgent
from headway_coordinator.faults import InfraError

pytestmark = [pytest.mark.integration]
SUPPORT = Path(tool_loop.__file__).parent
KINDS = ("builtin", "http", "sandboxed")
USERS = ("http", "sandboxed")
"""The kinds of agent whose code is the user's, and may fail by itself."""
EPISODE = "t0-000000-0-0"
TWO_CALLS = (
    CALL.removesuffix("<|im_end|>")
    + '\n<tool_call>\n{"name": "look_up", "arguments": {"key": "schön"}}\n</tool_call><|im_end|>'
)
UNREADABLE = '<tool_call>\n{"name": "look_up", "arguments": {"key": }\n</tool_call><|im_end|>'


@dataclass
class Stage:
    """One kind of agent, ready to play an episode."""

    rig: GatewayRig
    leases: LeaseService
    agent: Agent
    folder: Path
    ends: list[Exception | None]
    """How each run of the http agent ended: its exception, or None."""

    async def play(
        self, *, timeout: float = 30.0, max_tokens: int = 200, mood: str | None = None
    ) -> EpisodeRecord:
        row, agent = {"prompt": "Which metal is x?", "mood": mood}, self.agent
        if mood and isinstance(agent, SandboxedAgent):  # a sandboxed agent does not see the row
            agent = replace(agent, command=(*agent.command, mood))
        return await self.rig.episodes(agent, self.leases, timeout).run(a_task(row, max_tokens=max_tokens))


@dataclass
class Service:
    """The http agent: it answers the post at once, works in a thread, and records how it ended."""

    ends: list[Exception | None] = field(default_factory=list)
    _work: list[asyncio.Task[None]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self._work.append(asyncio.create_task(asyncio.to_thread(self._play, await request.json())))
        return web.json_response({"status": "accepted"})

    def _play(self, payload: dict[str, Any]) -> None:
        endpoint, problem = payload["metadata"]["endpoint"], None
        own = {"JobArn": payload["metadata"]["jobArn"], "TrajectoryId": payload["metadata"]["rolloutId"]}
        status: dict[str, Any] = {"Status": "ready"}
        try:
            messages = [{"role": "user", "content": payload["prompt"]}]
            tool_loop.play(endpoint, messages, payload["instance"].get("mood"))
        except Exception as error:
            problem, status = error, {"Status": "failed", "ErrorMessage": str(error)}
        self.ends.append(problem)
        tool_loop.ask(f"{endpoint}/complete-rollout", own | status)


@asynccontextmanager
async def stage(
    kind: str, tok: Any, folder: Path, texts: Sequence[str | Exception], *, context: int = 4000
) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(gateway_rig(tok, *texts, context=context))
        leases = await stack.enter_async_context(sandboxes(folder, "one_question_environment:OneQuestion"))
        service = Service()
        app = web.Application()
        app.router.add_post("/", service.take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        shutil.copy(SUPPORT / "one_question_environment.py", folder)
        agents: dict[str, Callable[[], Agent]] = {
            "builtin": rig.builtin_agent,
            "http": lambda: rig.http_agent(url, reports_reward=False),
            "sandboxed": lambda: rig.sandboxed_agent(sys.executable, str(SUPPORT / "tool_loop.py")),
        }
        yield Stage(rig, leases, agents[kind](), folder, service.ends)
        assert leases.leased == {}  # the sandbox was released, whatever happened


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("texts", [[CALL, ANSWER], [TWO_CALLS, CALL, "\n It is gold. \n<|im_end|>"]])
async def test_the_same_script_gives_every_agent_the_same_tokens(
    tok: Any, tmp_path: Path, texts: list[str]
) -> None:
    records, requests = [], []
    for kind in KINDS:
        async with stage(kind, tok, tmp_path, texts) as s:
            record = await s.play()
        assert (record.outcome, record.error) == (Outcome.COMPLETED, None), kind
        assert (record.reward, record.score) == (1.0, 1.0), kind
        assert record.metrics == {"calls": "".join(texts).count("</tool_call>"), "unfinished": 0}
        token_truth(s.rig, record)
        records.append(record)
        requests.append(s.rig.model.requests)
    first = records[0]
    for other, asked in zip(records[1:], requests[1:], strict=True):
        assert other.rows == first.rows
        assert other.turns == first.turns
        assert asked == requests[0]  # the seed of every turn included
        assert [without_name(message) for message in other.messages] == [
            without_name(message) for message in first.messages
        ]


def without_name(message: dict[str, Any]) -> Any:
    """A message without the tool's name.

    Only the platform's own tool messages have that name.
    """
    return {name: value for name, value in message.items() if name != "name"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "max_tokens", "texts", "why"),
    [
        ({"context": 260}, 200, [CALL], "fill the context"),
        ({}, 20, [CALL, ANSWER], "a turn reached its token limit"),
    ],
    ids=["context", "turn"],
)
async def test_a_turn_beyond_the_context_truncates_the_episode(
    tok: Any, tmp_path: Path, kind: str, settings: Any, max_tokens: int, texts: list[str], why: str
) -> None:
    async with stage(kind, tok, tmp_path, texts, **settings) as s:
        record = await s.play(max_tokens=max_tokens)
    assert record.outcome is Outcome.TRUNCATED
    assert why in str(record.error)
    assert (record.reward, record.metrics["unfinished"]) == (UNFINISHED, 1.0)
    token_truth(s.rig, record)


@pytest.mark.parametrize("kind", USERS)
async def test_an_agent_that_stops_at_a_full_context_is_truncated_too(
    tok: Any, tmp_path: Path, kind: str
) -> None:
    async with stage(kind, tok, tmp_path, [CALL], context=260) as s:
        record = await s.play(mood="shrug")
    assert (record.outcome, record.reward) == (Outcome.TRUNCATED, UNFINISHED)


@pytest.mark.parametrize("kind", USERS)
async def test_an_agent_that_fails_is_scored_by_the_environment(tok: Any, tmp_path: Path, kind: str) -> None:
    async with stage(kind, tok, tmp_path, [CALL, ANSWER]) as s:
        record = await s.play(mood="crash")
    assert record.outcome is Outcome.AGENT_ERROR
    assert "the agent lost its mind" in str(record.error)
    assert (record.reward, record.metrics) == (UNFINISHED, {"calls": 0.0, "unfinished": 1.0})
    assert [message["role"] for message in record.messages] == ["user", "assistant"]
    token_truth(s.rig, record)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [[], [CALL]], ids=["first", "second"])
@pytest.mark.parametrize("mood", [None, "shrug"])
async def test_a_fault_of_the_engine_is_never_scored(
    tok: Any, tmp_path: Path, kind: str, before: list[str], mood: str | None
) -> None:
    """This also holds for an agent that answers after any error, as if its episode had ended."""
    async with stage(kind, tok, tmp_path, [*before, InfraError("no server is left")]) as s:
        record = await s.play(mood=mood)
    assert (record.outcome, record.reward, record.score) == (Outcome.INFRA_ERROR, None, None)
    assert "no server is left" in str(record.error)
    assert len(record.turns) == len(before)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_sandbox_is_never_scored(tok: Any, tmp_path: Path, kind: str) -> None:
    async with stage(kind, tok, tmp_path, [CALL, ANSWER]) as s:
        s.rig.model.gate.clear()
        playing = asyncio.create_task(s.play())
        await until(lambda: len(s.rig.model.requests) == 1)
        await s.leases.kill(EPISODE)
        s.rig.model.gate.set()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert "sandbox" in str(record.error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_ending_an_episode_stops_its_agent_and_frees_its_sandbox(
    tok: Any, tmp_path: Path, kind: str, how: str
) -> None:
    async with stage(kind, tok, tmp_path, [CALL, ANSWER]) as s:
        s.rig.model.gate.clear()
        playing = asyncio.create_task(s.play(timeout=1.5 if how == "late" else 30.0))
        await until(lambda: len(s.rig.model.requests) == 1)
        assert list(s.leases.leased) == [EPISODE]
        if how == "cancelled":
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
        else:
            record = await playing
            assert record.outcome is Outcome.INFRA_ERROR
            assert "the episode did not end within 1.5 s; it was waiting for the agent" in str(record.error)
        await until(lambda: s.leases.leased == {})
        if kind == "http":
            await until(lambda: s.ends != [])
            assert "409" in str(s.ends[0])
        if kind == "sandboxed":
            pid = int((s.folder / "pid").read_text())
            await until(lambda: not Path(f"/proc/{pid}").exists())
        s.rig.model.gate.set()
        await asyncio.sleep(0.1)
    assert len(s.rig.model.requests) == 1
    assert s.rig.model.spoken == {}


async def test_a_program_that_lingers_goes_with_its_episode(tok: Any, tmp_path: Path) -> None:
    async with stage("sandboxed", tok, tmp_path, [CALL, ANSWER]) as s:
        record = await s.play(timeout=2.0, mood="linger")
        pid = int((s.folder / "pid").read_text())
        await until(lambda: not Path(f"/proc/{pid}").exists())
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert len(record.turns) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unreadable_call_is_counted_for_every_agent(tok: Any, tmp_path: Path, kind: str) -> None:
    async with stage(kind, tok, tmp_path, [UNREADABLE, ANSWER]) as s:
        record = await s.play()
    assert record.outcome is Outcome.COMPLETED
    assert record.turns[0].malformed_tool_calls == 1
    assert record.metrics["calls"] == 0.0
    token_truth(s.rig, record)


async def test_a_sandboxed_agent_may_not_reward_itself(tok: Any, tmp_path: Path) -> None:
    program = tmp_path / "greedy.py"
    program.write_text(
        "import json, os, tool_loop\n"
        "episode = json.load(open(os.environ['HEADWAY_EPISODE_FILE']))\n"
        "metadata = episode['metadata']\n"
        "tool_loop.play(metadata['endpoint'], episode['messages'], None)\n"
        "own = {'JobArn': metadata['jobArn'], 'TrajectoryId': metadata['rolloutId']}\n"
        "tool_loop.ask(metadata['endpoint'] + '/complete-rollout', own | {'Status': 'ready'})\n"
        "tool_loop.ask(metadata['endpoint'] + '/update-reward', own | {'Rewards': [1.0]})\n"
    )
    async with stage("sandboxed", tok, tmp_path, [ANSWER]) as s:
        s.agent = s.rig.sandboxed_agent("env", f"PYTHONPATH={SUPPORT}", sys.executable, str(program))
        record = await s.play()
    assert (record.outcome, record.reward) == (Outcome.AGENT_ERROR, UNFINISHED)
    assert "reward_not_accepted" in str(record.error)
    assert s.rig.statuses("/update-reward") == [403]
