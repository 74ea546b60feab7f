"""Finds the fields of a request that are not applied. They are refused by name, or ignored and listed. Pure.

An agent must not believe that it sampled from another distribution than the one that is trained. So a field
that would change what is sampled is refused. With `spec.agent.lenient` the request goes on without the field,
and the episode's record lists it. Other fields that are not applied are always listed, except inert ones.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from headway_coordinator.gateway import formats
from headway_coordinator.gateway.neutral import Table, bounded, neutral, shown
from headway_coordinator.gateway.refusals import bad

WITHOUT_EFFECT: Final[dict[str, tuple[object, ...]]] = {
    "n": (None, 1),
    "logit_bias": (None, {}),
    "top_logprobs": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "best_of": (None, 1),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "stop_token_ids": (None, []),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "length_penalty": (None, 1),
    "use_beam_search": (None, False),
    "logits_processors": (None, []),
    "repetition_detection": (None,),
    "thinking_token_budget": (None,),
    "watermarking": (None,),
    "vllm_xargs": (None, {}),
    "structural_tag": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "chat_template": (None,),
    "documents": (None, []),
    "truncate_prompt_tokens": (None,),
    "add_special_tokens": (None, False),
    "prompt_logprobs": (None,),
    "echo": (None, False),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    "regex": (None,),
    "ebnf": (None,),
    "grammar": (None,),
    "guided_decoding_backend": (None,),
    "guided_whitespace_pattern": (None,),
    "min_new_tokens": (None, 0),
    "min_length": (None, 0),
    "max_length": (None,),
    "max_tokens_to_sample": (None,),
    "thinking_budget": (None, -1),
    "reasoning_budget": (None, -1),
    "reasoning_max_tokens": (None,),
    "thinking_forced_open": (None, False),
    "prompt_mode": (None,),
    "safe_prompt": (None, False),
    "web_search_options": (None,),
    "enable_search": (None, False),
    "top_n_sigma": (None, -1, 0),
    "n_indent": (None, 0),
    "t_max_predict_ms": (None, 0),
    "lora": (None, []),
    "adapter_id": (None, ""),
    "watermark": (None, False),
    "truncate": (None,),
    "return_full_text": (None, False),
    "num_return_sequences": (None, 1),
    "early_stopping": (None, False),
    "max_time": (None,),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "sequence_bias": (None, [], {}),
    "eos_token_id": (None,),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "penalize_newline": (None, False),
    "raw": (None, False),
    "template": (None, ""),
    "context": (None, []),
    "images": (None, []),
    "inputs": (None,),
    "parameters": (None, {}),
    "sampling_params": (None, {}),
    "contents": (None, []),
    "generationConfig": (None, {}),
    "generation_config": (None, {}),
    "systemInstruction": (None,),
    "system_instruction": (None,),
    "toolConfig": (None, {}),
    "tool_config": (None, {}),
    "thinkingConfig": (None, {}),
    "thinking_config": (None, {}),
    "maxOutputTokens": (None,),
    "candidateCount": (None, 1),
    "stopSequences": (None, []),
    "topK": (None,),
    "responseMimeType": (None, "text/plain"),
    "response_mime_type": (None, "text/plain"),
    "responseSchema": (None,),
    "response_schema": (None,),
    "responseJsonSchema": (None,),
    "response_json_schema": (None,),
    "cachedContent": (None,),
    "stop_regex": (None, [], ""),
    "no_stop_trim": (None, False),
    "include_stop_str_in_output": (None, False),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "typical_p": (None, 1),
    "top_a": (None, 0),
    "tfs": (None, 1),
    "tfs_z": (None, 1),
    "mirostat": (None, 0),
    "dynatemp_range": (None, 0),
    "xtc_probability": (None, 0),
    "dry_multiplier": (None, 0),
    "repeat_penalty": (None, 1),
    "repeat_last_n": (None,),
    "no_repeat_ngram_size": (None, 0),
    "penalty_alpha": (None, 0),
    "num_beams": (None, 1),
    "do_sample": (None, True),
    "samplers": (None, []),
    "custom_logit_processor": (None,),
    "custom_params": (None,),
    "session_params": (None,),
    "lora_path": (None,),
    "input_ids": (None,),
    "input_embeds": (None,),
    "functions": (None, []),
    "function_call": (None,),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "extra_body": (None, {}),
    "moderation": (None,),
    "task": (None,),
}
"""Field that no protocol applies -> the values at which it would change nothing."""
ELSEWHERE: Final[Table] = {
    "stop": (None, "", []),
    "max_tokens": (None,),
    "max_completion_tokens": (None,),
    "logprobs": (None, False),
    "response_format": (None, {"type": "text"}),
    "guided_json": (None,),
    "json_schema": (None,),
    "structured_outputs": (None, {}),
    "guided_decoding": (None, {}),
    "format": (None, ""),
    "max_new_tokens": (None,),
    "n_predict": (None, -1),
    "num_predict": (None, -1, -2),
    "stop_words": (None, "", []),
    "options": (None, {}),
    "reasoning_effort": (None,),
    "enable_thinking": (None,),
    "thinking": (None,),
    "think": (None,),
    "chat_template_kwargs": (None, {}),
}
"""Fields that chat completions apply. Other protocols write some of them differently."""
FOREIGN_FIELDS: Final[Table] = {
    "messages": (None,),
    "input": (None,),
    "prompt": (None,),
    "system": (None, "", []),
    "instructions": (None, ""),
    "previous_response_id": (None,),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "max_output_tokens": (None,),
    "stop_sequences": (None, []),
    "reasoning": (None, {}),
    "text": (None, {}, {"format": {"type": "text"}}),
    "output_config": (None, {}),
    "output_format": (None,),
}
"""Fields that only some protocols apply. If ignored in another protocol, the agent would not notice."""
LISTED: Final[Table] = {
    "seed": (None,),
    "random_seed": (None,),
    "parallel_tool_calls": (None, True),
    "verbosity": (None,),
    "include": (None, [], ["reasoning.encrypted_content"]),
    "include_reasoning": (None, True),
    "enable_response_messages": (None, False),
    "logprob_token_ids": (None, []),
    "return_prompt_text": (None, False),
    "return_token_ids": (None, False),
    "return_token_offsets": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "routed_experts_prompt_start": (None, 0),
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
    "routed_experts_start_len": (None, 0),
    "return_cached_tokens_details": (None, False),
    "return_prompt_token_ids": (None, False),
    "return_meta_info": (None, False),
    "separate_reasoning": (None, True),
    "stream_reasoning": (None, True),
}
"""Fields that clients send by default, or that ask for more in the answer.

