"""Plays episodes and scripts in sandboxes of this machine, several at once, and makes a baseline of them."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.preflight.evidence import (
    Baseline,
    Call,
    Facts,
    PlayedScript,
    Sampled,
    Script,
    ToolResult,
)
from headway_analysis.preflight.playing import (
    Agent,
    EpisodeCutError,
    NoReplyError,
    Turns,
    conversation,
    each,
    played,
)
from headway_api.document import JsonView
from headway_api.records import EpisodeRecord, GroupRecord, Outcome, PolicyVersion, Purpose, Turn
from headway_api.sandbox_api import ResetReply
from headway_sandbox.testing.sandbox import Sandboxes

CHARACTERS_A_TOKEN: Final = 4
SOME: Final = 8
"""Minimum number of episodes in the first round. If all of them fail, only a sample of the rest is played."""
UNTRAINED: Final = PolicyVersion(incarnation=0, step=0)


@dataclass(frozen=True)
class Seen:
    """What a scripted agent knows of its episode."""

    row: JsonView
    messages: Sequence[JsonView]
    """The messages from the environment's `reset`."""
    tools: Sequence[JsonView]
    random: random.Random
    """Random numbers of this episode only: the same seed gives the same episodes."""


Model = Callable[[Seen], "Turns | str"]
"""Replaces a model: a generator that yields `Call`s, receives a `ToolResult` for each, and returns an answer.
If no tool is needed, a plain function that returns the answer is enough."""
Tokens = Callable[[str], int]
"""Number of tokens of a text."""


class Malformed(str):
    """An agent's last text: a tool call that the parser cannot read."""


