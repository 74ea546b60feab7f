"""The types of requests in the clients that `make test-clients` runs, each in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from guests import guest
from placed_fields import unplaced

from headway_coordinator.gateway import completions, openai, responses

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SUPPORT = Path(__file__).parents[2] / "support"
STORED: dict[str, Any] = json.loads((SUPPORT / "anthropic_types.json").read_text())
REQUESTS: dict[str, tuple[Any, Any]] = {
    "chat.completion_create_params": (openai.Body, openai.WITHOUT_EFFECT),
    "completion_create_params": (completions.CompletionBody, completions.WITHOUT_EFFECT),
    "responses.response_create_params": (responses.ResponsesBody, responses.WITHOUT_EFFECT),
}
NAMES = {
    "chat.completion_create_params": "CompletionCreateParamsNonStreaming",
    "completion_create_params": "CompletionCreateParamsNonStreaming",
    "responses.response_create_params": "ResponseCreateParamsNonStreaming",
}
KINDS = (
    *("system", "developer", "user", "assistant", "tool", "function", "allowed_tools"),
    *("text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal"),
    *("message", "reasoning", "function_call", "function_call_output", "json_object", "json_schema"),
)
"""Kinds of message objects that the gateway reads."""


def types_of(name: str, *arguments: str) -> Any:
    command = [guest(name), SUPPORT / "client_types.py", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["types"]


def test_the_stored_types_equal_those_of_anthropics_client() -> None:
    kinds, requests = ",".join(STORED["kinds"]), ",".join(STORED["requests"])
    assert types_of("anthropic", kinds, requests) == STORED["types"], "see tests/support/client_types.py"


@pytest.mark.parametrize("module", REQUESTS)
def test_each_field_of_the_newest_openai_client_has_a_place(module: str) -> None:
    body, table = REQUESTS[module]
    types = types_of("openai", ",".join(KINDS), f"openai.types.{module}:{NAMES[module]}")
    assert unplaced(types, f"{module}.{NAMES[module]}", body, table) == []
