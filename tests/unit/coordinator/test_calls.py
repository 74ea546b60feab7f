"""Each style of tool calls, with the family's renderer and with the model's own template.

Any sampled text can be read. The gateway can begin a call for the model. Extending a turn keeps every sampled
token.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from call_styles import GPT_OSS, HERMES, JSON, LLAMA, STYLES, TO, ids, made, qwen
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from toy_tokenizer import llama_tokenizer
from transformers import PreTrainedTokenizerFast

from headway_api import bounds
from headway_coordinator.trajectory.calls import Call, Message, Parsed, called
from headway_coordinator.trajectory.render import PROBE_TOOLS, PROBES, Template, choose, typed

PROMPT = PROBES[1]
ARGUMENTS = {"key": "brave-otter"}
every = pytest.mark.parametrize("name", STYLES)


def read(name: str, text: str) -> Parsed:
    chosen, _ = made(name)
    return chosen.parse(ids(name, text), chosen.render(PROMPT, PROBE_TOOLS), PROBE_TOOLS)


def is_good(call: Call) -> bool:
    return (call.name, call.arguments, call.problem) == ("look_up", ARGUMENTS, None)


def spoken(parsed: Parsed) -> Message:
    """The assistant message that a client sends back for this turn."""
    calls = [
        {"id": "c", "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in parsed.calls
    ]
    reasoning = {"reasoning_content": parsed.reasoning} if parsed.reasoning else {}
    message = {"role": "assistant", "content": parsed.content, **reasoning}
    return message | {"tool_calls": calls} if calls else message


RESULT: Message = {"role": "tool", "tool_call_id": "c", "content": "gold"}


@every
def test_style_is_found_and_its_turns_end_at_the_familys_stops(name: str) -> None:
    chosen, tok = made(name)
    assert type(chosen) is STYLES[name].kind
    ends = tok.convert_ids_to_tokens(chosen.stop_token_ids)
    assert set(STYLES[name].stops) <= set(ends)


@every
def test_a_call_and_an_answer_are_read(name: str) -> None:
    style = STYLES[name]
    assert [is_good(call) for call in read(name, style.call).calls] == [True]
    assert read(name, style.call).content == ""
    answer = read(name, style.answer)
    assert (answer.content, answer.calls) == ("Gold.", [])


@pytest.mark.parametrize("name", ["hermes", "hermes, own template"])
def test_parallel_calls_are_read_including_a_malformed_one(name: str) -> None:
    one, bad = HERMES["call"].removesuffix("<|im_end|>"), "<tool_call>nonsense</tool_call>"
    parsed = read(name, f"Two.\n{one}\n{bad}\n{one}<|im_end|>")
    assert [is_good(call) for call in parsed.calls] == [True, False, True]
    assert parsed.calls[1].raw == "nonsense"
    assert parsed.content.strip() == "Two."


@pytest.mark.parametrize("name", ["gpt-oss", "gpt-oss, own template"])
def test_the_channels_of_harmony_are_distinguished(name: str) -> None:
    reasoning = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant"
    preamble = "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"
    call = f"{TO}functions.look_up <|constrain|>json<|message|>{JSON}<|call|>"
    parsed = read(name, reasoning + preamble + call)
    assert (parsed.reasoning, parsed.content) == ("Think.", "I look it up.")
    assert [is_good(c) for c in parsed.calls] == [True]
    parsed = read(name, reasoning + STYLES[name].answer)
    assert (parsed.reasoning, parsed.content, parsed.calls) == ("Think.", "Gold.", [])
    parsed = read(name, reasoning + "<|channel|>analysis<|message|>And on, until cut")
    assert (parsed.reasoning, parsed.content, parsed.calls) == ("Think.And on, until cut", "", [])
    assert read(name, "Gold, said in no channel.<|return|>").content == "Gold, said in no channel."
    parsed = read(name, f"{preamble}{TO}python<|message|>1 + 1<|call|>")
    assert (parsed.content, [call.raw for call in parsed.calls]) == ("I look it up.", ["1 + 1"])


@pytest.mark.parametrize("name", ["llama", "llama, own template"])
def test_an_answer_in_json_is_not_a_call(name: str) -> None:
    for answer in ('{"name": "Ada", "approve": true}', '{"approve": true}', '{"approve": tr'):
        parsed = read(name, f"{answer}<|eot_id|>")
        assert (parsed.content, parsed.calls) == (answer, [])
    assert read(name, '{"name": "look_up"}<|eot_id|>').calls[0].arguments == {}
    assert is_good(
        read(name, f'<|python_tag|>{{"name": "look_up", "parameters": {JSON}}}<|eom_id|>').calls[0]
    )


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, style in STYLES.items() for text in style.malformed]
)
def test_a_malformed_call_is_kept_as_sampled(name: str, text: str) -> None:
    parsed = read(name, text)
    [call] = parsed.calls
    assert call.problem
    assert call.arguments is None
    assert call.raw
    assert call.written in text
    assert call.tags[0] == ("<tool_call>" if "hermes" in name else "")
    assert parsed.content == ""


@every
@settings(max_examples=60)
@given(data=st.data())
def test_reading_never_fails(name: str, data: st.DataObject) -> None:
    chosen, tok = made(name)
    written = [*STYLES[name].forced, STYLES[name].call, *('{"name": ', '"look_up"', "}", " to=", JSON)]
    specials = [*chosen.stop_token_ids, *list(tok.get_added_vocab().values())[-40:]]
    piece = st.one_of(
        st.integers(0, len(tok) - 1).map(lambda token: [token]),
        st.sampled_from(specials).map(lambda token: [token]),
        st.sampled_from(written).map(lambda text: ids(name, text)),
        st.sampled_from(written).map(lambda text: ids(name, text)[: len(text) // 3]),
    )
    sampled = [token for tokens in data.draw(st.lists(piece, max_size=12)) for token in tokens]
    for prompt in ([], chosen.render(PROMPT, PROBE_TOOLS)):
        for tools in ([], PROBE_TOOLS):
            for call in chosen.parse(sampled, prompt, tools).calls:
                assert (call.problem is None) == (call.name is not None and call.arguments is not None)


@every
@pytest.mark.parametrize(
    "value",
    [
        *("[" * levels + "]" * levels for levels in (96, 900, 5_000)),
        *('{"b":' * levels + "1" + "}" * levels for levels in (96, 900)),
        *("[" * 3_000, "]" * 3_000, "9" * 5_000, "0x" + "f" * 4_000, "+".join(["1"] * 400), "1e999", "NaN"),
    ],
    ids=lambda value: f"{value[:6]}-{len(value)}",
)
def test_deep_or_unparsable_arguments_become_problem_calls(name: str, value: str) -> None:
    calls = read(name, STYLES[name].call.replace('"brave-otter"', value)).calls
    assert value in STYLES[name].call.replace('"brave-otter"', value)
    assert all(call.problem and call.arguments is None for call in calls)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"key": "x" * (bounds.ARGUMENTS - 100)}, None),
        ({"key": "x" * bounds.ARGUMENTS}, "arguments are out of bounds: more than 1048576 bytes"),
        (
            {"key": "\N{SNOWMAN}" * (bounds.ARGUMENTS // 2)},
            "arguments are out of bounds: more than 1048576 bytes",
        ),
    ],
    ids=["short", "long", "long in bytes"],
)
def test_a_call_with_arguments_that_are_too_long_is_malformed(arguments: Any, problem: str | None) -> None:
    call = called("", "look_up", arguments)
    assert (call.problem, call.kind) == (problem, problem and "arguments")


@every
def test_a_call_cut_off_anywhere_is_never_carried_out(name: str) -> None:
    chosen, _ = made(name)
    whole = ids(name, STYLES[name].call)
    prompt = chosen.render(PROMPT, PROBE_TOOLS)
    closed = len(whole) - (0 if "gpt-oss" in name else 1)  # its calls end with their own stop token
    found = [chosen.parse(whole[:length], prompt, PROBE_TOOLS).calls for length in range(closed)]
    assert all(call.problem for calls in found for call in calls)
    assert len(found[-1]) == 1


@every
@pytest.mark.parametrize("tool", [None, "look_up"])
def test_forced_call_is_read_and_extended_like_any_other(name: str, tool: str | None) -> None:
    chosen, tok = made(name)
    forced = chosen.force(tool)
    assert forced is not None
    prompt = chosen.render(PROMPT, PROBE_TOOLS)
    sampled = ids(name, STYLES[name].forced[tool is not None])
    parsed = chosen.parse([*forced, *sampled], prompt, PROBE_TOOLS)
    assert [is_good(call) for call in parsed.calls] == [True]
    history = [*PROMPT, spoken(parsed)]
    split = chosen.extend([*prompt, *forced], sampled, history, [RESULT], PROBE_TOOLS)
    assert split is not None
    assert split == chosen.extend(prompt, [*forced, *sampled], history, [RESULT], PROBE_TOOLS)
    tokens = [*prompt, *forced, *sampled]
    assert split[: len(tokens)] == tokens
    assert "gold" in tok.decode(split[len(tokens) :])
    assert tok.decode(split).endswith(tok.decode(prompt[-2:]))


@every
def test_extension_keeps_sampled_tokens_and_equals_fresh_render(name: str) -> None:
    chosen, tok = made(name)
    prompt, sampled = chosen.render(PROMPT, PROBE_TOOLS), ids(name, STYLES[name].call)
    history = [*PROMPT, spoken(chosen.parse(sampled, prompt, PROBE_TOOLS))]
    extended = chosen.extend(prompt, sampled, history, [RESULT], PROBE_TOOLS)
    assert extended is not None
    assert extended[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    fresh = chosen.render([*history, RESULT], PROBE_TOOLS)
    if name == "gpt-oss, own template":  # its template writes calls differently from the model
        fresh, extended = fresh[-20:], extended[-20:]
    assert tok.decode(extended) == tok.decode(fresh)


@pytest.mark.parametrize("name", ["gpt-oss", "gpt-oss, own template"])
def test_harmony_keeps_reasoning_until_the_user_speaks(name: str) -> None:
    chosen, _ = made(name)
    prompt, sampled = chosen.render(PROMPT, PROBE_TOOLS), ids(name, GPT_OSS["call"])
    history = [*PROMPT, spoken(chosen.parse(sampled, prompt, PROBE_TOOLS))]
    assert history[-1]["reasoning_content"] == "Think."
    assert chosen.extend(prompt, sampled, history, [RESULT], PROBE_TOOLS) is not None
    assert chosen.extend(prompt, sampled, history, [RESULT, PROMPT[-1]], PROBE_TOOLS) is None


def test_a_result_names_its_tool_even_if_the_client_does_not() -> None:
    chosen, tok = made("gpt-oss")
    history = [*PROMPT, spoken(read("gpt-oss", GPT_OSS["call"]))]
    assert "<|start|>functions.look_up" in tok.decode(chosen.render([*history, RESULT], PROBE_TOOLS))


def test_a_turn_that_ends_with_another_stop_token_is_extended() -> None:
    name = "llama, own template"
    chosen, tok = made(name)
    prompt, sampled = chosen.render(PROMPT, PROBE_TOOLS), ids(name, LLAMA["call"].replace("eot", "eom"))
    history = [*PROMPT, spoken(chosen.parse(sampled, prompt, PROBE_TOOLS))]
    extended = chosen.extend(prompt, sampled, history, [RESULT], PROBE_TOOLS)
    assert extended is not None
    added = tok.decode(extended[len(prompt) + len(sampled) :])
    assert added.startswith("<|start_header_id|>ipython")


def test_the_llama_reader_works_with_any_tokenizer_if_requested() -> None:
    tok = qwen()
    chosen = choose(tok, "qwen3", "llama")
    assert isinstance(chosen, Template)
    text = f'{{"name": "look_up", "parameters": {JSON}}}<|im_end|>'
    assert is_good(chosen.parse(tok.encode(text, add_special_tokens=False), [], PROBE_TOOLS).calls[0])
    assert choose(llama_tokenizer(), "llama", "llama").name == "llama-3"


@pytest.mark.parametrize("tool", [None, "look_up"])
def test_a_call_in_xml_can_also_be_forced(tool: str | None) -> None:
    tok = qwen()
    tokens = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tok.add_special_tokens({"additional_special_tokens": tokens})
    chosen = typed("qwen3.5", tok)
    rest = "<parameter=key>\nbrave-otter\n</parameter>\n</function>\n</tool_call><|im_end|>"
    sampled = tok.encode(rest if tool else f"look_up>\n{rest}", add_special_tokens=False)
    forced, prompt = chosen.force(tool), chosen.render(PROMPT, PROBE_TOOLS)
    assert forced is not None
    assert [is_good(c) for c in chosen.parse([*forced, *sampled], prompt, PROBE_TOOLS).calls] == [True]
    assert chosen.extend([*prompt, *forced], sampled, [], [RESULT], PROBE_TOOLS) is not None


def test_a_model_without_a_known_style_cannot_force_a_call() -> None:
    words = Tokenizer(WordLevel({"?": 0, "end": 1}, unk_token="?"))
    chosen = choose(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", eos_token="end"), "")
    assert chosen.force(None) is None
    assert chosen.force("look_up") is None
