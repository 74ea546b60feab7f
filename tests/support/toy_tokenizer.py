"""Tokenizers without a model: the tiny model's, with its own or another template, and other families'.

The templates have the structure of the families' public templates, for conversations with tools.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

QWEN3_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n" }}
    {{- "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments " }}
    {{- "within <tool_call></tool_call> XML tags:\\n<tool_call>\\n" }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(query=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set last.query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > last.query and message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA_TEMPLATE = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' }}
{{- system + '<|eot_id|>' }}
{%- if tools %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the following functions, please respond ' }}
    {{- 'with a JSON for a function call with its proper arguments that best answers the given ' }}
    {{- 'prompt.\\n\\n' }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its ' }}
    {{- 'value}.Do not use variables.\\n\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
    {{- messages[0].content | trim + '<|eot_id|>' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
LLAMA_TOKENS = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
)

GPT_OSS_TEMPLATE = """\
{{- '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\n' }}
{{- 'Knowledge cutoff: 2024-06\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\\n\\n' }}
{{- 'Reasoning: medium\\n\\n' }}
{{- '# Valid channels: analysis, commentary, final. Channel must be included for every message.' }}
{%- if tools %}
    {{- "\\nCalls to these tools must go to the commentary channel: 'functions'." }}
{%- endif %}
{{- '<|end|>' }}
{%- set last = namespace(name=none) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '<|start|>developer<|message|># Instructions\\n\\n' + message.content + '\\n\\n<|end|>' }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
        {{- (call.arguments | tojson) + '<|call|>' }}
        {%- set last.name = call.name %}
    {%- elif message.role == 'tool' %}
        {%- if last.name is none %}
            {{- raise_exception('Message has tool role, but there was no previous assistant message') }}
        {%- endif %}
        {{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- (message.content | tojson) + '<|end|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""


def tokenizer(folder: Path, template: str | None = None) -> Any:
    """Return the tiny model's tokenizer, with `template` instead of its own."""
    from tiny_model import write_tokenizer
    from transformers import PreTrainedTokenizerFast

    write_tokenizer(folder)
    found = PreTrainedTokenizerFast.from_pretrained(folder)
    if template is not None:
        found.chat_template = template
    return found


def llama_tokenizer(template: str = LLAMA_TEMPLATE) -> Any:
    """Return a tokenizer of single bytes and Llama 3's special tokens."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(_letters().values()))}
    specials = {token: len(vocabulary) + i for i, token in enumerate(LLAMA_TOKENS)}
    found = _byte_level(vocabulary, specials, "<|eot_id|>", template)
    found.bos_token = "<|begin_of_text|>"
    return found


def gpt_oss_tokenizer(template: str = GPT_OSS_TEMPLATE) -> Any:
    """Return a tokenizer with gpt-oss's ids from OpenAI's encoder. Without merges, it spells rare words."""
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    specials = {
        token: encoding.encode(token, allowed_special="all")[0] for token in encoding.special_tokens_set
    }
    letters = _letters()
    vocabulary = {letter: i for i, letter in enumerate(letters.values())}
    for i in range(len(vocabulary), min(specials.values())):
        word = encoding.decode([i])
        spelled = "".join(letters[byte] for byte in word.encode())
        # These tokens are not text by themselves, or decode like another token. Tests only need their ids.
        vocabulary[f"<{i}>" if "\ufffd" in word or spelled in vocabulary else spelled] = i
    return _byte_level(vocabulary, specials, "<|return|>", template)


def _letters() -> dict[int, str]:
    """Map each byte to its letter in byte-level vocabularies, in the order of their first ids."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return dict(bytes_to_unicode())


def _byte_level(vocabulary: dict[str, int], specials: dict[str, int], eos: str, template: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocabulary | specials, [], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    found = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)
    found.chat_template = template
    return found
