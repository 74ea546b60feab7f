"""Agents that edit the model's context, and clients that give up: what is trained, billed and shown.

LangChain's and LangGraph's own ways to shorten a context run here unmodified. Each edit makes a branch with a
reason, and every token is trained once.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import GatewayRig
from guest_stage import Agents, a_batch, billed, billed_whole, play, stage, until
from scripted_model import ANSWER, CALL

from headway_analysis.measures import metrics
from headway_api.records import EpisodeRecord, Outcome

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]

CALLS = [CALL.replace('"x"', f'"{key}"') for key in "abc"]
DELEGATE = CALL.replace("look_up", "delegate").replace('"key": "x"', '"task": "Look up x."')
SUMMARY = "They asked about x, and a is gold.<|im_end|>"
EDITS: dict[str, tuple[list[str], dict[str, int]]] = {
    "trimmed": ([*CALLS, ANSWER], {"dropped": 2}),
    "cleared": ([*CALLS, ANSWER], {"content": 2}),
    "summarized": ([*CALLS[:2], SUMMARY, ANSWER], {"tools": 1, "content": 1}),
    "team": ([DELEGATE, CALL, ANSWER, ANSWER], {"tools": 1}),
    "roles": ([CALL, ANSWER, ANSWER], {"system": 1}),
}
"""How an agent edits its context -> the model's words, and how many branches each reason makes."""


def branches(rig: GatewayRig, record: EpisodeRecord) -> None:
    """Check that the rows train every sampled token once, and that the metrics agree."""
    spoken = rig.model.spoken[record.episode_id]
    sampled = sum(len(turn.sampled) for turn in spoken)
    assert sum(row.action_tokens for row in record.rows) == sampled
    others = [row for row in record.rows if all(span.turn for span in row.turns)]
    assert len(others) == len(record.rows) - 1
    assert [turn.sampled_tokens for turn in record.turns] == [len(turn.sampled) for turn in spoken]
    found = metrics.batch([a_batch(record)], 1, trained=(), max_turns=None)
    assert found["rollout/rows/mean"] == found["rollout/rows/max"] == len(record.rows)
    assert found["rollout/rows/branch_share"] == (len(record.rows) - 1) / len(record.rows)
    assert found["rollout/rows/branch_token_share"] == sum(row.action_tokens for row in others) / sampled
    everything = sum(len(row.tokens) for row in record.rows)
    context = sum(len(row.tokens) - row.action_tokens for row in others)
    assert found["rollout/rows/repeated_share"] == context / everything
    for drift in record.drifts:
        assert found[f"rollout/forks_of/{drift.reason}"] == drift.count / len(record.turns)


@pytest.mark.parametrize("style", EDITS)
async def test_an_edited_context_is_a_branch_with_a_reason(
    tok: Any, agents: Agents, tmp_path: Path, style: str
) -> None:
    (texts, reasons), service = EDITS[style], agents.get("langchain_agent")
    async with stage(tok, tmp_path, *texts) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style=style)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert len(record.turns) == len(texts), service.log[-3000:]
    assert {drift.reason: drift.count for drift in record.drifts} == reasons
    assert (record.forks, len(record.rows)) == (sum(reasons.values()), 1 + sum(reasons.values()))
    branches(rig, record)
    billed_whole(rig, record)


async def test_an_abandoned_turn_is_not_trained_or_charged(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.get("langchain_agent")
    row = {"patience": 1.0, "retries": 0, "instead": "Which metal, in a word?"}
    async with stage(tok, tmp_path, "It is lead, I am sure.<|im_end|>", ANSWER) as (rig, leases):
        rig.model.gate.clear()
        playing = asyncio.create_task(play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **row))
        await until(lambda: rig.statuses("/v1/chat/completions") == [0])
        rig.model.gate.set()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert "gave up" in service.log
    assert [turn.delivered for turn in record.turns] == [False, True]
    lost, kept = rig.model.spoken[record.episode_id]
    [row_] = record.rows
    assert row_.tokens == kept.prompt + kept.sampled
    assert sum(row_.mask) == len(kept.sampled)
    assert billed(record) == {
        "prefill": len(kept.prompt),
        "sample": len(kept.sampled),
        "discarded": len(lost.prompt) + len(lost.sampled),
    }
    assert json.dumps(record.messages).count("lead") == 0
