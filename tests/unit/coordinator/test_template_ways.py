"""Peculiarities of real models' templates. Each test has one that a published template shows."""

from __future__ import annotations

from typing import Any

import pytest
from model_families import FAMILIES, spoken
from provoked import inputs

from headway_analysis.faults.catalogue import FAULTS
from headway_api.exits import JobError
from headway_coordinator.preflight import calls as preflight
from headway_coordinator.trajectory import values
from headway_coordinator.trajectory.calls import Call
from headway_coordinator.trajectory.probe import ASKED, EVERY, KEY, RESULT, SIMPLE, WHY, call, calling
from headway_coordinator.trajectory.proof import Proof
from headway_coordinator.trajectory.render import Renderer, choose
from headway_coordinator.trajectory.written import BY_NAME, Written

BY_FAMILY = {family.name: family for family in FAMILIES}
SCHEMAS = values.schemas(EVERY)
CALL = '<tool_call>{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}</tool_call>'
CALLS = "{% for c in m.tool_calls or [] %}" + CALL + "{% endfor %}"
PLAIN = "<|im_start|>{{ m.role }}\n{{ m.content or '' }}" + CALLS + "<|im_end|>\n"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def chosen(template: str) -> tuple[Renderer, Proof, Any]:
    """The renderer chosen for a template with Hermes' calls, the proof of its abilities, and a tokenizer."""
    tok = spoken(BY_FAMILY["Hermes"])
    tok.chat_template = template
    found = choose(tok, "")
    assert found.proof is not None
    return found, found.proof, tok


def each(body: str) -> str:
    """A template that writes `body` for each message."""
    return "{% for m in messages %}" + body + "{% endfor %}"


def read(name: str, text: str) -> tuple[str, list[Call]]:
    return BY_NAME[name].read(text, SCHEMAS)


def names_and_arguments(calls: list[Call]) -> list[tuple[str | None, Any]]:
    return [(one.name, one.arguments) for one in calls]


def test_a_template_that_writes_true_as_a_number_is_named() -> None:
    """True equals 1 in Python, but a tool's schema tells them apart."""
    reader, proof, _ = chosen(each(PLAIN.replace("| tojson", '| tojson | replace("true", "1")')) + ASKS)
    assert (proof.call, proof.values) == (True, False)
    assert "null may be lost or changed" in " ".join(preflight.concerns(SIMPLE, reader, builtin=True))


def test_a_template_that_shows_one_of_two_results_is_named() -> None:
    followed = "m.role == 'tool' and not loop.last and loop.nextitem.role == 'tool'"
    reader, proof, _ = chosen(each("{% if not (" + followed + ") %}" + PLAIN + "{% endif %}") + ASKS)
    assert (proof.parallel, proof.row, proof.results) == (True, True, False)
    assert "the results of several calls in one turn do not all continue its training row" in (
        preflight.concerns(SIMPLE, reader, builtin=True)
    )


def test_a_template_may_raise_if_there_are_no_tools() -> None:
    """Hermes' own template raises a TypeError if there are no tools, which once ended the coordinator."""
    needs = (
        "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% if not tools %}{{ 1 + none }}{% endif %}"
    )
    reader, proof, _ = chosen(needs + each(PLAIN) + ASKS)
    assert (proof.call, proof.row, proof.forced) == (True, True, True)
    assert reader.force("look_up") is not None


def test_a_template_that_always_begins_a_turn_keeps_one_row() -> None:
    """Cohere's template ends every conversation with the header of the next turn."""
    reader, proof, tok = chosen(each(PLAIN) + "<|im_start|>assistant\n")
    assert (proof.call, proof.row, proof.next_message_continues_row) == (True, True, True)
    assert [tok.decode([token]) for token in reader.stop_token_ids] == ["<|im_end|>"]


def test_a_closing_reasoning_tag_in_a_header_stops_no_turn() -> None:
    """Cohere's template also begins the next turn with empty reasoning, whose closing tag ends no turn."""
    reader, proof, tok = chosen(each(PLAIN) + "<|im_start|>assistant\n<think></think>")
    assert (proof.call, proof.row) == (True, True)
    assert "</think>" not in [tok.decode([token]) for token in reader.stop_token_ids]


