"""Model families: the documented form in which each family writes turns, calls and reasoning.

No model's template is copied. `template` makes each template from a few facts: the tags of the family, how it
writes a call, and what it does with reasoning. A tokenizer has the family's special tokens and single bytes,
unless `FamilyCase.real` is true. So most token ids in tests are not the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from toy_tokenizer import (
    LLAMA_TEMPLATE,
    QWEN3_TEMPLATE,
    _byte_level,
    _letters,
    gpt_oss_tokenizer,
    llama_tokenizer,
    tokenizer,
)


@dataclass(frozen=True)
class FamilyCase:
    """The form of a model family."""

    name: str
    models: str
    """Names of the family's models, for people."""
    source: str
    """Where the form is documented."""
    call: str = ""
    """Template code for each call; it may use `name` and `arguments`."""
    before: str = ""
    """Text before the first call."""
    after: str = ""
    """Text after the last call."""
    between: str = ""
    turn: tuple[str, str] = ("<|im_start|>ROLE\n", "<|im_end|>\n")
    """Text around a message; ROLE stands for the message's role."""
    assistant: str = "assistant"
    tool: tuple[str, str] | None = None
    """Text around a tool's result; None: the text around any message, with the role `tool`."""
    think: tuple[str, str] | None = None
    """Text around reasoning; None: the template writes no reasoning."""
    drops: bool = False
    """Whether the template drops the reasoning of turns before the user's last message."""
    strips: bool = False
    """Whether the template omits everything before </think> in a past turn."""
    begins: str = ""
    """Text that a prompt adds after the head of the model's turn."""
    ids: str = ""
    """Template condition on ids of calls. If it is true, the template raises an error."""
    specials: tuple[str, ...] = ()
    eos: str = "<|im_end|>"
    head: str = ""
    model_type: str = ""
    made: Callable[[], Any] | None = field(default=None, compare=False)
    """Returns a tokenizer that exists already, instead of one that is made from the fields above."""
    real: bool = False
    """Whether the tokenizer has the family's own token ids."""


def template(family: FamilyCase) -> str:
    """A chat template in the family's form."""
    opening, closing = family.turn
    results = family.tool or (opening.replace("ROLE", "tool"), closing)
    thinks = ""
    if family.think is not None:
        kept = "loop.index0 > last.user" if family.drops else "true"
        thinks = (
            f"{{%- if message.reasoning_content and {kept} -%}}"
            f"{{{{- {family.think[0]!r} + message.reasoning_content + {family.think[1]!r} -}}}}"
            "{%- endif -%}"
        )
    stripped = ".split('</think>')[-1]" if family.strips else ""
    refuses = ""
    if family.ids:
        refuses = f"{{%- if {family.ids} -%}}{{{{- raise_exception('an id of a call') -}}}}{{%- endif -%}}"
    return (
        f"{{{{- {family.head!r} -}}}}"
        "{%- if tools -%}{{- '[tools] ' + (tools | tojson) -}}{%- endif -%}"
        "{%- set last = namespace(user=-1) -%}"
        "{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set last.user = loop.index0 -%}"
        "{%- endif -%}{%- endfor -%}"
        "{%- for message in messages -%}"
        "{%- if message.role == 'tool' -%}"
        f"{{{{- {results[0]!r} + message.content + {results[1]!r} -}}}}"
        "{%- elif message.role == 'assistant' -%}"
        f"{{{{- {opening.replace('ROLE', family.assistant)!r} -}}}}{thinks}"
        f"{{{{- (message.content or ''){stripped} -}}}}"
        "{%- if message.tool_calls -%}"
        f"{refuses}{{{{- {family.before!r} -}}}}"
        "{%- for call in message.tool_calls -%}"
        f"{{%- if not loop.first -%}}{{{{- {family.between!r} -}}}}{{%- endif -%}}"
        "{%- set name = call.function.name -%}{%- set arguments = call.function.arguments -%}"
        f"{family.call}"
        "{%- endfor -%}"
        f"{{{{- {family.after!r} -}}}}{{%- endif -%}}"
        f"{{{{- {closing!r} -}}}}"
        "{%- else -%}"
        f"{{{{- {opening!r}.replace('ROLE', message.role) + message.content + {closing!r} -}}}}"
        "{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}"
        f"{{{{- {opening.replace('ROLE', family.assistant) + family.begins!r} -}}}}{{%- endif -%}}"
    )


