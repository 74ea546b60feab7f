"""Plain completions: which prompts are accepted, and when a prompt continues the row of the one before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from open_rollout import USER, Rig, rig
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.gateway import completions
from headway_coordinator.gateway.refusals import GatewayError
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import choose

PROMPT = "Question: which metal?\nThought:"
END = "<|im_end|>"


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


async def completion(r: Rig, prompt: Any, **fields: Any) -> dict[str, Any]:
    status, answer = await r.post("/v1/completions", {"prompt": prompt} | fields)
    assert status == 200, answer
    choice: dict[str, Any] = answer["choices"][0]
    return choice | {"usage": answer["usage"]}


def drifts(r: Rig) -> list[str]:
    return [drift.reason for drift in r.rollout.session.drifts.values()]


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT]], ids=["text", "list"])
async def test_a_prompt_is_continued(tok: Any, prompt: Any) -> None:
    async with rig(tok, " It is gold." + END) as r:
        choice = await completion(r, prompt, max_tokens=40, logprobs=0)
        assert (choice["text"], choice["finish_reason"]) == (" It is gold.", "stop")
        [request] = r.model.requests
        assert list(request.prompt) == tok.encode(PROMPT)
        sampled = r.model.spoken["t0-000001-0-0"][0].sampled
        assert choice["logprobs"]["token_logprobs"] == [-0.5] * len(sampled)
        assert "".join(choice["logprobs"]["tokens"]) == " It is gold." + END
        assert choice["usage"]["completion_tokens"] == len(sampled)
        [row] = linearize(r.rollout.session.graph, r.rollout.session.untrained)
        assert row.tokens == [*request.prompt, *sampled]
        assert r.rollout.conversation == [
            {"role": "user", "content": PROMPT},
            {"role": "assistant", "content": " It is gold."},
        ]


async def test_a_prompt_of_token_ids_is_sent_as_it_is(tok: Any) -> None:
    ids = tok.encode(PROMPT)
    async with rig(tok, " Gold." + END) as r:
        for prompt in (ids, [ids]):
            assert (await completion(r, prompt))["text"] == " Gold."
        assert [list(request.prompt) for request in r.model.requests] == [ids, ids]
        assert r.rollout.conversation[0]["content"] == PROMPT
        assert drifts(r) == ["again"]


async def test_react_loop_that_rewrites_its_stop_string_is_one_row(tok: Any) -> None:
    texts = [" look. Observation:", " look again. Observation:", " It is gold." + END]
    async with rig(tok, *texts) as r:
        prompt = PROMPT
        for turn in range(3):
            choice = await completion(r, prompt, stop=["Observation:"])
            prompt += choice["text"]
            if turn < 2:
                assert choice["stop_reason"] == "Observation:"
                assert "Observation" not in choice["text"]
                prompt += f"Observation: lead {turn}.\nThought:"
        session = r.rollout.session
        [row] = linearize(session.graph, session.untrained)
        assert (session.forks, len(session.record)) == (0, 3)
        assert sum(row.mask) == sum(len(one.sampled) for one in r.model.spoken["t0-000001-0-0"])
        assert tok.decode(row.tokens) == prompt + END
        kept = session.texts
        assert sum(len(one.added) + len(one.sampled) for one in kept) == len(kept[-1].whole) == len(prompt)


async def test_a_truncated_text_continues_where_it_stopped(tok: Any) -> None:
    async with rig(tok, " one two three four", " five" + END) as r:
        first = await completion(r, PROMPT, max_tokens=4)
        assert first["finish_reason"] == "length"
        await completion(r, PROMPT + first["text"])
        session = r.rollout.session
        assert (session.forks, len(linearize(session.graph))) == (0, 1)


async def test_token_ids_that_extend_what_was_sampled_are_one_row(tok: Any) -> None:
    async with rig(tok, " Gold." + END) as r:
        await completion(r, PROMPT)
        more = tok.encode("\nAnd?", add_special_tokens=False)
        sampled = r.model.spoken["t0-000001-0-0"][0].sampled
        await completion(r, [*tok.encode(PROMPT), *sampled, *more])
        assert (r.rollout.session.forks, len(linearize(r.rollout.session.graph))) == (0, 1)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (PROMPT, "again"),
        (PROMPT + " It is gold.\nAnd?", "cut_off"),
        ("Another text.", "content"),
        (PROMPT + " It is lead.", "content"),
    ],
)
async def test_text_that_differs_from_the_sampled_forks_with_reason(
    tok: Any, second: str, reason: str
) -> None:
    async with rig(tok, " It is gold." + END) as r:
        await completion(r, PROMPT)
        await completion(r, second)
        assert (drifts(r), r.rollout.session.forks) == ([reason], 1)
        assert len(linearize(r.rollout.session.graph)) == 2


async def test_a_stop_string_that_is_left_out_forks(tok: Any) -> None:
    async with rig(tok, " look. Observation:", " Gold." + END) as r:
        choice = await completion(r, PROMPT, stop="Observation:")
        await completion(r, PROMPT + choice["text"] + "lead")
        assert drifts(r) == ["cut_off"]


async def test_a_stream_has_the_text_and_its_usage(tok: Any) -> None:
    async with rig(tok, " Gold." + END) as r:
        body = {"prompt": PROMPT, "stream": True, "stream_options": {"include_usage": True}}
        async with r.http.post(r.base + "/v1/completions", data=json.dumps(body)) as answer:
            assert answer.status == 200
            lines = [line[6:] for line in (await answer.text()).split("\n\n") if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        first, last = map(json.loads, lines)
        assert first["choices"][0]["text"] == " Gold."
        assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], len(tok.encode(PROMPT)))


async def test_a_prompt_beyond_the_context_truncates_the_episode(tok: Any) -> None:
    async with rig(tok, context=50) as r:
        for prompt in ("metal " * 200, [5] * 50, "ab " * 400_000):
            status, answer = await r.post("/v1/completions", {"prompt": prompt})
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer
        assert r.rollout.truncated


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": ["a", "b"]}),
        ("prompt", {"prompt": [[1], [2]]}),
        ("prompt.0", {"prompt": [True]}),
        ("prompt.0", {"prompt": [-1]}),
        ("prompt", {"prompt": {"a": 1}}),
        ("prompt", {"prompt": "\ud83d"}),
        ("echo", {"echo": True}),
        ("suffix", {"suffix": "end"}),
        ("n", {"n": 2}),
        ("best_of", {"best_of": 3}),
        ("logprobs", {"logprobs": 6}),
        ("logprobs", {"logprobs": True}),
        ("max_tokens", {"max_tokens": "5"}),
        ("reasoning_effort", {"reasoning_effort": "low"}),
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("regex", {"regex": "a+"}),
        ("stop", {"stop": 5}),
        ("stream", {"stream": 1}),
    ],
)
def test_unsupported_fields_are_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        completions.read({"prompt": "x"} | fields)
    assert (caught.value.status, caught.value.param) == (400, param), caught.value


def test_requested_top_logprobs_are_listed_as_ignored() -> None:
    assert completions.read({"prompt": "x", "logprobs": 1}).ignored == ("logprobs",)
    assert completions.read({"prompt": "x", "echo": True}, lenient=True).ignored == ("echo",)


async def test_a_base_model_needs_only_a_template_of_one_line(tmp_path: Path) -> None:
    tok = tokenizer(tmp_path, "{{ messages[-1].content }}")
    async with rig(tok, " Gold." + END) as r:
        assert (await completion(r, PROMPT))["text"] == " Gold."
        assert (await r.chat())[0] == 200
        assert choose(tok, "").render([USER], []) == tok.encode(USER["content"], add_special_tokens=False)


async def test_a_token_that_the_model_does_not_have_is_refused(tok: Any) -> None:
    async with rig(tok) as r:
        status, answer = await r.post("/v1/completions", {"prompt": [3, 10**6]})
        assert (status, answer["error"]["param"]) == (400, "prompt.1")
        assert not r.rollout.faults
