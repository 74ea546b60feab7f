"""Claude Code, an unmodified coding agent that uses the Messages API, through whole episodes.

Its program is the one in its SDK's wheel. It reads files and runs commands in its own folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import token_truth
from guest_stage import Agents, billed_whole, play, stage
from scripted_model import ANSWER, PADDED, TWO_CALLS

from headway_api.records import Outcome

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]

CONTEXT = 200_000
"""Tokens of context. In the toy tokenizer, the agent's own prompt and tools take 34,000 tokens."""


def a_call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call><|im_end|>"


def desk(text: str) -> str:
    """The same text, with calls to the tool under the name that the agent's SDK gives it."""
    return text.replace("look_up", "mcp__desk__look_up")


READ = a_call("Read", file_path="x.txt")
SCRIPTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "two user turns": ([desk(TWO_CALLS), READ, PADDED, ANSWER], {"more": ["Are you sure?"]}),
    "its own prompt and tools": (
        [f"<think>\nWhich metal?\n</think>\n\n{READ}", a_call("Bash", command="cat x.txt"), PADDED],
        {"prompt_of": "own"},
    ),
}


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_coding_agents_episode_is_one_row(
    tok: Any, agents: Agents, tmp_path: Path, script: str
) -> None:
    (texts, row), service = SCRIPTS[script], agents.get("claude_code_agent")
    async with stage(tok, tmp_path, *texts, context=CONTEXT) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once", lenient=True)
        record = await play(rig, leases, agent, **row)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert rig.statuses("/v1/messages") == [200] * len(texts)
    token_truth(rig, record)
    billed_whole(rig, record)
    ignored = ("context_management", "output_config.effort", "tools.defer_loading", "thinking.display")
    assert record.ignored == dict.fromkeys(ignored, len(texts))
    results = [message["content"] for message in record.messages if message["role"] == "tool"]
    assert all("gold" in words for words in results), results


async def test_a_helper_of_a_coding_agent_is_a_row_of_its_own(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    """The helper has another system prompt and other tools.

    The agent that started it continues the first row.
    """
    asked = {"description": "look", "prompt": "Which metal is x?", "subagent_type": "general-purpose"}
    texts, service = [a_call("Agent", **asked), PADDED, ANSWER], agents.get("claude_code_agent")
    waits = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}
    async with stage(tok, tmp_path, *texts, context=CONTEXT) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once", lenient=True)
        record = await play(rig, leases, agent, prompt_of="own", env=waits)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert [(drift.reason, drift.count) for drift in record.drifts] == [("tools", 1)]
    [called, helped, ended] = rig.model.spoken[record.episode_id]
    helpers, own = record.rows
    assert own.tokens == ended.prompt + ended.sampled
    assert sum(own.mask) == len(called.sampled) + len(ended.sampled)
    assert helpers.tokens == helped.prompt + helped.sampled
    assert sum(helpers.mask) == len(helped.sampled)


async def test_a_refusal_names_the_field_to_a_coding_agent(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.get("claude_code_agent")
    async with stage(tok, tmp_path, ANSWER, context=CONTEXT) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"))
    assert (record.outcome, record.rows) == (Outcome.INFRA_ERROR, [])
    assert set(rig.statuses("/v1/messages")) == {400}
    assert "context_management" in str(record.error)
    assert "spec.agent.lenient" in str(record.error)
