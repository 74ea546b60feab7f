"""Calls that cannot be executed stay in the turn, and are counted by what is wrong with them."""

from __future__ import annotations

import time

import pytest
from call_styles import ids, made
from model_families import FAMILIES, FamilyCase, spoken

from headway_coordinator.gateway.core import assistant
from headway_coordinator.trajectory.calls import Parsed, kinds
from headway_coordinator.trajectory.notations import MAX_CALLS
from headway_coordinator.trajectory.probe import ASKED, KEY, RESULT, SIMPLE, call, calling
from headway_coordinator.trajectory.proof import Probe
from headway_coordinator.trajectory.render import choose
from headway_coordinator.trajectory.unmarked import untagged
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
def test_a_call_without_its_outer_tag_is_malformed(name: str, text: str, count: int, before: str) -> None:
    content, calls = BY_NAME[name].read(before + text, {"look_up": {}})
    assert kinds(calls) == {"structure": count}
    assert content + "".join(one.written for one in calls) == before + text


ELEMENT = {
    "qwen-coder": "<tool_call>\n<function=look_up>\n<parameter=where>\n{}\n</parameter>\n</function>\n"
    "</tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="where">{}</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "glm": "<tool_call>look_up\n<arg_key>where</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
}
"""Reader -> a call with one argument. The value replaces `{}`, without quotes."""


@pytest.mark.parametrize("name", ELEMENT)
@pytest.mark.parametrize(
    ("schema", "value", "kind"),
    [
        ({"type": "object"}, '{"a": 1', "not_json"),
        ({"type": ["array", "object"]}, "[1, 2", "not_json"),
        ({"anyOf": [{"type": "array"}, {"type": "object"}]}, "{a: 1}", "not_json"),
        ({"type": "object"}, '{"a": 1}', None),
        ({"type": "array"}, "['a', True]", None),
        ({"type": "object"}, "a", None),
        ({"type": ["object", "string"]}, '{"a": 1', None),
        ({}, '{"a": 1', None),
    ],
)
def test_an_object_that_is_cut_off_is_counted(
    name: str, schema: dict[str, object], value: str, kind: str | None
) -> None:
    text = ELEMENT[name].replace("{}", value)
    content, calls = BY_NAME[name].read(text, {"look_up": {"where": schema}})
    assert [one.kind for one in calls] == [kind]
    assert (content, "".join(one.written for one in calls)) == ("", text)


MEANT = [
    '{"name": "look_up", "args": {"key": "x"}}',
    '{"name": "look_up", "input": {"key": "x"}}',
    '{"name": "look_up", "key": "x"}',
]


@pytest.mark.parametrize("text", MEANT)
@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("hermes", ("<tool_call>\n", "\n</tool_call>")),
        ("mistral", ("[TOOL_CALLS][", "]")),
        ("granite", ("<|tool_call|>[", "]")),
        ("nemotron", ("<TOOLCALL>[", "]</TOOLCALL>")),
        ("llama4", ("<|python_start|>", "<|python_end|>")),
    ],
)
def test_arguments_under_another_name_make_a_malformed_call(
    name: str, tags: tuple[str, str], text: str
) -> None:
    _, calls = BY_NAME[name].read(text.join(tags), {"look_up": {}})
    assert [(one.arguments, one.kind) for one in calls] == [(None, "arguments")]


@pytest.mark.parametrize("family", ["Qwen2.5, Qwen3", "Llama 3 JSON"])
@pytest.mark.parametrize("text", MEANT)
def test_the_packages_readers_drop_no_arguments(family: str, text: str) -> None:
    tok = spoken(BY_FAMILY[family])
    renderer = choose(tok, BY_FAMILY[family].model_type)
    written = f"<tool_call>\n{text}\n</tool_call>" if "Qwen" in family else text
    found = renderer.parse(tok.encode(written, add_special_tokens=False), [], SIMPLE)
    assert [(one.arguments, one.kind) for one in found.calls] == [(None, "arguments")]


UNTAGGED = ("Llama 3 JSON", "Llama 4 JSON", "Gemma 3", "gpt-oss")
TAGGED = [each for each in FAMILIES if each.name not in UNTAGGED]


@pytest.mark.parametrize("family", TAGGED, ids=lambda family: family.name)
def test_json_without_its_tags_is_a_malformed_call(family: FamilyCase) -> None:
    tok = spoken(family)
    renderer = choose(tok, family.model_type)

    def parsed(text: str) -> Parsed:
        return renderer.parse(tok.encode(text, add_special_tokens=False), [], SIMPLE)

    for frame in (("", ""), ("```json\n", "\n```"), ("I look.\n", "")):
        found = parsed('{"name": "look_up", "arguments": {"key": "x"}}'.join(frame))
        assert [(one.arguments, one.kind) for one in found.calls] == [(None, "structure")]
    answer = '{"name": "Bob", "age": 3}'
    assert parsed(answer) == Parsed(answer)


