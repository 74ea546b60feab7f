"""Checks of limits, parsers, contracts and speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from help_desk import Desk, desk_baseline
from made_up_baselines import a_baseline, a_sample, an_episode, play_all, turns_of

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.contract import read
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, Sampled, ToolResult
from headway_api.document import Json
from headway_api.records import Outcome, Turn

QUESTION = {"role": "user", "content": "?"}
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "get_case",
        "parameters": {
            "type": "object",
            "properties": {"case_id": {"type": "string"}},
            "required": ["case_id"],
        },
    },
}


def judged(check: str, baseline: Baseline) -> Finding:
    return BY_ID[check].judge(baseline, ())


def ended(
    cut: int, turns: Callable[[], Sequence[Turn]], outcome: Outcome = Outcome.TRUNCATED, total: int = 104
) -> Baseline:
    """A baseline in which so many episodes were truncated."""
    made = []
    for number in range(total):
        odd = number < cut
        episode = an_episode(
            group=number // 8,
            index=number % 8,
            turns=turns() if odd else turns_of(2),
            outcome=outcome if odd else Outcome.COMPLETED,
        )
        made.append(a_sample(episode))
    return a_baseline(made, max_turns=4, max_tokens=64, context_length=4096)


def test_episodes_with_room_left_fit() -> None:
    finding = judged("context-fits", ended(0, lambda: turns_of(2)))
    assert finding.verdict == "Pass"
    assert dict(finding.numbers)["p99_turns"] == 2


@pytest.mark.parametrize(("tokens", "verdict"), [(4097, "Fail"), (4096, "Pass")])
def test_an_endpoints_conversation_is_compared_in_own_tokens(tokens: int, verdict: str) -> None:
    baseline = ended(0, lambda: turns_of(2))
    facts = replace(baseline.facts, endpoint="frontier-1")
    sampled = [replace(one, conversation_tokens=tokens) for one in baseline.sampled]
    finding = judged("context-fits", replace(baseline, facts=facts, sampled=sampled))
    assert finding.verdict == verdict
    assert finding.field == ("spec.model.contextLength" if verdict == "Fail" else None)


def test_an_endpoint_that_returns_calls_as_text_is_named() -> None:
    text = '<tool_call>{"name": "get_case", "arguments": {"case_id": "1"}}</tool_call>'
    episode = an_episode(messages=[QUESTION, {"role": "assistant", "content": text}], turns=turns_of(1))
    made = [a_sample(episode, tools=[TOOL]) for _ in range(4)]
    baseline = a_baseline(made)
    finding = judged(
        "tool-calls-parse", replace(baseline, facts=replace(baseline.facts, endpoint="frontier-1"))
    )
    assert finding.verdict == "Warn"
    assert "frontier-1 writes tool calls as text in 4 episodes" in finding.observed
    assert finding.field is None, "the job's parser is not to blame"


def test_an_endpoint_whose_model_never_calls_is_named() -> None:
    made = [a_sample(an_episode(turns=turns_of(1), reward=0.0, score=0.0), tools=[TOOL]) for _ in range(16)]
    baseline = a_baseline(made)
    finding = judged(
        "tool-calls-parse", replace(baseline, facts=replace(baseline.facts, endpoint="frontier-1"))
    )
    assert (finding.verdict, "called no tool in 16 episodes" in finding.observed) == ("Warn", True)


def test_an_endpoint_shows_no_parser_and_no_speed() -> None:
    baseline = ended(0, lambda: turns_of(2))
    elsewhere = replace(baseline, facts=replace(baseline.facts, endpoint="frontier-1"), seconds=60.0)
    for check in ("tool-calls-parse", "throughput"):
        finding = judged(check, elsewhere)
        assert finding.verdict == "Unknown"
        assert "frontier-1" in finding.observed
    numbers = dict(judged("throughput", elsewhere).numbers)
    assert "p99_tool_seconds" in numbers
    assert not {"episodes_an_hour", "whole_job_cost_usd_likely"} & numbers.keys()


@pytest.mark.parametrize(
    ("turns", "field"),
    [
        (lambda: turns_of(2, "length"), "spec.rollout.sampling.maxTokens"),
        (lambda: turns_of(3), "spec.model.contextLength"),
        (lambda: turns_of(4), "spec.agent.builtin.maxTurns"),
    ],
)
def test_the_limit_that_truncates_episodes_is_named(turns: Callable[[], Sequence[Turn]], field: str) -> None:
    finding = judged("context-fits", ended(40, turns))
    assert finding.verdict == "Fail"
    assert finding.field == field
    assert finding.value == pytest.approx(40 / 104)
    assert len(finding.examples) == 3


def test_a_share_that_may_be_chance_is_a_warning() -> None:
    assert judged("context-fits", ended(7, lambda: turns_of(2, "length"))).verdict == "Warn"


def test_a_share_that_may_be_chance_passes() -> None:
    finding = judged("context-fits", ended(4, lambda: turns_of(2, "length"), total=52))
    assert finding.value == pytest.approx(4 / 52)
    assert finding.verdict == "Pass"


def test_few_episodes_say_nothing_of_limits() -> None:
    finding = judged("context-fits", ended(0, lambda: turns_of(2), total=15))
    assert (finding.verdict, finding.needs) == ("Unknown", 59)


def test_the_longest_episode_must_fit() -> None:
    baseline = ended(0, lambda: turns_of(2))
    sampled = [replace(one, tool_tokens=[900, 950]) for one in baseline.sampled]
    finding = judged("context-fits", replace(baseline, sampled=sampled))
    assert finding.verdict == "Pass"  # 100 + 4 * 64 + 3 * 950 = 3206
    short = replace(baseline.facts, context_length=3205)
    finding = judged("context-fits", replace(baseline, sampled=sampled, facts=short))
    assert finding.verdict == "Warn"
    assert finding.value == 3206


def calls(readable: int, malformed: int, text: str = "") -> Baseline:
    """Episodes of one turn each, with a call that was read or one that was not."""
    made = []
    for number in range(readable + malformed):
        bad = number < malformed
        call = {"id": "1", "type": "function", "function": {"name": "get_case", "arguments": "{}"}}
        answer: Json = {"role": "assistant", "content": text if bad else ""}
        if not bad:
            answer["tool_calls"] = [call]
        turns = [
            turn.model_copy(update={"malformed_tool_calls": int(bad and not text)}) for turn in turns_of(1)
        ]
        episode = an_episode([QUESTION, answer], group=number, turns=turns)
        made.append(a_sample(episode, tools=[TOOL], malformed=["<tool_call>{"] if bad and not text else ()))
    return a_baseline(made, other_parsers={"llama": malformed, "hermes": 0})


def test_calls_that_are_read_pass() -> None:
    assert judged("tool-calls-parse", calls(40, 0)).verdict == "Pass"


def test_two_bad_calls_of_eight_are_not_a_sure_share() -> None:
    assert judged("tool-calls-parse", calls(6, 2)).verdict == "Pass"
    assert judged("tool-calls-parse", calls(8, 4)).verdict == "Warn"


def test_unread_calls_name_a_parser_that_reads_them() -> None:
    finding = judged("tool-calls-parse", calls(20, 40))
    assert finding.verdict == "Fail"
    assert finding.value == pytest.approx(2 / 3)
    assert "`llama`" in finding.advice
    assert finding.examples[0].text == "<tool_call>{"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_case", "arguments": {"case_id": "7"}}',
        "<tool_call>get_case(7)</tool_call>",
        '[TOOL_CALLS][{"name": "get_case"}]',
    ],
)
def test_calls_that_were_mistaken_for_words_count(text: str) -> None:
    assert judged("tool-calls-parse", calls(10, 40, text)).verdict == "Fail"


@pytest.mark.parametrize("text", ["I would use get_case now.", '{"name": "Jo", "age": 4}', "done"])
def test_words_about_tools_are_not_calls(text: str) -> None:
    assert judged("tool-calls-parse", calls(40, 40, text)).verdict == "Pass"


def test_no_calls_are_too_few_if_there_are_tools() -> None:
    finding = judged("tool-calls-parse", calls(2, 1))
    assert finding.verdict == "Unknown"
    assert finding.needs is not None
    assert finding.needs > 3
    assert judged("tool-calls-parse", a_baseline([a_sample(an_episode())])).verdict == "Pass"


def test_a_model_without_calls_or_success_is_a_warning() -> None:
    failed = [an_episode(group=at, reward=0.0) for at in range(20)]
    finding = judged("tool-calls-parse", a_baseline(a_sample(one, tools=[TOOL]) for one in failed))
    assert finding.verdict == "Warn"
    assert "chat template" in finding.advice
    succeeds = [an_episode(group=99), *failed]
    assert (
        judged("tool-calls-parse", a_baseline(a_sample(one, tools=[TOOL]) for one in succeeds)).verdict
        == "Unknown"
    )


OPENAPI: Json = {
    "openapi": "3.0.3",
    "paths": {
        "/cases/{case_id}": {
            "get": {
                "operationId": "getCase",
                "parameters": [{"$ref": "#/components/parameters/CaseId"}],
                "responses": {
                    "200": {
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Case"}}}
                    }
                },
            }
        },
        "/limits": {
            "post": {
                "operationId": "get_limit",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {"case_id": {"type": "string"}},
                                "required": ["case_id"],
                            }
                        }
                    },
                },
                "responses": {"200": {"description": "cents"}},
            }
        },
    },
    "components": {
        "parameters": {
            "CaseId": {"name": "case_id", "in": "path", "required": True, "schema": {"type": "string"}}
        },
        "schemas": {
            "Case": {
                "type": "object",
                "properties": {
                    "complaint": {"type": "integer"},
                    "spent": {"type": "integer", "nullable": True},
                },
                "required": ["complaint", "spent"],
            }
        },
    },
}
MCP: Json = {
    "tools": [
        {
            "name": "get_case",
            "inputSchema": {
                "type": "object",
                "properties": {"case_id": {"type": "string"}},
                "required": ["case_id"],
            },
            "outputSchema": {"type": "object", "properties": {"complaint": {"type": "integer"}}},
        },
        {
            "name": "get_limit",
            "inputSchema": {"type": "object", "properties": {"case_id": {"type": "string"}}},
        },
    ]
}


def with_contract(document: Json | None) -> Finding:
    return judged("tools-like-production", desk_baseline(contract=document))


@pytest.mark.parametrize("document", [OPENAPI, MCP], ids=["OpenAPI", "MCP"])
def test_tools_like_productions_pass(document: Json) -> None:
    finding = with_contract(document)
    assert finding.verdict == "Pass"
    assert "2 tools" in finding.observed


def changed(document: Json, path: Sequence[str], value: Any) -> Json:
    """A copy with one value changed."""
    if not path:
        return value  # type: ignore[no-any-return]
    if isinstance(document, list):
        at = int(path[0])
        return [changed(each, path[1:], value) if at == n else each for n, each in enumerate(document)]  # type: ignore[return-value]
    return {**document, path[0]: changed(document.get(path[0], {}), path[1:], value)}


CASE = ("components", "schemas", "Case")
ID = ("components", "parameters", "CaseId")


@pytest.mark.parametrize(
    ("path", "value", "observation"),
    [
        (("paths", "/limits", "post", "operationId"), "find_limit", "get_limit is not in the contract"),
        ((*ID, "schema"), {"type": "integer"}, "takes case_id as string, the contract as integer"),
        ((*ID, "name"), "number", "get_case takes case_id, which the contract does not have"),
        ((*ID, "name"), "number", "get_case lacks number, which the contract requires"),
        ((*CASE, "properties", "complaint"), {"type": "string"}, "get_case answers differently"),
        ((*CASE, "required"), ["complaint", "spent", "owner"], "get_case answers differently"),
    ],
)
def test_a_difference_to_the_contract_is_named(path: Sequence[str], value: Any, observation: str) -> None:
    document = changed(OPENAPI, path, value)
    if path[-1] == "operationId":
        moved = dict(document["paths"])
        moved["/limit_search"] = moved.pop("/limits")
        document = {**document, "paths": moved}
    found = with_contract(document)
    assert found.verdict == "Fail"
    assert observation in found.observed
    assert found.examples


def test_a_nullable_value_may_be_null() -> None:
    contract = read(OPENAPI)
    assert contract is not None
    operation = contract.operation("get-case")
    assert operation is not None
    assert contract.objection(operation, {"complaint": 1, "spent": None}) is None
    objection = contract.objection(operation, {"complaint": None, "spent": 1})
    assert objection is not None
    assert objection.startswith("complaint: ")


def test_no_contract_and_an_odd_one_are_unknown() -> None:
    assert with_contract(None).verdict == "Unknown"
    assert with_contract({"swagger": "2.0"}).verdict == "Unknown"


@pytest.mark.parametrize(
    "document",
    [
        {"$schema": 7, "tools": []},
        {"$schema": 7, "paths": {}},
        {"tools": [{"name": "get_case", "inputSchema": {"properties": ["case_id"]}}]},
        {
            "tools": [
                {"name": "get_case", "inputSchema": {"properties": {"case_id": {"type": ["string", {}]}}}}
            ]
        },
        {"tools": [{"name": "get_case", "inputSchema": {"required": 7}}]},
    ],
)
def test_an_odd_contract_is_still_judged(document: Json) -> None:
    assert with_contract(document).verdict == "Fail"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"type": "strange"},
        {"pattern": "("},
        {"$ref": "#/components/schemas/Case"},
    ],
)
def test_a_schema_that_cannot_be_read_says_nothing(schema: Mapping[str, Any]) -> None:
    document = changed(OPENAPI, CASE, schema)
    contract = read(document)
    assert contract is not None
    operation = contract.operation("get_case")
    assert operation is not None
    assert contract.objection(operation, "text") is None


def slow(seconds: float, count: int = 40) -> Baseline:
    result = ToolResult("get_case", {"case_id": "7"}, "{}", seconds)
    return a_baseline(
        (a_sample(an_episode(group=at), results=[result]) for at in range(count)), group_size=8, max_steps=10
    )


def test_speed_gives_the_jobs_time() -> None:
    baseline = replace(slow(0.01), seconds=144.0)
    played = play_all(lambda: Desk({}), BY_ID["throughput"].scripts(desk_baseline()))
    finding = BY_ID["throughput"].judge(baseline, played)
    assert finding.verdict == "Pass"
    numbers = dict(finding.numbers)
    assert numbers["episodes_an_hour"] == pytest.approx(1000)
    assert numbers["rollout_hours"] == pytest.approx(80 / 1000)
    assert numbers["p50_sandbox_wait_seconds"] == pytest.approx(0.2)


def test_a_slow_tool_is_a_warning() -> None:
    finding = judged("throughput", slow(12.0))
    assert finding.verdict == "Warn"
    assert finding.value == 12.0
    assert "get_case" in finding.examples[0].title


def lost(count: int) -> list[Sampled]:
    return [a_sample(an_episode(group=at, reward=None, error="KeyError in get_case")) for at in range(count)]


def test_many_lost_episodes_are_a_warning() -> None:
    baseline = slow(0.01)
    finding = judged("throughput", replace(baseline, sampled=[*baseline.sampled, *lost(6)]))
    assert finding.verdict == "Warn"
    assert "KeyError in get_case" in finding.examples[0].text


def test_few_episodes_say_nothing_of_speed() -> None:
    assert judged("throughput", slow(0.01, 7)).verdict == "Unknown"
