"""An episode as a row of results: what counts as an answer, a tool call, a limit or a cost."""

from __future__ import annotations

from typing import Any

import pytest
from episodes import a_group, given_up, sealed

from headway_analysis.measures.tries import Rules, Try, TryPlace, a_try, tries_of
from headway_api.records import EpisodeRecord, Outcome, Turn

PLACE = TryPlace("tuned", row=7, task="refund", row_id="case-7")
USER = {"role": "user", "content": "Handle case 7."}
ANSWER = {"role": "assistant", "content": "Done."}


def call(identity: str, name: str = "get_case") -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": identity, "type": "function", "function": function}],
    }


def result(identity: str, content: str = "open") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def episode(messages: list[dict[str, Any]], **changes: Any) -> EpisodeRecord:
    """An episode with one turn for each of the assistant's messages, unless `turns` says otherwise."""
    sampled = sum(message["role"] == "assistant" for message in messages)
    record = sealed("v0-7", turns=changes.pop("turns", sampled))
    return record.model_copy(update={"messages": messages, **changes})


def as_try(record: EpisodeRecord, **rules: Any) -> Try:
    return a_try(record, PLACE, Rules(**rules))


def turns(record: EpisodeRecord, **last: Any) -> list[Turn]:
    """The record's turns, with the last one changed."""
    return [*record.turns[:-1], record.turns[-1].model_copy(update=last)]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER, ANSWER], 1.0),
        ([USER, call("call-0-0"), result("call-0-0"), ANSWER], 1.0),
        ([USER, call("call-0-0", "submit"), result("call-0-0")], 1.0),
        ([USER, {"role": "assistant", "content": " \n"}], 0.0),
        ([USER, {"role": "assistant", "content": None}], 0.0),
        ([USER, {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}], 1.0),
        ([USER, call("call-0-0")], 0.0),
        ([USER], 0.0),
    ],
)
def test_completion_is_an_answer_right_or_wrong(messages: list[dict[str, Any]], expected: float) -> None:
    record = episode(messages, reward=0.0, score=0.0)
    assert as_try(record).completion == expected
    assert not as_try(record).success


@pytest.mark.parametrize("outcome", [Outcome.TRUNCATED, Outcome.AGENT_ERROR])
def test_an_episode_that_was_cut_short_has_no_answer(outcome: Outcome) -> None:
    assert as_try(episode([USER, ANSWER], outcome=outcome)).completion == 0


def test_an_unreadable_tool_call_is_not_an_answer() -> None:
    record = episode([USER, {"role": "assistant", "content": "<tool_call>{"}])
    assert as_try(record.model_copy(update={"turns": turns(record, malformed_tool_calls=1)})).completion == 0


def test_the_environments_metrics_decide_completion_and_format() -> None:
    own = as_try(episode([USER], metrics={"completion": 0.5, "format": 1.0, "fields": 0.25}))
    assert (own.completion, own.format, own.metrics["fields"]) == (0.5, 1.0, 0.25)
    assert as_try(episode([USER, ANSWER], metrics={})).format is None


@pytest.mark.parametrize(
    ("reward", "score", "expected"),
    [(1.0, 0.5, (False, True)), (0.7, 1.0, (True, False)), (0.8, 0.8, (True, True))],
)
def test_success_is_judged_by_score_and_by_reward(
    reward: float, score: float, expected: tuple[bool, bool]
) -> None:
    found = as_try(episode([USER, ANSWER], reward=reward, score=score), threshold=0.8)
    assert (found.success, found.success_by_reward) == expected


