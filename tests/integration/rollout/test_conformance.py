"""Other people's agents, unmodified, through whole episodes.

Each agent is a process with a python and libraries of its own (`guests/`), made with AWS's SDK, Strands, or
OpenAI's clients. Real are the agent, the gateway, the platform's side of the protocol and the sandbox; only
the model's words are written here. Whatever a client does to a conversation on its way, the tokens that reach
the learner are those that were sampled.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_service import AgentService
from gateway_rig import ARN, GatewayRig, a_task, gateway_rig, sandboxes, token_truth
from guests import guest
from lease_service import LeaseService
from speaker import ANSWER, CALL
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.records import EpisodeRecord, Outcome
from headway_rollout.agents.http import HttpAgent
from headway_rollout.gateway import turns

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
GUESTS = Path(__file__).parent / "guests"
PROGRAMS = {
    "sagemaker_agent": "sagemaker",
    "strands_agent": "strands",
    "openai_agent": "openai",
    "openai_agents_agent": "openai",
}
"""Program -> the environment that it runs in."""
NO_CLOUD = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The SDK signs a token for every call; the gateway knows the episode by its address."""
REPORTED = "headway_sandbox.reported:ReportedReward"

THINKING = "<think>\nWhich metal?\n</think>\n\nLet me see.\n\n" + CALL
TWO_CALLS = (
    '<tool_call>\n{"name": "look_up", "arguments": {"key": "schöner Fuchs 🦊"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look_up", "arguments": {"key": "a \\"b\\" <c> & 1/3"}}\n</tool_call><|im_end|>'
)
PADDED = "\n It is gold, I am sure. \n\n<|im_end|>"
"""Text that clients strip."""


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


class Agents:
    """The guests' services, each started when a test first wants it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._running: dict[str, AgentService] = {}

    def get(self, program: str) -> AgentService:
        if program not in self._running:
            self._running[program] = self.fresh(program)
        return self._running[program]

    def fresh(self, program: str) -> AgentService:
        """One of a test's own, that it may kill."""
        folder = self._folder / f"{program}-{len(list(self._folder.iterdir()))}"
        folder.mkdir()
        service = AgentService([guest(PROGRAMS[program]), GUESTS / f"{program}.py"], folder, NO_CLOUD)
        self._stack.callback(service.kill)
        service.start()
        return service


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with ExitStack() as stack:
        yield Agents(tmp_path_factory.mktemp("agents"), stack)


@asynccontextmanager
async def stage(
    tok: Any, folder: Path, *texts: str, **settings: Any
) -> AsyncIterator[tuple[GatewayRig, LeaseService]]:
    async with gateway_rig(tok, *texts, **settings) as rig, sandboxes(folder, REPORTED) as leases:
        yield rig, leases


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what an agent does in its own time."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


async def play(
    rig: GatewayRig, leases: LeaseService, agent: HttpAgent, attempt: int = 0, **row: Any
) -> EpisodeRecord:
    row = {"prompt": "Which metal is x?"} | row
    return await rig.episodes(agent, leases).run(a_task(row, attempt=attempt))


SCRIPTS = {
    "one call": [CALL, ANSWER],
    "thought, parallel calls, padding": [THINKING, TWO_CALLS, CALL, PADDED],
}
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("sagemaker_agent", {"style": "handler"}),
    ("sagemaker_agent", {"style": "standalone"}),
    ("strands_agent", {"style": "stream"}),
    ("strands_agent", {"style": "whole"}),
    *(
        ("openai_agent", {"style": style, "sync": sync})
        for style in ("create", "events", "stream", "parse")
        for sync in (False, True)
    ),
    ("openai_agents_agent", {"style": "run"}),
    ("openai_agents_agent", {"style": "streamed"}),
]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(("program", "row"), WAYS, ids=str)
async def test_an_agent_plays_its_episode(
    tok: Any, agents: Agents, tmp_path: Path, program: str, row: dict[str, Any], script: str
) -> None:
    texts, service = SCRIPTS[script], agents.get(program)
    async with stage(tok, tmp_path, *texts) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **row)
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None), service.log[-3000:]
    assert (record.reward, record.score) == (1.0, 1.0)
    token_truth(rig, record)
    assert len(record.turns) == len(texts)
    assert sum(len(message.get("tool_calls", [])) for message in record.messages) == "".join(texts).count(
        "</tool_call>"
    )
    assert record.messages[-1]["content"].strip() == texts[-1].removesuffix("<|im_end|>").strip()
    assert all(one.status == 200 for one in rig.answered), rig.answered


@pytest.mark.parametrize(
    ("program", "row"), [("sagemaker_agent", {"style": "handler"}), ("openai_agent", {})], ids=str
)
async def test_an_agent_that_answers_the_post_when_it_is_done(
    tok: Any, agents: Agents, tmp_path: Path, program: str, row: dict[str, Any]
) -> None:
    service = agents.get(program)
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-end"), **row)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)


async def test_the_sdks_headers_with_another_client(tok: Any, agents: Agents, tmp_path: Path) -> None:
    """The endpoint is this client's base URL as it is, as in the SDK's docs: without /v1."""
    service = agents.get("sagemaker_agent")
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style="custom")
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)
    assert rig.statuses("/chat/completions") == [200]


