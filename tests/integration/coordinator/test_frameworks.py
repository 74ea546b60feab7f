"""Agents of popular frameworks, unmodified, through whole episodes.

The frameworks, each with its own Python interpreter, the gateway and the sandbox are real. Only the model's
words are scripted. A table of `docs/agents.md` shows which features were tested with each framework.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateway_rig import GatewayRig, token_truth
from guest_stage import Agents, billed_whole, play, stage
from scripted_model import ANSWER, CALL, PADDED, THINKING, TWO_CALLS

from headway_api.records import EpisodeRecord, Outcome

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]

Way = tuple[str, dict[str, Any]]
"""A guest's program, and the settings of its agent."""
CHAT: list[Way] = [
    ("langchain_agent", {"style": "agent"}),
    ("langchain_agent", {"style": "graph", "stream": True}),
    ("pydantic_ai_agent", {}),
    ("pydantic_ai_agent", {"stream": True}),
    ("litellm_agent", {"provider": "openai"}),
    ("litellm_agent", {"provider": "hosted_vllm", "stream": True}),
    ("agent_framework_agent", {"api": "chat"}),
    ("agent_framework_agent", {"api": "chat", "stream": True}),
]
OTHERS: list[Way] = [
    ("litellm_agent", {"provider": "anthropic"}),
    ("litellm_agent", {"provider": "anthropic", "stream": True}),
    ("agent_framework_agent", {"api": "responses"}),
    ("agent_framework_agent", {"api": "responses", "stream": True}),
]
"""Agents that use the Messages or the Responses API."""


async def an_episode(
    tok: Any, agents: Agents, folder: Path, way: Way, *texts: str, lenient: bool = False, **row: Any
) -> tuple[GatewayRig, EpisodeRecord]:
    """Play an episode.

    The agent must complete it with a reward of 1, and its bill must have each token once.
    """
    program, own = way
    service = agents.get(program)
    async with stage(tok, folder, *texts) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once", lenient=lenient)
        record = await play(rig, leases, agent, **own, **row)
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None), service.log[-3000:]
    assert (record.reward, len(record.turns)) == (1.0, len(texts)), service.log[-3000:]
    assert all(one.status == 200 for one in rig.answered), rig.answered
    billed_whole(rig, record)
    return rig, record


