"""The `name` of a message is listed as ignored if the chat template does not show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from open_rollout import USER, rig
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway.participants import Participants
from headway_coordinator.trajectory.calls import Message
from headway_coordinator.trajectory.render import choose

SHOWN = "'<|im_start|>' + message.role"
assert QWEN3_TEMPLATE.count(SHOWN) == 1
NAMES = QWEN3_TEMPLATE.replace(SHOWN, "'<|im_start|>' + (message.name or message.role)")
"""A template that shows the names of users, as Kimi K2.5's does."""


def named(role: str, name: str = "guide") -> Message:
    return {"role": role, "content": "Hello.", "name": name}


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_name_is_listed_if_the_template_does_not_show_it(tok: Any, role: str) -> None:
    assert Participants(choose(tok, "qwen3")).unshown([named(role)]) == ["messages.name"]


def test_a_name_is_not_listed_if_it_is_shown_or_absent(tok: Any, tmp_path: Path) -> None:
    shows = Participants(choose(tokenizer(tmp_path, NAMES), "mistral"))
    assert shows.unshown([named("user")]) == []
    assert shows.unshown([named("user"), named("assistant")]) == ["messages.name"]
    hides = Participants(choose(tok, "qwen3"))
    assert hides.unshown([USER, named("user", ""), named("tool")]) == []


def test_a_name_is_listed_if_the_template_refuses_the_message(tmp_path: Path) -> None:
    refusing = "{{- raise_exception('no') }}" + QWEN3_TEMPLATE
    renderer = choose(tokenizer(tmp_path, refusing), "mistral")
    assert Participants(renderer).unshown([named("user")]) == ["messages.name"]


async def test_each_request_with_a_name_is_counted_once(tok: Any) -> None:
    async with rig(tok) as r:
        for messages in ([USER], [USER | {"name": "a"}, USER | {"name": "b"}], [USER | {"name": "a"}]):
            status, _ = await r.chat(*messages)
            assert status == 200
        assert r.rollout.session.ignored == {"messages.name": 2}
