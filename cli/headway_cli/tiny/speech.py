"""Makes a tiny model's tokenizer and chat template, and turns episodes into tokens.

Turns have Qwen3's format, with tool calls as JSON between <tool_call> tags. The renderer of a job
(`renderers`) encodes them piece by piece. So the tokens in teaching are the same as in a rollout.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from headway_api.document import JsonView
from headway_cli.tiny.mistakes import WORD, Actions, WordPlace, words_of

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
                  "<tool_response>", "</tool_response>", "<think>", "</think>")  # fmt: skip
PAD, END = "<|endoftext|>", "<|im_end|>"
VOCABULARY: Final = 4096
"""Maximum tokens of the tokenizer's vocabulary."""
CONSTANTS: Final = 400
"""Maximum constant texts that the pre-tokenization keeps whole."""
LONGEST_CONSTANT: Final = 400
"""Maximum characters of a constant text; a longer text is split."""
KEPT: Final = 4096
"""Maximum texts whose tokens are cached."""
OFTEN: Final = 0.3
"""Minimum share of episodes that contain a text, so that it counts as constant."""
BETWEEN: Final = re.compile("|".join(map(re.escape, SPECIAL)))
PIECES: Final = r"[^\W\d]+|\d|\s+|[^\w\s]+"
"""Pre-tokenization of other text. Words and runs of punctuation stay together. Each digit is separate, so
that the model can write a number that it has never seen."""

CHAT_TEMPLATE: Final = r"""
{%- macro text(content) %}
{%- if content is string %}{{ content }}
{%- else %}{% for part in content or [] %}{{ part.text }}{% endfor %}{% endif %}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- text(messages[0].content) + '\n\n' }}{% endif %}
{{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{% endfor %}
{{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments ' }}
{{- 'within <tool_call></tool_call> XML tags:\n<tool_call>\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + text(messages[0].content) + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + text(message.content) + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' + text(message.content) }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '' if loop.previtem and loop.previtem.role == 'tool' else '<|im_start|>user' }}
{{- '\n<tool_response>\n' + text(message.content) + '\n</tool_response>' }}
{{- '' if not loop.last and loop.nextitem.role == 'tool' else '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""


@dataclass(frozen=True)
class Conversation:
    """An episode as the model sees it: the first messages, the agent's actions, and the tools' answers."""

    messages: Sequence[JsonView]
    tools: Sequence[JsonView]
    actions: Actions
    results: Sequence[str]
    """The tool's answer to each call."""


@dataclass(frozen=True)
class TokenizedEpisode:
    """An episode as tokens."""

    tokens: list[int]
    mask: list[int]
    """For each token 1 if the assistant says it, else 0."""
    longest_turn: int
    """Tokens of the assistant's longest turn."""


@dataclass(frozen=True)
class Pieces:
    """The texts of an episode that are encoded."""

    prompt: tuple[str, ...]
    turns: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """The pieces of prompt and turns."""
        return self.prompt + self.turns


