"""The gateway without HTTP: which recorded conversation a request continues, and what an episode keeps."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import ANSWER, CALL, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.records import PolicyVersion, VersionSpan
from headway_coordinator.gateway.asks import Ask, ContextFullError, Sampling, Session
from headway_coordinator.gateway.conversations import RecordedTurn, continued, meaning
from headway_coordinator.gateway.core import INLINE_CHARACTERS, Gateway
from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import PROBE_TOOLS, Renderer, choose

USER: Message = {"role": "user", "content": "What is x?"}


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def gateway(tok: Any, *texts: str, context: int = 100_000) -> tuple[Gateway, ScriptedModel]:
    model = ScriptedModel(tok, texts)
    return Gateway(choose(tok, "qwen3"), model, context, 5.0), model


def a_session() -> Session:
    return Session(episode_id="e", seed=3, sampling=Sampling(1.0, 1.0, 200))


def sent(messages: Sequence[Message]) -> list[Message]:
    """The messages as they arrive over HTTP: new objects every time."""
    return list(json.loads(json.dumps(list(messages))))


def result(call: str, content: str = "gold") -> Message:
    return {"role": "tool", "tool_call_id": call, "content": content}


async def test_episode_size_grows_linearly_with_its_messages(tok: Any) -> None:
    core, _ = gateway(tok, CALL)
    session, messages, sizes = a_session(), [USER], {}
    for number in range(60):
        completion = await core.chat(session, Ask(sent(messages), list(PROBE_TOOLS)))
        messages += [completion.message, result(f"call-{number}-0", "word " * 50)]
        # Pickle writes anything that the session keeps twice twice, so the size shows it.
        sizes[number] = len(pickle.dumps(session))
    assert session.forks == 0
    assert sizes[59] - sizes[39] < 1.1 * (sizes[39] - sizes[19])
    assert (
        sum(len(turn.new) for turn in session.recorded_turns)
        == len(session.recorded_turns[-1].messages)
        == 120
    )
    assert session.recorded_turns[-1].messages == messages[:-1]


async def test_a_client_may_continue_the_older_of_two_samples(tok: Any) -> None:
    core, model = gateway(tok, f"<think>one</think>{CALL}", f"<think>two</think>{CALL}", ANSWER)
    session = a_session()
    samples = [await core.chat(session, Ask(sent([USER]), PROBE_TOOLS)) for _ in range(2)]
    assert samples[0].message["content"] == samples[1].message["content"]
    for which, call in ((0, "call-0-0"), (1, "call-1-0")):
        message = {key: value for key, value in samples[which].message.items() if key != "reasoning_content"}
        # The message with the call decides which sample is continued, whatever id the tool's result has.
        await core.chat(session, Ask(sent([USER, message, result(call)]), PROBE_TOOLS))
        ours = model.spoken["e"][which]
        assert model.requests[-1].prompt[: len(ours.prompt + ours.sampled)] == ours.prompt + ours.sampled
    assert session.forks == 1  # the second sample, whose prompt continues no recorded turn
    assert len(linearize(session.graph)) == 2


async def test_sample_without_calls_is_found_by_reasoning_else_newest(
    tok: Any,
) -> None:
    core, _ = gateway(tok, "<think>one</think>Gold.<|im_end|>", "<think>two</think>Gold.<|im_end|>")
    session = a_session()
    first, second = [(await core.chat(session, Ask([USER]))).message for _ in range(2)]

    def found(message: Message) -> RecordedTurn | None:
        messages = [USER, message, USER]
        return continued(session.recorded_turns, messages, [meaning(one) for one in messages], [])

    assert first["reasoning_content"] != second["reasoning_content"]
    assert found(first) is session.recorded_turns[0]
    assert found(second) is session.recorded_turns[1]
    assert found({"role": "assistant", "content": "Gold."}) is session.recorded_turns[1]
    assert found({"role": "assistant", "content": "Lead."}) is None


WORDS = st.lists(st.sampled_from("ab"), min_size=1, max_size=5)
"""Few distinct words, so that conversations also continue each other by chance."""


@given(turns=st.lists(st.tuples(WORDS, st.sampled_from("ab"), st.booleans()), max_size=8), asked=WORDS)
def test_request_continues_longest_then_newest_with_its_tools(
    turns: list[tuple[list[str], str, bool]], asked: list[str]
) -> None:
    graph = Graph()
    spans = [VersionSpan(start=0, end=1, version=PolicyVersion(incarnation=0, step=0))]
    recorded: list[RecordedTurn] = []
    whole: list[tuple[list[Message], list[Tool]]] = []
    for words, answer, with_tools in turns:
        tools = PROBE_TOOLS if with_tools else []
        messages = messages_of(words)
        before = continued(recorded, messages, [meaning(message) for message in messages], tools)
        new = messages_of([*words, answer])[before.length if before else 0 :]
        node = graph.add_sampled(graph.place([ord(word) for word in words]), [ord(answer)], [-1.0], spans)
        recorded.append(RecordedTurn(graph, node, before, new, [meaning(message) for message in new], tools))
        whole.append((messages_of([*words, answer]), tools))
    assert [one.messages for one in recorded] == [messages for messages, _ in whole]
    request = messages_of(asked)
    fitting = [
        (len(messages), number)
        for number, (messages, tools) in enumerate(whole)
        if len(messages) < len(request) and request[: len(messages)] == messages and tools == PROBE_TOOLS
    ]
    found = continued(recorded, request, [meaning(message) for message in request], PROBE_TOOLS)
    assert (found and recorded.index(found)) == (max(fitting)[1] if fitting else None)


def messages_of(words: Sequence[str]) -> list[Message]:
    return [{"role": "user", "content": word} for word in words]


class Watched:
    """A renderer that counts what it renders, and renders long conversations only after `go_on`."""

    def __init__(self, inner: Renderer) -> None:
        self._inner = inner
        self.rendered = 0
        self.go_on = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        self.rendered += 1
        if len(str(messages)) > INLINE_CHARACTERS and not self.go_on.wait(timeout=60):
            raise AssertionError("nothing else ran meanwhile")
        return self._inner.render(messages, tools)


async def test_other_turns_continue_while_a_long_one_is_rendered(tok: Any) -> None:
    watched, session = Watched(choose(tok, "qwen3")), a_session()
    core = Gateway(watched, ScriptedModel(tok, [ANSWER]), 100_000, 5.0)
    long = asyncio.create_task(core.chat(session, Ask([{"role": "user", "content": "word " * 5000}])))
    async with asyncio.timeout(60):
        while not watched.rendered:
            await asyncio.sleep(0.01)
        short = await core.chat(session, Ask([USER]))
        assert not long.done()
        watched.go_on.set()
        assert (await long).number == 0  # numbers follow the order of the requests, not of the answers
    assert short.number == 1
    assert session.forks == 1  # whichever is answered later begins a row of its own
    assert [turn.messages[0]["content"][:4] for turn in session.recorded_turns] == ["What", "word"]
    assert len(linearize(session.graph)) == 2


async def test_a_request_beyond_the_context_is_not_rendered(tok: Any) -> None:
    watched, session = Watched(choose(tok, "qwen3")), a_session()
    core = Gateway(watched, ScriptedModel(tok, [ANSWER]), 100, 5.0)
    for role in ("user", "tool"):
        with pytest.raises(ContextFullError, match="at least 104 tokens fill the context of 100"):
            await core.chat(session, Ask([USER, {"role": role, "content": "word " * 101}]))
    assert watched.rendered == 0
    await core.chat(session, Ask([USER]))
    assert watched.rendered == 1


@pytest.mark.parametrize(("reasoning", "rows"), [("", 1), ("<think>\nHm.\n</think>\n\n", 4)])
async def test_a_user_message_that_drops_reasoning_begins_a_row(tok: Any, reasoning: str, rows: int) -> None:
    core, _ = gateway(tok, f"{reasoning}{ANSWER}")
    session, messages = a_session(), [USER]
    for _ in range(4):
        messages += [(await core.chat(session, Ask(sent(messages)))).message, USER]
    assert len(linearize(session.graph)) == rows
    assert session.forks == rows - 1
    assert sum(len(turn.new) for turn in session.recorded_turns) == 8
