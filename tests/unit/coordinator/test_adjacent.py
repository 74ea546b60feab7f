"""Orders of messages that a chat template accepts, and those that it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import ANSWER, CALL, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway.adjacent import Adjacent, folded, joined, results_first
from headway_coordinator.gateway.asks import Ask, Sampling, Session
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.trajectory.calls import Message
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import PROBE_TOOLS, choose

TAKES = "or (message.role == 'system' and not loop.first) %}"
assert QWEN3_TEMPLATE.count(TAKES) == 1
STRICT = QWEN3_TEMPLATE.replace(TAKES, "%}").replace(
    "    {%- elif message.role == 'assistant' %}",
    "    {%- elif message.role == 'system' and not loop.first %}\n"
    "        {{- raise_exception('System message must be at the beginning.') }}\n"
    "    {%- elif message.role == 'assistant' %}",
)
"""Raises at a later system message, as Qwen3.5's template does."""
ALTERNATING = (
    QWEN3_TEMPLATE.replace(TAKES, "%}")
    .replace(
        "    {%- elif message.role == 'assistant' %}",
        "    {%- elif message.role == 'system' and not loop.first %}\n"
        "        {{- raise_exception('Conversation roles must alternate.') }}\n"
        "    {%- elif message.role == 'assistant' %}",
    )
    .replace(
        "{%- if message.role == 'user'",
        "{%- if message.role == 'user' and not loop.first"
        " and messages[loop.index0 - 1].role in ('user', 'tool') %}\n"
        "        {{- raise_exception('Conversation roles must alternate.') }}\n"
        "    {%- elif message.role == 'user'",
    )
)
"""Raises if roles do not alternate, as Mistral Nemo's template does."""


def say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


SYSTEM, USER, LATER = say("system", "Be brief."), say("user", "What is x?"), say("system", "It is Monday.")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("strict"), STRICT)


@pytest.fixture(scope="module")
def alternating(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("alternating"), ALTERNATING)


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def test_messages_the_template_accepts_are_unchanged(tok: Any, strict: Any) -> None:
    messages = [SYSTEM, USER, LATER]
    assert Adjacent(choose(tok, "qwen3")).accepted(messages) is messages
    assert Adjacent(choose(strict, "qwen3_5")).accepted(messages) == [
        SYSTEM,
        say("user", "What is x?\n\nIt is Monday."),
    ]
    assert Adjacent(choose(strict, "qwen3_5")).accepted([SYSTEM, USER]) == [SYSTEM, USER]


ASSISTANT = say("assistant", "Gold.")
TOOL: Message = {"role": "tool", "tool_call_id": "c", "content": "gold"}
CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
}


def test_text_after_a_result_joins_it_if_roles_must_alternate(tok: Any, alternating: Any) -> None:
    messages = [SYSTEM, USER, CALLED, TOOL, say("user", "And y?"), say("user", "Quick.")]
    assert Adjacent(choose(tok, "qwen3")).accepted(messages) is messages
    accepts = Adjacent(choose(alternating, "mistral")).accepted
    assert accepts(messages) == [SYSTEM, USER, CALLED, {**TOOL, "content": "gold\n\nAnd y?\n\nQuick."}]
    assert accepts([SYSTEM, USER, CALLED, TOOL, LATER]) == [
        *(SYSTEM, USER, CALLED),
        {**TOOL, "content": "gold\n\nIt is Monday."},
    ]
    alternate = [SYSTEM, USER, ASSISTANT, USER]
    assert accepts(alternate) is alternate


LOSES_LATE_RESULTS = QWEN3_TEMPLATE.replace(
    "{%- elif message.role == 'tool' %}",
    "{%- elif message.role == 'tool' and messages[loop.index0 - 1].role != 'user' %}",
)
"""Drops a result that comes after another message, as Gemma 4's template does."""


def test_results_come_first_where_the_template_loses_late_ones(tok: Any, tmp_path: Path) -> None:
    words = say("user", "Wait.")
    messages = [USER, CALLED, words, TOOL]
    loses = choose(tokenizer(tmp_path, LOSES_LATE_RESULTS), "gemma")
    assert "gold" not in loses.render_text(messages, PROBE_TOOLS, generate=True)
    assert Adjacent(loses).accepted(messages) == [USER, CALLED, TOOL, words]
    assert Adjacent(choose(tok, "qwen3")).accepted(messages) is messages
    assert results_first([USER, CALLED, words, TOOL, LATER, TOOL, ASSISTANT, USER]) == [
        *(USER, CALLED, TOOL, TOOL, words, LATER, ASSISTANT, USER),
    ]