OTHER_FORMS = (
    '<function=look_up>{"key": "x"}</function>',
    '<function=look_up>{"key": "x"}',
    '<invoke name="look_up">\n<parameter name="key">x</parameter>\n</invoke>',
    'call:look_up{key:"x"}',
    'functions.look_up({"key": "x"})',
    "{'name': 'look_up', 'arguments': {'key': 'x'}}",
    '{"tool_name": "look_up", "parameters": {"key": "x"}}',
    '[{"tool": "look_up", "arguments": {"key": "x"}}]',
    '{"function": "look_up", "parameters": {"key": "x"}}',
    'look_up(key="x")',
)
"""Calls in the notations of other families, or as people write them."""


@pytest.mark.parametrize("text", OTHER_FORMS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_call_in_another_form_is_counted_or_read(family: FamilyCase, text: str) -> None:
    tok = spoken(family)
    found = choose(tok, family.model_type).parse(tok.encode(text, add_special_tokens=False), [], SIMPLE)
    assert len(found.calls) == 1


@pytest.mark.parametrize("text", [form for form in OTHER_FORMS if not form.startswith("look_up")])
@pytest.mark.parametrize("before", ["<function=brew>", "call:brew{", "functions.brew(", "{'name': 'brew', "])
def test_an_open_call_of_an_unknown_tool_hides_no_other_call(before: str, text: str) -> None:
    content, calls = untagged(f"{before} {text}", {"look_up": {}})
    assert (len(calls), content.strip()) == (1, before.strip())


@pytest.mark.parametrize("text", ["look_up(key) is the tool that I need.", "I need look_up(key)."])
def test_words_about_a_call_are_not_a_call(text: str) -> None:
    assert untagged(text, {"look_up": {}}) == (text, [])


@pytest.mark.parametrize("text", OTHER_FORMS)
def test_another_form_that_names_no_offered_tool_is_text(text: str) -> None:
    other = text.replace("look_up", "brew")
    assert untagged(other, {"look_up": {}}) == (other, [])


@pytest.mark.parametrize("family", TAGGED, ids=lambda family: family.name)
def test_a_call_without_tags_beside_a_good_one_is_counted(family: FamilyCase) -> None:
    tok = spoken(family)
    renderer = choose(tok, family.model_type)
    turn = Probe(renderer, tok).turn(ASKED, calling({**call(KEY), "id": "a1b2c3d4e"}), SIMPLE, RESULT)
    assert turn is not None
    good = [token for token in turn.sampled if token not in renderer.stop_token_ids]
    bare = tok.encode('\n{"name": "look_up", "arguments": {"key": "y"}}', add_special_tokens=False)
    found = renderer.parse([*good, *bare], turn.prompt, SIMPLE)
    # A section without an end tag becomes one malformed call together with the text after it.
    open_ended = family.name in ("Mistral", "Mistral Tekken", "Phi-4")
    assert [one.kind for one in found.calls] == (["not_json"] if open_ended else [None, "structure"])


def test_malformed_calls_beside_a_good_section_are_counted() -> None:
    section = f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>"
    content, calls = BY_NAME["kimi"].read(f"{KIMI}{section}{KIMI}", {"look_up": {}})
    assert [(one.name, one.kind) for one in calls] == [
        *((None, "structure"), ("look_up", None), (None, "structure"))
    ]
    assert content == ""


@pytest.mark.parametrize("end", ["", "\n</｜DSML｜function_calls>", "\nI look."])
def test_deepseek_v3_2_may_omit_its_outer_tags(end: str) -> None:
    """vLLM's parser also reads a call without these tags."""
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
def test_a_tag_alone_is_not_a_call(name: str, text: str) -> None:
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
    """The call is not executed, because a model may write in its reasoning how it would make a call."""
    tok = spoken(BY_FAMILY[family])
    reader = choose(tok, "")
    begin = {"Mistral Tekken": "[THINK]", "Gemma 4": "<|channel>thought\n", "Seed-OSS": "<seed:think>"}
    opening = "" if family == "MiniMax M2" else begin.get(family, "<think>")
    text = f"{opening}I must look.\n{call_text}"
    prompt = reader.render(ASKED, SIMPLE)
    found = reader.parse(tok.encode(text, add_special_tokens=False), prompt, SIMPLE)
    assert kinds(found.calls) == {"structure": call_text.count("[TOOL_CALLS]") or 1}
    assert (found.content, call_text in str(found.reasoning)) == ("", True)
    assert assistant(found, may_call=True).get("tool_calls") is None


@pytest.mark.parametrize("name", BY_FAMILY)
def test_no_prefix_of_a_turn_loses_a_call(name: str) -> None:
    """Every prefix of the turn that has the start of a call has a good call or a malformed one."""
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


OBJECT = '{"name": "look_up", "parameters": {"key": "brave-otter"}}'
LIST = '[look_up(key="brave-otter")]'
FUNCTOOLS = '[{"name": "look_up", "arguments": {"key": "brave-otter"}}]'
OFFERED = {"look_up": {}}


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        *(
            (name, text, content)
            for name in ("llama4", "gemma3")
            for text, content in (
                (f"I look it up.\n{OBJECT}", "I look it up.\n"),
                (f"I look it up:\n{OBJECT}", "I look it up:\n"),
                (f"```json\n{OBJECT}\n```", ""),
                (f"I look.\n```json\n{OBJECT}\n```\nThen more.", "I look.\n\nThen more."),
                (f"I call `{OBJECT}`", "I call "),
                (f"Use [{OBJECT}]", "Use "),
                (f"I look {LIST}", "I look "),
                ('{"parameters": {"key": "brave-otter"}, "name": "look_up"} now', " now"),
            )
        ),
        ("pythonic", f"I call {LIST}", "I call "),
        ("pythonic", f"{LIST}\nDone.", "\nDone."),
        ("pythonic", f"```python\n{LIST}\n```", ""),
        ("phi4", f"functools {FUNCTOOLS}", ""),
        ("phi4", f"I look. functools\n{FUNCTOOLS}", "I look. "),
    ],
)
def test_a_call_of_an_offered_tool_is_read_among_text(name: str, text: str, content: str) -> None:
    found, calls = BY_NAME[name].read(text, OFFERED)
    assert [(one.name, one.arguments, one.problem) for one in calls] == [("look_up", KEY, None)]
    assert found == content
    assert calls[0].written in text


