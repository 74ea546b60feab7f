"""From a task to a folder with a tiny model, within so many seconds.

The oracle plays training rows in sandboxes; mistakes are made of what it did, and played where a tool would
answer otherwise; a model is taught from both; and it plays training rows that nobody has played before.
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

from headway_analysis.preflight.evidence import Call, Played, Script
from headway_analysis.preflight.playing import Agent, Failed
from headway_api.opening import opening
from headway_cli.tiny import mistakes, speech, teaching
from headway_cli.tiny.mistakes import Acts, Rules
from headway_cli.tiny.speech import Scene
from headway_cli.tiny.task import NoTinyModel, Task, agent_of
from headway_cli.tiny.teaching import Lesson, Taught
from headway_cli.tiny.trying import MOST_TURNS, Speaker
from headway_sandbox.testing.playing import Model, Player

NOTE: Final = "tiny-model.json"
"""File beside the weights that says how the model was made."""
ORACLE_UNTIL, MISTAKES_UNTIL, TAUGHT_UNTIL = 0.22, 0.32, 0.88
"""Shares of the time by which each part has ended; the rest is for the trial."""
MOST_ROWS: Final = 500
"""Of training rows that the oracle plays."""
TRIED: Final = 32
"""Training rows that are kept for the trial, a fifth of all at most."""
TRIED_PLACES: Final = 10
"""Places of an answer or a call of which it is tried whether a wrong word costs the success."""
READ: Final = 400
"""Episodes that the tokenizer is made from."""
FEWEST: Final = 8
"""Right episodes without which nothing is taught."""
CONTEXT: Final = 2048
"""Tokens that the model takes at least."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Share:
    """How many of some rows ended in success."""

    successes: int
    rows: int


@dataclass(frozen=True)
class Made:
    """A tiny model."""

    folder: Path
    parameters: int
    rows: int
    """Training rows that it was taught from."""
    taught: Taught
    greedy: Share
    """On training rows that it was not taught from, the likeliest word each time."""
    sampled: Share
    """The same at temperature 1, as in training."""
    longest_turn: int
    """Tokens."""
    longest_episode: int
    """Tokens."""
    turns: int
    """Of the longest episode."""


@dataclass(frozen=True)
class Right:
    """An episode of the oracle that succeeded."""

    row: dict[str, Any]
    scene: Scene


