"""Values of arguments that hold the tags of calls: what a template writes is read back as it was."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import FAMILIES, spoken

from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.probe import ASKED, RESULT, call, calling
from headway_coordinator.trajectory.proof import Probe
from headway_coordinator.trajectory.render import Renderer, choose
from headway_coordinator.trajectory.written import BY_NAME

BY_FAMILY = {family.name: family for family in FAMILIES}
TYPES = {"key": "string", "other": "string", "where": "object", "count": "integer"}
SCHEMA = {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}}
TOOLS: list[Tool] = [
    {"type": "function", "function": {"name": name, "description": "Look up.", "parameters": SCHEMA}}
    for name in ("look_up", "count_up")
]
every_family = pytest.mark.parametrize("name", BY_FAMILY)
TAGS = (
    *("<parameter=key>", "<parameter=x>", "</parameter>", "<function=f>", "</function>"),
    *('<invoke name="f">', "</invoke>", '<parameter name="key">', '<parameter name="x">'),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "```", "```json", "call:f{", "[f(a=1)]"),
)
ODD = "\n {}[]()<>/\\\"',:=|"
LETTERS = st.characters(exclude_categories=["Cs", "Cc"])
ASCII = st.characters(exclude_categories=["Cs", "Cc"], codec="ascii")


@cache
def chosen(name: str) -> tuple[Renderer, Any]:
    tok = spoken(BY_FAMILY[name])
    return choose(tok, BY_FAMILY[name].model_type), tok


def tags(name: str) -> list[str]:
    """Tags of any family, and those of this one that end no turn and no string of its own."""
    renderer, tok = chosen(name)
    assert renderer.proof is not None
    grammar: Any = BY_NAME.get(renderer.proof.reader)
    own = [getattr(grammar, "opening", ""), getattr(grammar, "closing", ""), *BY_FAMILY[name].specials]
    ends = [tok.decode([token]) for token in renderer.stop_token_ids]
    return [tag for tag in dict.fromkeys([*TAGS, *own]) if tag and tag not in ends and tag != '<|"|>']


def read(name: str, *made: tuple[str, dict[str, Any]]) -> list[tuple[str | None, Any]]:
    """The calls that are read of a turn, in which the family's template writes `made`.

    Their result continues the turn, token by token.
    """
    renderer, tok = chosen(name)
    message: Message = calling(*[call(given, tool, at) for at, (tool, given) in enumerate(made)])
    turn = Probe(renderer, tok).turn(ASKED, message, TOOLS, RESULT)
    assert turn is not None
    assert [one.problem for one in turn.read.calls if one.problem] == []
    tokens = [*turn.prompt, *turn.sampled]
    extended = renderer.extend(turn.prompt, turn.sampled, [*ASKED, message], [RESULT], TOOLS)
    assert extended is not None
    assert extended[: len(tokens)] == tokens
    assert renderer.text(extended).endswith(
        renderer.text(renderer.render([*ASKED, message, RESULT], TOOLS))[-20:]
    )
    return [(one.name, one.arguments) for one in turn.read.calls]


@every_family
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_tag_in_a_value_is_read_back_as_text(name: str, data: st.DataObject) -> None:
    # The tests' tokenizer of gpt-oss lacks letters.
    letters = ASCII if name == "gpt-oss" else LETTERS
    words = st.text(st.one_of(st.sampled_from(ODD), letters), max_size=12)
    value = data.draw(words) + data.draw(st.sampled_from(tags(name))) + data.draw(words)
    arguments = {"key": value, "other": data.draw(words), "where": {"row": [value, None]}, "count": 3}
    kept = data.draw(st.sets(st.sampled_from(["other", "where", "count"])))
    arguments = {key: one for key, one in arguments.items() if key == "key" or key in kept}
    made = [("look_up", arguments)]
    proof = chosen(name)[0].proof
    assert proof is not None
    if proof.parallel and data.draw(st.booleans()):
        made.append(("count_up", {"key": "z"}))
    assert read(name, *made) == made


CALL = '<invoke name="f">\n<parameter name="key">1</parameter>\n</invoke>\n'
CODER = "<tool_call>\n<function=f>\n<parameter=key>\n1\n</parameter>\n</function>\n</tool_call>"
WHOLE = {
    "Qwen3-Coder": CODER,
    "Seed-OSS": f"<seed:tool_call>\n{CODER}</seed:tool_call>",
    "MiniMax M2": f"<minimax:tool_call>\n{CALL}</minimax:tool_call>",
    "DeepSeek V3.2": "<｜DSML｜function_calls>\n"
    + CALL.replace("invoke", "｜DSML｜invoke").replace("parameter", "｜DSML｜parameter")
    + "</｜DSML｜function_calls>",
    "Hy3": "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n</tool_call:opensource>\n"
    "</tool_calls:opensource>",
    "Hermes": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "Mistral Tekken": '[TOOL_CALLS]f[ARGS]{"key": 1}',
    "Kimi K2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>",
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("frame", ["{}", "A call is:\n{}\nSo it is.", "{0}\n{0}"])
def test_a_whole_call_in_a_value_is_read_back_as_text(name: str, frame: str) -> None:
    """A model that writes documentation, or a test of its own tools, does this."""
    value = frame.format(WHOLE[name])
    made = [("look_up", {"key": value, "other": "x"}), ("count_up", {"key": value})]
    assert read(name, *made) == made


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("x\n<parameter=x>\ny", True),
        ("x\n<parameter=key>\ny", True),
        ("x\n<parameter=other>\ny\n</parameter>\nz", True),
        ("x\n</parameter>\ny", True),
        ("x\n</function>\ny", True),
        ("</function>'y<function=f>\n", True),
        ("<function=f>", True),
        ("x\n<parameter=other>\ny", False),
    ],
)
def test_structure_says_which_lines_are_text(value: str, kept: bool) -> None:
    """The last is also how a model writes two arguments that forgets a closing tag, as vLLM reads it."""
    found = read("Qwen3-Coder", ("look_up", {"key": value}))
    assert found == [("look_up", {"key": value} if kept else {"key": "x", "other": "y"})]


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ("<parameter=key>\nx\n</parameter>\n<parameter=key>\ny\n</parameter>\n", "structure"),
        ("<parameter=key>\nx\n</parameter>\nand so on\n", "structure"),
        ("and so on\n<parameter=key>\nx\n</parameter>\n", "structure"),
        ("<parameter=key>x\n", "unclosed"),
    ],
)
def test_arguments_that_cannot_be_told_apart_are_counted(inside: str, kind: str) -> None:
    text = f"<tool_call>\n<function=look_up>\n{inside}</function>\n</tool_call>"
    _, [found] = BY_NAME["qwen-coder"].read(text, {"look_up": {"key": {"type": "string"}}})
    assert (found.kind, found.arguments, found.written) == (kind, None, text)


def test_part_of_a_call_beside_a_call_is_counted() -> None:
    one = "<function=look_up>\n<parameter=key>\nx\n</parameter>\n</function>"
    _, calls = BY_NAME["qwen-coder"].read(f'<tool_call>\n{one}\n{{"name": "f"}}\n</tool_call>', {})
    assert [(found.name, found.kind) for found in calls] == [("look_up", None), (None, "structure")]
    assert calls[1].raw == '{"name": "f"}'
