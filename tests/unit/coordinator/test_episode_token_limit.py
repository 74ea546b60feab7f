"""No episode samples more than `spec.rollout.episodeTokenLimit`, however many turns it runs at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from faulty_servers import broker, sandbox, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from open_rollout import USER, rig
from scripted_model import ANSWER, CALL, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.records import EpisodeRecord, Outcome, Purpose
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Episodes, Rules, Task
from headway_coordinator.faults import InfraError
from headway_coordinator.gateway.allowance import AllowanceSpentError, TokenAllowance
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.sandboxes import Broker
from headway_coordinator.trajectory.render import choose

TURN = 64
"""Maximum number of tokens that a turn samples."""


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def length(tok: Any, text: str) -> int:
    return len(tok.encode(text, add_special_tokens=False))


async def played(tok: Any, limit: int | None, *texts: str, max_turns: int = 4) -> EpisodeRecord:
    """Play an episode of the built-in agent whose model samples `texts`."""
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(serving(sandbox(1.0)))
        leases = await stack.enter_async_context(serving(broker(box.url)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        gateway = Gateway(choose(tok, "qwen3"), ScriptedModel(tok, texts), 1000, 30.0)
        episodes = Episodes(
            Rules(30.0, 60, (0.0, 1.0)),
            Builtin(gateway, max_turns),
            Broker(http, leases.url, "t", "me"),
            Router(),
        )
        return await episodes.run(
            Task(
                group_id="t0-000000",
                purpose=Purpose.TRAIN,
                index=0,
                attempt=0,
                row={"prompt": "p", "answer": 7},
                environment_seed=11,
                sampling_seed=12,
                sampling=Sampling(1.0, 1.0, TURN, limit),
            )
        )


async def test_the_limit_does_not_affect_an_episode_below_it(tok: Any) -> None:
    record = await played(tok, length(tok, CALL) + length(tok, ANSWER), CALL, ANSWER)
    assert (record.outcome, record.token_limited, record.error) == (Outcome.COMPLETED, False, None)


@pytest.mark.parametrize("missing", [1, 3])
async def test_an_episode_above_the_limit_is_cut_and_judged(tok: Any, missing: int) -> None:
    limit = length(tok, CALL) + length(tok, ANSWER) - missing
    record = await played(tok, limit, CALL, ANSWER)
    assert (record.outcome, record.token_limited, record.reward) == (Outcome.TRUNCATED, True, 1.0)
    assert record.error == (f"the episode has sampled the {limit} tokens of spec.rollout.episodeTokenLimit")
    assert sum(turn.sampled_tokens for turn in record.turns) == limit
    assert record.turns[-1].finish_reason == "length"


async def test_episode_with_no_tokens_left_is_cut_before_its_next_turn(tok: Any) -> None:
    record = await played(tok, 2 * length(tok, CALL), CALL)
    assert (record.outcome, record.token_limited, len(record.turns)) == (Outcome.TRUNCATED, True, 2)
    assert "spec.rollout.episodeTokenLimit" in str(record.error)


async def test_a_turn_cut_by_max_tokens_is_not_token_limited(tok: Any) -> None:
    record = await played(tok, 10 * TURN, "gold " * 100)
    assert (record.outcome, record.token_limited) == (Outcome.TRUNCATED, False)
    assert record.error == "a turn reached its token limit"


async def test_external_agents_refused_next_turn_names_the_field(tok: Any) -> None:
    async with rig(tok, CALL) as r:
        limit = length(tok, CALL)
        r.rollout.session.allowance.limit = limit
        assert (await r.chat(USER, max_tokens=limit))[0] == 200
        assert r.rollout.truncated is None
        status, answer = await r.chat(USER, USER)
        assert (status, answer["error"]["code"]) == (400, "episode_token_limit_reached")
        assert "spec.rollout.episodeTokenLimit" in answer["error"]["message"]
        assert r.rollout.truncated == answer["error"]["message"]


@dataclass(frozen=True)
class Asked:
    """One of several concurrent turns."""

    wanted: int
    share: float
    """Share of its granted tokens that the turn samples."""
    yields: int
    fails: bool


TURNS = st.lists(
    st.builds(Asked, st.integers(1, 40), st.floats(0, 1), st.integers(0, 4), st.booleans()),
    min_size=1,
    max_size=12,
)


@given(limit=st.integers(1, 100), turns=TURNS)
@settings(max_examples=200)
def test_concurrent_turns_stay_within_the_limit_and_all_end(limit: int, turns: list[Asked]) -> None:
    sampled: list[int] = []
    refused: list[int] = []

    async def turn(allowance: TokenAllowance, asked: Asked) -> None:
        try:
            async with allowance.reserved(asked.wanted) as held:
                assert 1 <= held.tokens <= asked.wanted
                for _ in range(asked.yields):
                    await asyncio.sleep(0)
                if asked.fails:
                    raise InfraError("the server is gone")
                held.used = int(held.tokens * asked.share)
                sampled.append(held.used)
        except AllowanceSpentError:
            refused.append(asked.wanted)
        except InfraError:
            pass

    async def run() -> TokenAllowance:
        allowance = TokenAllowance(limit)
        async with asyncio.timeout(10):
            await asyncio.gather(*(turn(allowance, asked) for asked in turns))
        return allowance

    allowance = asyncio.run(run())
    assert sum(sampled) <= limit
    if refused:
        assert sum(sampled) == limit, "a turn is refused only when nothing is left"
        assert allowance.reached


async def test_a_turn_waits_for_another_that_may_return_tokens(tok: Any) -> None:
    allowance, given_ = TokenAllowance(100), asyncio.Event()

    async def second() -> int:
        async with allowance.reserved(50) as held:
            given_.set()
            return held.tokens

    async with allowance.reserved(80) as first:
        task = asyncio.create_task(second())
        await asyncio.sleep(0.01)
        assert not given_.is_set()
        first.used = 10
    assert await task == 50
