"""Chooses the renderer of a model: it converts messages to token ids, and sampled ids back to a message.

There are two kinds of renderers with one interface. A *typed* renderer (PyPI `renderers`) has a model
family's template built in. It is only used if it agrees with the model's own chat template on a set of test
conversations. Otherwise the model's chat template itself is rendered, and a turn is extended by the text that
the template adds. Both kinds parse turns in the model's own style of tool calls (`readers.py`).

`extend` never tokenizes sampled text again: the ids that it returns begin with exactly the given ids. If that
is impossible, it returns None. The caller then renders the whole conversation, and the episode forks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway_api import logs
from headway_api.base_model import read_config
from headway_api.bounds import OutOfBoundsError, shortened
from headway_api.chat_template import TODAY
from headway_api.exits import JobError
from headway_coordinator.trajectory import reasoning
from headway_coordinator.trajectory.calls import Message, Parsed, Tool
from headway_coordinator.trajectory.choosing import best, candidate_renderers
from headway_coordinator.trajectory.encoder import Encoder
from headway_coordinator.trajectory.harmony import USUAL_EFFORT, HarmonyRenderer
from headway_coordinator.trajectory.lengths import Bounded
from headway_coordinator.trajectory.proof import prove
from headway_coordinator.trajectory.readers import (
    GPT_OSS,
    HERMES,
    LLAMA,
    TOKENS,
    Harmony,
    Llama,
    Reader,
    Tagged,
    end_of_last,
    kept,
    token_id,
)
from headway_coordinator.trajectory.renderer import Renderer as Renderer
from headway_coordinator.trajectory.template import PLAIN, decoded, template_text
from headway_coordinator.trajectory.templated import Template as Template
from headway_coordinator.trajectory.templated import variables
from headway_coordinator.trajectory.written import BY_NAME, GRAMMARS, Written, call_start

_log = logging.getLogger(__name__)

FAMILIES: dict[str, tuple[str, ...]] = {
    "qwen2": ("qwen3",),
    "qwen3": ("qwen3",),
    "qwen3_moe": ("qwen3",),
    "qwen3_5": ("qwen3.5", "qwen3.6"),
    "qwen3_5_moe": ("qwen3.5", "qwen3.6"),
    "llama": (LLAMA,),
    "glm4_moe": ("glm-4.5",),
    "gpt_oss": (GPT_OSS,),
    "deepseek_v3": ("deepseek-v3", "deepseek-r1", "kimi-k2"),
    "minimax_m2": ("minimax-m2",),
}
"""`model_type` -> renderers that may fit. The first one that agrees with the chat template is used."""

STYLES = {"hermes": HERMES, "llama": LLAMA, "harmony": GPT_OSS}
"""Value of `toolCallParser` -> its style. Other values are names of grammars."""

PROBE_TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a thing up.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": "Name of the thing"}},
                "required": ["key"],
            },
        },
    }
]
PROBES: list[list[Message]] = [
    [{"role": "user", "content": "What is 2 + 2?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look up brave-otter.\nThen stop."},
    ],
]
_PROBE_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c0", "type": "function", "function": {"name": "look_up", "arguments": {"key": "brave-otter"}}}
    ],
}
_REASONING = "It is twice 2."
_PROBE_REASONING: list[Message] = [
    {"role": "assistant", "content": "4", "reasoning_content": _REASONING},
    {"role": "user", "content": "And 3 + 3?"},
]
"""Messages that show whether a template keeps or drops the reasoning of earlier turns."""
_PROBE_RESULT: Message = {
    "role": "tool",
    "tool_call_id": "c0",
    "name": "look_up",
    "content": '{"tier": "gold"}',
}


class Typed(Bounded):
    """Wraps two renderers of the `renderers` package. To bridge is the package's word for `extend`.

    `inner` does not bridge at a user's message if the family's template may drop earlier reasoning there.
    `keeping` bridges there too, which is correct if there was no reasoning.
    """

    def __init__(self, name: str, tokenizer: Any, inner: Any, keeping: Any, reader: Reader) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._inner = inner
        self._keeping = keeping
        self._reader = reader
        self.stop_token_ids = list(inner.get_stop_token_ids())
        closed = inner.render_ids(PROBES[0])
        self._opening = list(inner.render_ids(PROBES[0], add_generation_prompt=True)[len(closed) :])

    def reading(self, reader: Reader) -> Typed:
        """This renderer with another reader, which parses its turns."""
        return Typed(self.name, self._tokenizer, self._inner, self._keeping, reader)

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        ids = self._inner.render_ids(
            list(messages), tools=list(tools) or None, add_generation_prompt=generate
        )
        return decoded(self._tokenizer, list(ids))

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return list(
            self._inner.render_ids(list(messages), tools=list(tools) or None, add_generation_prompt=True)
        )

    def extend(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        bridged = self._bridged(self._inner, prompt, sampled, new, tools)
        if bridged is not None:
            return bridged
        bridged = self._bridged(self._keeping, prompt, sampled, new, tools)
        if bridged is None or not reasoning.texts(history):
            return bridged
        text = decoded(self._tokenizer, bridged)
        fresh = decoded(self._tokenizer, self.render([*history, *new], tools))
        return None if text != fresh and reasoning.dropped(text, fresh, history) else bridged

    def _bridged(
        self,
        renderer: Any,
        prompt: Sequence[int],
        sampled: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        tokens = [*prompt, *sampled]
        turn = end_of_last(self._opening, prompt)
        bridged = renderer.bridge_to_next_turn(
            tokens[:turn], tokens[turn:], list(new), tools=list(tools) or None
        )
        return None if bridged is None else kept(tokens, list(bridged.token_ids))

    def parse(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        return self._reader.read(sampled, prompt, tools)

    def force(self, tool: str | None) -> list[int] | None:
        found = call_start(self._tokenizer, self._reader, self.name, tool)
        return None if found is None else [*self.without_reasoning(), *found]

    def thinking(self, effort: str) -> Renderer | None:
        found = variables(self._tokenizer, effort)
        if not found:
            return None if found is None else self
        return Template(self._tokenizer, self.name, self._reader, PLAIN, found)


def load(folder: Path, tool_call_parser: str = "auto") -> tuple[Renderer, Any]:
    """The renderer and the tokenizer of the model in `folder`.

    Raises:
        JobError: `TokenizerUnusable`, `ChatTemplateMissing` or `ToolCallParserUnusable`. The message says
            what is missing.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever transformers raises, the fix is the same
        raise JobError(
            "TokenizerUnusable",
            f"the tokenizer of the base model cannot be loaded: {error}; add tokenizer.json and "
            "tokenizer_config.json beside the weights",
            field="spec.model.base",
        ) from error
    if not tokenizer.chat_template:
        raise JobError(
            "ChatTemplateMissing",
            "the base model has no chat template; add chat_template.jinja beside its tokenizer, or use an "
            "instruction-tuned model",
            field="spec.model.base",
        )
    return choose(tokenizer, model_type(folder), tool_call_parser), tokenizer


