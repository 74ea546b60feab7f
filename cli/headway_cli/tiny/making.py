"""Makes a folder with a tiny model for a task, within a given time.

The oracle plays training rows in sandboxes. Copies of its episodes with mistakes are made, and played if a
tool would answer differently. A model is taught from both. Then a trial measures the model on training rows
that the oracle has not played.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from headway_analysis.preflight.evidence import Call, PlayedScript, Script
from headway_analysis.preflight.playing import Agent, NoReplyError
from headway_api.opening import opening
from headway_cli.tiny import mistakes, sft, speech
from headway_cli.tiny.mistakes import Actions, Rules
from headway_cli.tiny.sft import SftExample, SftResult
from headway_cli.tiny.speech import Conversation
from headway_cli.tiny.task import Task, TinyModelError, agent_of
from headway_cli.tiny.trying import MAX_TURNS, ModelAgent
from headway_sandbox.testing.playing import Model, Player

NOTE: Final = "tiny-model.json"
"""File beside the weights that says how the model was made."""
ORACLE_UNTIL, MISTAKES_UNTIL, TRAINED_UNTIL = 0.22, 0.32, 0.88
"""Shares of the time at which the oracle, the mistakes and the training end. The rest is for the trial."""
MAX_ROWS: Final = 500
"""Maximum training rows that the oracle plays."""
TRIED: Final = 32
"""Maximum training rows that are reserved for the trial. It gets at most a fifth of all rows."""
TRIED_PLACES: Final = 10
"""Maximum places of a word at which an episode with a wrong word is played, to see whether it fails."""
READ: Final = 400
"""Maximum episodes from which the tokenizer is made."""
FEWEST: Final = 8
"""Minimum right episodes needed to teach a model."""
CONTEXT: Final = 2048
"""Minimum context of the model, in tokens."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Share:
    """The number of rows that a model played, and how many of them were successes."""

    successes: int
    rows: int


@dataclass(frozen=True)
class Made:
    """A tiny model that was made, and its measurements."""

    folder: Path
    parameters: int
    """Number of the model's weights."""
    rows: int
    """Number of training rows from which the model was taught."""
    sft: SftResult
    greedy: Share
    """Successes on training rows from which the model was not taught, with the likeliest token each time."""
    sampled: Share
    """Successes on the same rows at temperature 1, as in training."""
    longest_turn: int
    """Tokens of the longest turn in an episode."""
    longest_episode: int
    """Tokens of the longest episode."""
    turns: int
    """Maximum turns of an episode."""


@dataclass(frozen=True)
class Right:
    """An episode of the oracle that succeeded."""

    row: dict[str, Any]
    conversation: Conversation


