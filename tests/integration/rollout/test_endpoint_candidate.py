"""An endpoint candidate against vLLM's own chat completions, a server that Headway did not write.

Its model has random weights, so its words are noise. The tests check the requests to it, and its costs. They
also ask the same server for turns under a schema, with tokens as input and output.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from endpoint_service import asking
from faulty_servers import broker, sandbox, serving
from role_keys import TO_ROLLOUT
from rollout_server import RolloutServer
from transformers import AutoTokenizer

from headway_api.model_names import BASE_MODEL
from headway_api.records import GroupRecord, Outcome, PolicyVersion, Purpose, UsageClass
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.dataset import Slot
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.engines import vllm
from headway_coordinator.episode import Episodes, Rules
from headway_coordinator.faults import CandidateError
from headway_coordinator.gateway import schemas
from headway_coordinator.gateway.asks import Ask, ContextFullError, Force, Sampling, Session
from headway_coordinator.http import connector
from headway_coordinator.ledger.events import of_group
from headway_coordinator.sandboxes import Broker
from headway_coordinator.trajectory.call_ids import call_id

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

KEY = TO_ROLLOUT
"""The key of a rollout server's port, which stands for the API key of another server."""
CONTEXT = 512
USER = {"role": "user", "content": "Look up brave-otter."}
LOOK_UP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "enum": ["brave-otter", "calm-heron"]}},
            "required": ["key"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[RolloutServer]:
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    rollout = {"engine": {"extraArgs": flags}, "maxConcurrency": 8, "sampling": {"maxTokens": 32}}
    model = {"lora": {"rank": 8, "alpha": 16}, "contextLength": CONTEXT}
    with RolloutServer(tmp_path_factory.mktemp("server"), tiny, model=model, rollout=rollout) as server:
        server.wait_ready()
        yield server


def at(server: RolloutServer, token: str | None = KEY, model: str = "base", **spec: Any) -> Any:
    return asking(f"{server.url}/v1", token=token, model=model, **spec)


@asynccontextmanager
async def episodes(chat: EndpointChat) -> AsyncIterator[Episodes]:
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(serving(sandbox()))
        box.answers["POST /reset"] = lambda body: {"messages": [USER], "tools": [LOOK_UP]}  # type: ignore[index]
        leases = await stack.enter_async_context(serving(broker(box.url)))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector()))
        rules = Rules(120.0, 300, (0.0, 1.0))
        yield Episodes(rules, Builtin(chat, 4), Broker(http, leases.url, "t", "me"), chat)


def plan(position: int, temperature: float = 1.0) -> groups.Plan:
    return groups.Plan(
        slot=Slot(position=position, epoch=0, row=position),
        purpose=Purpose.EVALUATION,
        step=0,
        row={"prompt": "p"},
        size=2,
        sampling=Sampling(temperature, 0.95, 24),
        job_seed=7,
        candidate="other",
        sampled_by="endpoint",
    )


async def measured(chat: EndpointChat, *plans: groups.Plan) -> list[GroupRecord]:
    limiter = AdaptiveSemaphore(8)
    async with episodes(chat) as found:
        runs = (groups.run(wanted, found.run, limiter, start_number=0, max_retries=0) for wanted in plans)
        return list(await asyncio.gather(*runs))


def contents(found: list[GroupRecord]) -> list[list[Any]]:
    return [[message["content"] for message in e.messages] for group in found for e in group.episodes]


async def test_episodes_cost_what_the_server_counts_and_repeat_alike(server: RolloutServer) -> None:
    before = server.spent_on_requests()
    async with at(server) as chat:
        await chat.probe()
        found = await measured(chat, *(plan(position) for position in range(3)))
        spent = [now - start for now, start in zip(server.spent_on_requests(), before, strict=True)]
        again = await measured(chat, *(plan(position) for position in range(3)))
    ended = {episode.outcome for group in found for episode in group.episodes}
    assert ended <= {Outcome.COMPLETED, Outcome.TRUNCATED}
    assert all(episode.reward == 1.0 and not episode.rows for g in found for episode in g.episodes)
    events = [event for group in found for event in of_group(group)]
    billed = [
        sum(event.quantity for event in events if event.usage_class is name)
        for name in (UsageClass.ENDPOINT_PROMPT, UsageClass.ENDPOINT_SAMPLE)
    ]
    assert billed == spent, "the probe read the list of models, and sampled nothing"
    assert contents(found) == contents(again), "the seed of a try is the job's"
    assert contents([found[0]])[0] != contents([found[0]])[1], "tries of a row differ"
    assert chat.notes.dropped == {}
    assert all(turn.counted for group in found for episode in group.episodes for turn in episode.turns)


async def test_calls_and_their_answers_go_back_and_forth(server: RolloutServer) -> None:
    """With strict tools vLLM enforces their schemas, so even random weights produce well-formed calls."""
    session = Session("e-other-000000-0-0", 1, Sampling(1.0, 1.0, 64))
    async with at(server) as chat:
        called = await chat.chat(session, Ask([USER], [LOOK_UP], force=Force()))
        assert called.calls
        assert [call.problem for call in called.calls] == [None] * len(called.calls)
        answers = [gold(call_id(0, index)) for index in range(len(called.calls))]
        answered = await chat.chat(session, Ask([USER, called.message, *answers], [LOOK_UP], may_call=False))
    assert answered.turn.prompt_tokens > called.turn.prompt_tokens
    assert [turn.index for turn in session.record] == [0, 1]