def test_tools_moved_to_the_last_user_message_begin_a_row() -> None:
    """Mistral's template writes tools before the last user message, and removes them from earlier ones."""
    last = "{% set u = messages | selectattr('role', 'equalto', 'user') | list %}"
    moved = "{% if m.role == 'user' and m == u[-1] %}{{ tools | tojson }}{% endif %}"
    _, proof, _ = chosen(last + each(moved + PLAIN) + ASKS)
    assert (proof.call, proof.row, proof.next_message_continues_row) == (True, True, False)


@pytest.mark.parametrize(
    "reasoning",
    [
        "{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}",
        "{% if m.content is not string %}<think>{{ m.content[0].thinking }}</think>{% endif %}",
    ],
    ids=["field", "part"],
)
def test_reasoning_is_put_where_the_template_looks_for_it(reasoning: str) -> None:
    """LFM2.5's template reads a field of its own, and Mistral's a part of the content."""
    content = "{{ m.content if m.content is string else m.content[1:] | map(attribute='text') | join }}"
    body = "<|im_start|>{{ m.role }}\n" + reasoning + content + CALLS + "<|im_end|>\n"
    reader, proof, _ = chosen(each(body) + ASKS)
    assert (proof.reasoning, proof.thinking_row, proof.past_reasoning) == (True, True, "kept")
    thinking = calling(call(KEY), reasoning=WHY)
    assert f"<think>{WHY}</think>" in reader.render_text([*ASKED, thinking], SIMPLE, generate=False)


def test_reasoning_that_an_answer_drops_begins_a_row() -> None:
    """Kimi K2.5's template drops all reasoning since the last user message once there is an answer."""
    gone = "{% set plain = messages | rejectattr('tool_calls') | map(attribute='role') | list %}"
    gone += "{% set over = 'assistant' in plain %}"
    reasoning = "{% if m.reasoning_content and not over %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    body = PLAIN.replace("{{ m.content or '' }}", reasoning + "{{ m.content or '' }}")
    reader, proof, tok = chosen(gone + each(body) + ASKS)
    assert (proof.thinking_row, proof.past_reasoning, proof.next_message_continues_row) == (
        True,
        "dropped",
        True,
    )
    history = [*ASKED, calling(call(KEY), reasoning=WHY), RESULT]
    prompt = reader.render(history, SIMPLE)
    assert WHY in tok.decode(prompt)
    answer = tok.encode("Gold it is.<|im_end|>", add_special_tokens=False)
    messages = [*history, {"role": "assistant", "content": "Gold it is."}]
    assert reader.extend(prompt, answer, messages, [{"role": "user", "content": "And?"}], SIMPLE) is None


def test_reasoning_that_only_the_prompt_begins_begins_a_row() -> None:
    """Templates of the R1 distills and of Nemotron Nano 2 do this."""
    strips = PLAIN.replace("{{ m.content or '' }}", "{{ (m.content or '').split('</think>')[-1] }}")
    begins = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    _, proof, _ = chosen(each(strips) + begins)
    assert (proof.reasoning, proof.row, proof.past_reasoning) == (True, True, "at once")


@pytest.mark.parametrize("parser", ["auto", "hermes", "qwen-coder"])
def test_template_that_rejects_results_fails_with_any_parser(parser: str) -> None:
    """With Gemma 3's template, every episode would end at its first call."""
    refuses = "{% if m.role == 'tool' %}{{ raise_exception('no such role') }}{% endif %}"
    tok = spoken(BY_FAMILY["Hermes"])
    tok.chat_template = each(refuses + "<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n") + ASKS
    with pytest.raises(JobError) as refused:
        preflight.readable(SIMPLE, choose(tok, "", parser), parser)
    termination = refused.value.termination
    assert (termination.reason, termination.field) == (
        "ToolCallsUnreadable",
        "spec.agent.builtin.toolCallParser",
    )
    assert ("no such role" in termination.message) == (parser != "auto")


