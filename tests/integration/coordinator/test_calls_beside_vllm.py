"""Tool calls in a model family's notation are read as vLLM's parser of that family reads them.

vLLM's parsers of the other families do not load here: they import mistral_common, which this environment
lacks.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from model_families import FAMILIES, spoken

from headway_coordinator.trajectory.probe import (
    ASKED,
    EVERY,
    KEY,
    RESULT,
    SIMPLE,
    SPECIAL_CHARACTERS,
    VALUES,
    call,
    calling,
)
from headway_coordinator.trajectory.proof import Probe
from headway_coordinator.trajectory.render import choose
from headway_coordinator.trajectory.template import decoded

PARSERS = {
    "Hermes": "hermes",
    "Llama 3 JSON": "llama3_json",
    "Llama pythonic": "llama4_pythonic",
    "DeepSeek V3": "deepseek_v3",
    "DeepSeek V3.1": "deepseek_v31",
    "Phi-4": "phi4_mini_json",
    "LFM2": "lfm2",
}
TWO = calling(call(KEY), call({"key": "calm-heron"}, "count_up", 1))


@pytest.mark.parametrize("name", PARSERS)
def test_calls_are_read_as_vllm_reads_them(name: str) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    family = next(family for family in FAMILIES if family.name == name)
    tok: Any = spoken(family)
    reader = choose(tok, family.model_type)
    ends = [decoded(tok, [token]) for token in reader.stop_token_ids]
    turns = [(calling(call(KEY)), SIMPLE)]
    if name != "Phi-4":  # vLLM's parser ends at the first bracket, even inside a value
        turns += [(calling(call(VALUES)), EVERY), (calling(call(SPECIAL_CHARACTERS)), SIMPLE)]
    if name != "Llama 3 JSON":  # this notation has one call a turn
        turns.append((TWO, SIMPLE))
    for output, tools in turns:
        turn = Probe(reader, tok).turn(ASKED, output, tools, RESULT)
        assert turn is not None
        text = decoded(tok, turn.sampled)
        for end in ends:
            text = text.replace(end, "")
        request = ChatCompletionRequest(model="m", messages=ASKED, tools=tools)
        parser = ToolParserManager.get_tool_parser(PARSERS[name])(tok, request.tools)
        theirs = parser.extract_tool_calls(text, request).tool_calls
        assert [(one.name, one.arguments) for one in turn.read.calls] == [
            (one.function.name, json.loads(one.function.arguments)) for one in theirs
        ]
