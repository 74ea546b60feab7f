"""A choice of some tools is applied if another choice means the same.

Else it is refused or ignored by name.
"""

from __future__ import annotations

from typing import Any

import pytest
from open_rollout import USER, rig
from scripted_model import CALL
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway import openai, responses
from headway_coordinator.gateway.asks import Ask, Force
from headway_coordinator.gateway.refusals import GatewayError

NAMES = ("look_up", "write", "end")


def chat(offered: tuple[str, ...], choice: Any, *, lenient: bool = False) -> tuple[Ask, tuple[str, ...]]:
    tools = [{"type": "function", "function": {"name": name}} for name in offered]
    body = {"messages": [USER], "tools": tools, "tool_choice": choice}
    found = openai.read(body, lenient=lenient)
    return found.ask, found.ignored


def response(offered: tuple[str, ...], choice: Any, *, lenient: bool = False) -> tuple[Ask, tuple[str, ...]]:
    tools = [{"type": "function", "name": name} for name in offered]
    body = {"input": "What is x?", "tools": tools, "tool_choice": choice}
    found = responses.read(body, lenient=lenient, earlier=lambda _: [])
    return found.ask, found.ignored


def of_chat(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def of_responses(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


BOTH = pytest.mark.parametrize(
    ("read", "written", "at"),
    [
        (chat, of_chat, "tool_choice.allowed_tools.tools"),
        (response, of_responses, "tool_choice.tools"),
    ],
    ids=["chat", "responses"],
)


@BOTH
@pytest.mark.parametrize(
    ("offered", "mode", "allowed", "force"),
    [
        (NAMES, "auto", NAMES, None),
        (NAMES, "auto", NAMES[::-1], None),
        (NAMES, "required", NAMES, Force(None)),
        (NAMES[:1], "auto", NAMES[:1], None),
        (NAMES[:1], "required", NAMES[:1], Force("look_up")),
        (NAMES, "required", ("write",), Force("write")),
        (NAMES, "required", ("write", "write"), Force("write")),
    ],
)
def test_allowed_tools_that_mean_another_choice_are_applied(
    read: Any, written: Any, at: str, offered: Any, mode: str, allowed: Any, force: Force | None
) -> None:
    ask, ignored = read(offered, written(mode, *allowed))
    assert (ask.may_call, ask.force, len(ask.tools), ignored) == (True, force, len(offered), ())


@BOTH
@pytest.mark.parametrize(
    ("mode", "allowed", "force"),
    [("auto", ("write",), None), ("auto", NAMES[:2], None), ("required", NAMES[:2], Force(None))],
)
def test_a_choice_of_only_some_tools_is_refused(
    read: Any, written: Any, at: str, mode: str, allowed: Any, force: Force | None
) -> None:
    with pytest.raises(GatewayError) as caught:
        read(NAMES, written(mode, *allowed))
    assert (caught.value.param, caught.value.code) == (at, "unsupported_parameter")
    assert f'send only these, or write tool_choice: "{mode}"' in str(caught.value)
    ask, ignored = read(NAMES, written(mode, *allowed), lenient=True)
    assert (ask.force, ignored) == (force, (at,))


@BOTH
def test_a_choice_of_tools_that_are_not_offered_is_refused(read: Any, written: Any, at: str) -> None:
    for offered, choice, param, message in (
        (NAMES, written("auto", "look_up", "other"), f"{at}.1", "there is no tool 'other'"),
        (NAMES, written("auto"), at, 'write tool_choice: "none"'),
        ((), written("auto", "look_up"), "tool_choice", "there are no tools"),
        (NAMES, {"type": "custom", "name": "a"}, "tool_choice.type", "'function', 'allowed_tools', "),
    ):
        with pytest.raises(GatewayError) as caught:
            read(offered, choice, lenient=True)
        assert caught.value.param == param
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("read", "choice", "param"),
    [
        (chat, {"type": "function"}, "tool_choice.function"),
        (chat, {"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (chat, of_chat("any", "write"), "tool_choice.allowed_tools.mode"),
        (
            chat,
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            chat,
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.allowed_tools.tools.0.type",
        ),
        (response, {"type": "function"}, "tool_choice.name"),
        (response, {"type": "allowed_tools", "tools": []}, "tool_choice.mode"),
        (response, {"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
        (
            response,
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]},
            "tool_choice.tools.0.type",
        ),
    ],
)
def test_an_unfinished_choice_names_what_is_missing(read: Any, choice: Any, param: str) -> None:
    with pytest.raises(GatewayError) as caught:
        read(NAMES, choice)
    assert caught.value.status == 400
    assert str(caught.value.param).startswith(param)


async def test_an_allowed_tool_is_forced_over_http(tmp_path: Any) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in NAMES]
    async with rig(tokenizer(tmp_path, QWEN3_TEMPLATE), CALL.partition('"arguments"')[2]) as r:
        status, answer = await r.chat(tools=tools, tool_choice=of_chat("required", "look_up"))
        assert status == 200, answer
        assert r.rollout.session.ignored == {}
        status, answer = await r.chat(tools=tools, tool_choice=of_chat("auto", "look_up"))
        assert (status, answer["error"]["param"]) == (400, "tool_choice.allowed_tools.tools")
