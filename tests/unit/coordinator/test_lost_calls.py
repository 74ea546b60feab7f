"""Calls that no engine would carry out: kept in the turn, and counted by what is wrong with them."""

from __future__ import annotations

import pytest
from model_families import FAMILIES, spoken

from headway_coordinator.gateway.core import assistant
from headway_coordinator.trajectory.calls import kinds
from headway_coordinator.trajectory.probe import ASKED, KEY, RESULT, SIMPLE, call, calling
from headway_coordinator.trajectory.proof import Probe
from headway_coordinator.trajectory.render import choose
from headway_coordinator.trajectory.written import BY_NAME

BY_FAMILY = {family.name: family for family in FAMILIES}
KIMI = (
    '<|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>{"key": "brave-otter"}'
    "<|tool_call_end|>"
)
V3 = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n```json\n{"key": "x"}\n```<｜tool▁call▁end｜>'
V3_1 = '<｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{"key": "x"}<｜tool▁call▁end｜>'
INVOKE = '<invoke name="look_up">\n<parameter name="key">brave-otter</parameter>\n</invoke>'
CODER = "<function=look_up><parameter=key>x</parameter></function>"


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("kimi", KIMI, 1),
        ("kimi", KIMI + KIMI, 2),
        ("kimi", KIMI.removeprefix("<|tool_call_begin|>"), 1),
        ("kimi", f"{KIMI}<|tool_calls_section_end|>", 1),
        ("kimi", KIMI[:30], 1),
        ("deepseek-v3", V3, 1),
        ("deepseek-v3", f"{V3}\n{V3}", 2),
        ("deepseek-v3.1", V3_1, 1),
        ("deepseek-v3.1", V3_1.removeprefix("<｜tool▁call▁begin｜>"), 1),
        ("minimax", INVOKE, 1),
        ("minimax", f"{INVOKE}\n{INVOKE}", 2),
        ("minimax", f"{INVOKE}\n</minimax:tool_call>", 1),
        ("minimax", INVOKE[:15], 1),
        ("minimax", INVOKE[:30], 1),
        ("qwen-coder", f"I look: {CODER}", 1),
        ("qwen-coder", "function=look_up>\n</function>\n</tool_call>", 1),
        ("seed-oss", f"I look: {CODER}", 1),
        ("hermes", '{"name": "look_up", "arguments": {}}\n</tool_call>', 1),
        ("glm", "look_up\n<arg_key>key</arg_key>\n<arg_value>x</arg_value>\n</tool_call>", 1),
        ("hy3", "<tool_call:opensource>look_up<tool_sep:opensource>\n</tool_call:opensource>", 1),
        ("hy3", "look_up<tool_sep:opensource>\n</tool_call:opensource>", 1),
        ("gemma4", "call:look_up{}<tool_call|>", 1),
        ("mistral-tekken", 'look_up[ARGS]{"key": "x"}', 1),
        ("granite", '[{"name": "look_up", "arguments": {}}]<|/tool_call|>', 1),
        ("command", '[{"tool_name": "look_up", "parameters": {}}]<|END_ACTION|>', 1),
        ("nemotron", '[{"name": "look_up", "arguments": {}}]</TOOLCALL>', 1),
        ("lfm2", "[look_up()]<|tool_call_end|>", 1),
    ],
)
@pytest.mark.parametrize("before", ["", "I look it up.\n"])
def test_a_call_without_its_outer_tag_is_counted(name: str, text: str, count: int, before: str) -> None:
    content, calls = BY_NAME[name].read(before + text, {"look_up": {}})
    assert kinds(calls) == {"structure": count}
    assert content + "".join(one.written for one in calls) == before + text


def test_calls_beside_a_good_section_are_counted() -> None:
    section = f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>"
    content, calls = BY_NAME["kimi"].read(f"{KIMI}{section}{KIMI}", {"look_up": {}})
    assert [(one.name, one.kind) for one in calls] == [
        *((None, "structure"), ("look_up", None), (None, "structure"))
    ]
    assert content == ""


