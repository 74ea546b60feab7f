"""Every family's calls: its template writes them, its reader reads them, and the row continues after them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import models_page
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import FAMILIES, spoken

from headway_api.exits import JobError
from headway_api.records import MalformedKind
from headway_api.spec.agent import BuiltinAgent
from headway_coordinator.preflight import calls as preflight
from headway_coordinator.trajectory import reasoning, values
from headway_coordinator.trajectory.calls import called, kinds, malformed
from headway_coordinator.trajectory.grammar import TOOL
from headway_coordinator.trajectory.notations import MAX_CALLS
from headway_coordinator.trajectory.probe import ASKED, EVERY, KEY, RESULT, SIMPLE, call, calling
from headway_coordinator.trajectory.proof import Probe
from headway_coordinator.trajectory.render import STYLES, Renderer, choose
from headway_coordinator.trajectory.template import CallFormat
from headway_coordinator.trajectory.written import BY_NAME, GRAMMARS

ROOT = Path(__file__).resolve().parents[3]
BY_FAMILY = {family.name: family for family in FAMILIES}
SCHEMAS = values.schemas(EVERY)
MEGABYTE = 1 << 20
every_family = pytest.mark.parametrize("name", BY_FAMILY)
OWN = ("Qwen2.5, Qwen3", "Hermes", "Llama 3 JSON", "gpt-oss")
"""Families with readers of the package, which tests/unit/coordinator/test_calls.py tests."""
by_grammar = pytest.mark.parametrize("name", [name for name in BY_FAMILY if name not in OWN])
every_grammar = pytest.mark.parametrize("name", BY_NAME)


@cache
def chosen(name: str) -> tuple[Renderer, Any]:
    tok = spoken(BY_FAMILY[name])
    return choose(tok, BY_FAMILY[name].model_type), tok


def test_the_models_page_shows_every_familys_results() -> None:
    """tests/unit/coordinator/test_real_templates.py checks the rest of the page."""
    assert (ROOT / "docs/models.md").read_text().endswith(models_page.own()), "run: make models"


@every_family
def test_a_family_s_calls_are_read_and_stay_one_row(name: str) -> None:
    proof = chosen(name)[0].proof
    assert proof is not None
    assert (
        proof.call,
        proof.values,
        proof.special_characters,
        proof.forced,
        proof.row,
        proof.next_message_continues_row,
    ) == (True,) * 6
    assert proof.reasoning is not False
    assert proof.thinking_row is not False
    assert proof.results is (True if proof.parallel else None)
    assert proof.past_reasoning not in ("forked", "lost")


@by_grammar
def test_a_named_reader_reads_like_the_detected_one(name: str) -> None:
    found, tok = chosen(name)
    assert found.proof is not None
    named = choose(tok, "", found.proof.reader)
    assert named.proof == found.proof


def test_every_reader_has_a_name_in_the_spec() -> None:
    named = get_args(BuiltinAgent.model_fields["tool_call_parser"].annotation)
    assert set(named) == {"auto", *STYLES, *BY_NAME}


WRITES_NONE = replace(BY_FAMILY["Hermes"], call="", specials=("<|im_start|>",))


def test_calls_without_a_reader_are_refused_at_the_start() -> None:
    mute = choose(spoken(WRITES_NONE), "gemma3_text")
    with pytest.raises(JobError) as refused:
        preflight.readable(SIMPLE, mute, "auto")
    termination = refused.value.termination
    assert termination.reason == "ToolCallsUnreadable"
    assert termination.field == "spec.agent.builtin.toolCallParser"
    for word in ("gemma3_text", "chat_template.jinja", "2 tools"):
        assert word in termination.message


def test_without_tools_no_call_is_needed() -> None:
    assert "no tools" in preflight.readable([], choose(spoken(WRITES_NONE), ""), "auto")


def test_a_named_reader_is_used_without_a_check() -> None:
    mute = choose(spoken(WRITES_NONE), "gemma3_text", "gemma3")
    assert "as specified" in preflight.readable(SIMPLE, mute, "gemma3")
    text = '```tool_code\nlook_up(key="brave-otter")\n```<|im_end|>'
    tok = spoken(WRITES_NONE)
    [read] = mute.parse(tok.encode(text, add_special_tokens=False), [], SIMPLE).calls
    assert (read.name, read.arguments) == ("look_up", KEY)


@every_family
def test_a_family_s_calls_pass_the_preflight(name: str) -> None:
    assert "read as" in preflight.readable(SIMPLE, chosen(name)[0], "auto")


# Distilled models reason in every turn, and their template drops all past reasoning.
R1 = "DeepSeek R1 distilled"


def test_reasoning_begun_by_the_prompt_is_not_an_answer() -> None:
    reader, tok = chosen(R1)
    prompt = reader.render(ASKED, SIMPLE)
    sampled = tok.encode(f"Twice two.\n</think>\n\nFour.{BY_FAMILY[R1].eos}", add_special_tokens=False)
    parsed = reader.parse(sampled, prompt, SIMPLE)
    assert (parsed.reasoning, parsed.content) == ("Twice two.", "Four.")
    cut = reader.parse(tok.encode("Twice two", add_special_tokens=False), prompt, SIMPLE)
    assert (cut.reasoning, cut.content) == ("Twice two", "")


@pytest.mark.parametrize("name", [R1, "Qwen3.5", "MiniMax M2", "DeepSeek V3.2"])
def test_a_call_forced_in_open_reasoning_closes_it_first(name: str) -> None:
    reader, tok = chosen(name)
    prompt, forced = reader.render(ASKED, SIMPLE), reader.force("look_up")
    assert forced is not None
    begun = tok.decode(forced)
    assert begun.lstrip().startswith("</think>")
    assert "look_up" in begun
    assert reader.parse(forced, prompt, SIMPLE).reasoning is None


def test_dropped_empty_reasoning_causes_no_fork() -> None:
    family = replace(BY_FAMILY["Hermes"], think=None, call=BY_FAMILY["Hermes"].call)
    tok = spoken(family)
    last = "{%- if loop.last -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
    tok.chat_template = tok.chat_template.replace(
        "{{- (message.content or '') -}}", last + "{{- (message.content or '') -}}"
    )
    assert last in tok.chat_template
    reader = choose(tok, "")
    prompt = reader.render(ASKED, SIMPLE)
    sampled = tok.encode("<think>\n\n</think>\n\nGold.<|im_end|>", add_special_tokens=False)
    history = [*ASKED, {"role": "assistant", "content": "Gold."}]
    extended = reader.extend(prompt, sampled, history, [{"role": "user", "content": "Sure?"}], SIMPLE)
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert tok.decode(extended[len(prompt) + len(sampled) :]).startswith("\n<|im_start|>user\nSure?")


@pytest.mark.parametrize("content", ["Gold.\n", "Gold.  \n\n", '{"tier":"gold"}'])
@pytest.mark.parametrize("name", ["Qwen2.5, Qwen3", "gpt-oss", "Qwen3.5", "GLM 4.5"])
def test_whitespace_around_an_answer_causes_no_fork(name: str, content: str) -> None:
    reader, tok = chosen(name)
    prompt = reader.render(ASKED, SIMPLE)
    text = {"gpt-oss": f"<|channel|>final<|message|>{content}<|return|>", "GLM 4.5": f"{content}<|user|>"}
    opening = "</think>" if name == "Qwen3.5" else ""
    sampled = tok.encode(opening + text.get(name, f"{content}<|im_end|>"), add_special_tokens=False)
    parsed = reader.parse(sampled, prompt, SIMPLE)
    history = [*ASKED, {"role": "assistant", "content": parsed.content.strip()}]
    extended = reader.extend(prompt, sampled, history, [{"role": "user", "content": "Sure?"}], SIMPLE)
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]


def test_a_compact_call_causes_no_fork() -> None:
    """The template would write a space after each colon."""
    reader, tok = chosen("Qwen2.5, Qwen3")
    prompt = reader.render(ASKED, SIMPLE)
    text = '<tool_call>\n{"name":"look_up","arguments":{"key":"brave-otter"}}\n</tool_call><|im_end|>'
    sampled = tok.encode(text, add_special_tokens=False)
    spoken_call = calling(call(KEY))
    new = [RESULT, {"role": "user", "content": "And?"}]
    extended = reader.extend(prompt, sampled, [*ASKED, spoken_call], new, SIMPLE)
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]


def test_call_ids_have_the_form_that_the_template_needs() -> None:
    conversation = [*ASKED, calling(call(KEY)), RESULT]
    short = CallFormat(ids="short")(conversation)
    identity = short[2]["tool_calls"][0]["id"]
    assert (len(identity), identity.isalnum(), short[3]["tool_call_id"]) == (9, True, identity)
    assert CallFormat(ids="short")(conversation) == short
    numbered = CallFormat(ids="numbered", named=True)(conversation)
    assert numbered[2]["tool_calls"][0]["id"] == numbered[3]["tool_call_id"] == "functions.look_up:0"
    assert conversation[3]["tool_call_id"] == "call-0-0"


@every_grammar
def test_a_megabyte_of_tags_is_read_in_seconds(name: str) -> None:
    """A reader that searched again from each tag would take more than an hour."""
    grammar = BY_NAME[name]
    head = (grammar.named or "").replace(TOOL, "look_up")
    tags = (getattr(grammar, "opening", "["), getattr(grammar, "closing", "") or "]", head)
    inner = (
        "<parameter=a>",
        "<function=a>",
        "</parameter>",
        '<invoke name="',
        '<parameter name="a">',
        "<arg_key>",
    )
    marks = (
        "<",
        "{",
        "[",
        "(",
        '"',
        "\\",
        '<|"|>',
        "a:1,",
        "a=1,",
        "f(a=",
        "\n",
        "<｜tool▁call▁begin｜>",
        "-",
    )
    for piece in (*tags, *inner, *marks):
        text = piece * (MEGABYTE // len(piece))
        for output in (text, head + text, head + text + tags[1]):
            _, calls = grammar.read(output, SCHEMAS)
            assert len(calls) <= 2 * MAX_CALLS


@every_grammar
@settings(max_examples=100)
@given(data=st.data())
def test_reading_never_fails_and_judges_every_call(name: str, data: st.DataObject) -> None:
    grammar = BY_NAME[name]
    written = [(begun or "").replace(TOOL, "look_up") for begun in (grammar.any_tool, grammar.named)]
    written += [getattr(grammar, "opening", "["), getattr(grammar, "closing", "") or "]"]
    written += [
        '{"key": "x"}',
        "look_up",
        "</parameter>",
        "</function>",
        "<parameter=key>",
        "}",
        '"',
        "(key=1)",
    ]
    pieces = st.lists(st.one_of(st.sampled_from(written), st.text(max_size=5)), max_size=12)
    _, calls = grammar.read("".join(data.draw(pieces)), SCHEMAS)
    for one in calls:
        assert (one.problem is None) == (one.name is not None and one.arguments is not None)
        assert (one.kind is None) == (one.problem is None)


@by_grammar
def test_a_call_cut_off_in_its_arguments_is_never_carried_out(name: str) -> None:
    reader, tok = chosen(name)
    turn = Probe(reader, tok).turn(ASKED, calling(call(KEY)), SIMPLE, RESULT)
    assert turn is not None
    inside = next(end for end in range(len(turn.sampled)) if "brave-ott" in tok.decode(turn.sampled[:end]))
    found = [reader.parse(turn.sampled[:end], turn.prompt, SIMPLE).calls for end in range(inside + 1)]
    assert all(one.problem for calls in found for one in calls)
    assert len(found[-1]) == 1


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("hermes", '<tool_call>{"name": "a", "arguments": {}', "unclosed"),
        ("hermes", "<tool_call>{nonsense}</tool_call>", "not_json"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no_name"),
        ("hermes", '<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "arguments"),
        ("qwen-coder", "<tool_call>look it up</tool_call>", "structure"),
        ("qwen-coder", "<tool_call><function=a><parameter=b>1</tool_call>", "unclosed"),
        ("glm", "<tool_call>a\n<arg_key>b</arg_key></tool_call>", "structure"),
        ("mistral-tekken", "[TOOL_CALLS]look_up", "structure"),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜>look_up", "structure"),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0", "unclosed"),
        ("gemma4", '<|tool_call>call:a{b:<|"|>c}<tool_call|>', "arguments"),
        ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>", "structure"),
        ("command", "<|START_ACTION|>[{}]<|END_ACTION|>", "no_name"),
    ],
)
def test_a_malformed_call_is_kept_with_its_kind(name: str, text: str, kind: str) -> None:
    content, [found] = BY_NAME[name].read(text, SCHEMAS)
    assert found.kind == kind
    assert content == ""
    assert found.written in text


def test_kinds_of_faults_are_a_bounded_set() -> None:
    odd = [malformed("x", "something new"), called("y", 7, {}), called("z", "f", None)]
    assert kinds([*odd, called("w", "f", {})]) == {"other": 1, "no_name": 1, "arguments": 1}
    assert set(kinds(odd)) <= set(get_args(MalformedKind))


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ("7", None, 7),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": ["string", "null"]}, None),
        ("7", {"type": ["string", "null"]}, "7"),
        ("True", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "True"),
        ("null", {"type": ["string", "boolean"]}, "null"),
        ("true", {"type": ["string", "boolean"]}, True),
        ("true", {"enum": ["true", "false", None]}, "true"),
        ("{'a': 1}", {}, {"a": 1}),
        ("{'a': [1, None]}", {"type": "object"}, {"a": [1, None]}),
        ("NaN", None, "NaN"),
        ("seven", {"type": "integer"}, "seven"),
        ("'quoted'", None, "'quoted'"),
        ("1.10", {"const": "1.10"}, "1.10"),
        ("7", {"enum": [7, 8]}, 7),
        ("1.10", {"allOf": [{"description": "a version"}, {"type": "string"}]}, "1.10"),
    ],
)
def test_argument_text_gets_its_type_from_the_tools_schema(text: str, schema: Any, value: Any) -> None:
    assert values.typed(text, schema) == value


def test_a_parameters_type_may_be_defined_elsewhere() -> None:
    version = {"enum": ["1.10", "2.0"], "title": "Version", "type": "string"}
    known = {
        "at": {"$ref": "#/$defs/Version"},
        "old": {"$ref": "#/definitions/Old"},
        "either": {"anyOf": [{"$ref": "#/$defs/Version"}, {"type": "null"}]},
        "every": {"allOf": [{"$ref": "#/$defs/Version"}]},
        "endless": {"$ref": "#/$defs/Endless"},
        "absent": {"$ref": "#/$defs/Absent"},
    }
    parameters = {
        "properties": known,
        "$defs": {"Version": version, "Endless": {"$ref": "#/$defs/Endless"}},
        "definitions": {"Old": version},
    }
    found = values.schemas([{"function": {"name": "set", "parameters": parameters}}])["set"]
    read = {key: values.typed("1.10", schema) for key, schema in found.items()}
    strings = dict.fromkeys(("at", "old", "either", "every"), "1.10")
    assert read == {**strings, "endless": 1.1, "absent": 1.1}
    assert values.typed("null", found["either"]) is None


def test_nested_definitions_are_followed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {f"D{at}": {"anyOf": [{"$ref": f"#/$defs/D{at + 1}"}] * 50} for at in range(20)}
    parameters = {"properties": {"at": {"$ref": "#/$defs/D0"}}, "$defs": step}
    looked: list[object] = []
    follow = values._resolved
    monkeypatch.setattr(values, "_resolved", lambda *each: looked.append(each) or follow(*each))
    values.schemas([{"function": {"name": "set", "parameters": parameters}}])
    assert values.MAX_RESOLVED < len(looked) < 3 * values.MAX_RESOLVED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"key": "x"', {"key": "x"}),
        ('city: "Paris, country: France"', {"city": "Paris, country: France"}),
        ('"a" : [1, "b"], c:{"d":true}', {"a": [1, "b"], "c": {"d": True}}),
        ('key:<|"|>x<|"|>,n:7', {"key": "x", "n": 7}),
    ],
)
def test_gemma_may_write_strings_as_json(text: str, expected: dict[str, Any]) -> None:
    assert values.gemma(text) == expected


@pytest.mark.parametrize("text", ["key:'x'", "'key':1", 'key:x"y', 'k"ey:1', 'key:"x', "key:it's, b:1"])
def test_gemmas_strings_have_no_quotes(text: str) -> None:
    with pytest.raises(ValueError, match=r"quotes|string"):
        values.gemma(text)


def test_python_is_parsed_and_never_run() -> None:
    for text in ("__import__('os')", "1 + 1", "[x for x in y]", "f'{1}'", "a" * 100_000, "[" * 500, "x = 1"):
        with pytest.raises(ValueError, match=r"."):
            values.python(text)


def test_every_familys_tags_separate_reasoning() -> None:
    for opening, closing in reasoning.MARKS:
        assert reasoning.split(f"{opening}Hm.{closing}Gold.", "") == ("Hm.", "Gold.")
        assert reasoning.split(f"Hm.{closing}Gold.", f"...{opening}\n") == ("Hm.", "Gold.")
    assert reasoning.split("Gold.", "<think>\n\n</think>\n\n") == (None, "Gold.")


def test_each_grammar_has_its_own_name() -> None:
    assert len(BY_NAME) == len(GRAMMARS)


@pytest.mark.parametrize("parser", ["auto", "hermes"])
def test_a_forced_call_ends_an_open_thought_with_any_reader(parser: str) -> None:
    tok = spoken(BY_FAMILY["Hermes"])
    tok.chat_template += "{%- if add_generation_prompt -%}{{- '<think>\\n' -}}{%- endif -%}"
    reader = choose(tok, "x", parser)
    prompt, forced = reader.render(ASKED, SIMPLE), reader.force("look_up")
    assert forced is not None
    assert tok.decode(forced).lstrip().startswith("</think>")
    rest = tok.encode(' {"key": "brave-otter"}}\n</tool_call><|im_end|>', add_special_tokens=False)
    (read,) = reader.parse([*forced, *rest], prompt, SIMPLE).calls
    assert (read.name, read.arguments, read.problem) == ("look_up", KEY, None)
