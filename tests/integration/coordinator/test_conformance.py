"""Users' agents, unmodified, through whole episodes.

Each agent is a process with its own Python interpreter and libraries (`guests/`), made with AWS's SDK,
Strands, or OpenAI's clients. The agent, the gateway, the platform's side of the protocol and the sandbox are
real. Only the model's words are scripted. Whatever a client changes in a conversation, the learner receives
exactly the sampled tokens.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import ARN, a_task, gateway_rig, token_truth
from guest_stage import Agents, play, stage, until
from scripted_model import ANSWER, CALL, PADDED, THINKING, TWO_CALLS

from headway_api.records import Outcome

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


SCRIPTS = {
    "one call": [CALL, ANSWER],
    "reasoning, parallel calls, padding": [THINKING, TWO_CALLS, CALL, PADDED],
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
async def test_an_agent_may_answer_the_post_after_its_run(
    tok: Any, agents: Agents, tmp_path: Path, program: str, row: dict[str, Any]
) -> None:
    service = agents.get(program)
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-end"), **row)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)


async def test_another_client_works_with_the_sdks_headers(tok: Any, agents: Agents, tmp_path: Path) -> None:
    """The endpoint is the client's base URL without a suffix, as in the SDK's docs: it has no /v1."""
    service = agents.get("sagemaker_agent")
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style="custom")
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)
    assert rig.statuses("/chat/completions") == [200]


async def test_a_module_level_model_works_at_the_runtimes_base_url(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    """The SDK names the trajectory in header and body. The agent never uses the episode's own address."""
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        service = agents.fresh("sagemaker_agent", RFT_RUNTIME_ENDPOINT=rig.url)
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style="fixed")
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)


async def test_rewards_and_metrics_reach_the_environment(tok: Any, agents: Agents, tmp_path: Path) -> None:
    sdk, by_hand = agents.get("sagemaker_agent"), agents.get("strands_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        each = await play(rig, leases, rig.http_agent(f"{sdk.url}/at-once"), style="handler", say="each")
        agent = rig.http_agent(f"{by_hand.url}/at-once")
        named = await play(rig, leases, agent, attempt=1, style="stream")
    assert (each.reward, each.score, each.metrics) == (0.75, 0.75, {})
    assert (named.reward, named.metrics) == (1.0, {"words": 3.0})


async def test_the_sdk_may_complete_a_rollout_twice(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.fresh("sagemaker_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-end")
        record = await play(rig, leases, agent, style="handler", mood="twice")
        await until(lambda: service.log.count("already in terminal status, skipping") == 2)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0)
    assert rig.statuses("/complete-rollout") == [200, 409]
    assert rig.statuses("/update-reward") == [200, 409]
    assert "Traceback" not in service.log


@pytest.mark.parametrize("mood", ["raise", "error", "partial"])
async def test_an_agent_that_reports_an_error_is_never_a_zero(
    tok: Any, agents: Agents, tmp_path: Path, mood: str
) -> None:
    """The environment receives the error. This one cannot score the episode, so the episode is run again."""
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
async def test_an_invalid_reward_is_refused_to_the_sdk(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: str, why: str
) -> None:
    monkeypatch.setattr("headway_coordinator.agents.http.REWARD_SECONDS", 3.0)
    service = agents.get("sagemaker_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        record = await play(rig, leases, agent, style="handler", say=say)
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert rig.statuses("/update-reward") == [400]
    assert why in str(record.error)
    assert why in service.log


async def test_foreign_and_sealed_episodes_are_refused(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway_coordinator.agents.http.REWARD_SECONDS", 3.0)
    service = agents.get("sagemaker_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once")
        foreign = await play(rig, leases, agent, style="handler", mood="foreign")
        assert rig.statuses("/complete-rollout") == [403, 200]  # the agent gave up on its own episode then
        assert (foreign.outcome, foreign.rows) == (Outcome.INFRA_ERROR, [])
        sealed = await play(rig, leases, agent, attempt=1, style="handler", mood="more")
    assert rig.statuses("/v1/chat/completions") == [200, 200, 409]
    assert (sealed.outcome, sealed.reward, len(sealed.turns)) == (Outcome.INFRA_ERROR, None, 2)
    assert "Trajectory already processed, skipping" in service.log
    token_truth(rig, sealed)


async def test_plain_http_gets_the_same_refusals(tok: Any) -> None:
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
async def test_a_forced_calls_first_tokens_are_not_trained(
    tok: Any, agents: Agents, tmp_path: Path, choices: list[Any], begun: str
) -> None:
    """A forced call begins in the prompt. Its first tokens are not the model's, and are not trained."""
    service, call = agents.get("openai_agent"), FIND if begun else CALL
    sampled = call.partition(begun)[2] if begun else call
    async with stage(tok, tmp_path, sampled, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), choices=choices)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    [made] = record.messages[1]["tool_calls"]
    assert made["function"]["name"] == ("find" if begun else "look_up")
    row = token_truth(rig, record)
    trained = [token for token, mask in zip(row.tokens, row.mask, strict=True) if mask]
    assert tok.decode(trained) == sampled + ANSWER
    assert call in tok.decode(row.tokens)


async def test_a_last_turn_without_tools_keeps_its_history(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.get("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), choices=["auto", "none"])
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, record)


async def test_episodes_of_a_group_run_at_once_in_one_service(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    """Episodes of one service run at the same time, and every turn and reward reaches its own episode."""
    service = agents.get("sagemaker_agent")
    size = 6
    async with stage(tok, tmp_path, TWO_CALLS, ANSWER) as (rig, leases):
        episodes = rig.episodes(rig.http_agent(f"{service.url}/at-once"), leases)
        rows = [{"prompt": f"Which metal is thing {n}?", "style": "handler"} for n in range(size)]
        records = await asyncio.gather(
            *(
                episodes.run(a_task(row | {"say": "each" if n else "one"}, index=n))
                for n, row in enumerate(rows)
            )
        )
    for n, record in enumerate(records):
        assert (record.outcome, record.episode_id) == (Outcome.COMPLETED, f"t0-000000-{n}-0"), record.error
        assert record.messages[0]["content"] == rows[n]["prompt"]
        assert record.reward == (0.75 if n else 1.0)
        token_truth(rig, record)


async def test_a_client_dropping_history_forks_and_trains_tokens_once(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    """Strands drops its oldest messages when an error says that the context is full, and then continues."""
    service = agents.get("strands_agent")
    texts = [CALL, CALL, CALL, ANSWER]
    async with stage(tok, tmp_path, *texts, context=370) as (rig, leases):
        record = await play(rig, leases, rig.http_agent(f"{service.url}/at-once"), style="stream")
    assert rig.statuses("/v1/chat/completions") == [200, 200, 400, 200, 200]
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert [sum(row.mask) for row in record.rows] == [
        len(tok.encode("".join(part), add_special_tokens=False)) for part in (texts[:2], texts[2:])
    ]
    assert record.forks == 1
    spoken = rig.model.spoken[record.episode_id]
    assert record.rows[0].tokens == spoken[1].prompt + spoken[1].sampled
    assert record.rows[1].tokens == spoken[3].prompt + spoken[3].sampled
