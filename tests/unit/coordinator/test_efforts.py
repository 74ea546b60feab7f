"""A requested reasoning effort is applied if the template changes the prompt for it, and is else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_families import FAMILIES, spoken
from open_rollout import USER, rig
from scripted_model import ANSWER
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway import openai
from headway_coordinator.trajectory.efforts import EFFORTS
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import choose

SWITCH = QWEN3_TEMPLATE + (
    "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
"""Switches reasoning on or off, as Qwen 3's template does."""
LEVEL = (
    "{%- if reasoning_effort is defined %}"
    "{{- '<|im_start|>system\\nReasoning: ' + reasoning_effort + '<|im_end|>\\n' }}"
    "{%- endif %}" + QWEN3_TEMPLATE
)
"""Writes the level of effort, as gpt-oss's template does."""


async def prompts(folder: Path, template: str, *fields: dict[str, Any]) -> tuple[list[str], Any]:
    """The prompt of each turn of one conversation, and the gateway's session."""
    tok = tokenizer(folder, template)
    async with rig(tok, ANSWER) as r:
        messages: list[Any] = [USER]
        for more in fields:
            status, answer = await r.chat(*messages, **more)
            assert status == 200, answer
            messages = [*messages, answer["choices"][0]["message"], USER]
        found = [tok.decode(list(request.prompt)) for request in r.model.requests]
        return found, r.rollout.session


OFF = [
    {"reasoning_effort": "none"},
    {"enable_thinking": False},
    {"thinking": False},
    {"thinking": {"type": "disabled"}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}},
]


@pytest.mark.parametrize("fields", OFF, ids=str)
async def test_a_switch_works_in_every_spelling(tmp_path: Path, fields: dict[str, Any]) -> None:
    [off, usual], session = await prompts(tmp_path, SWITCH, fields, {})
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")
    assert usual.endswith("assistant\n")
    assert session.ignored == {}


async def test_switching_on_what_is_on_by_default_changes_nothing(tmp_path: Path) -> None:
    [on, again], session = await prompts(tmp_path, SWITCH, {"enable_thinking": True}, {})
    assert again.startswith(on)
    assert session.forks == 0


async def test_a_level_is_in_the_prompt_and_keeps_one_row(tmp_path: Path) -> None:
    low = {"reasoning_effort": "low"}
    found, session = await prompts(tmp_path, LEVEL, low, low)
    assert all("Reasoning: low" in one for one in found)
    assert (session.forks, len(linearize(session.graph))) == (0, 1)


async def test_new_level_begins_a_row_if_the_template_opens_with_it(tmp_path: Path) -> None:
    found, session = await prompts(tmp_path, LEVEL, {"reasoning_effort": "low"}, {"reasoning_effort": "high"})
    assert ["low" in found[0], "high" in found[1]] == [True, True]
    assert [drift.reason for drift in session.drifts.values()] == ["system"]


@pytest.mark.parametrize(
    ("template", "fields"),
    [(SWITCH, {"reasoning_effort": "low"}), (QWEN3_TEMPLATE, {"think": "high"})],
    ids=["level", "neither"],
)
async def test_field_unknown_to_template_is_refused_by_name_or_listed(
    tmp_path: Path, template: str, fields: dict[str, Any]
) -> None:
    [name] = fields
    async with rig(tokenizer(tmp_path, template), ANSWER) as r:
        status, answer = await r.chat(**fields)
        assert (status, answer["error"]["param"]) == (400, name)
        assert answer["error"]["code"] == "unsupported_parameter"
        r.rollout.lenient = True
        assert (await r.chat(**fields))[0] == 200
        assert r.rollout.session.ignored == {name: 1}


async def test_no_effort_is_listed_if_the_template_has_no_switch(tmp_path: Path) -> None:
    """The Agents SDK sends the effort `none` to its default model in every turn."""
    async with rig(tokenizer(tmp_path, QWEN3_TEMPLATE), ANSWER) as r:
        assert (await r.chat(reasoning_effort="none"))[0] == 200
        body = {"input": "x", "reasoning": {"effort": "none"}, "text": {"verbosity": "low"}}
        assert (await r.post("/v1/responses", body))[0] == 200
        expected = dict.fromkeys(("reasoning_effort", "reasoning.effort", "text.verbosity"), 1)
        assert r.rollout.session.ignored == expected


@pytest.mark.parametrize("fields", OFF, ids=str)
@pytest.mark.parametrize("template", [LEVEL, QWEN3_TEMPLATE], ids=["level", "neither"])
async def test_a_switch_is_listed_if_the_template_has_none(
    tmp_path: Path, template: str, fields: dict[str, Any]
) -> None:
    """All spellings of the field are treated alike."""
    async with rig(tokenizer(tmp_path, template), ANSWER) as r:
        assert (await r.chat(**fields))[0] == 200
        [name] = r.rollout.session.ignored
        assert name.split(".")[0] in fields


async def test_messages_and_responses_set_the_same_effort(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path, SWITCH)
    async with rig(tok, ANSWER) as r:
        body = {"messages": [USER], "max_tokens": 50, "thinking": {"type": "disabled"}}
        assert (await r.post("/v1/messages", body))[0] == 200
        assert (await r.post("/v1/responses", {"input": "x", "reasoning": {"effort": "none"}}))[0] == 200
        for request in r.model.requests:
            assert tok.decode(list(request.prompt)).endswith("</think>\n\n")
        _, counted = await r.post(
            "/v1/messages/count_tokens", {"messages": [USER], "thinking": body["thinking"]}
        )
        assert counted["input_tokens"] == len(r.model.requests[0].prompt)
        status, answer = await r.post("/v1/responses", {"input": "x", "reasoning": {"effort": "low"}})
        assert (status, answer["error"]["param"]) == (400, "reasoning.effort")
        level = body | {"thinking": None, "output_config": {"effort": "low"}}
        status, answer = await r.post("/v1/messages", level)
        assert (status, answer["error"]["param"]) == (400, "output_config.effort")


def test_harmony_has_three_levels_and_skips_to_its_final_channel() -> None:
    family = next(family for family in FAMILIES if family.name == "gpt-oss")
    renderer = choose(spoken(family), family.model_type)
    assert [one for one in EFFORTS if renderer.thinking(one) is not None] == ["low", "medium", "high"]
    low = renderer.thinking("low")
    assert low is not None
    assert "Reasoning: low" in low.render_text([USER], [], generate=True)
    assert renderer.thinking("medium") is renderer
    begun = low.without_reasoning()
    assert renderer.text(begun) == "<|channel|>final<|message|>"
    turn = [*begun, *low.encode('{"a": 1}', whole=False)]
    assert low.parse(turn, low.render([USER], []), []).content == '{"a": 1}'


def test_two_spellings_that_disagree_are_refused() -> None:
    with pytest.raises(Exception, match="says 'none'"):
        openai.read({"messages": [USER], "reasoning_effort": "high", "enable_thinking": False})
