"""Turns that must follow a schema.

They are recorded, billed and reported, and the learner uses them as context.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from open_rollout import TOOLS, USER, rig
from scripted_model import ANSWER
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.endpoint.wire import Dialect
from headway_coordinator.engines.schemas import LOSSES, Suspects
from headway_coordinator.engines.vllm import Request, SchemaRefusedError, ServerLostError, _body
from headway_coordinator.gateway.asks import ANY_OBJECT, Ask, Sampling, Session
from headway_coordinator.trajectory.linearize import linearize

ROOT = Path(__file__).parents[3]
JSON = '{"metal": "gold"}<|im_end|>'
SCHEMA = {"type": "object", "properties": {"metal": {"type": "string"}}, "required": ["metal"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "metal", "schema": SCHEMA, "strict": True}}
TEXT = {"type": "json_schema", "schema": SCHEMA}
NO_TOOL = {"tools": TOOLS, "tool_choice": "none"}
GENERATE = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n"


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [USER], "response_format": FORMAT}),
    (
        "/v1/chat/completions",
        {"messages": [USER], "response_format": {"type": "json_object", "schema": SCHEMA}},
    ),
    ("/v1/chat/completions", {"messages": [USER], "response_format": FORMAT | {"type": "json_object"}}),
    ("/v1/chat/completions", {"messages": [USER], "guided_json": SCHEMA}),
    ("/v1/chat/completions", {"messages": [USER], "guided_json": json.dumps(SCHEMA)}),
    ("/v1/chat/completions", {"messages": [USER], "json_schema": json.dumps(SCHEMA)}),
    ("/v1/chat/completions", {"messages": [USER], "structured_outputs": {"json": SCHEMA}}),
    ("/v1/chat/completions", {"messages": [USER], "response_format": FORMAT} | NO_TOOL),
    ("/v1/completions", {"prompt": "x", "response_format": FORMAT}),
    ("/v1/responses", {"input": "x", "text": {"format": TEXT | {"name": "m"}}}),
    ("/v1/responses", {"input": "x", "text": {"format": TEXT | {"type": "json_object"}}}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 50, "output_format": TEXT}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 50, "output_config": {"format": TEXT}}),
]


@pytest.mark.parametrize(("path", "body"), SPELLINGS, ids=str)
async def test_every_spelling_sets_the_same_schema(tok: Any, path: str, body: dict[str, Any]) -> None:
    async with rig(tok, JSON) as r:
        status, answer = await r.post(path, body)
        assert status == 200, answer
        [request] = r.model.requests
        assert json.loads(request.schema or "") == SCHEMA
        assert r.rollout.session.record[0].guided
        assert "metal" in json.dumps(answer)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ],
)
async def test_json_object_asks_the_server_for_any_object(tok: Any, fields: dict[str, Any]) -> None:
    async with rig(tok, JSON) as r:
        assert (await r.chat(**fields))[0] == 200
        assert r.model.requests[0].schema == ANY_OBJECT


async def test_guided_turn_is_context_in_the_row_that_continues_it(tok: Any) -> None:
    async with rig(tok, ANSWER, JSON, ANSWER) as r:
        messages = [USER]
        for fields in ({}, {"response_format": FORMAT}, {}):
            status, answer = await r.chat(*messages, **fields)
            assert status == 200, answer
            messages = [*messages, answer["choices"][0]["message"], USER]
        session = r.rollout.session
        assert [turn.guided for turn in session.record] == [False, True, False]
        [row] = linearize(session.graph, session.untrained)
        first, guided, last = (spoken.sampled for spoken in r.model.spoken["t0-000001-0-0"])
        assert sum(row.mask) == len(first) + len(last)
        assert [span.turn for span in row.turns] == [0, 2]
        text = tok.decode(row.tokens)
        assert tok.decode(guided) in text, "the model reads it"
        assert (session.forks, session.ignored) == (0, {})
        stored = {
            "episode_id": "e",
            "turns": [turn.model_dump(mode="json") for turn in session.record],
            "rows": [row.model_dump(mode="json")],
        }
        counted: Counter[str] = Counter()
        recount().count_episode(stored, counted, billed=True, evaluation=False)
        assert counted["sample"] == len(first) + len(guided) + len(last), "it is billed all the same"


def recount() -> ModuleType:
    """The module hack/recount.py, which compares the sampled tokens with the rows."""
    spec = importlib.util.spec_from_file_location("recount", ROOT / "hack" / "recount.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_an_episode_of_guided_turns_has_no_row(tok: Any) -> None:
    async with rig(tok, JSON) as r:
        assert (await r.chat(response_format=FORMAT))[0] == 200
        assert linearize(r.rollout.session.graph, r.rollout.session.untrained) == []


async def test_reasoning_that_a_template_begins_ends_before_the_json(tmp_path: Path) -> None:
    assert GENERATE in QWEN3_TEMPLATE
    opening = QWEN3_TEMPLATE.replace(GENERATE, GENERATE + "<think>\\n")
    tok = tokenizer(tmp_path, opening)
    async with rig(tok, JSON, ANSWER) as r:
        status, answer = await r.chat(response_format=FORMAT)
        assert status == 200, answer
        message = answer["choices"][0]["message"]
        assert json.loads(message["content"]) == {"metal": "gold"}
        assert not message.get("reasoning_content")
        [request] = r.model.requests
        assert tok.decode(list(request.prompt)).endswith("<think>\n\n</think>\n\n")


async def test_a_lenient_job_trains_the_turn_instead(tok: Any) -> None:
    async with rig(tok, JSON) as r:
        r.rollout.lenient = True
        assert (await r.chat(response_format=FORMAT))[0] == 200
        assert r.model.requests[0].schema is None
        assert r.rollout.session.ignored == {"response_format": 1}
        assert not r.rollout.session.untrained


async def test_schema_refused_by_the_server_is_the_agents_error(tok: Any) -> None:
    async with rig(tok, JSON) as r:
        r.model.fault = SchemaRefusedError("no such grammar")
        status, answer = await r.chat(response_format=FORMAT)
        assert (status, answer["error"]["param"]) == (400, "response_format")
        assert "no such grammar" in answer["error"]["message"]
        assert not r.rollout.faults


def test_vllm_is_sent_the_schema() -> None:
    asked = Request([1], 5, 1.0, 1.0, 7, [0], schema=ANY_OBJECT)
    assert _body("m", "s", asked)["sampling_params"]["structured_outputs"] == {"json": ANY_OBJECT}
    assert "structured_outputs" not in _body("m", "s", Request([1], 5, 1.0, 1.0, 7, [0]))["sampling_params"]


def test_a_schema_with_which_servers_are_lost_is_not_retried() -> None:
    suspects = Suspects()
    for _ in range(LOSSES - 1):
        with pytest.raises(ServerLostError), suspects.watched("bad"):
            raise ServerLostError("gone")
    with pytest.raises(SchemaRefusedError), suspects.watched("bad"):
        raise ServerLostError("gone")
    with pytest.raises(SchemaRefusedError), suspects.watched("bad"):
        raise AssertionError("no server is asked")
    with suspects.watched("good"), suspects.watched(None):
        pass


def test_a_schema_that_a_server_has_answered_is_not_blamed() -> None:
    suspects = Suspects()
    for _ in range(2 * LOSSES):
        with pytest.raises(ServerLostError), suspects.watched("fine"):
            raise ServerLostError("gone")
        with suspects.watched("fine"):
            pass
    with pytest.raises(ServerLostError), suspects.watched(None):
        raise ServerLostError("gone")


def test_an_endpoint_gets_the_same_schema_and_effort() -> None:
    session = Session("e", 1, Sampling(1.0, 1.0, 64))
    dialect = Dialect()
    body = dialect.body("m", session, Ask([USER], schema=json.dumps(SCHEMA), effort="low"), 0, bounded=True)
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert body["reasoning_effort"] == "low"
    body = dialect.body("m", session, Ask([USER], schema=ANY_OBJECT, effort="on"), 0, bounded=True)
    assert body["response_format"] == {"type": "json_object"}
    assert "reasoning_effort" not in body
