"""An episode's record lists the fields that were not applied, within bounds. They never end the episode."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import one_question_environment
import pytest
from aiohttp import web
from gateway_rig import a_task, gateway_rig, sandboxes
from open_rollout import rig
from scripted_model import ANSWER, CALL, TWO_CALLS
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api import bounds
from headway_api.records import MAX_IGNORED, EpisodeRecord, Outcome
from headway_coordinator import episode
from headway_coordinator.episode import Episodes
from headway_coordinator.gateway import completions, messages, openai, responses
from headway_coordinator.gateway.asks import OTHERS, Sampling, Session
from headway_coordinator.gateway.unapplied import INERT, LISTED

USER = {"role": "user", "content": "Which metal is x?"}
TOOL = {"name": "look_up", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}
MANY = {f"variable_{number}": number for number in range(300)}


@asynccontextmanager
async def played(
    tmp_path: Path, path: str, *bodies: dict[str, Any], lenient: bool = True
) -> AsyncIterator[tuple[Episodes, list[int]]]:
    """Runs episodes whose agent sends `bodies` to `path`.

    Yields the runner, and the HTTP statuses of the answers.
    """
    shutil.copy(one_question_environment.__file__, tmp_path)
    statuses: list[int] = []

    async def work(request: web.Request) -> web.StreamResponse:
        endpoint = (await request.json())["metadata"]["endpoint"]
        async with aiohttp.ClientSession() as http:
            for body in bodies:
                async with http.post(endpoint + path, json=body) as answer:
                    statuses.append(answer.status)
            async with http.post(f"{endpoint}/complete-rollout", json={"Status": "ready"}):
                return web.json_response({})

    async with AsyncExitStack() as stack:
        tok = tokenizer(tmp_path, QWEN3_TEMPLATE)
        gateway = await stack.enter_async_context(gateway_rig(tok, CALL, ANSWER))
        leases = await stack.enter_async_context(sandboxes(tmp_path, "one_question_environment:OneQuestion"))
        app = web.Application()
        app.router.add_post("/{path:.*}", work)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        agent = gateway.http_agent(url, reports_reward=False, lenient=lenient)
        yield gateway.episodes(agent, leases), statuses


async def record_of(
    tmp_path: Path, path: str, *bodies: dict[str, Any], lenient: bool = True
) -> EpisodeRecord:
    async with played(tmp_path, path, *bodies, lenient=lenient) as (episodes, statuses):
        record = await episodes.run(a_task({"prompt": "Which metal is x?"}))
    assert statuses == [200] * len(bodies)
    return record


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", {"chat_template_kwargs": MANY}, "chat_template_kwargs.variable_0"),
        ("/v1/messages", {"max_tokens": 50, "output_config": MANY}, "output_config.variable_0"),
    ],
)
async def test_field_names_of_an_agents_own_end_no_job(
    tmp_path: Path, path: str, body: dict[str, Any], named: str
) -> None:
    asked = {"messages": [USER]} | body
    record = await record_of(tmp_path, path, asked, asked)
    assert (record.outcome, record.error) == (Outcome.COMPLETED, None)
    assert len(record.ignored) == MAX_IGNORED
    assert (record.ignored[named], record.ignored[OTHERS]) == (2, 2)
    assert EpisodeRecord.model_validate_json(record.model_dump_json()) == record


def test_a_long_name_is_cut() -> None:
    session = Session("t0-000000-0-0", 1, Sampling(1.0, 1.0, 9))
    session.ignore(["x" * 1000, "x" * 1000, "y"])
    [long] = set(session.ignored) - {"y"}
    assert len(long) == bounds.NAME
    assert session.ignored[long] == 1, "it counts requests"


async def test_a_record_beyond_its_bounds_fails_only_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_much(self: Session, names: Any) -> None:
        self.ignored.update(f"field_{number}" for number in range(300))

    monkeypatch.setattr(Session, "ignore", too_much)
    record = await record_of(tmp_path, "/v1/chat/completions", {"messages": [USER]})
    assert (record.outcome, record.reward, record.rows) == (Outcome.INFRA_ERROR, None, [])
    assert "its record cannot be made: ignored" in str(record.error)
    assert len(record.turns) == 1, "it was sampled, and is billed"
    assert "Traceback" in caplog.text
    assert "episode-failed" in caplog.text


async def test_a_bug_in_making_a_record_fails_only_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode, "linearize", lambda *given: 1 // 0)
    record = await record_of(tmp_path, "/v1/chat/completions", {"messages": [USER]})
    assert record.outcome is Outcome.INFRA_ERROR
    assert "ZeroDivisionError" in str(record.error)


NOT_APPLIED = {"temperature": 0, "top_p": 0.5, "seed": 7, "parallel_tool_calls": False, "tempreature": 0.2}


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 50}),
        ("/v1/responses", {"input": "Which metal is x?"}),
        ("/v1/completions", {"prompt": "Which metal is x?"}),
    ],
)
async def test_fields_that_clients_send_by_default_are_listed(
    tmp_path: Path, path: str, body: dict[str, Any], lenient: bool
) -> None:
    as_the_jobs = {"temperature": 1.0, "top_p": 1, "parallel_tool_calls": True, "user": "me", "store": True}
    bodies = body | NOT_APPLIED, body | as_the_jobs
    record = await record_of(tmp_path, path, *bodies, lenient=lenient)
    assert record.ignored == dict.fromkeys(NOT_APPLIED, 1)


REQUESTS: dict[str, tuple[dict[str, Any], Any]] = {
    "/v1/chat/completions": ({"messages": [USER]}, openai.Body),
    "/v1/messages": ({"messages": [USER], "max_tokens": 50}, messages.MessagesBody),
    "/v1/responses": ({"input": "Which metal is x?"}, responses.ResponsesBody),
    "/v1/completions": ({"prompt": "Which metal is x?"}, completions.CompletionBody),
}
"""Route -> its smallest request, and the model of the request that it reads."""


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_field_of_another_protocol_is_not_silently_lost(tmp_path: Path, path: str) -> None:
    body, reads = REQUESTS[path]
    foreign = {
        name for _, each in REQUESTS.values() for name in each.model_fields
    } - reads.model_fields.keys()
    foreign -= LISTED.keys() | INERT
    assert (
        foreign
        >= {"system", "instructions", "stop_sequences", "max_output_tokens"} - reads.model_fields.keys()
    )
    async with rig(tokenizer(tmp_path, QWEN3_TEMPLATE), *[ANSWER] * len(foreign)) as r:
        for name in sorted(foreign):
            status, refused = await r.post(path, body | {name: "something else"})
            error = refused["error"]
            assert (status, error.get("param", name)) == (400, name), name
            assert name in str(error), name
        assert r.model.requests == []
        r.rollout.lenient = True
        for name in sorted(foreign):
            assert (await r.post(path, body | {name: "something else"}))[0] == 200, name
        assert r.rollout.session.ignored == dict.fromkeys(foreign, 1)


@pytest.mark.parametrize("field", ["prefix", "partial"])
async def test_a_message_that_asks_to_be_continued_is_refused(tmp_path: Path, field: str) -> None:
    asked = {"messages": [USER, {"role": "assistant", "content": "It is", field: True}]}
    async with rig(tokenizer(tmp_path, QWEN3_TEMPLATE), ANSWER) as r:
        status, refused = await r.post("/v1/chat/completions", asked)
        assert (status, refused["error"]["param"]) == (400, f"messages.1.{field}")
        assert "every turn begins a message of its own" in refused["error"]["message"]
        r.rollout.lenient = True
        assert (await r.post("/v1/chat/completions", asked))[0] == 200
        assert r.rollout.session.ignored == {f"messages.{field}": 1}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_by_either_name(name: str) -> None:
    sent = {"role": "assistant", "content": "Gold.", name: "It shines."}
    ask = openai.read({"messages": [USER, sent, USER]}).ask
    assert ask.messages[1]["reasoning_content"] == "It shines."


async def test_parallel_calls_are_returned_even_if_switched_off(tmp_path: Path) -> None:
    """The answer of the Responses API then has `parallel_tool_calls: true`."""
    tok = tokenizer(tmp_path, QWEN3_TEMPLATE)
    async with gateway_rig(tok, TWO_CALLS) as gateway, gateway.rollout() as (rollout, base):
        asked = {"input": "x and y?", "tools": [{"type": "function"} | TOOL], "parallel_tool_calls": False}
        async with gateway.http.post(f"{base}/v1/responses", json=asked) as answer:
            response = await answer.json()
    assert [item["type"] for item in response["output"]] == ["function_call"] * 2
    assert response["parallel_tool_calls"] is True
    assert rollout.session.ignored == {"parallel_tool_calls": 1}


MUTE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
WITH_TOOLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [USER], "tools": [{"type": "function", "function": TOOL}]}),
    ("/v1/responses", {"input": "x?", "tools": [{"type": "function"} | TOOL]}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 9, "tools": [{"name": "a", "input_schema": {}}]}),
]


@pytest.mark.parametrize(("path", "body"), WITH_TOOLS)
async def test_tools_are_refused_if_nobody_reads_the_calls(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with rig(tokenizer(tmp_path, MUTE), ANSWER) as r:
        status, refused = await r.post(path, body)
        assert (status, refused["error"]["param"], refused["error"]["code"]) == (
            *(400, "tools"),
            "unsupported_parameter",
        )
        for word in ("family qwen3", "chat template", "toolCallParser", "chat_template.jinja", "lenient"):
            assert word in refused["message"]
        assert r.model.requests == []
        without = {name: value for name, value in body.items() if name != "tools"}
        assert (await r.post(path, without))[0] == 200
        r.rollout.lenient = True
        assert (await r.post(path, body))[0] == 200
        assert r.rollout.session.ignored == {"tools": 1}


async def test_tools_that_may_not_be_called_need_no_reader(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": TOOL}]
    async with rig(tokenizer(tmp_path, MUTE), ANSWER) as r:
        assert (await r.chat(tools=tools, tool_choice="none"))[0] == 200
        assert r.rollout.session.ignored == {}
