"""Other engines' names of fields are applied if they mean the same, else refused with what to write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway_coordinator.gateway import completions, messages, openai, responses
from headway_coordinator.gateway.asks import ANY_OBJECT, Ask
from headway_coordinator.gateway.fields import STOPS
from headway_coordinator.gateway.refusals import GatewayError

USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(lenient: bool = False, **fields: Any) -> openai.ChatRequest:
    return openai.read({"messages": [USER]} | fields, lenient=lenient)


def continued(lenient: bool = False, **fields: Any) -> completions.CompletionRequest:
    return completions.read({"prompt": "hello"} | fields, lenient=lenient)


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_new_tokens": 5}, {"max_tokens": 5}),
    ({"n_predict": 5}, {"max_tokens": 5}),
    ({"n_predict": -1}, {}),
    ({"num_predict": 5}, {"max_tokens": 5}),
    ({"num_predict": -2}, {}),
    ({"num_predict": 5, "max_tokens": 3}, {"max_tokens": 3}),
    ({"stop_words": ["END", "."]}, {"stop": ["END", "."]}),
    ({"stop_words": "END", "stop": ["END", "."]}, {"stop": ["END", "."]}),
    ({"format": "json"}, {"response_format": {"type": "json_object"}}),
    ({"format": ""}, {}),
    ({"format": SCHEMA}, {"guided_json": SCHEMA}),
    ({"guided_decoding": {"json": SCHEMA}}, {"guided_json": SCHEMA}),
    ({"guided_decoding": {"json_object": True, "regex": None}}, {"format": "json"}),
    ({"options": {}}, {}),
    ({"options": {"num_predict": 5, "stop": ["END"]}}, {"max_tokens": 5, "stop": ["END"]}),
    ({"options": {"temperature": 0.2, "top_p": 0.5}}, {"temperature": 0.2, "top_p": 0.5}),
    ({"options": {"temperature": 0.2}, "temperature": 0.7}, {"temperature": 0.7}),
    ({"options": {"top_k": 0, "repeat_penalty": 1}}, {}),
]


@pytest.mark.parametrize(("fields", "same"), SAME)
@pytest.mark.parametrize("read", [chat, continued])
def test_a_field_under_another_engines_name_is_applied(
    read: Any, fields: dict[str, Any], same: dict[str, Any]
) -> None:
    found = read(**fields)
    assert (found.ask, found.ignored) == (read(**same).ask, ())


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"think": False}, {"enable_thinking": False}),
        ({"think": True}, {"enable_thinking": True}),
        ({"think": "low"}, {"reasoning_effort": "low"}),
    ],
)
def test_ollama_s_think_is_an_effort(fields: dict[str, Any], same: dict[str, Any]) -> None:
    def ask(given: dict[str, Any]) -> Ask:
        return replace(chat(**given).ask, effort_at="")

    assert ask(fields) == ask(same)
    assert chat(**fields).ask.effort_at == "think"
    with pytest.raises(GatewayError, match="enable_thinking says"):
        chat(think=False, enable_thinking=True)


@pytest.mark.parametrize("read", [chat, continued])
def test_seeds_and_engine_options_are_listed(read: Any) -> None:
    found = read(random_seed=7, options={"seed": 7, "num_ctx": 4096, "top_k": None, "mirostat": 0})
    assert set(found.ignored) == {"random_seed", "options.seed", "options.num_ctx"}
    assert found.ask == read().ask


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("num_predict", {"num_predict": "5"}, "got"),
    ("num_predict", {"num_predict": -3}, "got"),
    ("n_predict", {"n_predict": 0}, "got"),
    ("max_new_tokens", {"max_new_tokens": True}, "got"),
    ("random_seed", {"random_seed": "7"}, "got"),
    ("stop_words", {"stop_words": 7}, "got"),
    ("stop", {"stop_words": ["a"], "stop": [str(n) for n in range(STOPS)]}, f"at most {STOPS}"),
    ("format", {"format": "yaml"}, "got"),
    ("options", {"options": 7}, "got"),
    ("options.num_predict", {"options": {"num_predict": "5"}}, "got"),
    ("options.temperature", {"options": {"temperature": "hot"}}, "got"),
    ("options.top_k", {"options": {"top_k": 40}}, "the policy that is trained"),
    ("options.repeat_penalty", {"options": {"repeat_penalty": 1.1}}, "the policy that is trained"),
    ("guided_decoding.regex", {"guided_decoding": {"regex": "a"}}, "JSON schema"),
    ("format", {"response_format": {"type": "json_object"}, "format": "json"}, "send one of them"),
    ("thinking_budget", {"thinking_budget": 512}, "reasoning_effort"),
    ("reasoning_budget", {"reasoning_budget": 0}, "reasoning_effort"),
    ("thinking_token_budget", {"thinking_token_budget": 5}, "reasoning_effort"),
    ("min_length", {"min_length": 5}, "the policy that is trained"),
    ("max_length", {"max_length": 5}, "write max_tokens"),
    ("max_tokens_to_sample", {"max_tokens_to_sample": 5}, "write max_tokens"),
    ("maxOutputTokens", {"maxOutputTokens": 5}, "write max_tokens"),
    ("generationConfig", {"generationConfig": {"topK": 5}}, "by OpenAI's names"),
    ("responseSchema", {"responseSchema": SCHEMA}, "response_format"),
    ("num_return_sequences", {"num_return_sequences": 2}, "one sample"),
    ("parameters", {"parameters": {"top_k": 5}}, "beside the others"),
    ("sampling_params", {"sampling_params": {"top_k": 5}}, "beside the others"),
    ("safe_prompt", {"safe_prompt": True}, "one chat template"),
    ("prompt_mode", {"prompt_mode": "reasoning"}, "reasoning_effort"),
    ("raw", {"raw": True}, "one chat template"),
    ("context", {"context": [1]}, "messages"),
    ("web_search_options", {"web_search_options": {}}, "a tool"),
]


@pytest.mark.parametrize(("param", "fields", "message"), REFUSED)
@pytest.mark.parametrize("read", [chat, continued])
def test_a_field_with_no_exact_meaning_is_refused(
    read: Any, param: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(GatewayError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("param", "fields"),
    [(param, fields) for param, fields, message in REFUSED if message != "got" and param != "stop"],
)
def test_a_lenient_job_lists_an_inexact_field_as_ignored(param: str, fields: dict[str, Any]) -> None:
    found = chat(lenient=True, **fields)
    assert {param, next(iter(fields))} & {*found.ignored}
    assert found.ask == replace(chat().ask, must_think=False)


@pytest.mark.parametrize(
    ("fields", "instead"),
    [
        ({"num_predict": 5}, ("write max_tokens", "write max_output_tokens")),
        ({"max_new_tokens": 5}, ("write max_tokens", "write max_output_tokens")),
        ({"stop_words": ["a"]}, ("write stop_sequences", "send a chat completion")),
        ({"format": "json"}, ("output_config.format", "text.format")),
        ({"guided_decoding": {"json": SCHEMA}}, ("output_config.format", "text.format")),
        ({"responseSchema": SCHEMA}, ("output_config.format", "text.format")),
        ({"think": True}, ("output_config.effort", "reasoning.effort")),
        ({"thinking_budget": 5}, ("output_config.effort", "reasoning.effort")),
        ({"options": {"top_k": 5}}, ("by Anthropic's names", "beside the others")),
    ],
)
def test_other_protocols_name_their_own_field(fields: dict[str, Any], instead: tuple[str, str]) -> None:
    for read, message in (
        (lambda body: messages.read({"messages": [USER], "max_tokens": 5} | body), instead[0]),
        (lambda body: responses.read({"input": "hello"} | body, earlier=lambda _: []), instead[1]),
    ):
        with pytest.raises(GatewayError) as caught:
            read(fields)
        assert caught.value.param == next(iter(fields))
        assert message in str(caught.value)


def test_every_spelling_of_json_object_is_one_schema() -> None:
    for fields in ({"format": "json"}, {"guided_decoding": {"json_object": True}}):
        assert chat(**fields).ask.schema == ANY_OBJECT