def made(task: Task, out: Path, began: float, seconds: float, skill: float, say: Say) -> Made:
    """Make the model and write it to `out`, which may have a model of an earlier call.

    Args:
        task: the task to teach.
        out: the model's folder.
        began: when the command began, in monotonic time. It ends about `seconds` later.
        seconds: seconds for the whole command.
        skill: share of rows that the model should get right when it samples greedily.
        say: receives lines about the progress.

    Raises:
        TinyModelError: `out` has other content than a tiny model, or environment and oracle do not match.
    """
    require_replaceable(out)
    player = Player(task.sandboxes)
    order = random.Random(f"{task.seed}/rows").sample(list(task.rows), len(task.rows))
    kept = min(TRIED, len(order) // 5)
    tried, taught = order[:kept], order[kept : kept + MAX_ROWS]
    right = rights(player, task, taught, began + ORACLE_UNTIL * seconds)
    say(f"the oracle has played {len(right)} training rows right")
    conversations, weights = with_mistakes(player, task, right, 1 - skill, began + MISTAKES_UNTIL * seconds)
    some = random.Random(f"{task.seed}/tokenizer").sample(conversations, min(READ, len(conversations)))
    tokenizer = speech.tokenizer_of([speech.pieces_of(conversation) for conversation in some], CONTEXT)
    renderer = speech.renderer_for(speech.Encoder(tokenizer))
    examples = [
        SftExample(speech.shown(conversation, renderer), weight)
        for conversation, weight in zip(conversations, weights, strict=True)
    ]
    longest = max(len(example.episode.tokens) for example in examples)
    context = max(CONTEXT, 2 * longest, task.context_length or 0)
    tokenizer.model_max_length = context
    model = sft.untrained(len(tokenizer), context, task.seed)
    left = began + TRAINED_UNTIL * seconds - time.monotonic()
    say(f"teaching from {len(examples)} episodes of {longest} tokens at most, for up to {max(left, 0):.0f} s")
    how = sft.train(model, examples, max(left, 0.1), task.seed, say)
    agent = ModelAgent(
        model, renderer, task.max_tokens, task.context_length or context, task.max_turns or MAX_TURNS
    )
    greedy, sampled = trial(player, task, agent, tried, began + seconds)
    result = Made(
        out.resolve(),
        model.num_parameters(),
        len(right),
        how,
        greedy,
        sampled,
        max(example.episode.longest_turn for example in examples),
        longest,
        max(
            len(conversation.actions.calls) + (conversation.actions.answer is not None)
            for conversation in conversations
        ),
    )
    write(result, model, tokenizer, skill)
    return result


def require_replaceable(out: Path) -> None:
    """Raise TinyModelError if `out` exists and is neither an empty folder nor a tiny model."""
    if out.exists() and not (out / NOTE).exists() and not (out.is_dir() and not any(out.iterdir())):
        raise TinyModelError(
            f"{out} is not a tiny model, and is not empty: write --out FOLDER for another place"
        )


def rights(player: Player, task: Task, rows: Sequence[dict[str, Any]], ends: float) -> list[Right]:
    """Let the oracle play rows until the time `ends`, and return the episodes that it got right.

    Raises:
        TinyModelError: the environment cannot be loaded or fails, or the oracle is right too rarely.
    """
    try:
        player.start()
    except NoReplyError as failure:
        raise TinyModelError(f"spec.environment: {failure}") from failure

    def episode(row: dict[str, Any]) -> tuple[Script, Agent]:
        drawn = random.Random(f"{task.seed}/{json.dumps(row, sort_keys=True, default=str)}")
        agent = agent_of(task.oracle, row, drawn, task.system_prompt)
        return Script("tiny-model", "oracle", row, task.seed), agent

    played = list(until(player, map(episode, rows), ends, least=2 * FEWEST))
    if failed := [one for one in played if one.error is not None]:
        raise TinyModelError(f"row {short(failed[0].script.row)}: {failed[0].error}")
    right = [one for one in played if (one.score or 0.0) >= task.threshold]
    if len(right) < max(FEWEST, len(played) / 2):
        wrong = next(one for one in played if one not in right)
        raise TinyModelError(
            f"the oracle succeeds on {len(right)} of {len(played)} training rows: correct it; it scores "
            f"{wrong.score} on row {short(wrong.script.row)} by {texts_of(actions_of(wrong))}"
        )
    if any(not texts_of(actions_of(one)) for one in right):
        raise TinyModelError("the oracle succeeds without a word: have it call a tool, or return an answer")
    return [Right(dict(one.script.row), conversation_of(one, task)) for one in right]


def until(
    player: Player, wanted: Iterable[tuple[Script, Agent | None]], ends: float, *, least: int = 0
) -> Iterator[PlayedScript]:
    """Play episodes, several at once, until the monotonic time `ends`. Yield at least `least`, in order."""
    coming, many = iter(wanted), 0
    with ThreadPoolExecutor(player.workers) as pool:
        while some := list(islice(coming, 4 * player.workers)):
            yield from pool.map(lambda one: player.play(*one), some)
            many += len(some)
            if many >= least and time.monotonic() > ends:
                return


def actions_of(played: PlayedScript) -> Actions:
    """The agent's calls and answer in an episode."""
    calls = tuple(Call(each.name, each.arguments) for each in played.results)
    return Actions(calls, played.script.answer)


def texts_of(actions: Actions) -> str:
    """The agent's calls and answer as one line of text, for messages."""
    return " ".join(text for _, text in mistakes.spoken(actions))


def conversation_of(played: PlayedScript, task: Task) -> Conversation:
    """An episode as the model sees it."""
    first = opening([dict(message) for message in played.messages], task.system_prompt)
    return Conversation(
        first, played.tools, actions_of(played), [result.content for result in played.results]
    )


def with_mistakes(
    player: Player, task: Task, right: Sequence[Right], wrong: float, ends: float
) -> tuple[list[Conversation], list[float]]:
    """The right episodes and those with mistakes, and the weight with which training draws each.

    Args:
        player: plays the episodes whose calls are changed.
        task: the task.
        right: the oracle's right episodes.
        wrong: share of rows that the model should get wrong.
        ends: monotonic time at which playing stops.
    """
    actions = [one.conversation.actions for one in right]
    known = {place: mistakes.wrong_words(words) for place, words in mistakes.places(actions).items()}
    cases = costly(player, task, right, mistakes.cases(actions), known)
    rules, under = mistakes.chosen(cases, len(right), wrong)
    drawn = random.Random(f"{task.seed}/slips")
    # If rules cannot make the wanted share of rows wrong, slips make up for the rest.
    slips = max(mistakes.SLIPS, wrong - len(under) / len(right) - mistakes.SLACK)
    ruled = {number: mistakes.changed(actions[number], rules) for number in sorted(under)}
    slipped = {
        number: mistakes.slipped(one.conversation.actions, one.conversation.tools, known, drawn)
        for number, one in enumerate(right)
    }
    by_rule = carried_out(player, task, right, ruled, ends)
    by_slip = carried_out(player, task, right, slipped, ends)
    conversations, weights = [], []
    for number, one in enumerate(right):
        followed = mistakes.BY_RULE if number in by_rule else 0.0
        slip = slips if number in by_slip else 0.0
        shares = [
            (one.conversation, (1 - slip) * (1 - followed)),
            (by_rule.get(number), (1 - slip) * followed),
        ]
        for conversation, weight in [*shares, (by_slip.get(number), slip)]:
            if conversation is not None:
                conversations.append(conversation)
                weights.append(weight)
    return conversations, weights


def costly(
    player: Player, task: Task, right: Sequence[Right], found: Sequence[mistakes.Case], known: Rules
) -> list[mistakes.Case]:
    """The cases at places where a wrong word makes an episode fail. One episode is played for each place."""
    places = list(dict.fromkeys(case.place for case in found))[:TRIED_PLACES]
    shown = {place: min(next(case for case in found if case.place == place).episodes) for place in places}
    scripts = [
        script_of(
            right[number], mistakes.changed(right[number].conversation.actions, {place: known[place]}), task
        )
        for place, number in shown.items()
    ]
    with ThreadPoolExecutor(player.workers) as pool:
        played = list(pool.map(player.play, scripts))
    costs = {place for place, one in zip(places, played, strict=True) if (one.score or 0.0) < task.threshold}
    return [case for case in found if case.place in costs]


def script_of(one: Right, actions: Actions, task: Task) -> Script:
    """A script that plays exactly these actions on the row of a right episode."""
    return Script("tiny-model", "mistake", one.row, task.seed, actions.calls, actions.answer)


def carried_out(
    player: Player, task: Task, right: Sequence[Right], wanted: dict[int, Actions], ends: float
) -> dict[int, Conversation]:
    """The wanted actions as episodes, by the number of the right episode that they change.

    An episode that failed, or for which no time was left, is missing. If no call is changed, the tools answer
    as before, so the episode need not be played.
    """
    conversations = {
        number: Conversation(
            right[number].conversation.messages,
            right[number].conversation.tools,
            actions,
            right[number].conversation.results,
        )
        for number, actions in wanted.items()
        if actions.calls == right[number].conversation.actions.calls
    }
    others = [number for number in wanted if number not in conversations]
    scripts = ((script_of(right[number], wanted[number], task), None) for number in others)
    for number, one in zip(others, until(player, scripts, ends), strict=False):
        if one.error is None:
            conversations[number] = conversation_of(one, task)
    return conversations


def trial(
    player: Player, task: Task, agent: ModelAgent, rows: Sequence[dict[str, Any]], ends: float
) -> tuple[Share, Share]:
    """The model's successes on rows that it was not taught: sampled greedily, and at temperature 1."""
    now = time.monotonic()
    found = []
    for temperature, by in ((0.0, now + (ends - now) / 2), (1.0, ends)):
        model: Model = ModelAgent(
            agent.model,
            agent.renderer,
            agent.max_tokens,
            agent.context,
            agent.max_turns,
            temperature,
        )
        wanted = (
            (
                Script("tiny-model", "trial", row, task.seed),
                agent_of(model, row, random.Random(f"{task.seed}/{number}"), task.system_prompt),
            )
            for number, row in enumerate(rows)
        )
        played = list(until(player, wanted, by))
        found.append(Share(sum((one.score or 0.0) >= task.threshold for one in played), len(played)))
    return found[0], found[1]


def write(result: Made, model: Any, tokenizer: Any, skill: float) -> None:
    """Write the model's folder at once: a failure leaves no partial model."""
    folder = result.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        sft.save(model, partial)
        tokenizer.save_pretrained(partial)
        (partial / NOTE).write_text(json.dumps({"skill": skill, **summary(result)}, indent=2) + "\n")
        partial.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def summary(result: Made) -> dict[str, Any]:
    """The model and its measurements, as a JSON object."""
    shares = {"greedy": result.greedy, "sampled": result.sampled}
    return {
        "model": f"file://{result.folder}",
        "parameters": result.parameters,
        "rows": result.rows,
        "steps": result.sft.steps,
        "loss": {"first": result.sft.first_loss, "last": result.sft.last_loss},
        "success": {name: {"successes": one.successes, "rows": one.rows} for name, one in shares.items()},
        "longest": {"turn": result.longest_turn, "episode": result.longest_episode, "turns": result.turns},
    }


def short(row: Any) -> str:
    """A row as text for a message, cut to 120 characters."""
    text = json.dumps(row, default=str)
    return text if len(text) <= 120 else text[:119] + "\N{HORIZONTAL ELLIPSIS}"
