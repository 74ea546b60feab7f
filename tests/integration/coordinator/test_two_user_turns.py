"""Agents with a second user message, after which they call tools again: unmodified, through whole episodes.

Each continues by its package's own means: a list of messages, a session, or the same agent object. The
packages, each with its own Python interpreter, the gateway and the sandbox are real. Only the model's words
are scripted. Other files test a second user message with Anthropic's client, OpenAI's Responses API and the
frameworks.
"""

from __future__ import annotations

import copy
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
SECOND = "And y, are you sure?"
WAYS: list[Way] = [
    ("openai_agent", {"style": "create"}),
    ("openai_agent", {"style": "create", "sync": True}),
    ("openai_agent", {"style": "events"}),
    ("openai_agent", {"style": "stream", "sync": True}),
    ("openai_agent", {"style": "parse"}),
    *(
        ("openai_agents_agent", {"style": style, "api": api, "session": session})
        for api in ("chat", "responses")
        for style, session in (("run", True), ("run", False), ("streamed", True))
    ),
    ("openai_agents_agent", {"style": "run", "api": "responses", "chained": True}),
    ("openai_agents_agent", {"style": "streamed", "api": "responses", "chained": True}),
    ("strands_agent", {"style": "stream"}),
    ("strands_agent", {"style": "whole"}),
    ("sagemaker_agent", {"style": "handler"}),
    ("sagemaker_agent", {"style": "standalone"}),
]


async def an_episode(
    tok: Any, agents: Agents, folder: Path, way: Way, *texts: str, **settings: Any
) -> tuple[GatewayRig, EpisodeRecord]:
    """Play an episode.

    The agent must complete it after its second answer, and its bill must have each token once.
    """
    program, own = way
    service = agents.get(program)
    async with stage(tok, folder, *texts, **settings) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        record = await play(rig, leases, agent, **own, more=[SECOND])
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None), service.log[-3000:]
    assert (record.reward, len(record.turns)) == (1.0, len(texts)), service.log[-3000:]
    assert all(one.status == 200 for one in rig.answered), rig.answered
    billed_whole(rig, record)
    return rig, record


def roles(record: EpisodeRecord) -> list[str]:
    return [message["role"] for message in record.messages if message["role"] != "system"]


def trained_once(rig: GatewayRig, record: EpisodeRecord) -> None:
    spoken = rig.model.spoken[record.episode_id]
    assert sum(row.action_tokens for row in record.rows) == sum(len(turn.sampled) for turn in spoken)


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_calls_in_two_user_turns_are_one_row(
    tok: Any, agents: Agents, tmp_path: Path, way: Way
) -> None:
    texts = [TWO_CALLS, CALL, PADDED, CALL, ANSWER]
    rig, record = await an_episode(tok, agents, tmp_path, way, *texts)
    token_truth(rig, record)
    assert roles(record) == [
        *("user", "assistant", "tool", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool", "assistant"),
    ]
    assert SECOND in str(record.messages[-4]["content"])


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_reasoning_of_the_first_user_turn_is_a_fork(
    tok: Any, agents: Agents, tmp_path: Path, way: Way
) -> None:
    """The chat template drops the reasoning when the user speaks again, for every client."""
    texts = [THINKING, PADDED, CALL, ANSWER]
    rig, record = await an_episode(tok, agents, tmp_path, way, *texts)
    assert [(drift.reason, drift.count) for drift in record.drifts] == [("thought", 1)]
    assert (record.forks, len(record.rows)) == (1, 2)
    trained_once(rig, record)


LOOK = "Thought: I look.\n<code>\nfound = look_up(key='x')\nprint(found)\n</code><|im_end|>"
LAST = "Thought: I know.\n<code>\nfinal_answer(found)\n</code><|im_end|>"
ROOM = 60_000
"""Context for the prompts of smolagents, in tokens of the toy tokenizer."""


@pytest.fixture
def joined(tok: Any) -> Any:
    """A vocabulary in which the end of a tag and its line break are one token, as in Qwen3's."""
    found = copy.deepcopy(tok)
    found.add_tokens([">\n"])
    return found


async def test_smolagents_code_agent_asked_twice_is_one_row(
    joined: Any, agents: Agents, tmp_path: Path
) -> None:
    """The agent appends to each answer which code it ran.

    The sampled tokens are kept, and the appended text follows them.
    """
    way, texts = ("smolagents_agent", {"style": "code"}), [LOOK, LOOK, LAST, LOOK, LAST]
    rig, record = await an_episode(joined, agents, tmp_path, way, *texts, context=ROOM)
    token_truth(rig, record)
    assert roles(record) == ["user", "assistant"] * len(texts)
    assert str(record.messages[-4]["content"]).endswith(f"New task:\n{SECOND}")


async def test_smolagents_code_agent_forks_after_reasoning(
    joined: Any, agents: Agents, tmp_path: Path
) -> None:
    """The agent sends its code's output as the user, and the template then drops the reasoning."""
    way, reasoned = ("smolagents_agent", {"style": "code"}), f"<think>\nWhich metal?\n</think>\n\n{LOOK}"
    texts = [reasoned, reasoned, LAST, LOOK, LAST]
    rig, record = await an_episode(joined, agents, tmp_path, way, *texts, context=ROOM)
    assert [(drift.reason, drift.count) for drift in record.drifts] == [("thought", 2)]
    assert len(record.rows) == 3
    trained_once(rig, record)


BEGUN = '<tool_call>\n{"name": "'
FINAL = CALL.replace("look_up", "final_answer").replace('{"key": "x"}', '{"answer": "it is gold"}')


async def test_smolagents_tool_agent_asked_twice_is_a_row_a_turn(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    """The agent sends its calls back as text. Every turn must call a tool, so no turn can have reasoning."""
    way, texts = ("smolagents_agent", {"style": "tools"}), [TWO_CALLS, CALL, FINAL, CALL, FINAL]
    sampled = [text.removeprefix(BEGUN) for text in texts]
    rig, record = await an_episode(tok, agents, tmp_path, way, *sampled, context=ROOM)
    assert [(drift.reason, drift.count) for drift in record.drifts] == [("calls", 4)]
    assert len(record.rows) == 5
    trained_once(rig, record)
    assert str(record.messages[-4]["content"]).endswith(f"New task:\n{SECOND}")