class Recorder:
    """Replaces a tokenizer, to record which texts the renderer encodes as one piece."""

    unk_token_id = None

    def __init__(self) -> None:
        self.texts: list[str] = []

    def convert_tokens_to_ids(self, token: str) -> int:
        """Id of a special token."""
        return SPECIAL.index(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Record the text. Return one token that is not special."""
        self.texts.append(text)
        return [len(SPECIAL)]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return an empty text: nothing is decoded."""
        return ""


class Encoder:
    """A tokenizer for the renderer, with a cache: a repeated text, such as the tools, is encoded once."""

    def __init__(self, tokenizer: Any) -> None:
        self.unk_token_id = tokenizer.unk_token_id
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids
        self.decode = tokenizer.decode
        self._encoded = lru_cache(KEPT)(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text. Special tokens are never added."""
        return list(self._encoded(text))


def renderer_for(tokenizer: Any) -> Any:
    """The renderer that a job uses for this model: `qwen3`, which neither prefills nor strips thinking."""
    from renderers import Qwen3RendererConfig, create_renderer

    return create_renderer(tokenizer, Qwen3RendererConfig())


def shown(conversation: Conversation, renderer: Any) -> TokenizedEpisode:
    """An episode as tokens, made as in a rollout: tokens that the model has said are never encoded again."""
    tools = [dict(tool) for tool in conversation.tools]
    tokens = list(
        renderer.render_ids(list(conversation.messages), tools=tools or None, add_generation_prompt=True)
    )
    mask, longest = [0] * len(tokens), 0

    def say(message: JsonView) -> list[int]:
        nonlocal longest
        sampled = completion(renderer, message)
        tokens.extend(sampled)
        mask.extend([1] * len(sampled))
        longest = max(longest, len(sampled))
        return sampled

    for call, content in zip(conversation.actions.calls, conversation.results, strict=True):
        prompt = list(tokens)
        function = {"name": call.name, "arguments": dict(call.arguments)}
        asked = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }
        sampled = say(asked)
        tokens[:] = answered(renderer, prompt, sampled, call.name, content, tools)
        mask.extend([0] * (len(tokens) - len(mask)))
    if conversation.actions.answer is not None:
        say({"role": "assistant", "content": conversation.actions.answer})
    return TokenizedEpisode(tokens, mask, longest)


def answered(
    renderer: Any,
    prompt: Sequence[int],
    sampled: Sequence[int],
    name: str,
    content: str,
    tools: Sequence[JsonView],
) -> list[int]:
    """All tokens up to the next turn: `prompt`, `sampled`, a tool's answer, and a generation prompt."""
    answer = {"role": "tool", "name": name, "content": content}
    bridged = renderer.bridge_to_next_turn(list(prompt), list(sampled), [answer], tools=list(tools) or None)
    return list(bridged.token_ids)


def completion(renderer: Any, message: JsonView) -> list[int]:
    """The tokens that a model would sample to say `message`, including the end-of-turn token.

    The message is rendered with a user turn after it. Otherwise the renderer would add an empty thinking
    block to the message.
    """
    opener = [{"role": "user", "content": ""}]
    head = renderer.render_ids(opener, add_generation_prompt=True)[len(renderer.render_ids(opener)) :]
    rendered = renderer.render([*opener, dict(message), *opener])
    tokens = [
        token for token, index in zip(rendered.token_ids, rendered.message_indices, strict=True) if index == 1
    ]
    return tokens[len(head) : -1]


def pieces_of(conversation: Conversation) -> Pieces:
    """The texts of one episode that the renderer encodes, split at special tokens as the tokenizer does."""
    recorder = Recorder()
    renderer = renderer_for(recorder)
    renderer.render_ids(
        list(conversation.messages), tools=list(conversation.tools) or None, add_generation_prompt=True
    )
    begin = len(recorder.texts)
    shown(conversation, renderer)
    return Pieces(_split(recorder.texts[:begin]), _split(recorder.texts[2 * begin :]))


def _split(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for text in texts for part in BETWEEN.split(text) if part)


def constants(episodes: Sequence[Pieces]) -> list[str]:
    """Texts that many episodes share, the longest first: the parts between words that differ.

    A word of prompts differs if one episode has it more often than another. For turns that does not work,
    because episodes have turns of several kinds. A word of turns differs if turns that are otherwise equal
    have another word there.
    """
    counts = [Counter(WORD.findall(" ".join(each.prompt))) for each in episodes]
    differing = {word for word in set().union(*counts) if len({count[word] for count in counts}) > 1}
    differing |= _values([text for each in episodes for text in each.turns])
    found: Counter[str] = Counter()
    for each in episodes:
        found.update({run for text in each.all for run in _runs(text, differing)})
    often = [run for run, count in found.items() if count >= OFTEN * len(episodes)]
    return sorted(often, key=lambda run: (-len(run), run))[:CONSTANTS]


def _values(texts: Sequence[str]) -> set[str]:
    """Words in which otherwise equal texts differ."""
    found: dict[WordPlace, set[str]] = {}
    for text in texts:
        for place, word in words_of("", text):
            found.setdefault(place, set()).add(word)
    return set().union(*(words for words in found.values() if len(words) > 1))


def _runs(text: str, differing: set[str]) -> list[str]:
    """The parts of a text between the words in which texts differ."""
    runs, begin = [], 0
    for word in WORD.finditer(text):
        if word.group() in differing:
            runs.append(text[begin : word.start()])
            begin = word.end()
    runs.append(text[begin:])
    size = LONGEST_CONSTANT
    return [run[at : at + size] for run in runs for at in range(0, len(run), size) if len(run) > 1]


def pattern(kept: Sequence[str]) -> str:
    """Regular expression for the pieces that the tokenizer keeps together: constant texts, then `PIECES`."""
    return "|".join([*(_bounded(text) for text in kept), PIECES])


def _bounded(text: str) -> str:
    """A regular expression that matches `text` only if it does not begin or end within a word."""
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", text) else ""
    return f"{before}{re.escape(text)}{after}"


def tokenizer_of(episodes: Sequence[Pieces], context: int) -> Any:
    """Train a byte-level BPE tokenizer that encodes constant text in few tokens, and a frequent word in one.

    Args:
        episodes: the texts to train on.
        context: maximum tokens of the model.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern(constants(episodes))), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=max(2, len(episodes) // 100),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for each in episodes for text in each.all), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        chat_template=CHAT_TEMPLATE,
    )
