"""Stop strings end a turn at the same token as vLLM's own detokenizer, and vLLM accepts the request."""

from __future__ import annotations

from typing import Any

import pytest
from episodes import version

from headway_api.records import VersionSpan
from headway_coordinator.engines.vllm import Request, Sampled, _body
from headway_coordinator.gateway import stops

pytestmark = [pytest.mark.integration]
TEXTS = (
    "I look. Observation: it is lead.",
    "schöner Fuchs 🦊 END und mehr",
    "<tool_call>\nObservation:</tool_call>",
    "a\nb\n\nc",
)
STOPS = (["Observation:"], ["END", "🦊"], ["\n\n", "</tool_call>"], ["c", "bc", "lead."], ["nowhere"])


def request(prompt: list[int], given: list[str]) -> Request:
    return Request(prompt, 64, 1.0, 1.0, 7, [0], given)


def test_vllm_accepts_a_request_with_stop_strings() -> None:
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

    found = GenerateRequest.model_validate(_body("m", "salt", request([1, 2], ["END"])))
    params = found.sampling_params
    assert (params.stop, params.detokenize, params.include_stop_str_in_output) == (["END"], True, False)
    plain = GenerateRequest.model_validate(_body("m", "salt", request([1, 2], []))).sampling_params
    assert (plain.stop, plain.detokenize) == ([], False)


@pytest.mark.parametrize("given", STOPS, ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_a_turn_ends_with_the_same_token_as_in_vllm(tok: Any, text: str, given: list[str]) -> None:
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    params = SamplingParams(**_body("m", "salt", request([1], given))["sampling_params"])
    asked = EngineCoreRequest("r", tok.encode("hello"), None, params, None, 0.0, None, None, None)
    theirs = FastIncrementalDetokenizer(tok, asked)
    tokens = tok.encode(text, add_special_tokens=False)
    stopped = next((found for one in tokens if (found := theirs.update([one], False))), None)
    spans = [VersionSpan(start=0, end=len(tokens), version=version(0))]
    sampled = Sampled(tokens, [-0.5] * len(tokens), spans, "length", 0)
    ours, ended = stops.ended(lambda ids: str(tok.decode(list(ids))), sampled, given, [])
    assert ours.tokens == theirs.output_token_ids
    assert (ended is None) == (stopped is None)
    assert any(stop in text for stop in given) == (ended is not None)
