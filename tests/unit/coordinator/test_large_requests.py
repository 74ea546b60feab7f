"""Large requests and answers are handled in slices and threads, with the same result as small ones."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from bent_requests import CROWDS
from memory import flat
from open_rollout import USER, Rig, a_rollout, rig
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api import bounds
from headway_coordinator.gateway import core, messages, openai, responses, slices, turns, writing
from headway_coordinator.gateway.conversations import meaning
from headway_coordinator.gateway.refusals import GatewayError

READERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "/v1/chat/completions": (openai.read, "messages", {}),
    "/v1/messages": (messages.read, "messages", {"max_tokens": 5}),
    "/v1/messages/count_tokens": (messages.read_count, "messages", {}),
    "/v1/responses": (responses.read, "input", {}),
}
"""Route -> its reader, the name of the field with the conversation, and other required fields."""


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


def read(path: str, conversation: list[Any], *, large: bool) -> Any:
    reader, field, more = READERS[path]
    given = {"earlier": lambda _: ()} if path == "/v1/responses" else {}
    return reader(more | {field: conversation}, large=large, **given)


@pytest.mark.parametrize("path", READERS)
def test_a_request_read_in_slices_equals_one_read_whole(path: str) -> None:
    for conversation in CROWDS[path]():
        whole, sliced = (read(path, conversation, large=large) for large in (False, True))
        assert sliced.ask == whole.ask
        assert sliced.ignored == whole.ignored


@pytest.mark.parametrize("path", READERS)
def test_an_error_names_its_place_in_the_whole_request(path: str) -> None:
    conversation: list[Any] = [{"role": "user", "content": "a"}] * 6_000
    conversation[4_321] = {"role": "user", "content": 7}
    refusals = []
    for large in (False, True):
        with pytest.raises(GatewayError) as refusal:
            read(path, conversation, large=large)
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]
    assert f"{READERS[path][1]}.4321.content" in refusals[1]


@pytest.mark.parametrize("path", READERS)
def test_too_many_entries_are_refused_before_they_are_read(path: str) -> None:
    with pytest.raises(GatewayError, match="has 10001 entries; send at most 10000"):
        read(path, [0] * (bounds.MESSAGES + 1), large=True)


def test_no_slice_has_far_more_values_than_its_bound() -> None:
    entry = {"role": "user", "content": [{"type": "text", "text": "a"}] * 9}
    ends = [*slices._ends([entry] * 1_000)]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert sum(sizes) == 1_000
    assert max(sizes) * slices._values(entry) < slices.SLICE + slices._values(entry)


async def test_a_thread_compares_a_large_conversation(tok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[str]] = {"small": set(), "large": set()}
    kind = "small"

    def noted(message: Any) -> object:
        threads[kind].add(threading.current_thread().name)
        return meaning(message)

    def digested(value: Any) -> Any:
        threads[kind].add(threading.current_thread().name)
        return value

    monkeypatch.setattr(core, "meaning", noted)
    monkeypatch.setattr(turns, "_with_digests", digested)
    async with rig(tok, context=400_000) as r:
        assert (await r.chat(USER))[0] == 200
        small = set(threads["small"])
        kind = "large"
        monkeypatch.setattr(core.Gateway, "_record", one_message_later(core.Gateway._record, threads))
        assert (await r.chat({"role": "user", "content": "word " * 40_000}))[0] == 200
    assert small == {threading.current_thread().name}
    assert threads["large"].isdisjoint(small)


def one_message_later(record: Any, threads: dict[str, set[str]]) -> Any:
    """Wraps `record` so that its comparison is not noted.

    The answer is short, so the event loop compares it.
    """

    def recorded(*args: Any) -> Any:
        before = set(threads["large"])
        try:
            return record(*args)
        finally:
            threads["large"] = before

    return recorded


async def logprobs(r: Rig, path: str, stream: bool) -> tuple[list[Any], str]:
    """The log-probabilities of an answer's tokens, and its text."""
    chat = path == "/v1/chat/completions"
    asked = {"messages": [USER], "logprobs": True} if chat else {"prompt": "Say it.", "logprobs": 1}
    async with (
        r.server.open(a_rollout("t0-000002-0-0"), r.backend) as one,
        r.http.post(f"{r.url}/e/{one.token}{path}", json=asked | {"stream": stream}) as answer,
    ):
        assert answer.status == 200
        text = await answer.text()
    lines = text.split("data: ")[1:-1] if stream else [text]
    found: list[Any] = []
    said = ""
    for choice in (choice for line in lines for choice in json.loads(line)["choices"]):
        found += (choice["logprobs"] or {}).get("content" if chat else "token_logprobs", [])
        said += choice["delta"].get("content") or "" if stream and chat else ""
        said += choice.get("text", "") or choice.get("message", {}).get("content", "")
    return found, said


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_long_answer_has_every_token_s_log_probability(
    tok: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same as one document, as a stream, and without a thread."""
    monkeypatch.setattr(openai, "SCORED_IN_A_CHUNK", 7)
    text = "The fox is quick, and the dog is not."
    async with rig(tok, text + "<|im_end|>") as r:
        inline = [await logprobs(r, path, stream) for stream in (False, True)]
        for module in (core, writing):
            monkeypatch.setattr(module, "INLINE_TOKENS", 3)
        threaded = [await logprobs(r, path, stream) for stream in (False, True)]
    assert inline[0] == inline[1] == threaded[0] == threaded[1]
    assert len(threaded[0][0]) > 2 * 7
    assert threaded[0][1].strip() == text.strip()


def calling(arguments: str, count: int = 1) -> list[Any]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [USER, {"role": "assistant", "tool_calls": [call] * count}, USER]


def test_arguments_in_a_string_have_a_bound_of_values() -> None:
    many = json.dumps({"a": [{}] * (bounds.ANSWER_VALUES + 1)})
    with pytest.raises(GatewayError, match=r"tool_calls.0.function.arguments: .*more than 100000 values"):
        read("/v1/chat/completions", calling(many), large=True)


async def test_many_values_in_arguments_take_little_memory(tok: Any) -> None:
    many = json.dumps({"a": [{}] * 49_000})
    async with rig(tok, context=4000) as r:
        await r.chat()
        with flat(bounds.MIB * 64):
            status, answer = await r.chat(*calling(many, 30))
            assert (status, answer["error"]["param"]) == (400, "messages")
            assert "arguments of its calls have more than 100000 values" in answer["message"]
            few = json.dumps({"a": [{}] * 24_000, "text": "[{}, {}], " * 50_000})
            status, answer = await r.chat(*calling(few, 2))
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("path", [*READERS, "/v1/completions"])
async def test_a_model_s_name_is_short(tok: Any, path: str) -> None:
    """A stream repeats the model's name in each of its chunks."""
    field = {"/v1/responses": "input", "/v1/completions": "prompt"}.get(path, "messages")
    asked = {field: "Say it." if path == "/v1/completions" else [USER], "max_tokens": 5}
    asked |= {"max_output_tokens": asked.pop("max_tokens")} if path == "/v1/responses" else {}
    async with rig(tok) as r:
        status, answer = await r.post(path, asked | {"model": "m" * 201})
        assert (status, answer["error"]["param"]) == (400, "model")
        status, _ = await r.post(path, asked | {"model": "m" * 200})
        assert status == 200


async def test_a_response_repeats_only_known_fields_of_tools(tok: Any) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    asked = {"input": [USER], "tools": [tool | {"x": "long"}], "tool_choice": choice | {"y": "long"}}
    async with rig(tok) as r:
        status, answer = await r.post("/v1/responses", asked)
    assert (status, answer["tools"], answer["tool_choice"]) == (200, [tool], choice)
