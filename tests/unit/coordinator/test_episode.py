"""One episode from start to end, both without faults and with a fault of any kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from call_styles import STYLES, made
from faulty_servers import Scripted, after, broker, drop, fail, first, hang, sandbox, say, serving
from sandbox_server import Server
from scripted_model import ANSWER, CALL, MALFORMED, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, Outcome, Purpose
from headway_api.sandbox_api import FinishReply
from headway_coordinator import episode, sandboxes
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.bounds import NO_STEP_LEFT
from headway_coordinator.dataset import Slot
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Episodes, Rules, Task, by_index, check_sizes
from headway_coordinator.faults import AgentError, Cause, InfraError
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.sandboxes import Broker
from headway_coordinator.trajectory.render import choose


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


@dataclass
class Rig:
    episodes: Episodes
    broker: Scripted
    sandbox: Scripted
    model: ScriptedModel
    http: aiohttp.ClientSession
    serve: Callable[[Scripted], Awaitable[Scripted]]


@asynccontextmanager
async def rig(
    tok: Any,
    *texts: str,
    timeout: float = 30.0,
    max_turns: int = 4,
    context: int = 1000,
    system: str | None = None,
    reward: float = 1.0,
) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(serving(sandbox(reward)))
        leases = await stack.enter_async_context(serving(broker(box.url)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        model = ScriptedModel(tok, texts)
        rules = Rules(timeout, 60, (0.0, 1.0))
        agent = Builtin(Gateway(choose(tok, "qwen3"), model, context, timeout), max_turns, system)
        episodes = Episodes(rules, agent, Broker(http, leases.url, "t", "me"), Router())

        async def serve(scripted: Scripted) -> Scripted:
            return await stack.enter_async_context(serving(scripted))

        yield Rig(episodes, leases, box, model, http, serve)


def task(index: int = 0, attempt: int = 0) -> Task:
    return Task(
        group_id="t0-000000",
        purpose=Purpose.TRAIN,
        index=index,
        attempt=attempt,
        row={"prompt": "p", "answer": 7},
        environment_seed=11,
        sampling_seed=12,
        sampling=Sampling(1.0, 1.0, 64),
    )


async def test_a_completed_episode_is_scored_and_recorded(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        record = await r.episodes.run(task())
    assert (record.outcome, record.reward, record.score, record.error) == (Outcome.COMPLETED, 1.0, 1.0, None)
    assert [m["role"] for m in record.messages] == ["user", "assistant", "tool", "assistant"]
    assert record.messages[1]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"key": "x"}'}
    assert record.messages[-1] == {"role": "assistant", "content": "It is gold."}
    [row] = record.rows
    assert tok.decode(row.tokens).endswith(ANSWER)
    assert row.action_tokens == sum(turn.sampled_tokens for turn in record.turns)
    assert ("POST /reset", {"row": {"prompt": "p", "answer": 7}, "seed": 11}) in r.sandbox.asked
    assert r.broker.count("DELETE /v1/leases/t0-000000-0-0") == 1
    seeds = [request.seed for request in r.model.requests]
    assert len(set(seeds)) == 2


async def test_an_episode_records_what_it_waited_for(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        record = await r.episodes.run(replace(task(), queued_at=123.5))
    assert record.queued_at == 123.5
    spans = sorted(record.spans, key=lambda span: (span.began, -span.ended))
    kinds = ["sandbox", "reset", "agent", "turn", "tool", "turn", "judgement", "release"]
    assert [span.kind for span in spans] == kinds
    agent = spans[2]
    assert all(agent.began <= span.began and span.ended <= agent.ended for span in spans[3:6])
    outer = [span for span in spans if span.kind not in ("turn", "tool")]
    assert all(before.ended <= after.began for before, after in pairwise(outer))
    lived = record.finished_at - record.started_at
    assert lived - sum(span.ended - span.began for span in outer) < 0.1
    assert outer[-1].ended <= lived + 0.01


async def test_a_timed_out_agents_span_lasts_until_its_deadline(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER, timeout=0.5) as r:
        r.sandbox.faults["POST /tool"] = hang
        record = await r.episodes.run(task())
    assert record.timed_out
    [agent] = [span for span in record.spans if span.kind == "agent"]
    assert agent.ended - agent.began > 0.3
    assert record.spans[-1].kind == "release"


@pytest.mark.parametrize("name", STYLES)
async def test_unreadable_call_is_scored_under_every_template(tok: Any, name: str) -> None:
    """Some templates refuse a tool's result if they see no call before it."""
    style, (renderer, own) = STYLES[name], made(name)
    complete = [text for text in style.malformed if text.endswith(tuple(style.stops))]
    assert complete
    for malformed in complete:
        async with rig(tok, ANSWER) as r:
            model = ScriptedModel(own, [malformed, style.answer])
            r.episodes._agent = Builtin(Gateway(renderer, model, 100_000, 5.0), 4, None)
            record = await r.episodes.run(replace(task(), sampling=Sampling(1.0, 1.0, 16_384)))
        assert record.outcome in (Outcome.COMPLETED, Outcome.AGENT_ERROR), record.error
        assert record.reward is not None
        assert record.turns[0].malformed_tool_calls


