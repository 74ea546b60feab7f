"""Compares an episode of many turns as one training row with one row per turn, in seconds and tokens."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from bench.learner.work import Ours, Turn, by_turn, model_of, row
from bench.support.model import Size
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown

PROMPTS = {4: 110, 8: 57, 16: 33}
"""Turns -> tokens of the first prompt. With one row per turn, an episode then has about 3, 5 and 9 times the
tokens of one row."""
OBSERVED, SAMPLED = 10, 14
EPISODES = {4: 16, 8: 16, 16: 8}
"""Turns -> number of episodes of a step."""
SIZE = Size(hidden=1024, layers=2, heads=16, kv_heads=8, head_dim=128, inner=3072)
"""Two layers of Qwen3-0.6B."""
VOCABULARY = 768
REPEATS = {4: 7, 8: 4, 16: 3}
"""Turns -> number of repetitions. Shorter steps need more repetitions, because noise is a larger part of
them."""
WITHIN = 0.05

READ = prose(f"""
    Episodes have {SAMPLED} sampled tokens a turn, and {OBSERVED} of a tool's result between two. They are
    trained as one row each, and as one row a turn that holds all before it as context. Both train the same
    tokens with the same gradient (a unit test holds them to it). The model has {SIZE.layers} layers of
    Qwen3-0.6B's shape and a vocabulary of {VOCABULARY}, as the demo's. Seconds are of a whole optimizer step,
    and the two sides are taken in turns. They are medians of
    {" and ".join(f"{times} at {turns} turns" for turns, times in REPEATS.items())}. The ratio is the median
    of those of each time.

    Three things pull the ratio of seconds below that of tokens, by no more than this machine's noise with a
    model of this width. The head sees only sampled tokens, which are equally many on both sides. AdamW is in
    both. A token of a longer row attends to more. The last weighs more the narrower the model is.
""")


def measure(folder: Path) -> Section:
    """Measure all numbers of turns, with one model."""
    ours = Ours(model_of(SIZE, VOCABULARY))
    rows = [compared(ours, turns) for turns in PROMPTS]
    return Section(
        title="Sequence extension",
        read=READ,
        tables=[Table("One row against one row a turn", rows)],
        goals=[goal(found) for found in rows],
    )


def compared(ours: Ours, turns: int) -> Row:
    """Measure both sides. They take turns."""
    episodes = EPISODES[turns]
    shape: list[Turn] = [(PROMPTS[turns] if turn == 0 else OBSERVED, SAMPLED) for turn in range(turns)]
    sides: dict[str, list[Any]] = {
        "one": [row(shape, VOCABULARY, seed=n, episode=n) for n in range(episodes)],
        "a turn": [each for n in range(episodes) for each in by_turn(shape, VOCABULARY, seed=n, episode=n)],
    }
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(REPEATS[turns] + 1):
        for name, rows in sides.items():
            started = time.perf_counter()
            ours.step(rows)
            if repeat:
                taken[name].append(time.perf_counter() - started)
    tokens = {name: sum(each.length for each in rows) for name, rows in sides.items()}
    ratios = [b / a for a, b in zip(taken["one"], taken["a turn"], strict=True)]
    return {
        "turns": turns,
        "episodes": episodes,
        "tokens, one row": tokens["one"],
        "tokens, a row a turn": tokens["a turn"],
        "ratio of tokens": shown(tokens["a turn"] / tokens["one"]),
        "s, one row": shown(statistics.median(taken["one"])),
        "s, a row a turn": shown(statistics.median(taken["a turn"])),
        "ratio of seconds": shown(statistics.median(ratios)),
        "each time": ", ".join(f"{ratio:.2f}" for ratio in ratios),
    }


def goal(found: Row) -> Goal:
    """The goal that seconds fall in the same ratio as tokens, within a tolerance."""
    reached = found["ratio of seconds"] / found["ratio of tokens"]
    return Goal(
        f"one row saves seconds as it saves tokens, within 5 %, at {found['turns']} turns",
        f"{found['ratio of seconds']} of {found['ratio of tokens']} ({reached:.2f})",
        reached >= 1 - WITHIN,
    )
