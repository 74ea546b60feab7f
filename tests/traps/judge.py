"""Plays a trap or a clean task with a simulated model over the sandbox's real server, and runs the checks."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Collection
from contextlib import ExitStack

from tests.traps.pupils import pupil
from tests.traps.trap import TASKS, Task, Trap

from headway_analysis.preflight import run
from headway_analysis.preflight.catalogue import CHECKS
from headway_analysis.preflight.evidence import Facts
from headway_sandbox.testing import Report, Sandboxes
from headway_sandbox.testing.playing import Model, Player, Tokens, about, baseline

ALL = frozenset(check.id for check in CHECKS)
EPISODES = 64
ALARMS = ("Fail", "Warn")


def facts_of(task: Task, trap: Trap | None, seed: int, group_size: int) -> Facts:
    """The facts of job and data."""
    splits = task.split(seed)
    train, validation, test = trap.rows(splits) if trap else splits
    more = dict(task.facts) | dict(trap.facts if trap else {})
    fixed = {"prompt_column": task.prompt_column, "seed": seed, "batch_size": 4, "group_size": group_size}
    return Facts(train, validation, test, **fixed | more)


def judged(
    task: Task,
    trap: Trap | None = None,
    *,
    seed: int = 0,
    group_size: int = 8,
    episodes: int | None = None,
    checks: Collection[str] = ALL,
    model: Model | None = None,
    tokens: Tokens = about,
) -> Report:
    """The checks' report on a task, or on a trap made of it. `model` or a simulated model plays it."""
    with ExitStack() as stack:
        config = {}
        workers = trap.episodes if trap else None
        if trap and trap.shared_folder:
            config["folder"] = stack.enter_context(tempfile.TemporaryDirectory())
        entrypoint = (trap and trap.entrypoint) or task.entrypoint
        player = Player(Sandboxes(entrypoint, config, [TASKS, *task.folders], packages=False), workers)
        agent = model or pupil(task.name, trap.skill if trap else None, trap.habit if trap else "")
        number = (trap and trap.episodes) or episodes or EPISODES
        measured = baseline(player, agent, facts_of(task, trap, seed, group_size), number, tokens)
        if trap and trap.probes:
            measured = dataclasses.replace(measured, probes=trap.probes)
        if trap and trap.asked_twice:
            measured = dataclasses.replace(measured, asked_twice=trap.asked_twice)
        asked = [check for check in CHECKS if check.id in checks]
        played = player.all(run.scripts_of(measured, checks=asked))
    return Report(measured, played, run.findings(measured, played, checks=asked))
