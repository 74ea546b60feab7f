"""Parses sampled turns with a family's grammar. Lists the grammars of all families."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from headway_coordinator.trajectory import reasoning
from headway_coordinator.trajectory.calls import STRUCTURE, UNREADABLE, Call, Parsed, Tool, malformed
from headway_coordinator.trajectory.elements import Xml
from headway_coordinator.trajectory.grammar import TOOL, Bare, Blocks, FirstOf, Grammar, Inner, Objects
from headway_coordinator.trajectory.notations import (
    ARGS,
    CALL_ID,
    Pairs,
    Tags,
    gemma_call,
    json_calls,
    named_json,
    pythonic,
    skip_json,
    skip_object,
    skip_python,
    skip_quoted,
    without,
)
from headway_coordinator.trajectory.readers import Reader, forced
from headway_coordinator.trajectory.template import decoded
from headway_coordinator.trajectory.unmarked import untagged
from headway_coordinator.trajectory.values import Schemas, schemas

DSML: Final = "｜DSML｜"
GRANITE_TEXT: Final = "<tool_call>"
"""The text with which Granite 3.1 begins its calls. It is not a special token."""


def _stray(*begins: str, whole: Sequence[str] = ()) -> re.Pattern[str]:
    """A pattern for `Blocks.stray`, which finds parts of a call outside of all blocks.

    Args:
        begins: patterns for the beginning of a call without the opening tag of its block.
        whole: tags within a call, or at its end.
    """
    return re.compile("|".join([*begins, f"(?P<whole>{'|'.join(map(re.escape, whole))})"]))


_FUNCTOOLS: Final = re.compile(r"functools\s+")
_JSON_CALLS: Final = json_calls()


def _functools(raw: str, tags: Tags, tools: Schemas) -> list[Call]:
    """Parse Phi-4's calls as JSON, which may follow the word `functools` and white space."""
    word = _FUNCTOOLS.match(raw)
    if word is None:
        return _JSON_CALLS(raw, tags, tools)
    return _JSON_CALLS(raw[word.end() :], (word[0], tags[1]), tools)


def _skip_functools(text: str, begin: int, closing: str) -> int:
    """A `notations.SkipValues` for Phi-4's calls."""
    word = _FUNCTOOLS.match(text, begin)
    first = begin if word is None else word.end()
    end = skip_json(text, first, closing)
    return end if end > first else begin


_CODER = Xml("<function=", "</function>", "<parameter=", "</parameter>", trims=True)
_SEED = Xml("<function=", "</function>", "<parameter=", "</parameter>")
_DSML_CALL = Xml(
    f'<{DSML}invoke name="', f"</{DSML}invoke>", f'<{DSML}parameter name="', f"</{DSML}parameter>"
)
_INVOKE = Xml('<invoke name="', "</invoke>", '<parameter name="', "</parameter>")
_FUNCTION = r"<function=[\w.:-]+>(?=\s*(?:<|\Z))"
_DEEPSEEK = _stray(
    "<｜tool▁call▁begin｜>", whole=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
)
_V3 = Inner("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", named_json(("<｜tool▁sep｜>",), fence=True))
_V3_1 = Inner("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", named_json(("<｜tool▁sep｜>",)))
_KIMI = Inner(
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    named_json(("<|tool_call_argument_begin|>",), prefix="functions.", cut=":"),
)
_PAIRS = Pairs()
_HY3_PAIRS = Pairs(
    "<arg_key:opensource>",
    "</arg_key:opensource>",
    "<arg_value:opensource>",
    "</arg_value:opensource>",
    "<tool_call:opensource>",
    "</tool_call:opensource>",
    "</tool_calls:opensource>",
    "<tool_sep:opensource>",
)
_HY3 = Inner(
    "<tool_call:opensource>", "</tool_call:opensource>", _HY3_PAIRS, _HY3_PAIRS.skip_values, _HY3_PAIRS.ends
)

