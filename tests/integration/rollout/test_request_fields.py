"""Each field that vLLM reads in a request is applied by the gateway, refused, listed, or declared inert."""

from __future__ import annotations

from typing import Any

import pytest
from client_types import described
from placed_fields import unplaced

from headway_coordinator.gateway import completions, messages, openai, responses

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
PICTURES = {
    f"Body.messages.content.{name} has no place"
    for name in ("audio_url", "image_pil", "image_url", "video_url")
}
"""Parts without a type, which vLLM recognizes by their fields. The gateway requires a type."""
OTHER_BLOCKS = {
    "MessagesBody.messages.content.source has no place",
    "MessagesBody.messages.content.tool has no place",
    "MessagesBody.messages.content.tool_name has no place",
}
"""vLLM has one type for all blocks. These fields belong to blocks that the gateway refuses by their type.

A system prompt has only text blocks.
"""


@pytest.mark.parametrize("request_of", REQUESTS)
def test_every_field_of_vllm_is_applied_refused_listed_or_inert(request_of: str) -> None:
    module, body, table = REQUESTS[request_of]
    types = described(f"{module}:{request_of}")
    root = f"{module}.{request_of}"
    assert len(types[root]) > 5
    other = {fault.replace("MessagesBody", body.__name__) for fault in OTHER_BLOCKS}
    lost = set(unplaced(types, root, body, table)) - PICTURES - other
    assert {fault for fault in lost if ".system." not in fault} == set()