A field that is not applied is listed in the episode's record, and so is an unknown field.
"""
INERT: Final = frozenset(
    (
        # Who sends the request, its priority, and what a provider may store.
        *("user", "user_profile_id", "safety_identifier", "metadata", "store", "service_tier", "speed"),
        *("priority", "request_id", "session_id", "inference_geo", "diagnostics", "rid", "id_slot"),
        *("safetySettings", "safety_settings", "labels", "custom_labels"),
        *("access_programs", "billing_policy", "fallback_credit_token", "workspace_id", "background_options"),
        # Which of several engines answers, and what else the engine loads.
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank"),
        *("data_parallel_rank", "extra_key", "ngram_corpus_id"),
        # Caches and predictions, which change only the latency.
        *(
            "cache_control",
            "cache_salt",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "keep_alive",
            "cache_prompt",
        ),
        *("prediction", "kv_transfer_params", "ec_transfer_params"),
        # The version of a protocol, and the chunks of a stream.
        *("anthropic_version", "anthropic_beta", "betas", "stream_options", "stream_interval"),
        # The side at which a prompt is truncated, although truncation is refused. Options of images, which
        # no model here accepts.
        *("truncation_side", "media_io_kwargs", "mm_processor_kwargs", "mm_payload", "return_mm_kwargs"),
        *("images_config", "max_dynamic_patch", "min_dynamic_patch", "use_audio_in_video"),
    )
)
"""Fields that would change neither what is sampled nor what the answer says."""

LEAVE_OUT: Final = "leave it out, or set spec.agent.lenient: true"
SAMPLED: Final = (
    "tokens must be sampled from the policy that is trained; leave it out, or set spec.agent.lenient: true"
)
PROMPTED: Final = (
    "every turn of a job is written by one chat template with one set of variables; leave it out, or set "
    "spec.agent.lenient: true"
)
ECHO: Final = "the answer has only sampled text; put the prompt before it yourself"
MAX_TOKENS_HINT: Final = "write max_tokens"
FOREIGN: Final = "it is a field of another protocol; write this protocol's own, or use that protocol's route"
ONE: Final = "a request is answered by one sample; send the request again for another one"
FLAT: Final = "send its fields beside the others, as OpenAI's client does with its extra_body"
NAMES: Final = "send its fields beside the others, by OpenAI's names"
LENGTH: Final = "it counts the prompt too; write max_tokens, which counts the answer alone"
BUDGET: Final = "reasoning has no bound of its own; write max_tokens for the turn, or reasoning_effort"
STOP: Final = "write stop"
SYSTEM: Final = "write a message with the role system"
OLD_CALLS: Final = "it is the old way to call a tool; write tools and tool_choice"
OTHERS_SCORES: Final = "an answer has the log-probabilities of sampled tokens alone; write logprobs: true"
ALONE: Final = f"the gateway keeps no conversation and no answer; {LEAVE_OUT}"
TEXT: Final = f"the model reads and writes only text; {LEAVE_OUT}"
SHOWN: Final = f"the answer is written without special tokens; {LEAVE_OUT}"
OLD: Final = "its tokens would not be those that were recorded; write messages"
SEARCH: Final = "nothing here searches the web; give the model a tool that does"
MODERATES: Final = "nothing here moderates an answer; leave it out, or set spec.agent.lenient: true"
EFFORT: Final = "write reasoning_effort"
POLICY: Final = "the policy that is trained answers; leave it out, or set spec.agent.lenient: true"
TEMPLATES: Final = (
    *("chat_template", "documents"),
    *("template", "raw", "safe_prompt", "thinking_forced_open", "task"),
)
BUDGETS: Final = (
    *("thinking_token_budget", "thinking_budget", "reasoning_budget", "reasoning_max_tokens"),
    *("thinkingConfig", "thinking_config"),
)
SCHEMAS: Final = (
    *("responseMimeType", "response_mime_type", "responseSchema", "response_schema"),
    *("responseJsonSchema", "response_json_schema"),
)
WHY: Final[dict[str, str]] = (
    formats.OTHERS
    | dict.fromkeys(FOREIGN_FIELDS, FOREIGN)
    | dict.fromkeys((*TEMPLATES, "add_generation_prompt", "continue_final_message"), PROMPTED)
    | dict.fromkeys(("functions", "function_call"), OLD_CALLS)
    | dict.fromkeys(("top_logprobs", "prompt_logprobs"), OTHERS_SCORES)
    | dict.fromkeys(("background", "conversation"), ALONE)
    | dict.fromkeys(("modalities", "audio"), TEXT)
    | dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), SHOWN)
    | {"max_tool_calls": f"a turn has all calls that the model sampled; {LEAVE_OUT}"}
    | dict.fromkeys(BUDGETS, BUDGET)
    | dict.fromkeys(SCHEMAS, formats.WRITE)
    | dict.fromkeys(("n", "best_of", "num_return_sequences", "candidateCount"), ONE)
    | dict.fromkeys(("echo", "return_full_text"), ECHO)
    | dict.fromkeys(("extra_body", "parameters", "sampling_params"), FLAT)
    | dict.fromkeys(("generationConfig", "generation_config", "options"), NAMES)
    | dict.fromkeys(("max_new_tokens", "n_predict", "num_predict", "max_tokens_to_sample"), MAX_TOKENS_HINT)
    | dict.fromkeys(("maxOutputTokens",), MAX_TOKENS_HINT)
    | dict.fromkeys(("stop_words", "stopSequences"), STOP)
    | dict.fromkeys(("inputs", "contents"), "write messages")
    | dict.fromkeys(("context", "cachedContent"), OLD)
    | dict.fromkeys(("systemInstruction", "system_instruction"), SYSTEM)
    | dict.fromkeys(("toolConfig", "tool_config"), "write tool_choice")
    | dict.fromkeys(("lora", "lora_path", "adapter_id"), POLICY)
    | dict.fromkeys(("web_search_options", "enable_search"), SEARCH)
    | dict.fromkeys(("moderation",), MODERATES)
    | dict.fromkeys(("prompt_mode", "think"), EFFORT)
    | {"max_length": LENGTH, "images": "this gateway accepts only text"}
)
"""Field -> why it is not applied, and what to do instead. The default is `SAMPLED`."""


def beside(own: Table, fields: Container[str]) -> Table:
    """The table of fields that a protocol does not apply.

    It merges the common tables with the protocol's `own` entries, without the `fields` that it applies.
    """
    merged = {**WITHOUT_EFFECT, **ELSEWHERE, **FOREIGN_FIELDS, **own}
    return {name: values for name, values in merged.items() if name not in fields}


def unapplied(
    body: Mapping[str, Any], table: Table, *, lenient: bool, why: Mapping[str, str] = WHY
) -> tuple[str, ...]:
    """The names of the request's fields that are ignored.

    Args:
        body: the request.
        table: fields that its protocol knows and does not apply.
        lenient: ignore those fields, instead of refusing the request.
        why: field -> why it is not applied, and what to do instead. The default is `SAMPLED`.

    Raises:
        GatewayError: 400 `unsupported_parameter` for the first such field, if `lenient` is false.
    """
    found = [name for name in body if name in table and not neutral(body[name], table[name])]
    if found and not lenient:
        name = found[0]
        raise bad(
            name, f"{shown(body[name])} is not applied: {why.get(name, SAMPLED)}", "unsupported_parameter"
        )
    return tuple(found)


def listed(body: Mapping[str, Any], fields: Container[str], table: Table) -> tuple[str, ...]:
    """The names of the request's fields that every job ignores: fields of `LISTED`, and unknown fields.

    Args:
        body: the request.
        fields: the fields that its protocol reads.
        table: as for `unapplied`.
    """

    def found() -> Iterator[str]:
        for name, value in body.items():
            known = name in fields or name in table or name in INERT
            if (name in LISTED or not known) and not neutral(value, LISTED.get(name, (None,))):
                yield name

    return bounded(found())