@pytest.mark.parametrize("example", ["example", "call-1-0"])
def test_tool_calls_are_counted_by_tool_failed_and_malformed(example: str) -> None:
    """An example may come from a recorded conversation, and have the id of a call of this episode."""
    broken = {"role": "assistant", "content": "<tool_call>{"}
    messages = [
        USER,
        call(example, "get_case"),  # shown by the environment, not made by the model
        result(example, "error: shown as well"),
        call("call-0-0"),
        result("call-0-0", "error: there is no case 9"),
        call("call-1-0", "close_case"),
        result("call-1-0", "an error: is in it"),
        broken,
        result("call-2-0", "error: the tool call could not be read"),
        ANSWER,
    ]
    record = episode(messages, turns=4)
    changed = [record.turns[i].model_copy(update={"malformed_tool_calls": int(i == 2)}) for i in range(4)]
    calls = as_try(record.model_copy(update={"turns": changed})).tool_calls
    assert dict(calls.by_tool) == {"get_case": 1, "close_case": 1}
    assert (calls.failed, calls.malformed, calls.readable, calls.total) == (1, 1, 2, 3)


@pytest.mark.parametrize(
    ("outcome", "finish", "max_turns", "expected"),
    [
        (Outcome.TRUNCATED, "stop", 2, (True, False)),
        (Outcome.TRUNCATED, "length", 2, (False, True)),
        (Outcome.TRUNCATED, "stop", 3, (False, True)),  # the context was full
        (Outcome.TRUNCATED, "stop", None, (None, True)),  # an agent with its own loop
        (Outcome.COMPLETED, "stop", 2, (False, False)),
        (Outcome.AGENT_ERROR, "stop", 2, (False, False)),
    ],
)
def test_the_limit_that_ended_an_episode(
    outcome: Outcome, finish: str, max_turns: int | None, expected: tuple[bool | None, bool]
) -> None:
    record = sealed("v0-7", turns=2, outcome=outcome)
    record = record.model_copy(update={"turns": turns(record, finish_reason=finish)})
    found = as_try(record, max_turns=max_turns)
    assert (found.turn_limit, found.token_limit) == expected


def test_tokens_and_seconds_are_counted_by_class() -> None:
    found = as_try(sealed("v0-7", turns=2))
    assert (found.turns, found.prompt_tokens, found.cached_tokens, found.sampled_tokens) == (2, 23, 3, 8)
    assert (found.seconds, found.sandbox_seconds) == (2.0, 1.5)
    assert found.usage == {
        "evaluationPrefill": 23,
        "evaluationCachedPrefill": 3,
        "evaluationSample": 8,
        "sandboxSeconds": 1.5,
    }


def test_lost_and_repeated_attempts_are_discarded_tokens() -> None:
    good, lost = tries_of(a_group("v0-7", [1.0, None], retried=2), PLACE, Rules())
    assert (good.scored, lost.scored) == (True, False)
    assert good.discarded_tokens == 2 * 31  # both earlier attempts were at the first try
    assert lost.usage == {"discarded": 31}
    assert (lost.reward, lost.success, lost.success_by_reward) == (None, False, False)


def test_a_turn_that_never_reached_the_agent_is_discarded() -> None:
    found = as_try(given_up(sealed("v0-7")))
    assert (found.prompt_tokens, found.cached_tokens, found.sampled_tokens) == (23, 3, 8)
    assert found.discarded_tokens == 14
    assert found.usage == {
        "evaluationPrefill": 13,
        "evaluationCachedPrefill": 3,
        "evaluationSample": 4,
        "discarded": 14,
        "sandboxSeconds": 1.5,
    }
    lost = as_try(given_up(sealed("v0-7", reward=None)))
    assert (lost.discarded_tokens, lost.usage) == (31, {"discarded": 31})
    elsewhere = a_try(given_up(sealed("v0-7")), PLACE, Rules(), sampled_by="endpoint")
    assert (elsewhere.discarded_tokens, "discarded" in elsewhere.usage) == (0, False)


def test_a_try_clusters_by_row_unless_a_column_names_the_cluster() -> None:
    record = sealed("v0-7")
    named = TryPlace("tuned", row=7, cluster="7")
    assert as_try(record).cluster != a_try(record, named, Rules()).cluster
    assert (
        a_try(record, named, Rules()).cluster
        == a_try(record, TryPlace("base", 8, cluster="7"), Rules()).cluster
    )
