"""Episodes of agents that use other projects' clients (guests): their services, and the gateway for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agent_service import AgentService
from episodes import a_group
from gateway_rig import GatewayRig, a_task, gateway_rig, sandboxes
from guests import ROOT, guest
from lease_service import LeaseService

from headway_api.records import EpisodeRecord, GroupRecord
from headway_coordinator.agents.http import HttpAgent
from headway_coordinator.ledger.events import of_group

GUESTS = ROOT / "tests" / "integration" / "coordinator" / "guests"
PROGRAMS = {
    "sagemaker_agent": "sagemaker",
    "strands_agent": "strands",
    "anthropic_agent": "anthropic",
    "smolagents_agent": "smolagents",
    "openai_agent": "openai",
    "responses_agent": "openai",
    "openai_agents_agent": "openai",
    "structured_agent": "openai",
    "langchain_agent": "langchain",
    "pydantic_ai_agent": "pydantic-ai",
    "litellm_agent": "litellm",
    "agent_framework_agent": "agent-framework",
    "claude_code_agent": "claude-code",
}
"""Agent program -> name of the Python environment in which it runs."""
OFFLINE = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""SageMaker's SDK needs credentials to sign a token for every call, although the gateway ignores the token.
LiteLLM fetches a price list when it starts, and without a network waits 10 s for it."""
REPORTED = "headway_sandbox.reported:ReportedReward"


class Agents:
    """The guests' services. Each is started when a test first asks for it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._running: dict[str, AgentService] = {}

    def get(self, program: str) -> AgentService:
        if program not in self._running:
            self._running[program] = self.fresh(program)
        return self._running[program]

    def fresh(self, program: str, **variables: str) -> AgentService:
        """Start another service of a program, which the test may kill."""
        folder = self._folder / f"{program}-{len(list(self._folder.iterdir()))}"
        folder.mkdir()
        service = AgentService(
            [guest(PROGRAMS[program]), GUESTS / f"{program}.py"], folder, OFFLINE | variables
        )
        self._stack.callback(service.kill)
        service.start()
        return service


@asynccontextmanager
async def stage(
    tok: Any, folder: Path, *texts: str, **settings: Any
) -> AsyncIterator[tuple[GatewayRig, LeaseService]]:
    async with gateway_rig(tok, *texts, **settings) as rig, sandboxes(folder, REPORTED) as leases:
        yield rig, leases


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until `holds` is true, such as for something that an agent does later."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


async def play(
    rig: GatewayRig, leases: LeaseService, agent: HttpAgent, attempt: int = 0, **row: Any
) -> EpisodeRecord:
    row = {"prompt": "Which metal is x?"} | row
    return await rig.episodes(agent, leases).run(a_task(row, attempt=attempt))


def a_batch(record: EpisodeRecord) -> GroupRecord:
    """A group with only this episode."""
    group = a_group("t0-000000", [0.0])
    return group.model_copy(update={"episodes": [record], "abandoned": None})


def billed(record: EpisodeRecord) -> Counter[str]:
    """The billed tokens of an episode, by usage class."""
    found: Counter[str] = Counter()
    for event in of_group(a_batch(record)):
        found[event.usage_class.value] += int(event.quantity)
    del found["sandboxSeconds"]
    return found


def billed_whole(rig: GatewayRig, record: EpisodeRecord) -> None:
    """Assert that the bill has every sampled token, and every prompt as the engine received it."""
    spoken = rig.model.spoken[record.episode_id]
    assert billed(record) == {
        "prefill": sum(len(turn.prompt) for turn in spoken),
        "sample": sum(len(turn.sampled) for turn in spoken),
    }
