"""Each field that vLLM reads in a request is applied by the gateway, refused, listed, or declared inert."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from headway_coordinator.gateway import completions, messages, openai, responses
from headway_coordinator.gateway.unapplied import INERT, LISTED

OPENAI = "vllm.entrypoints.openai"
ANTHROPIC = "vllm.entrypoints.anthropic.protocol"
REQUESTS: dict[str, tuple[str, Any, Any]] = {
    "ChatCompletionRequest": (f"{OPENAI}.chat_completion.protocol", openai.Body, openai.WITHOUT_EFFECT),
    "CompletionRequest": (
        f"{OPENAI}.completion.protocol",
        completions.CompletionBody,
        completions.WITHOUT_EFFECT,
    ),
    "ResponsesRequest": (
        f"{OPENAI}.responses.protocol",
        responses.ResponsesBody,
        responses.WITHOUT_EFFECT,
    ),
    "AnthropicMessagesRequest": (ANTHROPIC, messages.MessagesBody, messages.WITHOUT_EFFECT),
    "AnthropicCountTokensRequest": (ANTHROPIC, messages.CountBody, messages.WITHOUT_EFFECT),
}


@pytest.mark.parametrize("request_of", REQUESTS)
def test_every_field_of_vllm_is_applied_refused_listed_or_inert(request_of: str) -> None:
    module, body, table = REQUESTS[request_of]
    known = {*body.model_fields, *table, *LISTED, *INERT}
    fields = set(getattr(importlib.import_module(module), request_of).model_fields)
    assert len(fields) > 5
    assert fields - known == set()