async def test_an_answer_to_a_malformed_call_is_accepted(server: RolloutServer) -> None:
    """The built-in agent continues like this after one good call and one that was not JSON."""
    good = {
        "id": call_id(0, 1),
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"key": "brave-otter"}'},
    }
    message = {"role": "assistant", "content": '{"name": "look_up", "arguments": "{"}', "tool_calls": [good]}
    session = Session("e-other-000000-0-0", 1, Sampling(1.0, 1.0, 16))
    async with at(server) as chat:
        messages = [USER, message, gold(call_id(0, 0)), gold(call_id(0, 1))]
        found = await chat.chat(session, Ask(messages, [LOOK_UP]))
    assert found.turn.prompt_tokens > 0
    assert chat.fault is None


def gold(identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": "gold"}


async def test_an_answer_is_bounded_by_the_context_until_it_is_full(
    server: RolloutServer,
) -> None:
    session = Session("e-other-000000-0-0", 1, Sampling(1.0, 1.0, CONTEXT - 100))
    words = {"role": "user", "content": "The answer is 42. " * 12}
    async with at(server) as chat:
        found = await chat.chat(session, Ask([words, words]))
        assert found.turn.prompt_tokens > 100, "with the bound on the answer it would not fit"
        assert found.turn.prompt_tokens + found.turn.sampled_tokens <= CONTEXT
        with pytest.raises(ContextFullError):
            await chat.chat(session, Ask([words] * 12))
    assert chat.fault is None
    assert chat.notes.dropped == {}


@pytest.mark.parametrize("probed", [True, False])
async def test_a_wrong_token_or_model_is_detected(server: RolloutServer, probed: bool) -> None:
    session = Session("e-other-000000-0-0", 1, Sampling(1.0, 1.0, 8))
    for wrong, field in (({"token": "sk-another"}, "secretRef"), ({"model": "nobody"}, "model")):
        async with at(server, **wrong) as chat:
            with pytest.raises(CandidateError) as caught:
                await (chat.probe() if probed else chat.chat(session, Ask([USER])))
        assert caught.value.field == f"spec.candidates[other].endpoint.{field}"
        assert "sk-another" not in str(caught.value)
    async with asking(server.url, token=KEY, model="base") as chat:
        with pytest.raises(CandidateError, match="up to and including /v1") as caught:
            await (chat.probe() if probed else chat.chat(session, Ask([USER])))
    assert caught.value.field == "spec.candidates[other].endpoint.url"


async def sampled(server: RolloutServer, prompt: list[int], schema: str | None, seed: int) -> vllm.Sampled:
    asked = vllm.Request(prompt, 64, 1.0, 1.0, seed, [], schema=schema)
    async with aiohttp.ClientSession(connector=connector()) as http:
        asking = partial(vllm.generate, http, server.url, BASE_MODEL, PolicyVersion(incarnation=0, step=0))
        return await asking(asked, 120.0, key=KEY, static=True)


PROMPT = list(range(9, 17))
HELD = schemas.text(
    {
        "type": "object",
        "properties": {"metal": {"enum": ["gold", "lead"]}, "sure": {"type": "boolean"}},
        "required": ["metal", "sure"],
        "additionalProperties": False,
    },
    "schema",
)


async def test_a_schema_held_turn_is_sampled_from_allowed_tokens_alone(
    server: RolloutServer, tiny: Path
) -> None:
    tok = AutoTokenizer.from_pretrained(str(tiny))
    for seed in range(3):
        found = await sampled(server, PROMPT, HELD, seed)
        answer = json.loads(tok.decode(found.tokens, skip_special_tokens=True))
        assert (set(answer), answer["metal"] in ("gold", "lead")) == ({"metal", "sure"}, True)
        # Its log-probabilities are normalized over the allowed tokens, so they differ from the policy's.
        first = found.tokens[0]
        [plain] = server.score(BASE_MODEL, [*PROMPT, first])[-1:]
        assert found.logprobs[0] > plain + 0.5


async def test_schemas_harm_no_neighbour(server: RolloutServer) -> None:
    """The largest accepted schemas, and some that the gateway would refuse: plain turns beside them go on."""
    ranges = {f"property {n}": {"type": "number", "minimum": n} for n in range(30)}
    wide = {"type": "object", "properties": ranges}
    maximum = [wide, {"type": "string", "minLength": 30, "maxLength": 30}, {"type": "object"}]
    bad = ['{"type": "string", "pattern": "("}', '{"$ref": "#/$defs/None"}', '{"enum": []}', "{"]
    turns = [sampled(server, PROMPT, schemas.text(one, "schema"), 1) for one in maximum]
    turns += [sampled(server, PROMPT, one, 1) for one in bad]
    plain = [sampled(server, PROMPT, None, seed) for seed in range(8)]
    found = await asyncio.gather(*turns, *plain, return_exceptions=True)
    assert [type(one) for one in found[len(maximum) : len(turns)]] == [vllm.SchemaRefusedError] * len(bad), (
        found
    )
    rest = found[: len(maximum)] + found[len(turns) :]
    assert all(isinstance(one, vllm.Sampled) for one in rest), rest
