"""A candidate behind an endpoint that misbehaves: what is retried, and what ends the candidate."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import time
import zlib
from contextlib import AsyncExitStack
from email.utils import formatdate
from functools import cache, reduce
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from endpoint_service import (
    MODEL,
    TOKEN,
    Answer,
    asking,
    cut_short,
    dropped,
    fails,
    gives,
    listing,
    raw,
    says,
    serving,
    silent,
)
from faulty_servers import broker, sandbox
from faulty_servers import serving as serving_faulty
from ports import free_port

from headway_api.records import EpisodeRecord, Outcome, Purpose
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.endpoint import chat as endpoint
from headway_coordinator.endpoint import pace
from headway_coordinator.endpoint.chat import TRIES, EndpointChat
from headway_coordinator.endpoint.pace import Pace
from headway_coordinator.endpoint.reply import MAX_BYTES
from headway_coordinator.episode import Episodes, Rules, Task
from headway_coordinator.faults import CandidateError, InfraError
from headway_coordinator.gateway.asks import (
    Ask,
    Completion,
    ContextFullError,
    Force,
    ForcedCallError,
    RenderError,
    Sampling,
    Session,
)
from headway_coordinator.sandboxes import Broker

USER = {"role": "user", "content": "What is x?"}
LOOK_UP = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
HTML = raw(b"<!DOCTYPE html><html>Please sign in</html>", "text/html")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FIRST_PAUSE_SECONDS", 0.01)


def a_session(seed: int = 3) -> Session:
    return Session("e-other-000000-0-0", seed, Sampling(0.7, 0.9, 64))


async def ask(chat: EndpointChat, session: Session | None = None, **wanted: Any) -> Completion:
    return await chat.chat(session or a_session(), Ask([USER], **wanted))


async def test_a_turn_is_recorded_with_its_cost_and_without_tokens() -> None:
    async with serving(says("I look.", ("look_up", '{"key": "x"}'))) as service, asking(service.url) as chat:
        session = a_session()
        found = await ask(chat, session, tools=[LOOK_UP])
    assert found.finish_reason == "tool_calls"
    assert found.message["tool_calls"][0]["id"] == "call-0-0", "ids are the platform's own"
    [turn] = session.record
    assert (turn.prompt_tokens, turn.cached_tokens, turn.sampled_tokens) == (20, 8, 5)
    assert (turn.finish_reason, turn.malformed_tool_calls) == ("stop", 0)
    assert session.graph.nodes == []
    [body] = service.bodies
    assert (body["model"], body["tools"], body["max_tokens"]) == (MODEL, [LOOK_UP], 64)
    assert service.tokens == [f"Bearer {TOKEN}"]


async def test_without_a_secret_no_token_is_sent() -> None:
    async with serving() as service, asking(service.url, token=None, secretRef=None) as chat:
        await ask(chat)
    assert service.tokens == [None]


async def test_seed_is_equal_for_the_same_turn_and_new_for_the_next() -> None:
    async with serving() as service, asking(service.url) as chat:
        one, again = a_session(), a_session()
        await ask(chat, one)
        await ask(chat, one)
        await ask(chat, again)
    seeds = [body["seed"] for body in service.bodies]
    assert seeds[0] == seeds[2] != seeds[1]


def unsupported(name: str, **more: Any) -> Answer:
    return fails(400, f"Unsupported parameter: '{name}' is not supported", param=name, **more)


async def test_refused_parameters_are_left_out_once_and_for_all() -> None:
    answers = [
        unsupported("max_tokens"),
        unsupported("seed"),
        unsupported("temperature"),
        unsupported("top_p"),
    ]
    async with serving(*answers, says()) as service, asking(service.url) as chat:
        await ask(chat)
        await ask(chat)
    assert len(service.bodies) == len(answers) + 2
    for body in service.bodies[-2:]:
        assert body["max_completion_tokens"] == 64
        assert {"max_tokens", "seed", "temperature", "top_p"}.isdisjoint(body)
    assert chat.notes.dropped == {
        "max_tokens": "max_completion_tokens",
        "seed": "",
        "temperature": "",
        "top_p": "",
    }


async def test_concurrent_turns_note_a_refused_parameter_only_once() -> None:
    async def picky(request: web.Request, body: Any) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        answer = unsupported("seed") if "seed" in body else says()
        return await answer(request, body)

    async with serving(picky) as service, asking(service.url) as chat:
        await asyncio.gather(*(ask(chat) for _ in range(6)))
    assert len(service.bodies) == 12
    assert chat.notes.dropped == {"seed": ""}


async def test_a_choice_of_tools_that_is_refused_cannot_be_forced() -> None:
    async with serving(says(), unsupported("tool_choice")) as service, asking(service.url) as chat:
        await ask(chat)
        with pytest.raises(ForcedCallError, match="refuses tool_choice"):
            await ask(chat, tools=[LOOK_UP], force=Force())
    assert chat.notes.dropped == {}


async def test_a_full_context_is_retried_once_without_max_tokens() -> None:
    full = fails(400, "This model's maximum context length is 1024 tokens", code="context_length_exceeded")
    async with serving(full, says(), full) as service, asking(service.url) as chat:
        await ask(chat)
        with pytest.raises(ContextFullError, match="too long"):
            await ask(chat)
    assert ["max_tokens" in body for body in service.bodies] == [True, False, True, False]
    assert chat.notes.dropped == {}


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_retry_after_is_honoured_by_every_request(status: int) -> None:
    busy = fails(status, headers={"Retry-After": "0.6"})
    async with serving(busy, says()) as service, asking(service.url) as chat:
        await asyncio.gather(ask(chat), _later(0.1, ask(chat)))
        first, *rest = service.at
    assert len(rest) == 2
    assert min(rest) - first >= 0.6
    assert chat.notes.busy == 1


async def _later(seconds: float, work: Any) -> Any:
    await asyncio.sleep(seconds)
    return await work


async def test_retry_after_as_a_date_is_honoured() -> None:
    now = time.time()
    busy = fails(
        429, headers={"Retry-After": formatdate(now + 2, usegmt=True), "Date": formatdate(now, usegmt=True)}
    )
    async with serving(busy, says()) as service, asking(service.url) as chat:
        await ask(chat)
    assert service.at[1] - service.at[0] >= 1.9


async def test_ready_waits_for_the_endpoints_pause() -> None:
    async with (
        serving(fails(429, headers={"Retry-After": "0.5"}), says()) as service,
        asking(service.url) as chat,
    ):
        running = asyncio.create_task(ask(chat))
        while not chat.notes.busy:
            await asyncio.sleep(0.01)
        await chat.ready()
        assert time.monotonic() - service.at[0] >= 0.5
        await running


async def test_no_more_requests_are_in_flight_than_the_spec_allows() -> None:
    async def slow(request: web.Request, body: Any) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return await says()(request, body)

    async with serving(slow) as service, asking(service.url, maxConcurrency=3) as chat:
        await asyncio.gather(*(ask(chat) for _ in range(12)))
    assert service.peak == 3


async def test_no_minute_has_more_requests_than_the_spec_allows() -> None:
    """At 1200 a minute, requests start 50 ms apart, however many wait and whatever the answers are."""
    async with (
        serving(fails(500), fails(500), says()) as service,
        asking(service.url, requestsPerMinute=1200) as chat,
    ):
        await asyncio.gather(*(ask(chat) for _ in range(8)))
    assert len(service.at) == 10
    apart = [after - before for before, after in pairwise(service.at)]
    assert service.at[-1] - service.at[0] >= 9 * 0.05 - 0.02
    assert min(apart) > 0.02


async def test_a_caller_that_leaves_the_queue_takes_no_turn_in_it() -> None:
    pacing = Pace(8, 600)

    async def start() -> float:
        async with pacing.request():
            return time.monotonic()

    first = await start()
    leaving = [asyncio.create_task(start()) for _ in range(5)]
    staying = asyncio.create_task(start())
    await asyncio.sleep(0.02)
    for task in leaving:
        task.cancel()
    assert 0.09 < await staying - first < 0.3


@pytest.mark.parametrize("broken", [fails(500), fails(408), dropped], ids=["500", "408", "dropped"])
async def test_a_temporary_failure_costs_nothing(broken: Answer) -> None:
    async with serving(*[broken] * (TRIES - 1), says()) as service, asking(service.url) as chat:
        session = a_session()
        await ask(chat, session)
    assert len(service.bodies) == TRIES
    assert len(session.turns) == 1


@pytest.mark.parametrize("broken", [fails(500), dropped], ids=["500", "dropped"])
async def test_a_persistent_failure_is_the_platforms(broken: Answer) -> None:
    async with serving(broken) as service, asking(service.url) as chat:
        with pytest.raises(InfraError, match=f"failed {TRIES} times"):
            await ask(chat)
        assert len(service.bodies) == TRIES
        service.answers = [says()]
        await ask(chat)
    assert chat.fault is None


@cache
def compressed() -> bytes:
    """A gzip bomb of 64 times `MAX_BYTES`. Compressing one block and repeating it saves seconds."""
    block, times = b" " * MAX_BYTES, 64
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = reduce(lambda so_far, part: zlib.crc32(part, so_far), [block] * times, 0)
    ends = crc.to_bytes(4, "little") + (times * MAX_BYTES % 2**32).to_bytes(4, "little")
    return gzip.compress(b"", mtime=0)[:10] + packed * times + packer.flush() + ends


async def bomb(request: web.Request, asked: Any) -> web.StreamResponse:
    return await raw(compressed(), Content_Encoding="gzip")(request, asked)


@pytest.mark.parametrize(
    ("broken", "says_"),
    [
        (HTML, "an HTML page"),
        (raw(b"ok", "text/plain"), "not JSON"),
        (raw(b'{"choices": [{"index": 0, "mess'), "not complete JSON"),
        (cut_short, "is cut off"),
        (gives({"id": "x", "object": "chat.completion"}), "no choices"),
        (raw(b'data: {"choices": []}\n\ndata: [DONE]\n\n', "text/event-stream"), "a stream"),
        (raw(b" " * (MAX_BYTES + 1)), "longer than"),
        (bomb, "longer than"),
        (says(finish="abort"), "may be cut short"),
    ],
    ids=["html", "text", "half", "cut", "no choices", "stream", "long", "bomb", "aborted"],
)
async def test_an_address_without_a_chat_api_ends_the_candidate(broken: Answer, says_: str) -> None:
    async with serving(broken) as service, asking(service.url) as chat:
        with pytest.raises(CandidateError, match=says_) as caught:
            await ask(chat)
    assert (caught.value.reason, caught.value.field) == (
        "EndpointUnreadable",
        "spec.candidates[other].endpoint.url",
    )
    assert "up to and including /v1" in str(caught.value)
    assert len(service.bodies) == TRIES


async def test_a_candidate_with_answers_survives_an_unreadable_one() -> None:
    async with serving(says()) as service, asking(service.url) as chat:
        await ask(chat)
        service.answers = [HTML]
        with pytest.raises(InfraError, match=f"failed {TRIES} times, last: the answer is an HTML page"):
            await ask(chat)
        service.answers = [says()]
        await ask(chat)
    assert chat.fault is None


async def test_answers_to_an_earlier_process_count() -> None:
    async with serving(HTML) as service, asking(service.url, answered=True) as chat:
        with pytest.raises(InfraError, match="an HTML page"):
            await ask(chat)
    assert chat.fault is None


@pytest.mark.parametrize("broken", [HTML, cut_short], ids=["html", "cut"])
async def test_one_answer_that_cannot_be_read_is_asked_for_again(broken: Answer) -> None:
    async with serving(broken, says()) as service, asking(service.url) as chat:
        assert (await ask(chat)).message["content"] == "It is gold."


@pytest.mark.parametrize(
    ("answer", "field", "reason", "remedy"),
    [
        (fails(401, "no"), "secretRef", "EndpointDenied", "correct the key `token` of Secret keys"),
        (fails(403, "no"), "secretRef", "EndpointDenied", "another Secret"),
        (fails(404, "The model `x` does not exist", param="model"), "model", "EndpointNotFound", MODEL),
        (fails(404, "nothing here"), "url", "EndpointNotFound", "up to and including /v1"),
        (fails(400, "tools are not taken"), "url", "EndpointRefused", "with tools"),
        (
            raw(b"", status=302, Location="https://elsewhere/v1?key=k"),
            "url",
            "EndpointNotFound",
            "elsewhere/v1,",
        ),
    ],
    ids=["401", "403", "model", "url", "400", "redirect"],
)
async def test_an_error_that_needs_a_person_ends_the_candidate(
    answer: Answer, field: str, reason: str, remedy: str
) -> None:
    async with serving(answer) as service, asking(service.url) as chat:
        for _ in range(2):
            with pytest.raises(CandidateError, match=remedy) as caught:
                await ask(chat)
            assert caught.value.field == f"spec.candidates[other].endpoint.{field}"
            assert caught.value.reason == reason
            assert "candidate other: http://127.0.0.1" in str(caught.value)
            assert "key=k" not in str(caught.value)
    assert len(service.bodies) == 1, "nothing is sent once the candidate has ended"


async def test_later_refusal_faults_the_conversation_not_the_candidate() -> None:
    async with serving(says(), fails(400, "no such conversation")) as service, asking(service.url) as chat:
        session = a_session()
        await ask(chat, session)
        with pytest.raises(RenderError, match="no such conversation"):
            await ask(chat, session)
        with pytest.raises(InfraError, match="first turn"):
            await ask(chat)
    assert chat.fault is None


async def test_a_filtered_conversation_has_an_empty_answer() -> None:
    filtered = fails(400, "The response was filtered", code="content_filter")
    async with serving(filtered) as service, asking(service.url) as chat:
        session = a_session()
        found = await ask(chat, session)
    assert (found.message["content"], found.finish_reason) == ("", "content_filter")
    assert session.turns[0].sampled_tokens == 0


async def test_endless_429_ends_the_candidate() -> None:
    async with serving(fails(429, "slow down")) as service, asking(service.url, patience=0.5) as chat:
        with pytest.raises(CandidateError, match=r"lower .*requestsPerMinute or maxConcurrency") as caught:
            await ask(chat)
    assert caught.value.reason == "EndpointBusy"
    assert caught.value.field == "spec.candidates[other].endpoint.requestsPerMinute"
    assert len(service.bodies) > 2
    assert service.at[-1] - service.at[0] <= 0.6


async def test_a_wait_longer_than_the_patience_is_not_begun() -> None:
    busy = fails(429, headers={"Retry-After": "3600"})
    async with serving(busy) as service, asking(service.url, patience=60.0) as chat:
        with pytest.raises(CandidateError, match="it asks to wait for 3600 s"):
            await ask(chat)
    assert len(service.bodies) == 1


async def test_a_success_in_between_renews_the_patience() -> None:
    turns = [fails(429, headers={"Retry-After": "0.3"}), says()] * 3
    async with serving(*turns) as service, asking(service.url, patience=0.5) as chat:
        for _ in range(3):
            await ask(chat)
    assert service.at[-1] - service.at[0] > 0.6
    assert chat.fault is None


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port/v1", "https:///v1"])
async def test_an_invalid_address_ends_the_candidate(url: str) -> None:
    async with asking(url) as chat:
        with pytest.raises(CandidateError) as caught:
            await chat.probe()
    assert caught.value.field == "spec.candidates[other].endpoint.url"


async def test_https_to_a_plain_http_endpoint_ends_the_candidate() -> None:
    async with serving() as service, asking(service.url.replace("http:", "https:")) as chat:
        with pytest.raises(CandidateError, match="SSL") as caught:
            await ask(chat)
    assert caught.value.field == "spec.candidates[other].endpoint.url"


async def test_an_unreachable_endpoint_ends_the_candidate_in_time() -> None:
    async with asking(f"http://127.0.0.1:{free_port()}/v1", patience=0.5) as chat:
        with pytest.raises(CandidateError) as caught:
            await ask(chat)
    assert (caught.value.reason, caught.value.field) == (
        "EndpointUnreachable",
        "spec.candidates[other].endpoint.url",
    )


async def test_a_turn_ends_with_its_deadline() -> None:
    async with serving(silent) as service, asking(service.url, timeout=0.3) as chat:
        with pytest.raises(InfraError, match=r"no answer within 0\.3 s"):
            await ask(chat)
    async with serving(fails(503)) as service, asking(service.url, timeout=0.3) as chat:
        with pytest.raises(InfraError, match="last: 503 on purpose"):
            await ask(chat)


@pytest.mark.parametrize(
    "answer",
    [
        fails(401, f"Incorrect API key provided: {TOKEN}"),
        fails(500, f"header was Bearer {TOKEN}"),
        raw(json.dumps({"detail": f"token {TOKEN}"}).encode(), status=429),
        raw(b"", status=307, Location=f"https://x/v1/sk-a%2Fsecret%2Btoken?k={TOKEN}"),
    ],
    ids=["401", "500", "429", "redirect"],
)
async def test_the_token_is_in_no_message_and_no_log(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(answer) as service:
        secret = service.url.replace("http://", "http://user:hunter2@") + "?api-key=hunter3"
        async with asking(secret, patience=0.2) as chat:
            with pytest.raises((CandidateError, InfraError)) as caught:
                await ask(chat)
    logged = [record.__dict__ for record in caplog.records]
    output = f"{caught.value!r} {caught.value.__cause__} {caplog.text} {logged}"
    for word in ("secret+token", "secret%2Btoken", "hunter2", "hunter3"):
        assert word not in output


async def test_the_query_of_the_url_is_sent() -> None:
    async with serving() as service, asking(f"{service.url}/?api-version=2") as chat:
        await ask(chat)
    assert len(service.bodies) == 1


async def test_the_query_of_the_url_is_in_no_message() -> None:
    async def no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\r\n\r\n")
        writer.close()

    service = await asyncio.start_server(no_http, "127.0.0.1", 0)
    host, port = service.sockets[0].getsockname()[:2]
    async with service, asking(f"http://{host}:{port}/v1?api-key=hidden") as chat:
        with pytest.raises(InfraError, match="Bad status line") as caught:
            await ask(chat)
    assert "hidden" not in str(caught.value)


async def test_a_probe_outlives_an_error_of_any_form() -> None:
    broken = gives({"detail": [{"loc": 5, "msg": "\ud800"}]}, status=422)
    async with serving(broken) as service, asking(service.url) as chat:
        with pytest.raises(CandidateError) as caught:
            await chat.probe()
    assert caught.value.reason == "EndpointRefused"
    str(caught.value).encode()


async def test_turns_without_usage_are_noted() -> None:
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
    async with serving(gives({"choices": [choice]})) as service, asking(service.url) as chat:
        session = a_session()
        await ask(chat, session)
    assert session.turns[0].prompt_tokens == 0
    assert not session.turns[0].counted


async def test_a_probe_needs_only_a_list_that_has_the_model() -> None:
    async with serving(models=listing("another", MODEL)) as service, asking(service.url) as chat:
        await chat.probe()
    assert service.bodies == []
    assert service.tokens == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize(
    "models", [listing("another"), HTML, fails(401), fails(403), fails(404), fails(500), gives([1])]
)
async def test_a_probe_sends_a_chat_if_no_list_has_the_model(models: Answer) -> None:
    """A token may be valid for chats but not for the list of models."""
    async with serving(models=models) as service, asking(service.url) as chat:
        await chat.probe()
    assert [body["max_tokens"] for body in service.bodies] == [endpoint.PROBE_TOKENS]


@pytest.mark.parametrize(
    ("answer", "models", "field"),
    [
        (fails(401), fails(401), "secretRef"),
        (fails(401), HTML, "secretRef"),
        (fails(404, "model_not_found"), listing("another"), "model"),
        (HTML, HTML, "url"),
        (fails(400, "what is this?"), None, "url"),
        (fails(413), None, "url"),
        (fails(500), None, "url"),
    ],
)
async def test_a_probe_finds_each_fault_before_the_first_turn(
    answer: Answer, models: Answer | None, field: str
) -> None:
    async with serving(answer, models=models) as service, asking(service.url, patience=0.5) as chat:
        with pytest.raises(CandidateError) as caught:
            await chat.probe()
    assert caught.value.field == f"spec.candidates[other].endpoint.{field}"


async def test_a_refused_probe_is_enough_after_earlier_answers() -> None:
    """The endpoint may refuse the probe's conversation because it has no tools.

    The list of models may be unavailable.
    """
    async with (
        serving(fails(400, "tools are required"), models=fails(500)) as service,
        asking(service.url, patience=0.5, answered=True) as chat,
    ):
        await chat.probe()
    assert len(service.bodies) == 1
    assert chat.fault is None


async def test_probes_of_a_failing_endpoint_are_spaced_out() -> None:
    """Without pauses there were some 400 probes in four seconds."""
    async with serving(silent) as service, asking(service.url, timeout=0.01, patience=4) as chat:
        with pytest.raises(CandidateError, match="no answer within"):
            await chat.probe()
    assert 2 <= len(service.bodies) <= 20


async def test_a_probe_waits_for_an_endpoint_that_is_not_there_yet() -> None:
    async with serving(fails(503), dropped, says()) as service, asking(service.url) as chat:
        await chat.probe()
    assert len(service.bodies) == 3


async def test_a_good_probe_does_not_prove_that_tools_work() -> None:
    """A probe sends no tools, so the first turn with tools may still be refused permanently."""
    async with serving(says(), fails(400, "tools are not taken")) as service, asking(service.url) as chat:
        await chat.probe()
        with pytest.raises(CandidateError, match="tools are not taken"):
            await ask(chat, tools=[LOOK_UP])


async def play(chat: EndpointChat, max_turns: int = 4) -> EpisodeRecord:
    """Play one episode of the built-in agent against a scripted sandbox."""
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(serving_faulty(sandbox()))
        leases = await stack.enter_async_context(serving_faulty(broker(box.url)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        rules = Rules(20.0, 60, (0.0, 1.0))
        episodes = Episodes(rules, Builtin(chat, max_turns), Broker(http, leases.url, "t", "me"), chat)
        return await episodes.run(
            Task(
                group_id="e-other-000000",
                purpose=Purpose.EVALUATION,
                index=0,
                attempt=0,
                row={"prompt": "p"},
                environment_seed=1,
                sampling_seed=2,
                sampling=Sampling(0.7, 1.0, 64),
            )
        )


async def test_an_episode_is_scored_and_has_no_rows() -> None:
    """The model makes a good call, unreadable calls and an answer.

    The service refuses messages out of order.
    """
    turns = [
        says("", ("look_up", '{"key": "x"}'), reasoning_content="x is a key"),
        says("", ("look_up", "{"), ("look_up", "{}"), ("look_up", "[]")),
        says("It is gold."),
    ]
    async with serving(*turns) as service, asking(service.url) as chat:
        record = await play(chat)
    assert (record.outcome, record.reward, record.error) == (Outcome.COMPLETED, 1.0, None)
    assert record.rows == []
    assert record.forks == 0
    assert [turn.malformed_tool_calls for turn in record.turns] == [0, 2, 0]
    assert all(turn.delivered for turn in record.turns)
    assert [message["role"] for message in service.bodies[2]["messages"]] == [
        *("user", "assistant", "tool"),
        *("assistant", "tool", "user", "user"),
    ]
    assert service.bodies[1]["messages"][1]["reasoning_content"] == "x is a key"


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([says("It is", finish="length")], Outcome.TRUNCATED),
        ([says("", finish="content_filter")], Outcome.COMPLETED),
        ([says("", ("look_up", "{}")), fails(400, "no such conversation")], Outcome.AGENT_ERROR),
        (
            [says("", ("look_up", "{}")), fails(400, "too long", code="context_length_exceeded")],
            Outcome.TRUNCATED,
        ),
        ([fails(500)], Outcome.INFRA_ERROR),
    ],
    ids=["length", "filter", "refused", "full", "broken"],
)
async def test_the_last_answers_of_an_episode_decide_its_outcome(
    answers: list[Answer], outcome: Outcome
) -> None:
    async with serving(*answers) as service, asking(service.url) as chat:
        assert (await play(chat)).outcome is outcome


async def test_the_end_of_a_candidate_is_not_an_outcome() -> None:
    async with serving(says("", ("look_up", "{}")), fails(401)) as service, asking(service.url) as chat:
        with pytest.raises(CandidateError):
            await play(chat)