GRAMMARS: Final[tuple[Grammar, ...]] = (
    Blocks(
        "hermes",
        "<tool_call>",
        "</tool_call>",
        json_calls(),
        skip_values=skip_json,
        stray=_stray(whole=("</tool_call>",)),
        any_tool='<tool_call>\n{"name": "',
        named=f'<tool_call>\n{{"name": "{TOOL}", "arguments":',
    ),
    Blocks(
        "qwen-coder",
        "<tool_call>",
        "</tool_call>",
        _CODER,
        skip_values=_CODER.skip_values,
        ends=_CODER.ends,
        stray=_stray(_FUNCTION, whole=("</tool_call>",)),
        any_tool="<tool_call>\n<function=",
        named=f"<tool_call>\n<function={TOOL}>\n",
        bare=re.compile(r"^<function=[\w.:-]+>", re.MULTILINE),
    ),
    Blocks(
        "glm",
        "<tool_call>",
        "</tool_call>",
        _PAIRS,
        skip_values=_PAIRS.skip_values,
        ends=_PAIRS.ends,
        stray=_stray(whole=("<arg_key>", "</arg_value>", "</tool_call>")),
        any_tool="<tool_call>",
        named=f"<tool_call>{TOOL}\n",
    ),
    Blocks(
        "hy3",
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        _HY3,
        skip_values=_HY3.skip_values,
        ends=_HY3.ends,
        stray=_stray(
            "<tool_call:opensource>",
            whole=("<tool_sep:opensource>", "</tool_call:opensource>", "</tool_calls:opensource>"),
        ),
        any_tool="<tool_calls:opensource>\n<tool_call:opensource>",
        named=f"<tool_calls:opensource>\n<tool_call:opensource>{TOOL}<tool_sep:opensource>\n",
        open_ended=True,
    ),
    Blocks(
        "mistral",
        "[TOOL_CALLS]",
        "",
        json_calls(),
        skip_values=skip_json,
        any_tool='[TOOL_CALLS] [{"name": "',
        named=f'[TOOL_CALLS] [{{"name": "{TOOL}", "arguments":',
        open_ended=True,
    ),
    Blocks(
        "mistral-tekken",
        "[TOOL_CALLS]",
        "",
        named_json((CALL_ID, ARGS, "{")),
        skip_values=skip_object,
        stray=_stray(whole=(CALL_ID, ARGS)),
        any_tool="[TOOL_CALLS]",
        named=f"[TOOL_CALLS]{TOOL}{ARGS}",
        open_ended=True,
    ),
    Blocks(
        "deepseek-v3",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        _V3,
        skip_values=_V3.skip_values,
        stray=_DEEPSEEK,
        any_tool="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        named=f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{TOOL}\n```json\n",
        open_ended=True,
    ),
    Blocks(
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        _V3_1,
        skip_values=_V3_1.skip_values,
        stray=_DEEPSEEK,
        any_tool="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        named=f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{TOOL}<｜tool▁sep｜>",
        open_ended=True,
    ),
    Blocks(
        "deepseek-v3.2",
        f"<{DSML}function_calls>",
        f"</{DSML}function_calls>",
        _DSML_CALL,
        skip_values=_DSML_CALL.skip_values,
        ends=_DSML_CALL.ends,
        stray=_stray(whole=(f"<{DSML}parameter", f"</{DSML}invoke>", f"</{DSML}function_calls>")),
        any_tool=f'<{DSML}function_calls>\n<{DSML}invoke name="',
        named=f'<{DSML}function_calls>\n<{DSML}invoke name="{TOOL}">\n',
        bare=re.compile(f'<{DSML}invoke name="'),
    ),
    Blocks(
        "kimi",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        _KIMI,
        skip_values=_KIMI.skip_values,
        stray=_stray(
            re.escape("<|tool_call_begin|>"),
            whole=("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ),
        any_tool="<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        named=f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{TOOL}:",
        open_ended=True,
    ),
    Blocks(
        "minimax",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        _INVOKE,
        skip_values=_INVOKE.skip_values,
        ends=_INVOKE.ends,
        stray=_stray(
            r'<invoke name="[^"\n]{0,200}(?:\Z|">(?=\s*(?:<|\Z)))',
            whole=("</minimax:tool_call>",),
        ),
        any_tool='<minimax:tool_call>\n<invoke name="',
        named=f'<minimax:tool_call>\n<invoke name="{TOOL}">\n',
    ),
    Blocks(
        "seed-oss",
        "<seed:tool_call>",
        "</seed:tool_call>",
        _SEED,
        skip_values=_SEED.skip_values,
        ends=_SEED.ends,
        stray=_stray(_FUNCTION, whole=("</seed:tool_call>",)),
        any_tool="<seed:tool_call>\n<function=",
        named=f"<seed:tool_call>\n<function={TOOL}>\n",
        bare=re.compile(r"^<function=[\w.:-]+>", re.MULTILINE),
    ),
    Blocks(
        "gemma4",
        "<|tool_call>",
        "<tool_call|>",
        gemma_call,
        skip_values=skip_quoted,
        stray=_stray(whole=("<tool_call|>",)),
        any_tool="<|tool_call>call:",
        named=f"<|tool_call>call:{TOOL}{{",
    ),
    FirstOf(
        "gemma3",
        (
            Blocks(
                "gemma3",
                "```tool_code",
                "```",
                pythonic,
                skip_values=skip_python,
                any_tool="```tool_code\n",
                named=f"```tool_code\n{TOOL}(",
            ),
            Objects("gemma3", any_tool=None, named=None),
        ),
    ),
    Blocks(
        "granite",
        "<|tool_call|>",
        "<|/tool_call|>",
        without(GRANITE_TEXT, json_calls()),
        skip_values=skip_json,
        stray=_stray(whole=("<|/tool_call|>",)),
        any_tool='<|tool_call|>[{"name": "',
        named=f'<|tool_call|>[{{"name": "{TOOL}", "arguments":',
        open_ended=True,
        bare=re.compile(f"^{GRANITE_TEXT}", re.MULTILINE),
        frames=("<response>", "</response>"),
    ),
    Blocks(
        "phi4",
        "functools",
        "",
        _functools,
        skip_values=_skip_functools,
        follows="[",
        bare=re.compile(r"functools\s+\[\s*\{"),
        any_tool='functools[{"name": "',
        named=f'functools[{{"name": "{TOOL}", "arguments":',
        open_ended=True,
    ),
    Blocks(
        "command",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        json_calls("tool_name", ("parameters",)),
        skip_values=skip_json,
        stray=_stray(whole=("<|END_ACTION|>",)),
        frames=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        any_tool='<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "',
        named=f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "{TOOL}", "parameters":',
    ),
    Blocks(
        "nemotron",
        "<TOOLCALL>",
        "</TOOLCALL>",
        json_calls(),
        skip_values=skip_json,
        stray=_stray(whole=("</TOOLCALL>",)),
        any_tool='<TOOLCALL>[{"name": "',
        named=f'<TOOLCALL>[{{"name": "{TOOL}", "arguments":',
    ),
    Blocks(
        "lfm2",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        pythonic,
        skip_values=skip_python,
        stray=_stray(whole=("<|tool_call_end|>",)),
        any_tool="<|tool_call_start|>[",
        named=f"<|tool_call_start|>[{TOOL}(",
    ),
    Objects(
        "llama4",
        any_tool='<|python_start|><|python_end|>{"name": "',
        named=f'<|python_start|><|python_end|>{{"name": "{TOOL}", "parameters":',
    ),
    Bare("pythonic"),
)
"""The grammars of all families, in the order in which they are tried."""
BY_NAME: Final = {grammar.name: grammar for grammar in GRAMMARS}


class Written:
    """Parses sampled tokens with a grammar. Special tokens are decoded as text."""

    def __init__(self, tokenizer: Any, grammar: Grammar, stop_token_ids: Sequence[int]) -> None:
        self.name = grammar.name
        self._tokenizer = tokenizer
        self._grammar = grammar
        self.stop_token_ids = list(stop_token_ids)

    def read(self, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Parsed:
        """Parse a turn. This never raises, whatever was sampled."""
        end = next((i for i, token in enumerate(sampled) if token in self._ends), len(sampled))
        text = self._text(sampled[:end])
        thinking, rest = reasoning.split(text, self._text(prompt[-reasoning.TAIL :]))
        try:
            known = schemas(tools)
            content, calls = self._grammar.read(rest, known)
            content, more = untagged(content, known)
            calls = [*calls, *more]
            if thinking and not rest:
                calls = self._within(thinking, tools)
        except UNREADABLE as error:  # a model may write anything, and that must not end the episode
            content, calls = "", [malformed(rest, error)]
        for frame in getattr(self._grammar, "frames", ()):
            content = content.replace(frame, "")
        return Parsed(_answer(content, calls), thinking, calls)

    def _within(self, thinking: str, tools: Sequence[Tool]) -> list[Call]:
        """Calls at the end of reasoning that has no closing tag, as malformed calls.

        They are not carried out, but they are counted.
        """
        opening, closing = getattr(self._grammar, "opening", ""), getattr(self._grammar, "closing", "")
        if not opening or opening not in thinking:
            return []
        _, calls = self._grammar.read(thinking, schemas(tools))
        last = calls[-1].written if calls else ""
        ends = thinking.endswith(closing) if closing else True
        if not (ends or (last and thinking.endswith(last.rstrip()))):
            return []
        return [
            malformed(one.raw, f"{STRUCTURE}: the call is in reasoning without a closing tag", one.tags)
            for one in calls
        ]

    @property
    def _ends(self) -> set[int]:
        return set(self.stop_token_ids)

    def force(self, tool: str | None) -> list[int] | None:
        """Token ids for the beginning of a turn that calls `tool`, or any tool.

        None if it is unknown how this family begins a call.
        """
        begun = self._grammar.any_tool if tool is None else self._grammar.named
        if begun is None:
            return None
        return list(self._tokenizer.encode(begun.replace(TOOL, tool or ""), add_special_tokens=False))

    def _text(self, ids: Sequence[int]) -> str:
        return decoded(self._tokenizer, list(ids))


def call_start(tokenizer: Any, reader: Reader, style: str | None, tool: str | None) -> list[int] | None:
    """Token ids for the beginning of a call of `tool`, or of any tool, in the form that `reader` parses.

    None if it is unknown how this family begins a call.
    """
    return reader.force(tool) if isinstance(reader, Written) else forced(tokenizer, style, tool)


def _answer(content: str, calls: Sequence[Call]) -> str:
    """The text of a turn without blank first lines. If there are calls, all outer white space is removed."""
    return content.strip() if calls else content.lstrip("\n") if content.startswith("\n") else content