def spoken(family: FamilyCase) -> Any:
    """The family's tokenizer, with its template."""
    if family.made is not None:
        return family.made()
    vocabulary = {letter: place for place, letter in enumerate(sorted(_letters().values()))}
    tags = dict.fromkeys([*family.specials, family.eos])
    specials = {token: len(vocabulary) + place for place, token in enumerate(tags)}
    return _byte_level(vocabulary, specials, family.eos, template(family))


def _elements(head: str, end: str, key: str, value_end: str) -> str:
    """Template code for a call as XML-like elements. Strings are written as text, other values as JSON."""
    return (
        f"{{{{- {head!r}.replace('NAME', name) -}}}}"
        "{%- for key, value in arguments | items -%}"
        f"{{{{- {key!r}.replace('KEY', key) + (value if value is string else value | tojson)"
        f" + {value_end!r} -}}}}"
        f"{{%- endfor -%}}{{{{- {end!r} -}}}}"
    )


_OBJECT = "{{- '{\"name\": \"' + name + '\", \"arguments\": ' + (arguments | tojson) + '}' -}}"
_PYTHON = (
    "{{- name + '(' -}}{%- for key, value in arguments | items -%}{{- key + '=' -}}"
    "{%- if value is none -%}{{- 'None' -}}{%- elif value is boolean -%}{{- value | string -}}"
    "{%- else -%}{{- value | tojson -}}{%- endif -%}{{- '' if loop.last else ', ' -}}"
    "{%- endfor -%}{{- ')' -}}"
)
_GEMMA = (
    "{%- macro say(value) -%}{%- if value is string -%}{{- '<|\"|>' + value + '<|\"|>' -}}"
    "{%- elif value is none -%}{{- 'None' -}}{%- elif value is boolean -%}{{- value | tojson -}}"
    "{%- elif value is mapping -%}{{- '{' -}}{%- for key, one in value | items -%}"
    "{{- key + ':' + say(one) + ('' if loop.last else ',') -}}{%- endfor -%}{{- '}' -}}"
    "{%- elif value is iterable -%}{{- '[' -}}{%- for one in value -%}"
    "{{- say(one) + ('' if loop.last else ',') -}}{%- endfor -%}{{- ']' -}}"
    "{%- else -%}{{- value | string -}}{%- endif -%}{%- endmacro -%}"
    "{{- '<|tool_call>call:' + name + '{' -}}{%- for key, value in arguments | items -%}"
    "{{- key + ':' + say(value) + ('' if loop.last else ',') -}}{%- endfor -%}{{- '}<tool_call|>' -}}"
)
_THINK = ("<think>\n", "\n</think>\n\n")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_DEEPSEEK_TOKENS = (*_DEEPSEEK, "<｜tool▁sep｜>", "<｜User｜>", "<｜Assistant｜>")
_END_OF_SENTENCE = "<｜end▁of▁sentence｜>"
_HY3 = ":opensource"
_HERMES = {
    "call": "{{- '<tool_call>\\n' -}}" + _OBJECT + "{{- '\\n</tool_call>' -}}",
    "between": "\n",
    "specials": ("<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"),
}
_CODER = {
    "call": _elements(
        "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", "<parameter=KEY>\n", "\n</parameter>\n"
    ),
    "between": "\n",
    "specials": ("<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"),
}