@pytest.mark.parametrize(
    ("fault", "template", "parser"),
    [("no-calls-read", "no-calls", "auto"), ("no-results-taken", "no-results", "qwen-coder")],
)
def test_the_faults_catalogue_quotes_the_preflights_message(fault: str, template: str, parser: str) -> None:
    """The catalogue of faults uses these templates of tests/support/provoked/inputs.py."""
    tok = spoken(BY_FAMILY["Hermes"])
    tok.chat_template = inputs.TEMPLATES[template]
    with pytest.raises(JobError) as refused:
        preflight.readable(SIMPLE, choose(tok, "qwen3", parser), parser)
    termination = refused.value.termination
    known = next(one for one in FAULTS if one.name == fault)
    assert known.reason == termination.reason
    assert known.pattern.search(f"{termination.field}: {termination.message}"), termination.message


def test_a_template_that_shows_no_tools_is_reported() -> None:
    """In a copy of SmolLM3's template, the named reader may find calls, but the model is shown no tools."""
    tok = spoken(BY_FAMILY["Hermes"])
    plain = each("<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n") + ASKS
    for shows, tells in (("", True), ("{{ tools | tojson }}", False)):
        tok.chat_template = shows + plain
        message = preflight.readable(SIMPLE, choose(tok, "", "hermes"), "hermes")
        assert ("name them in the prompt" in message) == tells


LLAMA_4 = '{"name": "look_up", "parameters": {"key": "brave-otter"}}'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (LLAMA_4, "", [("look_up", KEY)]),
        (f"<|python_start|>I look.<|python_end|>{LLAMA_4}", "I look.", [("look_up", KEY)]),
        (f"<|python_start|><|python_end|>{LLAMA_4}; {LLAMA_4}", "", [("look_up", KEY)] * 2),
        ('{"name": "Zoë", "tier": "gold"}', '{"name": "Zoë", "tier": "gold"}', []),
        ("Gold it is.", "Gold it is.", []),
        (LLAMA_4[:-4], "", [(None, None)]),
        ('[look_up(key="brave-otter")]', "", [("look_up", KEY)]),
        ('<|python_start|>[look_up(key="brave-otter")]<|python_end|>', "", [("look_up", KEY)]),
        (f"<|python_start|>{LLAMA_4}<|python_end|>", "", [("look_up", KEY)]),
        (f"<|python_start|>{LLAMA_4[:-2]}<|python_end|>", "", [(None, None)]),
        ("<|python_start|>I look.<|python_end|>", "I look.", []),
        ('[look_up(key="brave-ott', "", [(None, None)]),
    ],
)
def test_llama_4_calls_may_be_objects_after_text_or_python(text: str, content: str, calls: list[Any]) -> None:
    remaining, found = read("llama4", text)
    assert (remaining, names_and_arguments(found)) == (content, calls)


AS_LIST = '[{"name": "look_up", "arguments": {"key": "brave-otter"}}]'


@pytest.mark.parametrize(
    "text",
    [
        '```tool_code\nlook_up(key="brave-otter")\n```',
        '[look_up(key="brave-otter")]',
        '{"name": "look_up", "parameters": {"key": "brave-otter"}}',
    ],
)
def test_gemma_3_writes_calls_in_each_documented_form(text: str) -> None:
    assert [read("gemma3", text)[0], *names_and_arguments(read("gemma3", text)[1])] == ["", ("look_up", KEY)]
    assert read("gemma3", f"I would write {text[:6]} here.")[1] == []


@pytest.mark.parametrize("tag", ["<|tool_call|>", "<tool_call>"])
@pytest.mark.parametrize("before", ["", "I look.\n"])
def test_granite_begins_calls_with_either_tag(tag: str, before: str) -> None:
    remaining, [found] = read("granite", f"{before}{tag}{AS_LIST}")
    assert (remaining, found.name, found.arguments) == (before, "look_up", KEY)
    assert found.written == f"{tag}{AS_LIST}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "[TOOL_CALLS] []"),
        ("command", "<|START_ACTION|>[]<|END_ACTION|>"),
        ("nemotron", "<TOOLCALL>[]</TOOLCALL>"),
        ("granite", "<|tool_call|>[]"),
        ("phi4", "functools[]"),
    ],
)
def test_an_empty_list_of_calls_is_a_malformed_call(name: str, text: str) -> None:
    _, [found] = read(name, text)
    assert (found.name, found.kind) == (None, "structure")
    assert found.written == text


