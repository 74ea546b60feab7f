"""Clients that use another protocol or send further fields, unmodified, through whole episodes.

Anthropic's SDK uses the Messages API, and smolagents ends its turns with stop strings. The clients, each with
its own Python interpreter, the gateway and the sandbox are real. Only the model's words are scripted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import token_truth
from guest_stage import Agents, billed_whole, play, stage
from scripted_model import ANSWER, CALL, PADDED, THINKING, TWO_CALLS

from headway_api.records import Outcome

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
MORE = {"more": ["Are you sure?"]}
WAYS: list[dict[str, Any]] = [
    {"style": "create"},
    {"style": "create", "sync": True, "count": True},
    {"style": "stream"},
    {"style": "stream", "sync": True},
]


@pytest.mark.parametrize("row", WAYS, ids=str)
async def test_anthropics_client_over_two_user_turns_is_one_row(
    tok: Any, agents: Agents, tmp_path: Path, row: dict[str, Any]
) -> None:
    texts, service = [TWO_CALLS, CALL, PADDED, ANSWER], agents.get("anthropic_agent")
    async with stage(tok, tmp_path, *texts) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **row, **MORE)
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None), service.log[-3000:]
    assert (record.reward, len(record.turns)) == (1.0, len(texts))
    token_truth(rig, record)
    billed_whole(rig, record)
    assert [message["role"] for message in record.messages] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]
    assert rig.statuses("/v1/messages") == [200] * len(texts)


async def test_anthropics_events_can_be_read_by_hand(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.get("anthropic_agent")
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        record = await play(rig, leases, agent, style="events", sync=True)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert {drift.reason for drift in record.drifts} == {"again"}  # it requested each turn a second time


@pytest.mark.parametrize("style", ["create", "stream"])
async def test_anthropics_reasoning_forks_where_the_template_drops_it(
    tok: Any, agents: Agents, tmp_path: Path, style: str
) -> None:
    service = agents.get("anthropic_agent")
    row = {"style": style, "thinking": {"type": "enabled", "budget_tokens": 1024}} | MORE
    async with stage(tok, tmp_path, THINKING, ANSWER, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **row)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert record.messages[2]["reasoning_content"] == "Which metal?"
    assert [(drift.reason, drift.count) for drift in record.drifts] == [("thought", 1)]
    spoken = rig.model.spoken[record.episode_id]
    assert sum(sum(one.mask) for one in record.rows) == sum(len(turn.sampled) for turn in spoken)
    assert record.ignored == {"thinking.budget_tokens": 3}


async def test_anthropics_stop_sequences_end_a_turn(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.get("anthropic_agent")
    row = {"style": "create", "stop": ["END"]} | MORE
    async with stage(tok, tmp_path, "It is gold. END of it.<|im_end|>", ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **row)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)
    assert record.messages[2]["content"].strip() == "It is gold."


RESPONSES = [
    ("responses_agent", {"style": style, "chained": chained})
    for style in ("create", "stream")
    for chained in (False, True)
]
AGENTS = [
    ("openai_agents_agent", {"style": style, "api": "responses", "chained": chained})
    for style in ("run", "streamed")
    for chained in (False, True)
]
AGENTS.append(("openai_agents_agent", {"style": "run", "own_defaults": True}))


async def one_row_of_responses(
    tok: Any, folder: Path, service: Any, texts: Sequence[str], row: dict[str, Any]
) -> Any:
    """The record of an episode that used the Responses API alone, with all turns in one row."""
    async with stage(tok, folder, *texts) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **row)
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None), service.log[-3000:]
    assert (record.reward, len(record.turns)) == (1.0, len(texts))
    token_truth(rig, record)
    billed_whole(rig, record)
    assert rig.statuses("/v1/responses") == [200] * len(texts)
    return record


@pytest.mark.parametrize(("program", "row"), RESPONSES, ids=str)
async def test_openais_responses_over_two_user_turns_are_one_row(
    tok: Any, agents: Agents, tmp_path: Path, program: str, row: dict[str, Any]
) -> None:
    texts, service = [TWO_CALLS, CALL, PADDED, ANSWER], agents.get(program)
    await one_row_of_responses(tok, tmp_path, service, texts, row)


@pytest.mark.parametrize(("program", "row"), AGENTS, ids=str)
async def test_openais_agents_play_by_their_default(
    tok: Any, agents: Agents, tmp_path: Path, program: str, row: dict[str, Any]
) -> None:
    texts, service = [THINKING, TWO_CALLS, CALL, PADDED], agents.get(program)
    record = await one_row_of_responses(tok, tmp_path, service, texts, row)
    assert record.messages[2]["reasoning_content"] == "Which metal?"


JSON = '{"metal": "gold", "parts": [{"name": "ring", "grams": null}]}<|im_end|>'


@pytest.mark.parametrize("style", ["chat", "responses", "agents"])
async def test_openais_clients_parse_an_answer_that_follows_a_schema(
    tok: Any, agents: Agents, tmp_path: Path, style: str
) -> None:
    service = agents.get("structured_agent")
    async with stage(tok, tmp_path, JSON) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style=style)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert ([turn.guided for turn in record.turns], record.rows) == ([True], [])
    [request] = rig.model.requests
    assert json.loads(request.schema or "")["properties"]["metal"]["enum"] == ["gold", "lead"]


async def test_openais_completions_go_on_in_one_row(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service, texts = agents.get("structured_agent"), [" I look. Observation:", " It is gold.<|im_end|>"]
    async with stage(tok, tmp_path, *texts) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style="text")
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert len(record.turns) == 2
    token_truth(rig, record)


REASONING = "Thought: I look.\n<code>\nfound = look_up(key='x')\nprint(found)\n</code> and more<|im_end|>"
LAST = "Thought: I know.\n<code>\nfinal_answer(found)\n</code><|im_end|>"


async def test_smolagents_code_agent_is_one_row(tok: Any, agents: Agents, tmp_path: Path) -> None:
    """The agent appends the stop string that ended a turn to the answer."""
    service = agents.get("smolagents_agent")
    async with stage(tok, tmp_path, REASONING, REASONING, LAST, context=40_000) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style="code")
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert len(record.turns) == 3
    row = token_truth(rig, record)
    trained = tok.decode([token for token, mask in zip(row.tokens, row.mask, strict=True) if mask])
    assert trained.count("</code>") == 3
    assert "and more" not in trained


STEPS = [
    {"thought": "I look.", "code": "found = look_up(key='x')\nprint(found)"},
    {"thought": "I know.", "code": "final_answer(found)"},
]


async def test_smolagents_json_steps_are_constrained_and_not_trained(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    texts = [f"{json.dumps(step)}<|im_end|>" for step in STEPS]
    service = agents.get("smolagents_agent")
    async with stage(tok, tmp_path, *texts, context=60_000) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        record = await play(rig, leases, agent, style="code", shaped=True)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert ([turn.guided for turn in record.turns], record.rows) == ([True, True], [])


BEGUN = '<tool_call>\n{"name": "'
FINAL = CALL.replace("look_up", "final_answer").replace('{"key": "x"}', '{"answer": "it is gold"}')


async def test_smolagents_tool_agent_forks_where_it_rewrites_calls(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    """The agent sends its calls back as text, so the history differs from what was sampled."""
    service, texts = agents.get("smolagents_agent"), [CALL, CALL, FINAL]
    sampled = [text.removeprefix(BEGUN) for text in texts]
    async with stage(tok, tmp_path, *sampled, context=40_000) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style="tools")
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert (len(record.turns), len(record.rows), record.forks) == (3, 3, 2)
    assert {drift.reason for drift in record.drifts} <= {"calls", "content"}, record.drifts
    spoken = rig.model.spoken[record.episode_id]
    assert sum(sum(one.mask) for one in record.rows) == sum(len(turn.sampled) for turn in spoken)
