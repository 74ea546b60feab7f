"""Each field that the official clients send is applied, refused, listed, or declared inert, at every depth.

OpenAI's types are those of the installed package. Anthropic's are in `anthropic_types.json`, which
`tests/integration/coordinator/test_client_types.py` compares with the package. SGLang's are written here.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from client_types import Types, described, kinds, leaves
from placed_fields import unplaced

from headway_coordinator.gateway import completions, messages, openai, responses
from headway_coordinator.gateway.blocks import Block
from headway_coordinator.gateway.unapplied import INERT, LISTED

ROOT = Path(__file__).parents[3]
STORED: dict[str, Any] = json.loads((ROOT / "tests/support/anthropic_types.json").read_text())
BODIES: dict[str, tuple[Any, Any]] = {
    "chat": (openai.Body, openai.WITHOUT_EFFECT),
    "completions": (completions.CompletionBody, completions.WITHOUT_EFFECT),
    "responses": (responses.ResponsesBody, responses.WITHOUT_EFFECT),
    "messages": (messages.MessagesBody, messages.WITHOUT_EFFECT),
    "count": (messages.CountBody, messages.WITHOUT_EFFECT),
}
OPENAI: dict[str, str] = {
    "chat": "openai.types.chat.completion_create_params:CompletionCreateParams",
    "completions": "openai.types.completion_create_params:CompletionCreateParams",
    "responses": "openai.types.responses.response_create_params:ResponseCreateParams",
}


def named(root: str) -> str:
    return root.rpartition("types.")[2].replace(":", ".")


@pytest.mark.parametrize("protocol", OPENAI)
@pytest.mark.parametrize("kind", ["NonStreaming", "Streaming"])
def test_each_field_of_openais_client_is_dealt_with(protocol: str, kind: str) -> None:
    root = OPENAI[protocol] + kind
    types = described(root)
    assert len(types[named(root)]) > 15
    assert unplaced(types, named(root), *BODIES[protocol]) == []


@pytest.mark.parametrize("root", STORED["requests"])
def test_each_field_of_anthropics_client_is_dealt_with(root: str) -> None:
    protocol = "count" if "count_tokens" in root else "messages"
    assert unplaced(STORED["types"], named(root), *BODIES[protocol]) == []


def test_the_stored_types_are_those_of_the_tested_client() -> None:
    pins = (ROOT / "requirements/guests/anthropic.txt").read_text()
    [version] = re.findall(r"^anthropic==(\S+)", pins, re.MULTILINE)
    assert STORED["source"].startswith(f"anthropic {version}, "), "see tests/support/client_types.py"


def parts(body: Any) -> set[Any]:
    """All types of objects that the gateway reads in a request."""
    found: set[Any] = set()
    to_do = [body]
    while to_do:
        for field in to_do.pop().model_fields.values():
            new = {leaf for leaf in leaves(field.annotation) if not isinstance(leaf, str)} - found
            found |= new
            to_do += new
    return found


def test_the_stored_types_include_every_object_that_is_read() -> None:
    read = set().union(*map(kinds, parts(messages.MessagesBody)))
    assert read <= set(STORED["kinds"])


@pytest.mark.parametrize("protocol", BODIES)
def test_each_field_is_dealt_with_in_one_way_only(protocol: str) -> None:
    body, table = BODIES[protocol]
    places = [set(table), set(LISTED), set(INERT)]
    assert sum(map(len, places)) == len(set().union(*places))
    assert not set(table) & body.model_fields.keys()
    for part in (one for one in parts(body) if issubclass(one, Block)):
        unread = part.UNREAD
        places = [set(unread.refused), set(unread.listed), set(unread.inert)]
        assert sum(map(len, places)) == len(set().union(*places)), part
        assert not set(unread.inert) & part.model_fields.keys(), part
        assert unread.why.keys() <= unread.refused.keys(), part


def test_a_forgotten_field_would_be_found() -> None:
    root = named(OPENAI["chat"] + "NonStreaming")
    types = copy.deepcopy(described(OPENAI["chat"] + "NonStreaming"))
    types[root]["novelty"] = {}
    types[root]["reasoning_effort"]["words"].append("utmost")
    part = "chat.chat_completion_content_part_text_param.ChatCompletionContentPartTextParam"
    types[part]["tone"] = {}
    types["chat.chat_completion_message_function_tool_call_param.Function"]["strict"] = {}
    assert unplaced(types, root, *BODIES["chat"]) == [
        "Body.messages.content.tone has no place",
        "Body.messages.tool_calls.function.strict has no place",
        "Body.novelty has no place",
        "Body.reasoning_effort: 'utmost'",
    ]


def written(**fields: Any) -> dict[str, Any]:
    """A type with these fields; each value says what the field may hold."""
    return {name: about if isinstance(about, dict) else {} for name, about in fields.items()}


def each(names: str) -> dict[str, Any]:
    """A type with these fields, each of which may hold anything."""
    return {name: {} for name in names.split()}


def only(*words: str) -> dict[str, list[str]]:
    return {"words": list(words)}


SGLANG: Types = {
    # python/sglang/srt/entrypoints/openai/protocol.py of commit 004c82e07d87, read on 2026-11-30.
    "Chat": each(
        """frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
        seed stop stream presence_penalty response_format temperature top_p user
        parallel_tool_calls return_hidden_states model return_routed_experts
        routed_experts_start_len return_cached_tokens_details return_prompt_token_ids
        return_token_ids return_meta_info task top_k min_p min_tokens regex ebnf
        repetition_penalty extra_key stop_token_ids stop_regex no_stop_trim ignore_eos
        continue_final_message skip_special_tokens lora_path session_id session_params
        separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch
        min_dynamic_patch use_audio_in_video images_config custom_logit_processor custom_params
        input_ids rid cache_salt ngram_corpus_id priority bootstrap_host bootstrap_port
        bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank reasoning"""
    )
    | written(
        reasoning_effort=only("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        messages={"parts": ["Message"]},
        tools={"parts": ["Tool"]},
        tool_choice={"words": ["auto", "required", "none"], "parts": ["ToolChoice"]},
        stream_options={"parts": ["StreamOptions"]},
    ),
    "Message": written(
        role=only("system", "assistant", "tool", "developer", "user"),
        content={"parts": ["Text", "Thinking"]},
        tool_calls={"parts": ["ToolCall"]},
        **dict.fromkeys(("tool_call_id", "name", "reasoning_content", "tools")),
    ),
    "Text": written(type=only("text"), text=None),
    "Thinking": written(type=only("thinking", "reasoning"), thinking=None, text=None),
    "ToolCall": written(id=None, index=None, type=only("function"), function={"parts": ["Called"]}),
    "Called": written(name=None, arguments=None),
    "Tool": written(type=None, function={"parts": ["Function"]}, defer_loading=None),
    "Function": written(**dict.fromkeys(("description", "name", "parameters", "strict", "defer_loading"))),
    "ToolChoice": written(type=only("function"), function={"parts": ["Named"]}),
    "Named": written(name=None),
    "StreamOptions": written(include_usage=None, continuous_usage_stats=None),
    "Completion": each(
        """model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n
        presence_penalty seed stop stream suffix temperature top_p user return_hidden_states
        return_routed_experts routed_experts_start_len return_cached_tokens_details
        return_token_ids top_k min_p min_tokens json_schema regex ebnf repetition_penalty
        stop_token_ids stop_regex no_stop_trim ignore_eos skip_special_tokens lora_path
        session_id session_params response_format custom_params custom_logit_processor
        images_config bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
        disagg_prefill_dp_rank data_parallel_rank rid extra_key cache_salt ngram_corpus_id
        priority custom_labels"""
    )
    | written(stream_options={"parts": ["StreamOptions"]}),
}


@pytest.mark.parametrize(("request_of", "protocol"), [("Chat", "chat"), ("Completion", "completions")])
def test_each_field_of_sglang_is_dealt_with(request_of: str, protocol: str) -> None:
    assert unplaced(SGLANG, request_of, *BODIES[protocol]) == []
