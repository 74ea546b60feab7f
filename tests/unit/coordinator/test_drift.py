"""Why a turn begins another row. Each test sends the real gateway a history that differs in one thing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from episodes import a_group, sealed
from scripted_model import ANSWER, CALL, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_analysis.measures import metrics
from headway_analysis.measures.tries import Rules, TryPlace, a_try
from headway_analysis.report import inspect_log
from headway_analysis.report.table import table
from headway_api.metrics import family
from headway_api.records import FORK_REASONS, Drift, EpisodeRecord, ForkReason
from headway_coordinator.gateway import drift
from headway_coordinator.gateway.asks import Ask, Sampling, Session
from headway_coordinator.gateway.conversations import meaning
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.metrics.traces import Traced, spans
from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import PROBE_TOOLS, choose

SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "What is x?"}
OTHER: Message = {"role": "user", "content": "And y?"}
REASONING = f"<think>\nHm.\n</think>\n\n{ANSWER}"


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


class Agent:
    """A client that sends the gateway any history that the test makes."""

    def __init__(self, tok: Any, *texts: str, maximum: int = 200) -> None:
        self._core = Gateway(choose(tok, "qwen3"), ScriptedModel(tok, texts), 100_000, 5.0)
        self.session = Session(episode_id="e", seed=3, sampling=Sampling(1.0, 1.0, maximum))

    async def says(self, messages: Sequence[Message], tools: Sequence[Tool] = PROBE_TOOLS) -> Message:
        found = await self._core.chat(self.session, Ask(json.loads(json.dumps(list(messages))), list(tools)))
        message: Message = json.loads(json.dumps(found.message))
        return message

    @property
    def why(self) -> list[Drift]:
        return list(self.session.drifts.values())


async def a_history(agent: Agent) -> list[Message]:
    """Play two sampled turns. The history: system, user, call, tool result, the model's answer, user."""
    history = [SYSTEM, USER]
    called = await agent.says(history)
    answer = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "gold  bar"}
    history += [called, answer]
    history += [await agent.says(history), OTHER]
    assert agent.session.forks == 0
    return history


def edited(history: Sequence[Message], at: int, **changes: object) -> list[Message]:
    return [*history[:at], {**history[at], **changes}, *history[at + 1 :]]