@pytest.mark.parametrize("way", [*CHAT, *OTHERS], ids=str)
async def test_two_user_turns_with_parallel_calls_are_one_row(
    tok: Any, agents: Agents, tmp_path: Path, way: Way
) -> None:
    texts = [TWO_CALLS, CALL, PADDED, ANSWER]
    rig, record = await an_episode(tok, agents, tmp_path, way, *texts, more=["Are you sure?"])
    token_truth(rig, record)
    assert [message["role"] for message in record.messages if message["role"] != "system"] == [
        *("user", "assistant", "tool", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]


@pytest.mark.parametrize("way", [*CHAT[::2], *OTHERS[::2]], ids=str)
async def test_reasoning_before_calls_is_one_row(tok: Any, agents: Agents, tmp_path: Path, way: Way) -> None:
    rig, record = await an_episode(tok, agents, tmp_path, way, THINKING, TWO_CALLS, PADDED)
    token_truth(rig, record)


@pytest.mark.parametrize("way", [CHAT[0], CHAT[2], OTHERS[0], OTHERS[2]], ids=str)
async def test_reasoning_that_the_template_drops_is_a_fork(
    tok: Any, agents: Agents, tmp_path: Path, way: Way
) -> None:
    texts = [THINKING, PADDED, ANSWER]
    rig, record = await an_episode(tok, agents, tmp_path, way, *texts, more=["Are you sure?"])
    assert [(drift.reason, drift.count) for drift in record.drifts] == [("thought", 1)]
    spoken = rig.model.spoken[record.episode_id]
    assert sum(row.action_tokens for row in record.rows) == sum(len(turn.sampled) for turn in spoken)


def shaped(tool: str) -> str:
    """A tool call whose arguments are an answer that follows the schema."""
    return CALL.replace("look_up", tool).replace('"key": "x"', '"metal": "gold"')


ANY, NAMED = '<tool_call>\n{"name": "', '<tool_call>\n{"name": "Answer", "arguments":'
"""How a turn begins that must call a tool: one of several tools, or `Answer`."""
BY_TOOL: list[tuple[Way, list[str], str]] = [
    (("langchain_agent", {"structured": "function_calling"}), [shaped("Answer")], NAMED),
    (("langchain_agent", {"style": "output by tool"}), [CALL, shaped("Answer")], ANY),
    (("pydantic_ai_agent", {"output": "tool"}), [CALL, shaped("final_result")], ANY),
    (("strands_agent", {"style": "whole", "shaped": True}), [CALL, shaped("Answer")], ""),
    (("strands_agent", {"style": "stream", "shaped": True}), [CALL, shaped("Answer")], ""),
    (("sagemaker_agent", {"style": "handler", "shaped": True}), [CALL, shaped("Answer")], ""),
]


@pytest.mark.parametrize(("way", "texts", "begun"), BY_TOOL, ids=str)
async def test_a_structured_answer_by_a_tool_call_is_one_row(
    tok: Any, agents: Agents, tmp_path: Path, way: Way, texts: list[str], begun: str
) -> None:
    """If the tool call is forced, the tokens that the gateway writes of it are not trained."""
    sampled = [text.removeprefix(begun) for text in texts]
    rig, record = await an_episode(tok, agents, tmp_path, way, *sampled)
    row = token_truth(rig, record)
    trained = [token for token, mask in zip(row.tokens, row.mask, strict=True) if mask]
    assert tok.decode(trained) == "".join(sampled)
    assert all(text in tok.decode(row.tokens) for text in texts)


@pytest.mark.parametrize(
    "way",
    [
        ("strands_agent", {"style": "stream", "shaped": True}),
        ("sagemaker_agent", {"style": "handler", "shaped": True}),
    ],
    ids=str,
)
async def test_strands_forces_a_schema_with_its_tool_alone(
    tok: Any, agents: Agents, tmp_path: Path, way: Way
) -> None:
    """Strands does so after an answer in words, and offers no other tool in that turn."""
    texts = [CALL, PADDED, shaped("Answer").removeprefix(NAMED)]
    rig, record = await an_episode(tok, agents, tmp_path, way, *texts)
    assert [(drift.reason, drift.count) for drift in record.drifts] == [("tools", 1)]
    spoken = rig.model.spoken[record.episode_id]
    assert sum(row.action_tokens for row in record.rows) == sum(len(turn.sampled) for turn in spoken)


AS_JSON = {"response_format": {"type": "json_object"}}
BY_SCHEMA: list[tuple[Way, str]] = [
    (("pydantic_ai_agent", {"output": "native"}), "response_format"),
    (("pydantic_ai_agent", {"output": "prompted"}), "response_format"),
    (
        ("litellm_agent", {"provider": "openai", "ask": AS_JSON}),
        "response_format",
    ),
    (("agent_framework_agent", {"api": "chat", "shaped": True}), "response_format"),
    (("agent_framework_agent", {"api": "responses", "shaped": True}), "text.format"),
]
"""Frameworks that ask for an answer by a schema beside callable tools -> the field that they use."""


@pytest.mark.parametrize(("way", "field"), BY_SCHEMA, ids=str)
async def test_a_schema_beside_tools_is_refused_by_name(
    tok: Any, agents: Agents, tmp_path: Path, way: Way, field: str
) -> None:
    program, own = way
    service = agents.get(program)
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **own)
    assert (record.outcome, record.rows) == (Outcome.INFRA_ERROR, [])
    assert rig.answered[0].status == 400
    assert field in str(record.error)


@pytest.mark.parametrize(("way", "field"), BY_SCHEMA, ids=str)
async def test_a_schema_is_ignored_where_the_job_is_lenient(
    tok: Any, agents: Agents, tmp_path: Path, way: Way, field: str
) -> None:
    text = '{"metal": "gold"}<|im_end|>'
    rig, record = await an_episode(tok, agents, tmp_path, way, text, lenient=True)
    token_truth(rig, record)
    assert record.ignored == {field: 1}


WITHOUT_TOOLS: list[Way] = [
    ("langchain_agent", {"structured": ""}),
    ("pydantic_ai_agent", {"output": "native", "alone": True}),
    ("pydantic_ai_agent", {"output": "prompted", "alone": True}),
]


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("way", WITHOUT_TOOLS, ids=str)
async def test_a_schema_without_tools_constrains_its_turn(
    tok: Any, agents: Agents, tmp_path: Path, way: Way, lenient: bool
) -> None:
    """Such a turn is not trained. A lenient job ignores the schema."""
    text = '{"metal": "gold"}<|im_end|>'
    _, record = await an_episode(tok, agents, tmp_path, way, text, lenient=lenient)
    assert [turn.guided for turn in record.turns] == [not lenient]
    assert (len(record.rows), record.ignored) == ((1, {"response_format": 1}) if lenient else (0, {}))
