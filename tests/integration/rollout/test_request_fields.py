"""What vLLM's chat completions would heed, the gateway heeds too, refuses, or may leave aside."""

from __future__ import annotations

from typing import Final

from headway_coordinator.gateway import openai

THE_JOBS_OWN: Final = {"temperature", "top_p", "seed"}
"""Documented as the job's, whatever an agent writes."""
LEFT_ASIDE: Final = {
    # Who asks, and in which order the answers come.
    "user", "priority", "request_id", "session_id", "cache_salt",
    # How the answer is written, or what is written beside it.
    "include_reasoning", "include_stop_str_in_output", "logprob_token_ids", "return_prompt_text",
    "return_token_ids", "return_token_offsets", "return_tokens_as_token_ids", "return_mm_kwargs",
    "skip_special_tokens", "spaces_between_special_tokens", "stream_interval", "parallel_tool_calls",
    "truncation_side", "routed_experts_prompt_start",
    # Where keys and values travel, and pictures that no text model sees.
    "kv_transfer_params", "ec_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "mm_payload",
}  # fmt: skip


def test_every_field_of_vllm_is_heeded_refused_or_without_effect_on_what_is_sampled() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    known = set(openai.Body.model_fields) | set(openai.WITHOUT_EFFECT) | THE_JOBS_OWN | LEFT_ASIDE
    assert set(ChatCompletionRequest.model_fields) - known == set()