async def test_environment_message_a_template_refuses_is_infra_error(tok: Any) -> None:
    class Refusing:
        longest_token = None

        def render(self, *_: Any) -> list[int]:
            raise ValueError("no such role")

    async with rig(tok, ANSWER) as r:
        r.episodes._agent = Builtin(Gateway(Refusing(), r.model, 1000, 5.0), 4, None)  # type: ignore[arg-type]
        record = await r.episodes.run(task())
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert "no such role" in str(record.error)


@pytest.mark.parametrize("fault", [None, AgentError("no such module")])
async def test_an_agent_that_takes_no_turn_is_not_scored(tok: Any, fault: Exception | None) -> None:
    """Its reward would not depend on the model."""

    class Mute:
        async def play(self, stage: EpisodeContext) -> AgentResult:
            if fault is not None:
                raise fault
            return AgentResult(truncated=False)

    async with rig(tok, ANSWER) as r:
        r.episodes._agent = Mute()
        record = await r.episodes.run(task())
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert "without a single turn" in str(record.error)
    assert str(fault or "") in str(record.error)
    assert r.sandbox.count("POST /finish") == 0


async def test_a_malformed_call_is_kept_counted_and_answered(tok: Any) -> None:
    async with rig(tok, MALFORMED, ANSWER) as r:
        record = await r.episodes.run(task())
    assert record.outcome is Outcome.COMPLETED
    assert [turn.malformed_tool_calls for turn in record.turns] == [1, 0]
    assert "{oops}" in record.messages[1]["content"]
    assert "could not be read" in record.messages[2]["content"]
    assert r.sandbox.count("POST /tool") == 0
    assert MALFORMED in tok.decode(record.rows[0].tokens)


async def test_every_text_of_a_model_can_be_stored(tok: Any) -> None:
    """JSON's escapes can spell half of a surrogate pair, and endless brackets exhaust any parser."""
    half = CALL.replace('"x"', '"\\ud83d"')
    deep = f'<tool_call>{{"name": "look_up", "arguments": {"[" * 3000}</tool_call><|im_end|>'
    for text in (half, deep):
        async with rig(tok, text, ANSWER, context=9000) as r:
            record = await r.episodes.run(replace(task(), sampling=Sampling(1.0, 1.0, 8000)))
        assert record.outcome is Outcome.COMPLETED
        assert [turn.malformed_tool_calls for turn in record.turns] == [1, 0]
        assert EpisodeRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    "answer",
    [
        {"reward": 0.5, "score": 0.5, "metrics": {str(n): 1.0 for n in range(1001)}},
        {"reward": 0.5, "score": 0.5, "metrics": {"x" * 201: 1.0}},
        {"reward": 0.5, "score": 0.5, "turn_rewards": [0.0] * 10_001},
        {"reward": 0.5, "score": 0.5, "turn_rewards": ["x"] * 9_000},
        {"reward": [], "score": 0.5},
    ],
    ids=["metrics", "names", "turns", "texts", "list"],
)
async def test_a_judgement_of_another_shape_names_its_first_fault(tok: Any, answer: Any) -> None:
    async with rig(tok, ANSWER) as r:
        r.sandbox.faults["POST /finish"] = say(answer)
        record = await r.episodes.run(task())
    assert record.outcome is Outcome.INFRA_ERROR
    assert "answered /finish with an invalid reply" in str(record.error)
    assert len(str(record.error)) < 500


