"""Ids that models write with their calls.

A result in the row has its call's id, and the client sees the same id.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from model_families import FAMILIES, spoken
from scripted_model import ScriptedModel

from headway_coordinator.gateway.asks import Ask, Sampling, Session
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.trajectory.call_ids import as_written, identified, sampled_id
from headway_coordinator.trajectory.calls import Call, Message, Parsed
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.probe import ASKED, SIMPLE, call, calling
from headway_coordinator.trajectory.render import choose
from headway_coordinator.trajectory.template import CallFormat

BY_FAMILY = {family.name: family for family in FAMILIES}
KIMI = "<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|><|im_end|>"
KIMI_CALL = '<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{"key": "x"}}<|tool_call_end|>'
COUNTS = "'functions.' + name + ':' + loop.index0 | string"
"""Kimi K2's own template writes this instead of the given id."""


def with_ids(name: str, written: str = "call.id") -> Any:
    """A family's tokenizer.

    Its template writes the call's id with a result, and the expression `written` with a call.
    """
    tok = spoken(BY_FAMILY[name])
    result = "message.content + "
    template = tok.chat_template.replace(result, f"message.tool_call_id + ': ' + {result}", 1)
    tok.chat_template = template.replace("call.id", written)
    return tok


def kimi(*ids: str) -> str:
    return KIMI.format(calls="".join(KIMI_CALL.format(id=one) for one in ids))


def mistral(*ids: str) -> str:
    calls = [{"name": "look_up", "arguments": {"key": "x"}, "id": one} for one in ids]
    return f"[TOOL_CALLS] {json.dumps(calls)}</s>"


async def played(tok: Any, *turns: str) -> tuple[Session, list[Message], list[str]]:
    """Play an episode whose client answers each call.

    Returns the session, the conversation and the prompts.
    """
    model = ScriptedModel(tok, turns)
    renderer = choose(tok, "")
    assert renderer.proof is not None
    assert renderer.proof.whole or renderer.proof.row
    core = Gateway(renderer, model, 100_000, 5.0)
    session, messages = Session(episode_id="e", seed=3, sampling=Sampling(1.0, 1.0, 2000)), [*ASKED]
    for _ in turns:
        message = (await core.chat(session, Ask(json.loads(json.dumps(messages)), SIMPLE))).message
        messages.append(message)
        for number, one in enumerate(message.get("tool_calls") or ()):
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": f"gold {number}"})
    return session, messages, [tok.decode(request.prompt) for request in model.requests]


@pytest.mark.parametrize(
    ("family", "written", "turn", "ids"),
    [
        ("Kimi K2", "call.id", kimi, ("functions.look_up:0", "functions.look_up:1")),
        ("Kimi K2", COUNTS, kimi, ("functions.look_up:0", "functions.look_up:1")),
        ("Mistral", "call.id", mistral, ("bbbbbbbbb", "a1B2c3D4e")),
    ],
)
async def test_results_have_the_ids_that_the_model_wrote(
    family: str, written: str, turn: Any, ids: tuple[str, str]
) -> None:
    session, messages, prompts = await played(with_ids(family, written), turn(*ids), turn("functions.x"))
    assert [one["id"] for one in messages[2]["tool_calls"]] == [*ids]
    assert f"{ids[0]}: gold 0" in prompts[1]
    assert f"{ids[1]}: gold 1" in prompts[1]
    assert len(linearize(session.graph)) == 1


@pytest.mark.parametrize("written", ["call.id", COUNTS])
async def test_the_client_gets_a_new_id_if_the_model_repeats_one(written: str) -> None:
    """Kimi may number the calls of the whole conversation, or start again in each turn."""
    again = "functions.look_up:0"
    session, messages, prompts = await played(
        with_ids("Kimi K2", written), kimi(again), kimi(again, again), "It is gold.<|im_end|>"
    )
    ids = [one["id"] for message in messages for one in message.get("tool_calls") or ()]
    assert ids == [again, f"{again}-1-0", f"{again}-1-1"]
    assert prompts[2].count(f"{again}: gold") == 3
    assert len(linearize(session.graph)) == 1


async def test_calls_without_a_familys_id_get_one_from_the_gateway() -> None:
    turn = '[TOOL_CALLS] [{"name": "look_up", "arguments": {"key": "x"}, "id": "no id"}]</s>'
    session, messages, _ = await played(with_ids("Mistral"), turn, turn)
    assert [m["tool_calls"][0]["id"] for m in messages if "tool_calls" in m] == ["call-0-0", "call-1-0"]
    assert len(linearize(session.graph)) == 1


WITH_IDS = CallFormat(ids="numbered"), CallFormat(ids="short"), CallFormat()


@pytest.mark.parametrize("call_format", WITH_IDS, ids=lambda one: one.ids)
def test_a_format_keeps_a_models_own_ids(call_format: CallFormat) -> None:
    own = {"numbered": "functions.look_up:7-3-1", "short": "a1B2c3D4e", "given": "functions.look_up:7-3-1"}
    given = own[call_format.ids]
    conversation = [
        calling(call({"key": "x"}) | {"id": given}, call({"key": "y"})),
        {"role": "tool", "tool_call_id": given, "content": "gold"},
    ]
    found = call_format(conversation)
    assert found[0]["tool_calls"][0]["id"] == found[1]["tool_call_id"] == as_written(given)
    others = {"numbered": "functions.look_up:1", "given": "call-0-0"}
    assert found[0]["tool_calls"][1]["id"] == others.get(call_format.ids, found[0]["tool_calls"][1]["id"])
    assert len({one["id"] for one in found[0]["tool_calls"]}) == 2


@pytest.mark.parametrize(
    "written", [None, 7, "", "call-0-0", "short", "tenletters", "a b c d e", "functions.:0", "functions.f:x"]
)
def test_other_text_is_not_read_as_an_id(written: object) -> None:
    assert sampled_id(written) is None


def test_a_repeated_nine_letter_id_is_replaced() -> None:
    """Mistral's ids have exactly nine letters, so nothing can be appended to make one unique."""
    one = Call("", "f", {}, id="a1B2c3D4e")
    history = [{"role": "assistant", "tool_calls": [{"id": "a1B2c3D4e"}]}]
    found = identified(Parsed("", calls=[one, Call("", "g", {})]), 4, history)
    assert [call.id for call in found.calls] == ["call-4-0", "call-4-1"]