def made(task: Task, out: Path, began: float, seconds: float, skill: float, say: Say) -> Made:
    """Make the model and put it at `out`, where a model of an earlier call may be.

    Args:
        began: when the command did (monotonic time); `seconds` later this has ended, about.
        skill: share of rows that the model is to be right about, sampled greedily.

    Raises:
        NoTinyModel: there is something else at `out`, or environment and oracle do not go together.
    """
    require_replaceable(out)
    player = Player(task.sandboxes)
    order = random.Random(f"{task.seed}/rows").sample(list(task.rows), len(task.rows))
    kept = min(TRIED, len(order) // 5)
    tried, taught = order[:kept], order[kept : kept + MOST_ROWS]
    right = rights(player, task, taught, began + ORACLE_UNTIL * seconds)
    say(f"the oracle has played {len(right)} training rows right")
    scenes, weights = with_mistakes(player, task, right, 1 - skill, began + MISTAKES_UNTIL * seconds)
    some = random.Random(f"{task.seed}/tokenizer").sample(scenes, min(READ, len(scenes)))
    tokenizer = speech.tokenizer_of([speech.pieces_of(scene) for scene in some], CONTEXT)
    renderer = speech.renderer_for(speech.Encoder(tokenizer))
    lessons = [
        Lesson(speech.shown(scene, renderer), weight) for scene, weight in zip(scenes, weights, strict=True)
    ]
    longest = max(len(lesson.spoken.tokens) for lesson in lessons)
    context = max(CONTEXT, 2 * longest, task.context_length or 0)
    tokenizer.model_max_length = context
    model = teaching.untaught(len(tokenizer), context, task.seed)
    left = began + TAUGHT_UNTIL * seconds - time.monotonic()
    say(f"teaching from {len(lessons)} episodes of {longest} tokens at most, for {max(left, 0):.0f} s")
    how = teaching.teach(model, lessons, max(left, 0.1), task.seed, say)
    speaker = Speaker(
        model, renderer, task.max_tokens, task.context_length or context, task.max_turns or MOST_TURNS
    )
    greedy, sampled = trial(player, task, speaker, tried, began + seconds)
    result = Made(
        out.resolve(),
        model.num_parameters(),
        len(right),
        how,
        greedy,
        sampled,
        max(lesson.spoken.longest_turn for lesson in lessons),
        longest,
        max(len(scene.acts.calls) + (scene.acts.answer is not None) for scene in scenes),
    )
    write(result, model, tokenizer, skill)
    return result


def require_replaceable(out: Path) -> None:
    """Raises NoTinyModel where there is something at `out` that is no tiny model."""
    if out.exists() and not (out / NOTE).exists() and not (out.is_dir() and not any(out.iterdir())):
        raise NoTinyModel(f"{out} is no tiny model and is not empty: write --out FOLDER for another place")


def rights(player: Player, task: Task, rows: Sequence[dict[str, Any]], ends: float) -> list[Right]:
    """What the oracle does right, of as many rows as there is time for.

    Raises:
        NoTinyModel: the environment cannot be had, or fails; or the oracle is right too rarely.
    """
    try:
        player.start()
    except Failed as failure:
        raise NoTinyModel(f"spec.environment: {failure}") from failure

    def episode(row: dict[str, Any]) -> tuple[Script, Agent]:
        drawn = random.Random(f"{task.seed}/{json.dumps(row, sort_keys=True, default=str)}")
        agent = agent_of(task.oracle, row, drawn, task.system_prompt)
        return Script("tiny-model", "oracle", row, task.seed), agent

    played = list(until(player, map(episode, rows), ends, least=2 * FEWEST))
    if failed := [one for one in played if one.error is not None]:
        raise NoTinyModel(f"row {short(failed[0].script.row)}: {failed[0].error}")
    right = [one for one in played if (one.score or 0.0) >= task.threshold]
    if len(right) < max(FEWEST, len(played) / 2):
        wrong = next(one for one in played if one not in right)
        raise NoTinyModel(
            f"the oracle succeeds on {len(right)} of {len(played)} training rows: correct it; it scores "
            f"{wrong.score} on row {short(wrong.script.row)} by {said_in(acts_of(wrong))}"
        )
    if any(not said_in(acts_of(one)) for one in right):
        raise NoTinyModel("the oracle succeeds without a word: have it call a tool, or return an answer")
    return [Right(dict(one.script.row), scene_of(one, task)) for one in right]


def until(
    player: Player, wanted: Iterable[tuple[Script, Agent | None]], ends: float, *, least: int = 0
) -> Iterator[Played]:
    """Episodes in their order, several at once, until the time is over; `least` of them in any case."""
    coming, many = iter(wanted), 0
    with ThreadPoolExecutor(player.workers) as pool:
        while some := list(islice(coming, 4 * player.workers)):
            yield from pool.map(lambda one: player.play(*one), some)
            many += len(some)
            if many >= least and time.monotonic() > ends:
                return


def acts_of(played: Played) -> Acts:
    """What was done in an episode."""
    calls = tuple(Call(each.name, each.arguments) for each in played.results)
    return Acts(calls, played.script.answer)


def said_in(acts: Acts) -> str:
    """What was said, as a message shows it."""
    return " ".join(text for _, text in mistakes.spoken(acts))


def scene_of(played: Played, task: Task) -> Scene:
    """An episode as the model is shown it."""
    first = opening([dict(message) for message in played.messages], task.system_prompt)
    return Scene(first, played.tools, acts_of(played), [result.content for result in played.results])


def with_mistakes(
    player: Player, task: Task, right: Sequence[Right], wrong: float, ends: float
) -> tuple[list[Scene], list[float]]:
    """The right episodes and those with mistakes, and how often each is to be drawn.

    Args:
        wrong: share of rows that the model is to be wrong about.
    """
    acts = [one.scene.acts for one in right]
    known = {place: mistakes.wrong_words(words) for place, words in mistakes.places(acts).items()}
    cases = costly(player, task, right, mistakes.cases(acts), known)
    rules, under = mistakes.chosen(cases, len(right), wrong)
    drawn = random.Random(f"{task.seed}/slips")
    # Where no rule tells rows apart, there are slips instead.
    slips = max(mistakes.SLIPS, wrong - len(under) / len(right) - mistakes.SLACK)
    ruled = {number: mistakes.changed(acts[number], rules) for number in sorted(under)}
    slipped = {
        number: mistakes.slipped(one.scene.acts, one.scene.tools, known, drawn)
        for number, one in enumerate(right)
    }
    by_rule = carried_out(player, task, right, ruled, ends)
    by_slip = carried_out(player, task, right, slipped, ends)
    scenes, weights = [], []
    for number, one in enumerate(right):
        followed = mistakes.BY_RULE if number in by_rule else 0.0
        slip = slips if number in by_slip else 0.0
        shares = [(one.scene, (1 - slip) * (1 - followed)), (by_rule.get(number), (1 - slip) * followed)]
        for scene, weight in [*shares, (by_slip.get(number), slip)]:
            if scene is not None:
                scenes.append(scene)
                weights.append(weight)
    return scenes, weights


def costly(
    player: Player, task: Task, right: Sequence[Right], found: Sequence[mistakes.Case], known: Rules
) -> list[mistakes.Case]:
    """The cases of places at which a wrong word costs the success, as one episode each shows."""
    places = list(dict.fromkeys(case.place for case in found))[:TRIED_PLACES]
    shown = {place: min(next(case for case in found if case.place == place).episodes) for place in places}
    scripts = [
        script_of(right[number], mistakes.changed(right[number].scene.acts, {place: known[place]}), task)
        for place, number in shown.items()
    ]
    with ThreadPoolExecutor(player.workers) as pool:
        played = list(pool.map(player.play, scripts))
    costs = {place for place, one in zip(places, played, strict=True) if (one.score or 0.0) < task.threshold}
    return [case for case in found if case.place in costs]


def script_of(one: Right, acts: Acts, task: Task) -> Script:
    """An episode that does just that."""
    return Script("tiny-model", "mistake", one.row, task.seed, acts.calls, acts.answer)


def carried_out(
    player: Player, task: Task, right: Sequence[Right], wanted: dict[int, Acts], ends: float
) -> dict[int, Scene]:
    """These mistakes as episodes, but for those that failed, or that there was no time to play.

    Where no call is another one, the tools answer as before, and nothing has to be played.
    """
    told = {
        number: Scene(
            right[number].scene.messages, right[number].scene.tools, acts, right[number].scene.results
        )
        for number, acts in wanted.items()
        if acts.calls == right[number].scene.acts.calls
    }
    others = [number for number in wanted if number not in told]
    scripts = ((script_of(right[number], wanted[number], task), None) for number in others)
    for number, one in zip(others, until(player, scripts, ends), strict=False):
        if one.error is None:
            told[number] = scene_of(one, task)
    return told


def trial(
    player: Player, task: Task, speaker: Speaker, rows: Sequence[dict[str, Any]], ends: float
) -> tuple[Share, Share]:
    """Successes of the model on rows that it was not taught from: greedily, and sampled."""
    now = time.monotonic()
    found = []
    for temperature, by in ((0.0, now + (ends - now) / 2), (1.0, ends)):
        model: Model = Speaker(
            speaker.model,
            speaker.renderer,
            speaker.max_tokens,
            speaker.context,
            speaker.max_turns,
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
    """Put the model's files at their place, whole or not at all."""
    folder = result.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        teaching.save(model, partial)
        tokenizer.save_pretrained(partial)
        (partial / NOTE).write_text(json.dumps({"skill": skill, **summary(result)}, indent=2) + "\n")
        partial.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def summary(result: Made) -> dict[str, Any]:
    """What was made, as JSON."""
    shares = {"greedy": result.greedy, "sampled": result.sampled}
    return {
        "model": f"file://{result.folder}",
        "parameters": result.parameters,
        "rows": result.rows,
        "steps": result.taught.steps,
        "loss": {"first": result.taught.first_loss, "last": result.taught.last_loss},
        "success": {name: {"successes": one.successes, "rows": one.rows} for name, one in shares.items()},
        "longest": {"turn": result.longest_turn, "episode": result.longest_episode, "turns": result.turns},
    }


def short(row: Any) -> str:
    """A row as a message shows it."""
    text = json.dumps(row, default=str)
    return text if len(text) <= 120 else text[:119] + "\N{HORIZONTAL ELLIPSIS}"