async def test_half_a_character_from_an_environment_is_an_infra_error(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        r.sandbox.faults["POST /reset"] = say(
            {"messages": [{"role": "user", "content": "\ud83d"}], "tools": []}
        )
        record = await r.episodes.run(task())
    assert record.outcome is Outcome.INFRA_ERROR
    assert "not JSON" in str(record.error)
    assert record.model_dump_json()


async def test_a_bug_of_ours_ends_an_episode_and_not_the_job(
    tok: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        monkeypatch.setattr(episode, "check_reward", lambda *given: 1 // 0)
        record = await r.episodes.run(task())
        assert r.broker.count("DELETE") == 1
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert "ZeroDivisionError" in str(record.error)
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("settings", "texts", "why"),
    [
        ({"max_turns": 3}, [CALL], "3 turns"),
        ({}, ["word " * 200], "token limit"),
        ({"context": 120}, [CALL], "context"),
    ],
)
async def test_reaching_a_limit_truncates_the_episode(
    tok: Any, settings: dict[str, Any], texts: list[str], why: str
) -> None:
    async with rig(tok, *texts, **settings) as r:
        record = await r.episodes.run(task())
    assert record.outcome is Outcome.TRUNCATED
    assert record.reward == 1.0
    if why != "context":
        assert why in str(record.error)
    assert r.sandbox.asked[-1][1]["truncated"] is True


async def test_a_system_prompt_of_the_spec_comes_first(tok: Any) -> None:
    async with rig(tok, ANSWER, system="Be kind.") as r:
        record = await r.episodes.run(task())
    assert record.messages[0] == {"role": "system", "content": "Be kind."}


@pytest.mark.parametrize("where", ["POST /reset", "POST /tool", "POST /finish"])
@pytest.mark.parametrize("fault", [drop, fail(500), hang])
async def test_dying_sandbox_is_an_infra_error_and_its_lease_returns(
    tok: Any, where: str, fault: Any
) -> None:
    async with rig(tok, CALL, ANSWER, timeout=0.5) as r:
        r.sandbox.faults[where] = fault
        record = await r.episodes.run(task())
        assert record.outcome is Outcome.INFRA_ERROR
        assert record.reward is None
        assert record.error
        assert record.timed_out == record.error.startswith("the episode did not end within")
        assert record.timed_out or fault is not hang
        assert r.broker.count("DELETE") == 1


async def test_a_hanging_tool_is_named_instead_of_the_agent(tok: Any) -> None:
    causes: list[tuple[str, Cause]] = []
    async with rig(tok, CALL, ANSWER, timeout=0.5) as r:
        r.episodes._on_cause = lambda episode, cause: causes.append((episode, cause))
        r.sandbox.faults["POST /tool"] = hang
        record = await r.episodes.run(task())
    assert record.error == "the episode did not end within 0.5 s; it was waiting for tool look_up"
    message = "tool look_up has not returned by the end of the episode's time"
    assert causes == [(record.episode_id, Cause("EnvironmentHangs", message, "spec.environment.entrypoint"))]


@pytest.mark.parametrize(
    ("tool", "reason", "message"),
    [
        ('"crash", "arguments": {}', "ToolFailed", "tool crash raised KeyError: 'bug'"),
        ('"sleep", "arguments": {"seconds": 30}', "EnvironmentHangs", "tool sleep has not returned by"),
    ],
)
async def test_a_real_sandbox_names_tool_file_and_line(
    tok: Any, tmp_path: Path, tool: str, reason: str, message: str
) -> None:
    server, causes = Server(tmp_path), list[Cause]()
    try:
        server.start()
        lease = {"lease": "e", "token": "t", "deadline": time.time() + 60, "seconds": 2.0}
        assert server.post("/lease", lease, None)[0] == 204
        call = f'<tool_call>\n{{"name": {tool}}}\n</tool_call><|im_end|>'
        async with rig(tok, call, ANSWER, timeout=20.0) as r:
            leases = await r.serve(broker(f"http://127.0.0.1:{server.port}"))
            r.episodes._broker = Broker(r.http, leases.url, "t", "me")
            r.episodes._on_cause = lambda episode, cause: causes.append(cause)
            record = await r.episodes.run(task())
    finally:
        server.close()
    [cause] = causes
    assert (cause.reason, cause.field) == (reason, "spec.environment.entrypoint")
    assert cause.message.startswith(message)
    assert f"{tmp_path}/counter.py:" in cause.message
    assert record.error == cause.message, "no request, no address"


@pytest.mark.parametrize(
    ("reward", "field"), [(2.0, "spec.reward.range"), (2e6, "spec.reward.range"), (1.0, None)]
)
async def test_a_reward_out_of_range_is_the_environments_fault(
    tok: Any, reward: float, field: str | None
) -> None:
    causes: list[str | None] = []
    async with rig(tok, ANSWER, reward=reward) as r:
        r.episodes._on_cause = lambda episode, cause: causes.append(cause.field)
        await r.episodes.run(task())
    assert causes == ([field] if field else [])


async def test_a_sandbox_lost_while_a_tool_runs_names_the_tool(tok: Any) -> None:
    causes: list[Cause] = []
    async with rig(tok, CALL, ANSWER) as r:
        r.episodes._on_cause = lambda episode, cause: causes.append(cause)
        r.sandbox.faults["POST /tool"] = drop
        await r.episodes.run(task())
    message = "the sandbox ended while tool look_up ran: it may have used up its memory"
    assert causes == [Cause("SandboxLost", message, "spec.environment.sandbox.resources")]


async def test_a_fault_of_the_platform_blames_no_one_else(tok: Any) -> None:
    causes: list[Cause] = []
    async with rig(tok, CALL, ANSWER) as r:
        r.episodes._on_cause = lambda episode, cause: causes.append(cause)
        r.sandbox.faults["POST /tool"] = fail(500)
        record = await r.episodes.run(task())
    assert causes == []
    assert record.error == "Broken: Broken on purpose"


@pytest.mark.parametrize(
    ("answered", "now", "keeps"),
    [
        ([], 10.0, False),  # no turn was answered: what the agent waits for may hang
        ([5.0], 15.0, True),
        ([5.0], 15.1, False),
        ([5.0, 6.0, 7.0], 17.0, True),
        ([1.0, 2.0, 3.0], 5.1, False),
        ([1.0, 9.0, 10.0], 26.0, True),
        ([0.0, 0.0], 0.1, False),
    ],
)
def test_an_episode_keeps_pace_if_no_wait_is_unusual(answered: list[float], now: float, keeps: bool) -> None:
    """The turns were answered at the seconds in `answered`, counted from the episode's start."""
    assert episode.keeps_pace(0.0, answered, now) is keeps
    assert episode.keeps_pace(1e5, [1e5 + at for at in answered], 1e5 + now) is keeps


async def test_an_episode_slow_by_its_own_pace_is_truncated(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, list[float]]] = []

    def keeps(began: float, answered: list[float], now: float) -> bool:
        asked.append((began, list(answered)))
        return True

    monkeypatch.setattr(episode, "keeps_pace", keeps)
    async with rig(tok, CALL, ANSWER, timeout=0.5) as r:
        r.sandbox.faults["POST /tool"] = hang
        record = await r.episodes.run(task())
        assert r.broker.count("DELETE") == 1
    assert (record.outcome, record.timed_out, record.reward) == (Outcome.TRUNCATED, True, 1.0)
    assert "the episode did not end within 0.5 s" in str(record.error)
    assert (len(record.turns), len(record.rows)) == (1, 1)
    [finish] = [body for path, body in r.sandbox.asked if path == "POST /finish"]
    assert finish["truncated"] is True
    assert finish["messages"] == record.messages
    [(began, answered)] = asked
    assert len(answered) == 1
    assert began <= answered[0]


@pytest.mark.parametrize(("where", "texts"), [("POST /reset", [CALL]), ("POST /finish", [ANSWER]), ("", [])])
async def test_a_hang_outside_the_agents_turns_is_an_infra_error(
    tok: Any, monkeypatch: pytest.MonkeyPatch, where: str, texts: list[str]
) -> None:
    """The hang may be in the environment, or in the agent before its first turn."""
    monkeypatch.setattr(episode, "keeps_pace", lambda *given: True)
    async with rig(tok, *(texts or [CALL]), timeout=0.5) as r:
        if where:
            r.sandbox.faults[where] = hang
        else:
            r.model.gate.clear()
        record = await r.episodes.run(task())
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)