async def test_rewards_and_metrics_reach_the_environment(tok: Any, agents: Agents, tmp_path: Path) -> None:
    sdk, by_hand = agents.get("sagemaker_agent"), agents.get("strands_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        each = await play(rig, leases, rig.http_agent(f"{sdk.url}/at-once"), style="handler", say="each")
        agent = rig.http_agent(f"{by_hand.url}/at-once")
        named = await play(rig, leases, agent, attempt=1, style="stream")
    assert (each.reward, each.score, each.metrics) == (0.75, 0.75, {})
    assert (named.reward, named.metrics) == (1.0, {"words": 3.0})


async def test_completing_twice_is_done_for_the_sdk(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.fresh("sagemaker_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-end")
        record = await play(rig, leases, agent, style="handler", mood="twice")
        await until(lambda: len(rig.statuses("/update-reward")) == 2)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0)
    assert rig.statuses("/complete-rollout") == [200, 409]
    assert rig.statuses("/update-reward") == [200, 409]
    assert service.log.count("already in terminal status, skipping") == 2
    assert "Traceback" not in service.log


@pytest.mark.parametrize("mood", ["raise", "error", "partial"])
async def test_an_agent_that_reports_an_error_is_never_a_zero(
    tok: Any, agents: Agents, tmp_path: Path, mood: str
) -> None:
    """Its failure is told to the environment; this one can judge by nothing, so the episode is run again."""
    service = agents.get("sagemaker_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        record = await play(rig, leases, agent, style="handler", mood=mood)
        await until(lambda: rig.statuses("/update-reward") != [])
        again = await play(rig, leases, agent, attempt=1, style="handler")
    assert (record.outcome, record.reward, record.score) == (Outcome.INFRA_ERROR, None, None)
    assert "the agent completed its rollout as failed" in str(record.error)
    assert rig.statuses("/update-reward") == [409, 200]
    token_truth(rig, record)
    assert (again.outcome, again.reward) == (Outcome.COMPLETED, 1.0)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        ("nan", "nan is not finite"),
        ("inf", "inf is not finite"),
        ("much", "7.0 is outside spec.reward.range [0, 1]"),
        ("three", "3 values for 2 turns"),
    ],
)
async def test_a_reward_that_is_none_is_refused_to_the_sdk(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: str, why: str
) -> None:
    monkeypatch.setattr("headway_rollout.agents.http.REWARD_SECONDS", 0.5)
    service = agents.get("sagemaker_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        record = await play(rig, leases, agent, style="handler", say=say)
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert rig.statuses("/update-reward") == [400]
    assert why in str(record.error)
    assert why in service.log


async def test_another_episode_cannot_be_completed_nor_a_sealed_one_go_on(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway_rollout.agents.http.REWARD_SECONDS", 1.0)
    service = agents.get("sagemaker_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        foreign = await play(rig, leases, agent, style="handler", mood="foreign")
        assert rig.statuses("/complete-rollout") == [403, 200]  # the agent gave up on its own one, then
        assert (foreign.outcome, foreign.rows) == (Outcome.INFRA_ERROR, [])
        sealed = await play(rig, leases, agent, attempt=1, style="handler", mood="more")
    assert rig.statuses("/v1/chat/completions") == [200, 200, 409]
    assert (sealed.outcome, sealed.reward, len(sealed.turns)) == (Outcome.INFRA_ERROR, None, 2)
    assert "Trajectory already processed, skipping" in service.log
    token_truth(rig, sealed)


async def test_the_same_refusals_over_plain_http(tok: Any) -> None:
    async with gateway_rig(tok, ANSWER) as rig, rig.rollout() as (rollout, base):
        own = {"JobArn": ARN, "TrajectoryId": rollout.trajectory_id}

        async def post(path: str, body: dict[str, Any], **headers: str) -> tuple[int, str | None]:
            async with rig.http.post(base + path, json=body, headers=headers) as answer:
                return answer.status, answer.reason

        turn = {"messages": [{"role": "user", "content": "Which metal is x?"}]}
        foreign = {"X-Amzn-SageMaker-Trajectory-Id": "t0-000000-7-0"}
        assert (await post("/v1/chat/completions", turn, **foreign))[0] == 403
        assert (await post("/v1/chat/completions", turn))[0] == 200
        assert (await post("/complete-rollout", own | {"TrajectoryId": "t0-000000-7-0"}))[0] == 403
        assert (await post("/update-reward", own | {"Rewards": [1.0]}))[0] == 409
        assert (await post("/complete-rollout", own | {"Status": "ready"}))[0] == 200
        again = await post("/complete-rollout", own | {"Status": "ready"})
        assert again == (409, "Trajectory not in valid status")
        assert (await post("/v1/chat/completions", turn))[0] == 409
        for rewards in ([math.nan], [-math.inf], [1.5], [0.5, 0.5], [], 1.0, ["1"]):
            assert (await post("/update-reward", own | {"Rewards": rewards}))[0] == 400, rewards
        assert rollout.rewards is None
        assert (await post("/update-reward", own | {"Rewards": [1.0]}))[0] == 200
        assert rollout.rewards == [1.0]


@pytest.mark.parametrize("style", ["create", "events"])
async def test_a_client_that_loses_patience_gets_the_same_turn(
    tok: Any, agents: Agents, tmp_path: Path, style: str
) -> None:
    service = agents.get("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        rig.speaker.gate.clear()
        agent = rig.http_agent(f"{service.url}/at-once")
        playing = asyncio.create_task(play(rig, leases, agent, style=style, patience=0.4, retries=9))
        await until(lambda: rig.statuses("/v1/chat/completions") == [0, 0])  # it left twice
        rig.speaker.gate.set()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert len(rig.speaker.requests) == 2
    token_truth(rig, record)


async def test_a_full_gateway_is_asked_again_when_it_says(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RETRY_AFTER_SECONDS", 2)
    service = agents.get("openai_agent")
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        rig.speaker.gate.clear()
        agent = rig.http_agent(f"{service.url}/at-once")
        playing = asyncio.create_task(play(rig, leases, agent, crowd=turns.AT_ONCE + 2))
        await until(lambda: rig.statuses("/v1/chat/completions") == [429, 429])
        rig.speaker.gate.set()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert len(record.turns) == turns.AT_ONCE + 2 + 1
    assert len(record.rows) == len(record.turns)
    told = [one.at for one in rig.answered if one.status == 429]
    came_back = [one.at for one in rig.answered if one.retries == 1]
    assert len(came_back) == 2
    assert min(came_back) - max(told) > 1.5  # without a word its first pause is half a second


async def test_an_agent_that_is_killed_mid_episode_loses_it_and_its_successor_plays_the_retry(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    service = agents.fresh("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once", idle_seconds=1.5)
        playing = asyncio.create_task(play(rig, leases, agent, between=60.0))
        await until(lambda: rig.statuses("/v1/chat/completions") == [200])
        service.kill()
        killed = time.monotonic()
        service.start()
        lost = await playing
        took = time.monotonic() - killed
        again = await play(rig, leases, agent, attempt=1)
    assert (lost.outcome, lost.reward) == (Outcome.INFRA_ERROR, None)
    assert "has been silent for" in str(lost.error)
    assert took < 1.5 + 2.0
    token_truth(rig, lost)
    assert (again.outcome, again.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, again)


async def test_a_broken_connection_is_an_earlier_sign_of_it(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway_rollout.agents.http.BROKEN_SECONDS", 0.5)
    service = agents.fresh("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-end", idle_seconds=60.0)
        playing = asyncio.create_task(play(rig, leases, agent, between=60.0))
        await until(lambda: rig.statuses("/v1/chat/completions") == [200])
        service.kill()
        lost = await asyncio.wait_for(playing, 5.0)
    assert lost.outcome is Outcome.INFRA_ERROR
    assert "since its connection broke" in str(lost.error)


async def test_an_agent_that_is_killed_before_it_began_is_sent_the_prompt_again(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    service = agents.fresh("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-end")
        playing = asyncio.create_task(play(rig, leases, agent, wait=1.0))
        await asyncio.sleep(0.7)
        assert leases.total == 1
        service.kill()
        assert rig.answered == []
        await asyncio.sleep(0.5)  # nobody answers the next one
        service.start()
        record = await playing
    assert (record.outcome, record.reward, record.attempt) == (Outcome.COMPLETED, 1.0, 0), service.log[-3000:]
    assert all(one.status == 200 for one in rig.answered)
    token_truth(rig, record)


async def test_an_agent_that_is_not_there_is_waited_for(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.fresh("openai_agent")
    service.kill()
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        playing = asyncio.create_task(play(rig, leases, rig.http_agent(f"{service.url}/at-once")))
        await asyncio.sleep(1.0)
        service.start()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]


FIND = CALL.replace("look_up", "find")


@pytest.mark.parametrize(
    ("choices", "begun"),
    [
        (["auto"], ""),
        (
            [{"type": "function", "function": {"name": "find"}}, "auto"],
            '<tool_call>\n{"name": "find", "arguments":',
        ),
        (["required", "auto"], '<tool_call>\n{"name": "'),
    ],
    ids=["auto", "named", "required"],
)
async def test_tool_choice(tok: Any, agents: Agents, tmp_path: Path, choices: list[Any], begun: str) -> None:
    """A forced call begins in the prompt: those tokens are not the model's, and not trained."""
    service, call = agents.get("openai_agent"), FIND if begun else CALL
    said = call.partition(begun)[2] if begun else call
    async with stage(tok, tmp_path, said, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), choices=choices)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    [made] = record.messages[1]["tool_calls"]
    assert made["function"]["name"] == ("find" if begun else "look_up")
    row = token_truth(rig, record)
    trained = [token for token, mask in zip(row.tokens, row.mask, strict=True) if mask]
    assert tok.decode(trained) == said + ANSWER
    assert call in tok.decode(row.tokens)


async def test_a_last_turn_without_tools_keeps_its_history(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.get("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), choices=["auto", "none"])
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)