def about(text: str) -> int:
    """Estimated tokens of a text without a tokenizer: a token has about four characters."""
    return -(-len(text) // CHARACTERS_A_TOKEN)


@dataclass(frozen=True)
class Recorded:
    """An episode that was recorded elsewhere: its row, and its messages in OpenAI's form."""

    row: JsonView
    messages: Sequence[JsonView]


def replayed(recorded: Sequence[JsonView]) -> Model:
    """An agent that repeats the recorded calls and the recorded end."""
    calls = [
        Call(call["function"]["name"], _arguments(call["function"]["arguments"]))
        for message in recorded
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or ()
    ]
    last = recorded[-1] if recorded else {}
    ended = last.get("role") == "assistant" and not last.get("tool_calls")
    answer = str(last.get("content") or "") if ended else None

    def model(seen: Seen) -> Turns:
        yield from each(calls)
        if answer is None:
            raise EpisodeCutError
        return answer

    return model


def _arguments(written: Any) -> dict[str, Any]:
    try:
        found = json.loads(written) if isinstance(written, str) else written
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


class Player:
    """Plays scripts in sandboxes of one kind."""

    def __init__(self, sandboxes: Sandboxes, workers: int | None = None) -> None:
        """`workers`: sandboxes that run at once; by default one for each core."""
        self._sandboxes = sandboxes
        self.workers = workers or os.cpu_count() or 1

    def play(self, script: Script, agent: Agent | None = None) -> PlayedScript:
        """Play one script in a fresh process; with `agent`, an episode of this agent instead."""
        began = time.monotonic()
        play = played(script, time.monotonic, agent)
        request = next(play)
        with self._sandboxes.start() as sandbox:
            waited = time.monotonic() - began
            while True:
                try:
                    try:
                        reply = sandbox.ask(request)
                    except NoReplyError as failure:
                        request = play.throw(failure)
                    else:
                        request = play.send(reply)
                except StopIteration as end:
                    found: PlayedScript = end.value
                    return dataclasses.replace(found, waited=waited)

    def all(self, scripts: Sequence[Script]) -> list[PlayedScript]:
        """Play every script; returns them in the given order. A script runs after the one that it names."""
        done: dict[int, PlayedScript] = {}
        labels = {(script.check, script.label): place for place, script in enumerate(scripts)}
        after = [labels.get((script.check, script.after or "")) for script in scripts]
        with ThreadPoolExecutor(self.workers) as pool:
            while len(done) < len(scripts):
                now = [
                    place
                    for place in range(len(scripts))
                    if place not in done and (after[place] is None or after[place] in done)
                ]
                if not now:
                    raise ValueError("scripts wait for one another in a circle")
                done.update(zip(now, pool.map(self.play, [scripts[place] for place in now]), strict=True))
        return [done[place] for place in range(len(scripts))]

    def start(self) -> None:
        """Start one sandbox and end it, so that a failure to start is reported once. Raises NoReplyError."""
        with self._sandboxes.start() as sandbox:
            sandbox.lease()

    def episodes(self, wanted: Sequence[tuple[Script, Agent]]) -> list[PlayedScript]:
        """Play agents' episodes; returns them in the given order.

        If the first ones and a sample of the others all fail, only the first ones are returned. The sample
        is needed because the first ones may all use one row, which may be the only one that fails.
        """
        some = max(SOME, self.workers)
        found: dict[int, PlayedScript] = {}
        left = range(min(some, len(wanted)), len(wanted))
        with ThreadPoolExecutor(self.workers) as pool:

            def play(places: Sequence[int]) -> None:
                found.update(zip(places, pool.map(lambda at: self.play(*wanted[at]), places), strict=True))

            play(range(left.start))
            if _all_failed(found):
                play(left[:: max(1, len(left) // SOME)][:SOME])
            if _all_failed(found):
                return [found[at] for at in range(left.start)]
            play([at for at in left if at not in found])
        return [found[at] for at in range(len(wanted))]


def _all_failed(found: Mapping[int, PlayedScript]) -> bool:
    return all(one.error is not None for one in found.values())


def baseline(player: Player, model: Model, facts: Facts, episodes: int, tokens: Tokens = about) -> Baseline:
    """Sample groups of `facts.group_size` from the training rows, in an order that the seed decides."""
    facts = dataclasses.replace(facts, scripted=True)
    rows = list(range(len(facts.rows)))
    random.Random(f"rows/{facts.seed}").shuffle(rows)
    groups = -(-episodes // facts.group_size)
    asked = [
        (rows[group % len(rows)], model, index)
        for group in range(groups)
        for index in range(facts.group_size)
    ]
    return _baseline(player, asked, facts, tokens)


def of_recorded(
    player: Player, recorded: Sequence[Recorded], facts: Facts, tokens: Tokens = about
) -> Baseline:
    """Play recorded episodes again; the episodes of one row form a group."""
    asked: list[tuple[int, Model, int]] = []
    known = [dict(row) for row in facts.rows]
    for one in recorded:
        if dict(one.row) not in known:
            raise ValueError(
                "a recorded episode's row is not in `rows`: give the rows that it was recorded with"
            )
        row = known.index(dict(one.row))
        asked.append((row, replayed(one.messages), sum(other == row for other, _, _ in asked)))
    return _baseline(player, sorted(asked, key=lambda each: each[0]), facts, tokens)


def _baseline(
    player: Player, asked: Sequence[tuple[int, Model, int]], facts: Facts, tokens: Tokens
) -> Baseline:
    began = time.monotonic()
    wanted = []
    for number, (row, model, index) in enumerate(asked):
        seed = random.Random(f"environment/{facts.seed}/{number // facts.group_size}").randrange(2**31)
        script = Script("baseline", f"{number}-{index}", facts.rows[row], seed)
        drawn = random.Random(f"model/{facts.seed}/{number}")
        wanted.append((script, _limited(model, facts, drawn, script.row, tokens)))
    played = player.episodes(wanted)
    asked = asked[: len(played)]
    sampled: list[Sampled] = []
    start = 0
    while start < len(asked):
        end = start
        while end < len(asked) and end - start < facts.group_size and asked[end][0] == asked[start][0]:
            end += 1
        sampled += _group(len(sampled), asked[start][0], played[start:end], facts, tokens)
        start = end
    return Baseline(
        facts,
        sampled,
        wanted=len(wanted),
        seconds=time.monotonic() - began,
        concurrency=player.workers,
    )


def _limited(model: Model, facts: Facts, drawn: random.Random, row: JsonView, tokens: Tokens) -> Agent:
    """The model within the job's limits of turns, tokens and context, which end an episode as in training."""

    def agent(first: ResetReply) -> Turns:
        turns = model(Seen(row, first.messages, first.tools, drawn))
        used, turn = _prompt(first.messages, first.tools, tokens), 0
        result: ToolResult | None = None
        while True:
            if used >= facts.context_length or (facts.max_turns is not None and turn >= facts.max_turns):
                raise EpisodeCutError
            if isinstance(turns, str):
                return _fitted(turns, facts, used, tokens)
            try:
                call = next(turns) if result is None else turns.send(result)
            except StopIteration as end:
                return None if end.value is None else _fitted(end.value, facts, used, tokens)
            turn += 1
            result = yield call
            used += _call_tokens(result, tokens) + tokens(result.content)

    return agent


def _fitted(answer: str, facts: Facts, used: int, tokens: Tokens) -> str:
    """The answer if it fits into the limits; otherwise raises EpisodeCutError with the part that fits."""
    room = min(facts.max_tokens, facts.context_length - used)
    if tokens(answer) <= room:
        return answer
    raise EpisodeCutError(answer[: room * CHARACTERS_A_TOKEN])


def _prompt(messages: Sequence[JsonView], tools: Sequence[JsonView], tokens: Tokens) -> int:
    return sum(tokens(str(message.get("content") or "")) for message in messages) + tokens(
        json.dumps(list(tools))
    )


def _call_tokens(result: ToolResult, tokens: Tokens) -> int:
    return tokens(json.dumps({"name": result.name, "arguments": dict(result.arguments)}))


def _group(
    number: int, row: int, played: Sequence[PlayedScript], facts: Facts, tokens: Tokens
) -> list[Sampled]:
    group_id = f"t0-{number}"
    records = [_record(group_id, index, one, tokens) for index, one in enumerate(played)]
    group = GroupRecord(group_id=group_id, purpose=Purpose.TRAIN, row=row, epoch=0, step=0, episodes=records)
    return [
        Sampled(
            record,
            group,
            facts.rows[row],
            one.script.environment_seed,
            one.tools,
            one.results,
            [tokens(result.content) for result in one.results],
            _prompt(one.messages, one.tools, tokens),
            [one.script.answer] if isinstance(one.script.answer, Malformed) else [],
        )
        for record, one in zip(records, played, strict=True)
    ]


def _record(group_id: str, index: int, one: PlayedScript, tokens: Tokens) -> EpisodeRecord:
    """The record that the coordinator would write, without the token ids that only a model has."""
    failed, answer = one.error is not None, one.script.answer
    used = _prompt(one.messages, one.tools, tokens)
    lengths = [_call_tokens(result, tokens) for result in one.results]
    lengths += [] if answer is None else [tokens(answer)]
    turns = []
    for turn, sampled in enumerate(lengths):
        last = turn == len(one.results)
        reason = ("length" if one.script.truncated else "stop") if last else "tool_calls"
        turns.append(
            Turn(
                index=turn,
                prompt_tokens=used,
                cached_tokens=0,
                sampled_tokens=sampled,
                finish_reason=reason,
                malformed_tool_calls=int(last and isinstance(answer, Malformed)),
                policy_version=UNTRAINED,
            )
        )
        used += sampled + (0 if last else tokens(one.results[turn].content))
    outcome = Outcome.TRUNCATED if one.script.truncated else Outcome.COMPLETED
    return EpisodeRecord(
        episode_id=f"{group_id}-{index}-0",
        group_id=group_id,
        index=index,
        attempt=0,
        outcome=Outcome.INFRA_ERROR if failed else outcome,
        error=one.error,
        cause=one.cause,
        reward=one.reward,
        score=one.score,
        metrics=dict(one.metrics),
        messages=conversation(one.messages, one.results, answer),
        turns=turns,
        rows=[],
        sandbox_seconds=one.seconds,
        started_at=0.0,
        finished_at=one.seconds,
    )