def model_type(folder: Path) -> str:
    """`model_type` in the model's config.json; empty if the file or the field is missing.

    Raises:
        JobError: `ModelNotLoadable`: the file cannot be read as a configuration.
    """
    path = folder / "config.json"
    try:
        return str(read_config(path).get("model_type", "")) if path.exists() else ""
    except OutOfBoundsError as error:
        message = (
            f"{path.name} of the base model cannot be read ({error}); name a folder in Hugging Face layout"
        )
        raise JobError("ModelNotLoadable", message, field="spec.model.base") from error


def choose(tokenizer: Any, family: str, tool_call_parser: str = "auto") -> Renderer:
    """The family's typed renderer if it agrees with the model's chat template, else the template itself.

    A `tool_call_parser` other than `auto` decides how calls are parsed: renderers with another parser are
    skipped. With `auto`, the parser with the best proof is used (`prove`).

    Raises:
        JobError: `ToolCallParserUnusable`: the parser is `hermes`, and the tokenizer lacks <tool_call>.
    """
    found = _chosen(tokenizer, family, tool_call_parser)
    found.family = family
    return found


def _chosen(tokenizer: Any, family: str, tool_call_parser: str) -> Renderer:
    wish = STYLES.get(tool_call_parser)
    if wish == HERMES and not _has(tokenizer, wish):
        raise JobError(
            "ToolCallParserUnusable",
            "hermes finds a call by the token <tool_call>, which the base model's tokenizer lacks; use auto, "
            "or a model that was trained with it",
            field="spec.agent.builtin.toolCallParser",
        )
    if wish is None and (grammar := BY_NAME.get(tool_call_parser)) is not None:
        return best(tokenizer, candidate_renderers(tokenizer, [grammar], named_by_user=True), None)
    for name in FAMILIES.get(family, ()):
        if wish not in (None, name):
            continue
        try:
            found = typed(name, tokenizer)
            if agrees(found, tokenizer):
                return _proved(found, tokenizer, wish)
        except Exception as error:
            # The tokenizer lacks the family's special tokens, or its template rejects the test conversations
            # with some error. This renderer is skipped, and the model's template is used in the end.
            message = shortened(f"{type(error).__name__}: {error}", 300)
            logs.event(_log, "renderer-skipped", renderer=name, error=message)
    style = wish or next((style for style in TOKENS if _has(tokenizer, style)), None)
    usual = Template(tokenizer, style, _reader(style, tokenizer))
    return best(tokenizer, () if wish else candidate_renderers(tokenizer, GRAMMARS), usual, style or "")