def called(history: Sequence[Message], name: str, arguments: dict[str, Any]) -> list[Message]:
    call = {
        **history[2]["tool_calls"][0],
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return edited(history, 2, tool_calls=[call])


EDITS: dict[str, tuple[Any, int | None, str | None]] = {
    "system": (lambda h: edited(h, 0, content="Be long."), 0, "system"),
    "dropped": (lambda h: [h[0], *h[4:]], 1, "assistant"),
    "inserted": (lambda h: [h[0], OTHER, *h[1:]], 1, "user"),
    "role": (lambda h: edited(h, 1, role="assistant"), 1, "assistant"),
    "calls": (lambda h: called(h, "fetch", {"key": "x"}), 2, "assistant"),
    "arguments": (lambda h: called(h, "look_up", {"key": "y"}), 2, "assistant"),
    "whitespace": (lambda h: edited(h, 3, content="gold bar\n"), 3, "tool"),
    "content": (lambda h: edited(h, 4, content="It is lead."), 4, "assistant"),
    "again": (lambda h: h[:2], None, None),
}


@pytest.mark.parametrize("why", EDITS)
async def test_a_drifted_history_has_its_reason_and_place(tok: Any, why: ForkReason) -> None:
    edit, message, role = EDITS[why]
    agent = Agent(tok, CALL, ANSWER)
    await agent.says(edit(await a_history(agent)))
    assert agent.session.forks == 1
    assert agent.why == [Drift(reason=why, count=1, turn=2, message=message, role=role)]
    assert len(linearize(agent.session.graph)) == 2


async def test_another_call_id_is_drift_if_the_template_writes_ids(tok: Any) -> None:
    """Qwen's template writes no ids, so another id leaves the tokens unchanged."""
    agent = Agent(tok, CALL, ANSWER)
    other = edited(await a_history(agent), 3, tool_call_id="own-1")
    found = drift.reason(agent.session.recorded_turns, [meaning(message) for message in other], PROBE_TOOLS)
    assert found == drift.ForkCause("call_id", 3)
    await agent.says(other)
    assert agent.session.forks == 0


async def test_other_tools_are_a_reason_for_drift(tok: Any) -> None:
    agent = Agent(tok, CALL, ANSWER)
    await agent.says(await a_history(agent), tools=[])
    assert agent.why == [Drift(reason="tools", count=1, turn=2)]


async def test_respelled_arguments_and_null_content_do_not_drift(tok: Any) -> None:
    agent = Agent(tok, CALL, ANSWER)
    history = await a_history(agent)
    spelled = history[2]["tool_calls"][0]["function"]
    spelled["arguments"] = json.dumps(json.loads(spelled["arguments"]), indent=4)
    await agent.says(edited(history, 2, content=None, id="own"))
    assert (agent.session.forks, agent.why) == (0, [])


async def test_reasoning_that_the_template_drops_is_drift(tok: Any) -> None:
    agent = Agent(tok, REASONING)
    answer = await agent.says([USER])
    await agent.says([USER, answer, OTHER])
    assert agent.why == [Drift(reason="thought", count=1, turn=1, message=1, role="assistant")]


async def test_reasons_are_counted_and_the_first_place_is_kept(tok: Any) -> None:
    agent = Agent(tok, CALL, ANSWER)
    history = await a_history(agent)
    for number in range(200):
        await agent.says(edited(history, 0, content=f"Be {number}."))
        await agent.says(edited(history, 4, content=f"It is {number}."))
    assert agent.session.forks == 400
    assert {drift.reason: (drift.count, drift.turn) for drift in agent.why} == {
        "system": (200, 2),
        "content": (200, 3),
    }


def test_a_record_has_at_most_one_entry_for_each_reason() -> None:
    [limit] = [part.max_length for part in EpisodeRecord.model_fields["drifts"].metadata]
    assert limit == len(FORK_REASONS) == len(get_args(ForkReason))
    assert set(EDITS) < set(FORK_REASONS)
    for reason in FORK_REASONS:  # a metric name contains the reason unchanged
        assert family(f"rollout/forks_of/{reason}").labels == ()


def test_metrics_count_forks_by_reason() -> None:
    drifts = [Drift(reason="content", count=2, turn=1, message=3), Drift(reason="again", count=1, turn=2)]
    drifted = sealed("t0-0", 0).model_copy(update={"forks": 3, "drifts": drifts})
    group = a_group("t0-0", [0.0]).model_copy(update={"episodes": [drifted, sealed("t0-0", 1)]})
    found = metrics.batch([group], 1, trained=(), max_turns=9)
    turns = len(drifted.turns) * 2
    assert found["rollout/turns/fork_rate"] == 3 / turns
    by_reason = {reason: found[f"rollout/forks_of/{reason}"] for reason in FORK_REASONS}
    assert by_reason == dict.fromkeys(FORK_REASONS, 0.0) | {"content": 2 / turns, "again": 1 / turns}


def test_the_reports_of_a_trajectory_explain_its_forks() -> None:
    drift_ = Drift(reason="system", count=2, turn=1, message=0, role="system")
    episode = sealed("e-base-000000", 0).model_copy(update={"forks": 2, "drifts": [drift_]})
    one = a_try(episode, TryPlace(candidate="base", row=0), Rules())
    [line] = table({"base": [one]}).to_pylist()
    assert (line["forks"], line["forks_by_reason"]) == (2, [("system", 2)])
    drifts = [drift_.model_dump(mode="json")]
    metadata = inspect_log.sample(one, episode, [], "base", None).metadata
    assert (metadata["forks"], metadata["drifts"]) == (2, drifts)
    root = spans(Traced(one, episode))[0].attributes
    assert (root["headway.dev/forks"], root["headway.dev/drifts"]) == (2, drifts)