FAMILIES: tuple[FamilyCase, ...] = (
    FamilyCase(
        "Qwen2.5, Qwen3",
        "Qwen2.5, Qwen3 of 2504 and 2507, QwQ, Granite 4",
        "Qwen's documentation, function calling",
        model_type="qwen3",
        made=lambda: tokenizer(Path(mkdtemp()), QWEN3_TEMPLATE),
    ),
    FamilyCase("Hermes", "Hermes 2 Pro, Hermes 3", "Hermes' function calling format", **_HERMES),
    FamilyCase(
        "Qwen3-Coder",
        "Qwen3-Coder, Qwen3-Coder-Next",
        "Qwen3-Coder's model card and parser",
        **_CODER,
    ),
    FamilyCase(
        "Qwen3.5",
        "Qwen3.5, Qwen3.6, Qwen3.8",
        "Qwen3.5's model card",
        think=_THINK,
        drops=True,
        begins="<think>\n",
        **_CODER,
    ),
    FamilyCase(
        "Nemotron 3",
        "Nemotron-3 Nano, Super, Ultra",
        "Nemotron-3's model card",
        think=("<think>", "</think>"),
        drops=True,
        begins="<think>\n",
        **_CODER,
    ),
    FamilyCase(
        "Llama 3 JSON",
        "Llama 3.1 to 3.3",
        "Meta's Llama prompt formats",
        model_type="llama",
        made=lambda: llama_tokenizer(LLAMA_TEMPLATE),
    ),
    FamilyCase(
        "Llama pythonic",
        "Llama 3.2 of 1B and 3B, Llama 4",
        "Meta's Llama prompt formats",
        call=_PYTHON,
        before="[",
        between=", ",
        after="]",
        turn=("<|header_start|>ROLE<|header_end|>\n\n", "<|eot|>"),
        specials=("<|header_start|>", "<|header_end|>", "<|python_start|>", "<|python_end|>"),
        eos="<|eot|>",
    ),
    FamilyCase(
        "Llama 4 JSON",
        "Llama 4",
        "Meta's Llama prompt formats",
        call="{{- '{\"name\": \"' + name + '\", \"parameters\": ' + (arguments | tojson) + '}' -}}",
        before="<|python_start|><|python_end|>",
        turn=("<|header_start|>ROLE<|header_end|>\n\n", "<|eot|>"),
        specials=("<|header_start|>", "<|header_end|>", "<|python_start|>", "<|python_end|>"),
        eos="<|eot|>",
    ),
    FamilyCase(
        "Mistral",
        "Mistral 7B v0.3, Mixtral, Nemo, Large 2407",
        "Mistral's documentation of tokenizers v3",
        call='{{- \'{"name": "\' + name + \'", "arguments": \' + (arguments | tojson)'
        " + ', \"id\": \"' + call.id + '\"}' -}}",
        before="[TOOL_CALLS] [",
        between=", ",
        after="]",
        turn=("[INST] ", "</s>"),
        tool=("[TOOL_RESULTS] ", "[/TOOL_RESULTS]"),
        ids="message.tool_calls[0].id | length != 9",
        specials=("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        eos="</s>",
    ),
    FamilyCase(
        "Mistral Tekken",
        "Mistral Small 3.2, Ministral 3, Magistral, Devstral",
        "Mistral's documentation of tokenizers v11 and v13",
        call="{{- '[TOOL_CALLS]' + name + '[ARGS]' + (arguments | tojson) -}}",
        turn=("[INST]", "</s>"),
        tool=("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        think=("[THINK]", "[/THINK]"),
        ids="message.tool_calls[0].id | length != 9",
        specials=(
            *("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            *("[THINK]", "[/THINK]"),
        ),
        eos="</s>",
    ),
    FamilyCase(
        "DeepSeek V3",
        "DeepSeek V3, V3-0324, R1, R1-0528",
        "DeepSeek V3's tokenizer configuration",
        call="{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name + '\\n```json\\n' + arguments"
        " + '\\n```<｜tool▁call▁end｜>' -}}",
        before=_DEEPSEEK[0],
        between="\n",
        after=_DEEPSEEK[1],
        turn=("<｜ROLE｜>", _END_OF_SENTENCE),
        assistant="Assistant",
        specials=_DEEPSEEK_TOKENS,
        eos=_END_OF_SENTENCE,
    ),
    FamilyCase(
        "DeepSeek R1 distilled",
        "DeepSeek-R1-Distill of Qwen and Llama",
        "DeepSeek R1's tokenizer configuration",
        call="{%- if message.content is none -%}{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name"
        " + '\\n```json\\n' + arguments + '\\n```<｜tool▁call▁end｜>' -}}{%- endif -%}",
        before=_DEEPSEEK[0],
        between="\n",
        after=_DEEPSEEK[1],
        turn=("<｜ROLE｜>", _END_OF_SENTENCE),
        assistant="Assistant",
        strips=True,
        begins="<think>\n",
        specials=_DEEPSEEK_TOKENS,
        eos=_END_OF_SENTENCE,
    ),
    FamilyCase(
        "DeepSeek V3.1",
        "DeepSeek V3.1",
        "DeepSeek V3.1's model card",
        call="{{- '<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + (arguments | tojson)"
        " + '<｜tool▁call▁end｜>' -}}",
        before=_DEEPSEEK[0],
        after=_DEEPSEEK[1],
        turn=("<｜ROLE｜>", _END_OF_SENTENCE),
        assistant="Assistant",
        begins="</think>",
        specials=(*_DEEPSEEK_TOKENS, "</think>"),
        eos=_END_OF_SENTENCE,
    ),
    FamilyCase(
        "DeepSeek V3.2",
        "DeepSeek V3.2",
        "DeepSeek V3.2's encoding",
        call="{{- '<｜DSML｜invoke name=\"' + name + '\">\\n' -}}"
        "{%- for key, value in arguments | items -%}"
        "{{- '<｜DSML｜parameter name=\"' + key + '\" string=\"'"
        " + ('true' if value is string else 'false') + '\">'"
        " + (value if value is string else value | tojson) + '</｜DSML｜parameter>\\n' -}}"
        "{%- endfor -%}{{- '</｜DSML｜invoke>\\n' -}}",
        before="\n\n<｜DSML｜function_calls>\n",
        after="</｜DSML｜function_calls>",
        turn=("<｜ROLE｜>", _END_OF_SENTENCE),
        assistant="Assistant",
        think=("<think>", "</think>"),
        begins="<think>",
        drops=True,
        specials=("<｜DSML｜", "<think>", "</think>", "<｜Assistant｜>"),
        eos=_END_OF_SENTENCE,
    ),
    FamilyCase(
        "Kimi K2",
        "Kimi K2, K2-Thinking, K2.5",
        "Kimi K2's tool calling guide",
        call="{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' + (arguments | tojson)"
        " + '<|tool_call_end|>' -}}",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
        turn=("<|im_ROLE|>ROLE<|im_middle|>", "<|im_end|>"),
        think=("<think>", "</think>"),
        specials=(
            *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
    ),
    FamilyCase(
        "GLM 4.5",
        "GLM-4.5, 4.6, 4.7",
        "GLM-4.5's model card",
        call=_elements(
            "\n<tool_call>NAME\n", "</tool_call>", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"
        ),
        turn=("<|ROLE|>\n", ""),
        tool=("<|observation|>\n<tool_response>\n", "\n</tool_response>"),
        think=("<think>", "</think>\n"),
        drops=True,
        specials=(
            *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>"),
            *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>"),
        ),
        eos="<|endoftext|>",
    ),
    FamilyCase(
        "Hy3",
        "Hy3",
        "Tencent's model card and vLLM's parser",
        call=_elements(
            *(f"<tool_call{_HY3}>NAME<tool_sep{_HY3}>\n", f"</tool_call{_HY3}>\n"),
            *(f"<arg_key{_HY3}>KEY</arg_key{_HY3}>\n<arg_value{_HY3}>", f"</arg_value{_HY3}>\n"),
        ),
        before=f"<tool_calls{_HY3}>\n",
        after=f"</tool_calls{_HY3}>",
        turn=(f"<｜hy_ROLE{_HY3}｜>", f"<｜hy_eos{_HY3}｜>"),
        assistant="Assistant",
        think=(f"<think{_HY3}>", f"</think{_HY3}>"),
        specials=(
            f"<｜hy_Assistant{_HY3}｜>",
            *(f"<{end}tool_call{more}{_HY3}>" for more in ("", "s") for end in ("", "/")),
            *(f"<{end}{name}{_HY3}>" for name in ("think", "arg_key", "arg_value") for end in ("", "/")),
            f"<tool_sep{_HY3}>",
        ),
        eos=f"<｜hy_eos{_HY3}｜>",
    ),
    FamilyCase(
        "MiniMax M2",
        "MiniMax-M2, M2.1",
        "MiniMax-M2's tool calling guide",
        call=_elements('<invoke name="NAME">\n', "</invoke>\n", '<parameter name="KEY">', "</parameter>\n"),
        before="\n<minimax:tool_call>\n",
        after="</minimax:tool_call>",
        turn=("]~b]ROLE\n", "[e~[\n"),
        assistant="ai",
        think=_THINK,
        begins="<think>\n",
        drops=True,
        specials=("]~b]", "<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"),
        eos="[e~[",
    ),
    FamilyCase(
        "Gemma 3",
        "Gemma 3, by Google's prompt for function calls",
        "Google's documentation of Gemma 3, function calling",
        call=_PYTHON,
        before="```tool_code\n",
        between="\n",
        after="\n```",
        turn=("<start_of_turn>ROLE\n", "<end_of_turn>\n"),
        assistant="model",
        tool=("<start_of_turn>user\n```tool_output\n", "\n```<end_of_turn>\n"),
        specials=("<start_of_turn>", "<end_of_turn>"),
        eos="<eos>",
    ),
    FamilyCase(
        "Gemma 4",
        "Gemma 4",
        "Google's documentation of Gemma 4, prompt formatting",
        call=_GEMMA,
        turn=("<|turn>ROLE\n", "<turn|>\n"),
        assistant="model",
        think=("<|channel>thought\n", "<channel|>"),
        drops=True,
        specials=("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>'),
        eos="<turn|>",
    ),
    FamilyCase(
        "gpt-oss",
        "gpt-oss-20b, gpt-oss-120b",
        "OpenAI's Harmony",
        model_type="gpt_oss",
        made=gpt_oss_tokenizer,
        real=True,
    ),
    FamilyCase(
        "Phi-4",
        "Phi-4-mini",
        "vLLM's documentation of tool calling",
        call=_OBJECT,
        before="functools[",
        between=", ",
        after="]",
        turn=("<|ROLE|>", "<|end|>"),
        specials=("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"),
        eos="<|end|>",
    ),
    FamilyCase(
        "Granite 3",
        "Granite 3.1 to 3.3; Phi-4-mini by its model card",
        "IBM's and Microsoft's model cards",
        call=_OBJECT,
        before="<|tool_call|>[",
        between=", ",
        after="]<|/tool_call|>",
        turn=("<|ROLE|>", "<|end|>"),
        specials=("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tool_call|>", "<|/tool_call|>"),
        eos="<|end|>",
    ),
    FamilyCase(
        "Command",
        "Command R7B, Command A",
        "Cohere's documentation of tool use",
        call='{{- \'    {"tool_call_id": "\' + (loop.index0 | string) + \'", "tool_name": "\' + name'
        " + '\", \"parameters\": ' + (arguments | tojson) + '}' -}}",
        before="<|START_ACTION|>[\n",
        between=",\n",
        after="\n]<|END_ACTION|>",
        turn=("<|START_OF_TURN_TOKEN|><|ROLE|>", "<|END_OF_TURN_TOKEN|>"),
        assistant="CHATBOT_TOKEN",
        think=("<|START_THINKING|>", "<|END_THINKING|>"),
        specials=(
            *("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_ACTION|>", "<|END_ACTION|>"),
            *("<|START_THINKING|>", "<|END_THINKING|>"),
        ),
        eos="<|END_OF_TURN_TOKEN|>",
    ),
    FamilyCase(
        "Seed-OSS",
        "Seed-OSS 36B",
        "ByteDance's model card",
        call=_elements("\n<function=NAME>\n", "</function>\n", "<parameter=KEY>", "</parameter>\n"),
        before="\n<seed:tool_call>",
        between="</seed:tool_call>\n<seed:tool_call>",
        after="</seed:tool_call>",
        turn=("<seed:bos>ROLE\n", "<seed:eos>"),
        think=("<seed:think>", "</seed:think>"),
        specials=("<seed:bos>", "<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
        eos="<seed:eos>",
    ),
    FamilyCase(
        "Nemotron",
        "Llama-Nemotron, Nemotron Nano 2",
        "NVIDIA's model cards",
        call=_OBJECT,
        before="<TOOLCALL>[",
        between=", ",
        after="]</TOOLCALL>",
        turn=("<SPECIAL_11>ROLE\n", "\n<SPECIAL_12>\n"),
        specials=("<SPECIAL_11>",),
        eos="<SPECIAL_12>",
    ),
    FamilyCase(
        "LFM2",
        "LFM2, LFM2.5",
        "Liquid's documentation of tool use",
        call=_PYTHON,
        before="<|tool_call_start|>[",
        between=", ",
        after="]<|tool_call_end|>",
        specials=("<|im_start|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    ),
)
"""The families in docs/models.md."""