def _proved(found: Renderer, tokenizer: Any, wish: str | None) -> Renderer:
    """A family's typed renderer with its proof. A grammar of Headway parses its calls if that proves as much.

    The package's own parsers search from each opening tag to the end of the text. For 56 kB of
    `<parameter=a>`, the parser of Qwen 3.5 takes seven seconds, during which every episode waits. The parsers
    of Hermes and Llama do not have this problem.
    """
    found.proof = prove(found, tokenizer, found.name)
    if wish is not None or not isinstance(found, Typed) or found.name in (HERMES, LLAMA):
        return found
    written = [(found.reading(Written(tokenizer, one, found.stop_token_ids)), one.name) for one in GRAMMARS]
    read = best(tokenizer, written, None)
    return read if read.proof is not None and read.proof.score >= max(found.proof.score, 1) else found


def typed(name: str, tokenizer: Any) -> Renderer:
    """The typed renderer with this name in the `renderers` package."""
    from renderers import GptOssRendererConfig, config_from_name, create_renderer

    if name == GPT_OSS:

        def harmony(effort: Any) -> HarmonyRenderer:
            inner, keeping = (
                create_renderer(
                    tokenizer,
                    GptOssRendererConfig(
                        conversation_start_date=f"{TODAY:%Y-%m-%d}",
                        thinking_retention=kept,
                        reasoning_effort=effort,
                    ),
                )
                for kept in (None, "all")
            )
            return HarmonyRenderer(tokenizer, inner, keeping, Harmony(tokenizer), harmony)

        return harmony(USUAL_EFFORT)
    config = config_from_name(name)
    encoder: Any = Encoder(tokenizer)
    inner = create_renderer(encoder, config)
    keeping = create_renderer(encoder, type(config)(thinking_retention="all"))
    reader: Reader = Llama(tokenizer) if name == LLAMA else Tagged(name, tokenizer, inner)
    if name == HERMES:
        reader = Written(tokenizer, BY_NAME["hermes"], reader.stop_token_ids)
    return Typed(name, tokenizer, inner, keeping, reader)


def _reader(style: str | None, tokenizer: Any) -> Reader:
    """The reader of a style, for a model that is rendered by its own template. None: it finds no calls."""
    from renderers import DefaultRendererConfig, create_renderer

    if style == LLAMA:
        return Llama(tokenizer)
    if style == GPT_OSS:
        return Harmony(tokenizer)
    inner = create_renderer(tokenizer, DefaultRendererConfig(tool_parser=style))
    reader = Tagged(style or "", tokenizer, inner)
    return Written(tokenizer, BY_NAME["hermes"], reader.stop_token_ids) if style == HERMES else reader


def _has(tokenizer: Any, style: str) -> bool:
    return all(token_id(tokenizer, token) is not None for token in TOKENS[style])


def agrees(typed: Renderer, tokenizer: Any) -> bool:
    """Whether a typed renderer agrees with the model's own template on prompts, tools and earlier reasoning.

    Texts are compared instead of token ids. A renderer encodes a turn piece by piece, and a tokenizer that
    merges across two pieces gives other ids for the same text. For Harmony, only a first prompt is compared:
    in turns with tools, the encoder is the reference and the chat template only an approximation.
    """
    if isinstance(typed, HarmonyRenderer):
        return decoded(tokenizer, typed.render(PROBES[0], [])) == template_text(
            tokenizer, PROBES[0], [], generate=True
        )
    for probe in PROBES:
        for tools in ([], PROBE_TOOLS):
            turn = [_PROBE_CALL, _PROBE_RESULT] if tools else _PROBE_REASONING
            for messages in (probe, [*probe, *turn]):
                text = template_text(tokenizer, messages, tools, generate=True)
                if decoded(tokenizer, typed.render(messages, tools)) != text:
                    return False
    # A typed renderer may keep reasoning between calls although the template drops it. Only the presence of
    # reasoning is compared here, because the layout may differ.
    thinking = [*PROBES[0], {**_PROBE_CALL, "reasoning_content": _REASONING}, _PROBE_RESULT]
    by_renderer = decoded(tokenizer, typed.render(thinking, PROBE_TOOLS))
    by_template = template_text(tokenizer, thinking, PROBE_TOOLS, generate=True)
    return (_REASONING in by_renderer) == (_REASONING in by_template)