async def test_a_platform_fault_at_the_deadline_is_no_truncation(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode, "keeps_pace", lambda *given: True)

    class FailingStage:
        def __init__(self, agent: Any) -> None:
            self._agent = agent

        async def play(self, stage: EpisodeContext) -> AgentResult:
            stage.fault = lambda: "no server is left"
            return await self._agent.play(stage)  # type: ignore[no-any-return]

    async with rig(tok, CALL, timeout=0.5) as r:
        r.sandbox.faults["POST /tool"] = hang
        r.episodes._agent = FailingStage(r.episodes._agent)
        record = await r.episodes.run(task())
    assert (record.outcome, record.timed_out, record.reward) == (Outcome.INFRA_ERROR, True, None)


async def test_a_judgement_that_comes_too_late_is_an_infra_error(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode, "keeps_pace", lambda *given: True)
    monkeypatch.setattr(episode, "JUDGEMENT_SECONDS", 0.2)
    async with rig(tok, CALL, timeout=0.5) as r:
        r.sandbox.faults |= {"POST /tool": hang, "POST /finish": hang}
        record = await r.episodes.run(task())
    assert (record.outcome, record.timed_out, record.reward) == (Outcome.INFRA_ERROR, True, None)


@pytest.mark.parametrize("reward", [1.5, -0.1])
async def test_a_reward_out_of_range_is_never_scored(tok: Any, reward: float) -> None:
    async with rig(tok, ANSWER, reward=reward) as r:
        record = await r.episodes.run(task())
    assert record.outcome is Outcome.INFRA_ERROR
    assert "spec.reward.range" in str(record.error)