@pytest.mark.parametrize("name", ["llama4", "gemma3"])
@pytest.mark.parametrize("between", [";", "; ", ", ", "\n", " and "])
def test_several_calls_are_read_among_text(name: str, between: str) -> None:
    content, calls = BY_NAME[name].read(f"I look: [{OBJECT}{between}{OBJECT}]", OFFERED)
    assert [one.arguments for one in calls] == [KEY, KEY]
    assert content == ("I look:  and " if between == " and " else "I look: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama4", f'The call is {{"call": {OBJECT}}}'),
        ("llama4", f'The calls are {{"calls": [{OBJECT}, {OBJECT}]}}'),
        ("llama4", f'{{"type": "function", "function": {OBJECT}}}'),
        ("llama4", f"I look {OBJECT[:-9]}"),
        ("gemma3", f"Say '{LIST}'"),
        ("pythonic", f"I look {LIST[:-3]}"),
        ("pythonic", 'I look [look_up("brave-otter")]'),
    ],
)
def test_an_ambiguous_call_is_counted_as_malformed(name: str, text: str) -> None:
    content, calls = BY_NAME[name].read(text, OFFERED)
    assert all(one.problem for one in calls)
    assert len(calls) == text.count("look_up")
    assert all(one.written in text for one in calls)
    assert text.startswith(content[:5])


@pytest.mark.parametrize("name", ["llama4", "gemma3", "pythonic"])
@pytest.mark.parametrize(
    "text",
    [
        'It is {"name": "Ada", "parameters": {"key": 1}}.',
        f'{{"used": [{OBJECT}]}}',
        f'```json\n{{"used": [{OBJECT}]}}\n```',
        "I called look_up, and it says gold.",
        'The tool is {"name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}',
        'The tool {"name": "look_up"} is there.',
        "See [look_up(key)](https://example.com).",
        'It has [other(key="x")].',
        '{"name": "Ada"} is the answer',
    ],
)
def test_an_answer_that_names_no_call_stays_text(name: str, text: str) -> None:
    assert BY_NAME[name].read(text, OFFERED) == (text, [])