MOVES_SYSTEMS = QWEN3_TEMPLATE.replace(TAKES, "%}").replace(
    "messages[0].content", "(messages | selectattr('role', 'equalto', 'system') | list)[-1].content"
)
"""Shows only the last system message, at the front, as R1-Distill's template does."""


def test_system_messages_a_template_drops_become_user_messages(tmp_path: Path) -> None:
    renderer = choose(tokenizer(tmp_path, MOVES_SYSTEMS), "deepseek")
    assert "Be brief." not in renderer.render_text([SYSTEM, USER, ASSISTANT, LATER], [], generate=True)
    accepted = Adjacent(renderer).accepted([SYSTEM, USER, ASSISTANT, LATER, USER])
    assert accepted == [SYSTEM, USER, ASSISTANT, say("user", "It is Monday.\n\nWhat is x?")]
    text = renderer.render_text(accepted, [], generate=True)
    assert text.index("Be brief.") < text.index("Gold.") < text.index("It is Monday.")


def test_an_order_that_cannot_be_repaired_is_unchanged(alternating: Any) -> None:
    messages = [USER, ASSISTANT, ASSISTANT, USER]
    assert Adjacent(choose(alternating, "mistral")).accepted(messages) is messages


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM, LATER, USER], [say("system", "Be brief.\n\nIt is Monday."), USER]),
        ([USER, ASSISTANT, LATER, USER], [USER, ASSISTANT, say("user", "It is Monday.\n\nWhat is x?")]),
        ([USER, ASSISTANT, LATER], [USER, ASSISTANT, say("user", "It is Monday.")]),
        ([USER, USER], [USER, USER]),
        ([], []),
    ],
    ids=["two at the beginning", "before a user's", "at the end", "no system's", "none"],
)
def test_system_messages_join_the_adjacent_message(messages: list[Message], expected: list[Message]) -> None:
    assert folded(messages) == expected


ROLES = st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=12)


@given(ROLES)
def test_joining_loses_no_text_and_continues_the_row(roles: list[str]) -> None:
    messages = [say(role, str(n)) for n, role in enumerate(roles)]
    found = folded(messages)
    assert (
        "\n\n".join(message["content"] for message in found).split("\n\n")
        == [str(n) for n in range(len(messages))]
        or not messages
    )
    assert all(message["role"] != "system" for message in found[1:])
    for at, role in enumerate(roles):
        if role == "assistant":
            assert found[: len(folded(messages[: at + 1]))] == folded(messages[: at + 1])
    refused = {("user", "user"), ("tool", "user"), ("tool", "system")}
    whole = joined(found, refused)
    roles_found = [message["role"] for message in whole]
    assert refused.isdisjoint(pairwise(roles_found))
    for at, message in enumerate(found):
        if message["role"] == "assistant":
            begun = joined(found[: at + 1], refused)
            assert whole[: len(begun)] == begun


async def test_a_conversation_with_later_system_messages_is_one_row(strict: Any) -> None:
    """Claude Code sends such messages: they describe its surroundings after the user's first message."""
    core = Gateway(choose(strict, "qwen3_5"), ScriptedModel(strict, [CALL, ANSWER, ANSWER]), 10_000, 5.0)
    session = Session(episode_id="e", seed=3, sampling=Sampling(1.0, 1.0, 200))
    history = [SYSTEM, USER, LATER]
    called = (await core.chat(session, Ask(list(history), PROBE_TOOLS))).message
    history += [called, {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "gold"}]
    assert await core.count(session, Ask(list(history), PROBE_TOOLS)) > 0
    history += [(await core.chat(session, Ask(list(history), PROBE_TOOLS))).message, LATER, USER]
    await core.chat(session, Ask(list(history), PROBE_TOOLS))
    assert (session.forks, len(linearize(session.graph))) == (0, 1)
    [row] = linearize(session.graph)
    assert strict.decode(row.tokens).count("It is Monday.") == 2


async def test_a_text_beside_a_result_stays_in_one_row(alternating: Any) -> None:
    """Anthropic's clients send a tool's result and a text in one message."""
    core = Gateway(choose(alternating, "mistral"), ScriptedModel(alternating, [CALL, ANSWER]), 10_000, 5.0)
    session = Session(episode_id="e", seed=3, sampling=Sampling(1.0, 1.0, 200))
    history = [SYSTEM, USER, say("user", "Quick.")]
    called = (await core.chat(session, Ask(list(history), PROBE_TOOLS))).message
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "gold"}
    history += [called, result, say("user", "Be sure.")]
    history += [(await core.chat(session, Ask(list(history), PROBE_TOOLS))).message, USER]
    await core.chat(session, Ask(list(history), PROBE_TOOLS))
    assert (session.forks, len(linearize(session.graph))) == (0, 1)
    assert "Be sure." in alternating.decode(linearize(session.graph)[0].tokens)