def judged(reward: float, turn_rewards: list[float]) -> dict[str, Any]:
    return {"reward": reward, "score": 1.0, "metrics": {}, "turn_rewards": turn_rewards}


async def test_rewards_of_turns_are_recorded_turn_by_turn(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        r.sandbox.answers = {**r.sandbox.answers, "POST /finish": lambda body: judged(1.0, [0.25, 0.75])}
        record = await r.episodes.run(task())
        [asked] = [body for path, body in r.sandbox.asked if path == "POST /finish"]
    assert asked["turns"] == 2
    assert record.turn_rewards == [0.25, 0.75]
    assert [(span.turn, row.mask[span.start]) for row in record.rows for span in row.turns] == [
        (0, 1),
        (1, 1),
    ]


@pytest.mark.parametrize(
    ("turn_rewards", "says"), [([1.0], "1 turn rewards for 2 turns"), ([0.5, 0.25], "add up to 0.75")]
)
async def test_turn_rewards_that_do_not_make_up_reward_are_not_scored(
    tok: Any, turn_rewards: list[float], says: str
) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        r.sandbox.answers = {**r.sandbox.answers, "POST /finish": lambda body: judged(1.0, turn_rewards)}
        record = await r.episodes.run(task())
    assert (record.outcome, record.turn_rewards) == (Outcome.INFRA_ERROR, None)
    assert says in str(record.error)


async def test_a_turn_that_was_not_delivered_earned_nothing(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        turns = (await r.episodes.run(task())).turns
    lost = turns[0].model_copy(update={"delivered": False})
    assert by_index([1.0, 2.0], [turns[0], lost, turns[1]]) == [1.0, 0.0, 2.0]


async def test_a_broker_without_a_sandbox_is_asked_until_the_deadline(
    tok: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "PAUSE_SECONDS", 0.2)
    async with rig(tok, ANSWER, timeout=5.0) as r:
        r.broker.faults["POST /v1/leases"] = first(1, fail(503, "PoolEmpty"))
        assert (await r.episodes.run(task())).outcome is Outcome.COMPLETED
        r.broker.faults["POST /v1/leases"] = fail(503, "PoolEmpty")
        record = await r.episodes.run(task(attempt=1))
    assert record.outcome is Outcome.INFRA_ERROR
    assert "a sandbox" in str(record.error)


async def test_another_coordinators_claim_ends_the_process(
    tok: Any,
) -> None:
    async with rig(tok, ANSWER) as r:
        r.broker.faults["POST /v1/leases"] = fail(409, "NotOwner", permanent=True)
        with pytest.raises(JobError, match="continues this job"):
            await r.episodes.run(task())


async def test_cancelling_an_episode_returns_its_lease(tok: Any) -> None:
    async with rig(tok, CALL) as r:
        r.sandbox.faults["POST /tool"] = hang
        running = asyncio.create_task(r.episodes.run(task()))
        while r.sandbox.count("POST /tool") == 0:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        async with asyncio.timeout(30):
            while r.broker.count("DELETE") == 0:
                await asyncio.sleep(0.01)


def plan(size: int) -> groups.Plan:
    return groups.Plan(
        slot=Slot(position=0, epoch=0, row=0),
        purpose=Purpose.TRAIN,
        step=0,
        row={"prompt": "p"},
        size=size,
        sampling=Sampling(1.0, 1.0, 64),
        job_seed=0,
    )


async def test_a_group_retries_lost_episodes_with_fresh_ids(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        r.sandbox.faults["POST /reset"] = first(2, drop)
        group = await groups.run(plan(3), r.episodes.run, AdaptiveSemaphore(1), start_number=2, max_retries=3)
    assert [e.outcome for e in group.episodes] == [Outcome.COMPLETED] * 3
    assert [e.episode_id for e in group.discarded] == ["t0-000000-0-200", "t0-000000-1-200"]
    assert [e.episode_id for e in group.episodes] == ["t0-000000-0-201", "t0-000000-1-201", "t0-000000-2-200"]


def test_only_first_attempts_keep_their_seed_after_a_restart() -> None:
    def sampled(index: int, attempt: int) -> int:
        return plan(2).task(index, attempt).sampling_seed

    assert sampled(0, 0) == sampled(0, 100) == sampled(0, 700)
    drawn = [sampled(index, attempt) for index in (0, 1) for attempt in (0, 1, 2, 101, 102)]
    assert len(set(drawn)) == len(drawn)
    assert len({plan(2).task(0, attempt).environment_seed for attempt in (0, 1, 101)}) == 1


async def test_a_group_completes_without_its_lost_episodes(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        r.sandbox.faults["POST /reset"] = after(1, fail(500))
        group = await groups.run(plan(2), r.episodes.run, AdaptiveSemaphore(1), start_number=0, max_retries=1)
    assert len(group.scored) == 1
    assert len(group.discarded) == 1
    assert group.episodes[1].outcome is Outcome.INFRA_ERROR


async def test_episode_cancelled_with_its_group_keeps_its_samples(tok: Any) -> None:
    async with rig(tok, CALL, ANSWER) as r:
        r.sandbox.faults["POST /tool"] = hang
        one = task()
        running = asyncio.create_task(r.episodes.run(one))
        async with asyncio.timeout(30):
            while not r.sandbox.count("POST /tool"):
                await asyncio.sleep(0.01)
            one.stop.now(NO_STEP_LEFT)
            record = await running
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert "NoStepLeft" in (record.error or "")
    assert [turn.sampled_tokens for turn in record.turns] == [sum(record.rows[0].mask)]
    assert r.broker.count("DELETE /v1/leases/t0-000000-0-0") == 1
    assert r.sandbox.count("POST /finish") == 0


async def test_a_group_never_runs_more_episodes_than_places(tok: Any) -> None:
    async with rig(tok, ANSWER) as r:
        running = maximum = 0

        async def counted(one: Task) -> Any:
            nonlocal running, maximum
            running += 1
            maximum = max(maximum, running)
            try:
                return await r.episodes.run(one)
            finally:
                running -= 1

        await groups.run(plan(6), counted, AdaptiveSemaphore(2), start_number=0, max_retries=0)
    assert maximum == 2


@pytest.mark.parametrize(
    ("judged", "says"),
    [
        ({"score": -1e200}, "score is -1e[+]200, beyond 1e[+]06: have the code of spec"),
        ({"metrics": {"fine": 1.7e9, "gain": 1e200}}, "metric gain is 1e[+]200, beyond 1e[+]12"),
        ({"reward": 1e200}, "reward is 1e[+]200, beyond 1e[+]06"),
        ({"turn_rewards": [0.5, 1e300, -1e300]}, "reward of turn 1 is 1e[+]300, beyond 1e[+]06"),
    ],
)
def test_a_metric_that_is_not_finite_is_refused(judged: dict[str, Any], says: str) -> None:
    with pytest.raises(InfraError, match=says):
        check_sizes(FinishReply.model_validate({"reward": 0.5, "score": 0.5} | judged))
    check_sizes(FinishReply(reward=0.5, score=-1e6, metrics={"at": 1.7e9}))