@pytest.mark.parametrize("end", ["", "\n</｜DSML｜function_calls>", "\nI look."])
def test_deepseek_v3_2_may_omit_its_outer_tags(end: str) -> None:
    """vLLM's parser reads such a call too."""
    text = INVOKE.replace("invoke", "｜DSML｜invoke").replace("parameter", "｜DSML｜parameter")
    content, calls = BY_NAME["deepseek-v3.2"].read(f"I look.\n\n{text}{end}", {"look_up": {}})
    assert [(one.name, one.arguments, one.problem) for one in calls] == [("look_up", KEY, None)]
    assert content.strip() == ("I look.\n\n\nI look." if end == "\nI look." else "I look.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("minimax", 'Write <invoke name="f"> before it.'),
        ("qwen-coder", "Write <function=f> before it."),
        ("hermes", "</tool_call>"),
        ("kimi", "A section has calls."),
        ("mistral-tekken", "[1, 2]"),
    ],
)
def test_a_tag_alone_is_no_call(name: str, text: str) -> None:
    assert BY_NAME[name].read(text, {}) == (text, [])


@pytest.mark.parametrize(
    ("family", "call_text"),
    [
        ("Mistral Tekken", '[TOOL_CALLS]look_up[ARGS]{"key": "x"}'),
        ("Mistral Tekken", '[TOOL_CALLS]look_up[ARGS]{"key": "x"}[TOOL_CALLS]look_up[ARGS]{"key": "y"}'),
        ("Mistral Tekken", "[TOOL_CALLS]look"),
        ("Kimi K2", f"<|tool_calls_section_begin|>{KIMI}"),
        ("Kimi K2", f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>"),
        ("MiniMax M2", f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>"),
        ("MiniMax M2", f"<minimax:tool_call>\n{INVOKE[:30]}"),
        ("Gemma 4", "<|tool_call>call:look_up{}<tool_call|>"),
        ("Seed-OSS", f"<seed:tool_call>\n{CODER}\n</seed:tool_call>"),
        ("GLM 4.5", "<tool_call>look_up\n</tool_call>"),
    ],
)
def test_a_call_at_the_end_of_open_reasoning_is_counted(family: str, call_text: str) -> None:
    """Nothing carries it out, because a model that thinks may well write how it would call."""
    tok = spoken(BY_FAMILY[family])
    reader = choose(tok, "")
    begin = {"Mistral Tekken": "[THINK]", "Gemma 4": "<|channel>thought\n", "Seed-OSS": "<seed:think>"}
    opening = "" if family == "MiniMax M2" else begin.get(family, "<think>")
    text = f"{opening}I must look.\n{call_text}"
    prompt = reader.render(ASKED, SIMPLE)
    found = reader.parse(tok.encode(text, add_special_tokens=False), prompt, SIMPLE)
    assert kinds(found.calls) == {"structure": call_text.count("[TOOL_CALLS]") or 1}
    assert (found.content, call_text in str(found.reasoning)) == ("", True)
    assert assistant(found, 0, may_call=True).get("tool_calls") is None


@pytest.mark.parametrize("name", BY_FAMILY)
def test_no_beginning_of_a_turn_loses_a_call(name: str) -> None:
    """From the token that begins a call on, each cut has a call, or one that is counted."""
    family = BY_FAMILY[name]
    tok = spoken(family)
    reader = choose(tok, family.model_type)
    assert reader.proof is not None
    begun = reader.force(None)
    turn = Probe(reader, tok).turn(ASKED, calling(call(KEY)), SIMPLE, RESULT)
    assert turn is not None
    assert begun is not None
    opening = tok.decode(begun).rpartition("</think>")[2].strip()
    cuts = [turn.sampled[:end] for end in range(len(turn.sampled) + 1)]
    later = [cut for cut in cuts if opening in tok.decode(cut) and (opening != "[" or "(" in tok.decode(cut))]
    assert len(later) > 20
    for cut in later:
        found = reader.parse(cut, turn.prompt, SIMPLE)
        assert len(found.calls) == 1, tok.decode(cut)
        done = (found.calls[0].name, found.calls[0].arguments) == ("look_up", KEY)
        assert done == (found.calls[0].problem is None), tok.decode(cut)
        assert found.calls[0].written.strip() in tok.decode(cut)