def test_the_word_functools_is_not_a_call() -> None:
    words = "I would use functools.partial.\n"
    assert read("phi4", words) == (words, [])
    remaining, [found] = read("phi4", f"{words}functools{AS_LIST}")
    assert (remaining, found.arguments) == (words, KEY)


@pytest.mark.parametrize(("name", "kept"), [("gemma4", True), ("hermes", True), ("granite", False)])
def test_only_a_familys_own_frames_are_dropped(name: str, kept: bool) -> None:
    tok = spoken(BY_FAMILY["Hermes"])
    text = "<response>Gold.</response>"
    sampled = tok.encode(text, add_special_tokens=False)
    found = Written(tok, BY_NAME[name], [tok.eos_token_id]).read(sampled, [], [])
    assert found.content == (text if kept else "Gold.")


HEAD, END = "<function=look_up>\n", "\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (f"{HEAD}<parameter=key>\nx\n</parameter>{END}", {"key": "x"}),
        (
            f"<tool_call>\n{HEAD}<parameter=key>\nx\n<parameter=count>\n3\n</parameter>{END}",
            {"key": "x", "count": 3},
        ),
        (f"<tool_call>\n{HEAD}<parameter=key>\nx{END}", {"key": "x"}),
        (
            f"<tool_call>\n{HEAD}<parameter=key>\na </parameter> b\n</parameter>{END}",
            {"key": "a </parameter> b"},
        ),
        (
            f"<tool_call>\n{HEAD}<parameter=key>\na\n</function>\nb\n</parameter>{END}",
            {"key": "a\n</function>\nb"},
        ),
        (f"<tool_call>\n{HEAD}<parameter=key>\n  x\n\n</parameter>{END}", {"key": "  x\n"}),
        (f"<tool_call>\n{HEAD}<parameter=key>x</parameter>{END}", {"key": "x"}),
    ],
    ids=[
        *("no opening", "no end of a value", "no end of the last", "a tag in a line"),
        *("the call's end in a value", "blanks", "one line"),
    ],
)
def test_qwen_coder_s_calls_with_a_missing_tag_are_read(text: str, arguments: dict[str, Any]) -> None:
    """Models sometimes omit a tag, which vLLM's and llama.cpp's readers also accept."""
    remaining, found = read("qwen-coder", f"I look.\n{text}")
    assert (remaining.strip(), names_and_arguments(found)) == ("I look.", [("look_up", arguments)])


def test_a_tag_in_a_sentence_is_not_a_call() -> None:
    assert read("qwen-coder", "Write <function=look_up> first.") == ("Write <function=look_up> first.", [])


def test_gemma_4_may_write_spaces_between_values() -> None:
    text = 'call:look_up{ key:<|"|>x<|"|>, tags:[ <|"|>a<|"|>, <|"|>b<|"|> ], where:{ row:1 } }'
    _, [found] = read("gemma4", f"<|tool_call>{text}<tool_call|>")
    assert found.arguments == {"key": "x", "tags": ["a", "b"], "where": {"row": 1}}


def test_llama_3_may_write_text_before_its_tag() -> None:
    family = BY_FAMILY["Llama 3 JSON"]
    tok = spoken(family)
    reader = choose(tok, family.model_type)
    text = f"I look.<|python_tag|>{LLAMA_4}<|eot_id|>"
    found = reader.parse(tok.encode(text, add_special_tokens=False), [], SIMPLE)
    assert (found.content, names_and_arguments(found.calls)) == ("I look.", [("look_up", KEY)])


def test_a_call_in_reasoning_without_an_end_is_counted() -> None:
    """The call is not executed, because a model may write in its reasoning how it would make a call."""
    tok = spoken(BY_FAMILY["Qwen3.5"])
    reader = choose(tok, "")
    text = f"I must look.\n<tool_call>\n{HEAD}<parameter=key>\nx\n</parameter>{END}"
    prompt = reader.render(ASKED, SIMPLE)
    found = reader.parse(tok.encode(f"{text}<|im_end|>", add_special_tokens=False), prompt, SIMPLE)
    assert [one.kind for one in found.calls] == ["structure"]
    assert (found.content, found.reasoning) == ("", text)
