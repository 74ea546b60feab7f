"""System messages further on in a conversation, where the chat template takes them and where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import ANSWER, CALL, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway.asks import Ask, Sampling, Session
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.gateway.systems import Systems, folded
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
"""As Qwen3.5's."""


def say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


SYSTEM, USER, LATER = say("system", "Be brief."), say("user", "What is x?"), say("system", "It is Monday.")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("strict"), STRICT)


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def test_where_the_template_takes_them_nothing_changes(tok: Any, strict: Any) -> None:
    messages = [SYSTEM, USER, LATER]
    assert Systems(choose(tok, "qwen3")).accepted(messages) is messages
    assert Systems(choose(strict, "qwen3_5")).accepted(messages) == [
        SYSTEM,
        say("user", "What is x?\n\nIt is Monday."),
    ]
    assert Systems(choose(strict, "qwen3_5")).accepted([SYSTEM, USER]) == [SYSTEM, USER]


ASSISTANT = say("assistant", "Gold.")


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
def test_system_messages_are_joined_to_those_beside_them(
    messages: list[Message], expected: list[Message]
) -> None:
    assert folded(messages) == expected


ROLES = st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=12)


@given(ROLES)
def test_no_word_is_lost_and_rows_go_on(roles: list[str]) -> None:
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


async def test_a_conversation_with_later_system_messages_is_one_row(strict: Any) -> None:
    """Claude Code's: the surroundings after the user's first word."""
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