@pytest.mark.parametrize(
    "piece",
    [
        '{"name": "look_up", ',
        '{"name":"look_up","parameters":{}}',
        '{"type": ',
        '{"name": "x"}',
        "[look_up(",
        '[look_up(key="',
        '\\"',
        '"a": {"name": "look_up", "parameters": {}}',
    ],
)
@pytest.mark.parametrize("name", ["llama4", "gemma3", "pythonic"])
def test_a_megabyte_of_call_starts_is_read_quickly(name: str, piece: str) -> None:
    began = time.process_time()
    for head in ("I look ", "[look_up(", '[look_up(key="', '{"name": "look_up", "parameters": '):
        _, calls = BY_NAME[name].read(head + piece * ((1 << 20) // len(piece)), OFFERED)
        assert len(calls) <= 2 * MAX_CALLS
    assert time.process_time() - began < 20


@pytest.mark.parametrize("style", ["llama", "llama, own template"])
def test_llama_reads_a_call_among_text_and_keeps_one_row(style: str) -> None:
    reader, tok = made(style)
    prompt = reader.render(ASKED, SIMPLE)
    for text, content in (
        (f"I look it up.\n{OBJECT}", "I look it up."),
        (f"```json\n{OBJECT}\n```", ""),
        (f"{OBJECT}\nDone.", "Done."),
    ):
        sampled = ids(style, f"{text}<|eot_id|>")
        found = reader.parse(sampled, prompt, SIMPLE)
        assert [(one.name, one.arguments, one.problem) for one in found.calls] == [("look_up", KEY, None)]
        assert found.content == content
        spoken_call = calling(call(KEY), content=found.content)
        extended = reader.extend(prompt, sampled, [*ASKED, spoken_call], [RESULT], SIMPLE)
        assert extended is not None
        assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]
        assert "gold" in tok.decode(extended[len(prompt) + len(sampled) :])


@pytest.mark.parametrize("between", [";", "; ", "\n"])
def test_two_calls_of_llama_are_one_malformed_call(between: str) -> None:
    """Llama's templates raise if a turn has two calls, so the conversation could not continue."""
    reader, _ = made("llama")
    found = reader.parse(ids("llama", f"I look.\n{OBJECT}{between}{OBJECT}<|eot_id|>"), [], SIMPLE)
    assert (found.content, kinds(found.calls)) == ("I look.", {"structure": 1})
    assert found.calls[0].raw == f"{OBJECT}{between}{OBJECT}"


SEARCH = '<|channel|>commentary to=browser.search<|message|>{"key": "x"}'
FINAL = "<|channel|>final<|message|>ok<|return|>"
NEXT = "<|start|>assistant"


@pytest.mark.parametrize(
    ("text", "content", "counted"),
    [
        (f"{SEARCH}<|end|>{NEXT}{FINAL}", "ok", 1),
        (f"{SEARCH}{NEXT}{FINAL}", "ok", 1),
        (f"{SEARCH}<|call|>{NEXT}{SEARCH}<|call|>{NEXT}{FINAL}", "ok", 2),
        (SEARCH, "", 1),
        (f"<|channel|>commentary to=browser{NEXT}{FINAL}", "ok", 1),
        ("<|message|>Plain<|return|>", "Plain", 0),
        (f"<|channel|>other<|message|>Odd <|end|>{NEXT}{FINAL}", "Odd ok", 0),
        (f"Said first. <|end|>{NEXT}{FINAL}", "Said first. ok", 0),
        ("<|channel|>", "", 0),
        ("<|channel|>final", "", 0),
    ],
)
@pytest.mark.parametrize("style", ["gpt-oss", "gpt-oss, own template"])
def test_harmony_loses_no_message(style: str, text: str, content: str, counted: int) -> None:
    reader, _ = made(style)
    found = reader.parse(ids(style, text), reader.render(ASKED, SIMPLE), SIMPLE)
    assert (found.content, sum(kinds(found.calls).values())) == (content, counted)
    assert len(found.calls) == counted


def test_harmony_keeps_calls_in_order() -> None:
    reader, _ = made("gpt-oss")
    good = f"{NEXT}<|channel|>commentary to=functions.look_up<|message|>{{}}<|call|>"
    text = f"{SEARCH}<|end|>{good}{NEXT}{SEARCH}<|end|>{good}"
    found = reader.parse(ids("gpt-oss", text), reader.render(ASKED, SIMPLE), SIMPLE)
    assert [one.name for one in found.calls] == [None, "look_up", None, "look_up"]


def test_reasoning_may_mention_the_token_that_ends_a_call() -> None:
    reader, _ = made("gpt-oss")
    text = f"<|channel|>analysis<|message|>I write <|call|> myself.<|end|>{NEXT}{FINAL}"
    found = reader.parse(ids("gpt-oss", text), reader.render(ASKED, SIMPLE), SIMPLE)
    assert (found.content, found.calls) == ("ok", [])
