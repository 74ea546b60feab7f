"""Baselines of made-up episodes, and scripts that a real environment plays in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway_analysis.preflight.evidence import (
    Baseline,
    Call,
    Facts,
    PlayedScript,
    Sampled,
    Script,
    ToolResult,
)
from headway_api.records import EpisodeRecord, GroupRecord, Outcome, PolicyVersion, Purpose, Turn
from headway_sandbox.environment import Call as Called
from headway_sandbox.environment import Environment, Reward, ToolError, Transcript

Json = Mapping[str, Any]
Policy = Callable[[Json, int], tuple[Sequence[Call], str | None]]
"""(row, index of the episode) -> the calls of a made-up model, and its last message."""
VERSION = PolicyVersion(incarnation=0, step=0)


def turns_of(count: int, finish_reason: str = "stop") -> list[Turn]:
    """Turns of a made-up model. The last one ends with `finish_reason`."""
    return [
        Turn(
            index=at,
            prompt_tokens=100 + 40 * at,
            cached_tokens=0,
            sampled_tokens=20,
            finish_reason=finish_reason if at == count - 1 else "tool_calls",
            policy_version=VERSION,
        )
        for at in range(count)
    ]


def an_episode(
    messages: Sequence[Json] = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}),
    *,
    group: int = 0,
    index: int = 0,
    reward: float | None = 1.0,
    score: float | None = None,
    outcome: Outcome | None = None,
    turns: Sequence[Turn] | None = None,
    error: str | None = None,
    cause: str | None = None,
) -> EpisodeRecord:
    """A sealed episode. Without a reward, it is an InfraError."""
    assistant_turns = sum(message["role"] == "assistant" for message in messages)
    lost = reward is None
    return EpisodeRecord(
        episode_id=f"preflight-{group:04}-{index}-0",
        group_id=f"preflight-{group:04}",
        index=index,
        attempt=0,
        outcome=outcome or (Outcome.INFRA_ERROR if lost else Outcome.COMPLETED),
        error=error or ("lost" if lost else None),
        cause=cause,
        reward=reward,
        score=None if lost else (reward if score is None else score),
        messages=[dict(message) for message in messages],
        turns=list(turns_of(assistant_turns) if turns is None else turns),
        rows=[],
        sandbox_seconds=1.0,
        started_at=1000.0,
        finished_at=1002.0,
    )


def a_sample(
    episode: EpisodeRecord, row: Json | None = None, *, at: int | None = None, **more: Any
) -> Sampled:
    """An episode with its group and row; `at` is the row's number, by default that of the group."""
    number = int(episode.group_id.rpartition("-")[2]) if at is None else at
    group = GroupRecord(
        group_id=episode.group_id, purpose=Purpose.TRAIN, row=number, epoch=0, step=0, episodes=[episode]
    )
    given = {"prompt_tokens": 100, **more}
    return Sampled(episode, group, row or {"prompt": f"question {number}"}, environment_seed=number, **given)


def a_baseline(sampled: Iterable[Sampled], **facts: Any) -> Baseline:
    """A baseline of these episodes. Each took two seconds, and four ran at once."""
    found = list(sampled)
    rows = facts.pop("rows", None)
    if rows is None:
        rows = list({one.group.row: one.row for one in found}.values()) or [{"prompt": "question"}]
    limits = {"max_turns": 6, "max_tokens": 64, "context_length": 2048}
    given = Facts(rows=rows, prompt_column="prompt", **{**limits, **facts})
    return Baseline(given, found, wanted=len(found), seconds=max(1.0, len(found) / 2), concurrency=4)


def of_values(groups: Sequence[Sequence[tuple[float, float]]], **facts: Any) -> Baseline:
    """A baseline of groups, whose episodes have these rewards and scores."""
    return a_baseline(
        (
            a_sample(an_episode(group=number, index=index, reward=reward, score=score))
            for number, values in enumerate(groups)
            for index, (reward, score) in enumerate(values)
        ),
        **{"group_size": max(map(len, groups), default=2), **facts},
    )


Make = Callable[[], Environment]


def sample_of(make: Make, rows: Sequence[Json], policy: Policy, size: int = 4, **facts: Any) -> Baseline:
    """A baseline of a made-up model in a real environment, with `size` episodes for each row."""
    found = []
    for number, row in enumerate(rows):
        for index in range(size):
            calls, answer = policy(row, index)
            script = Script("", "", row, environment_seed=number, calls=tuple(calls), answer=answer)
            played = play(make, script)
            final = [] if answer is None else [{"role": "assistant", "content": answer}]
            messages = [*played.messages, *_tool_messages(played.results), *final]
            record = an_episode(
                messages,
                group=number,
                index=index,
                reward=played.reward,
                score=played.score,
                error=played.error,
                cause=played.cause,
            )
            tokens = [len(result.content) // 4 for result in played.results]
            more = {"tools": played.tools, "results": played.results, "tool_tokens": tokens}
            found.append(a_sample(record, row, **more))
    return a_baseline(found, **{"rows": rows, "group_size": size, **facts})


def _tool_messages(results: Sequence[ToolResult]) -> Iterable[Json]:
    for number, result in enumerate(results):
        function = {"name": result.name, "arguments": json.dumps(dict(result.arguments))}
        call = {"id": f"call-{number}", "type": "function", "function": function}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": f"call-{number}", "content": result.content}


def play_all(make: Make, scripts: Sequence[Script]) -> list[PlayedScript]:
    """Play every script. A script that names another one is played after it."""
    done: dict[tuple[str, str | None], PlayedScript] = {}
    left = list(scripts)
    while left:
        script = next(each for each in left if each.after is None or (each.check, each.after) in done)
        left.remove(script)
        done[script.check, script.label] = play(make, script)
    return list(done.values())


def play(make: Make, script: Script) -> PlayedScript:
    """Play one script in a new environment."""
    played = PlayedScript(script, seconds=0.5, waited=0.2)
    try:
        environment = make()
        seen = environment.reset(script.row, script.environment_seed)
    except Exception as error:
        return replace(played, error=f"reset: {error!r}", cause="ResetFailed")
    tools = seen.tools if seen.tools is not None else environment.tools()
    named = {each.name: each for each in tools}
    messages = [dict(message) for message in seen.messages]
    played = replace(played, messages=messages, tools=[each.spec for each in tools])
    results: list[ToolResult] = []
    calls: list[Called] = []
    for call in script.calls:
        content, failed, done = f"error: there is no tool {call.name}", True, False
        if call.name in named:
            try:
                content, done = named[call.name](call.arguments)
                failed = False
            except ToolError as error:
                content = f"error: {error}"
        results.append(ToolResult(call.name, call.arguments, content, seconds=0.01, done=done))
        calls.append(Called(call.name, call.arguments, content, failed))
        if done:
            break
    ended = [] if script.answer is None else [{"role": "assistant", "content": script.answer}]
    transcript = Transcript([*messages, *_tool_messages(results), *ended], calls, script.truncated)
    try:
        earned, score = environment.reward(transcript), environment.score(transcript)
    except Exception as error:
        return replace(played, results=results, error=f"reward: {error!r}", cause="RewardFailed")
    reward = earned if isinstance(earned, Reward) else Reward(earned)
    return replace(played, results=results, reward=reward.value, score=score, metrics=reward.metrics)
