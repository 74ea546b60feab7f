"""Runs the preflight's checks in an author's own tests: without a cluster or a model, in seconds.

    from headway_sandbox.testing import Call, Seen, check_environment, episode

    def test_a_right_answer_earns_everything():
        played = episode(
            "environment:Desk", row, [Call("get_case", {"case_id": "7"})], "<answer>refund</answer>"
        )
        assert (played.reward, played.score) == (1.0, 1.0)

    def agent(seen: Seen):                       # stands for the model
        found = yield Call("get_case", {"case_id": seen.row["case_id"]})
        return answer_to(found.content) if seen.random.random() < 0.5 else "<answer>none</answer>"

    def test_preflight_finds_nothing():
        check_environment("environment:Desk", rows, agent)

Each episode has its own process, with the real server of a sandbox pod (`testing.sandbox`).
Only the checks that need no model are applied (`CHECKS`, `needs_model`). A scripted agent says nothing about
the foothold of the model that will be trained. Only this package imports `headway_analysis`, since it never
runs in a sandbox pod.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from headway_analysis.preflight import run
from headway_analysis.preflight.catalogue import CHECKS
from headway_analysis.preflight.evidence import Call, Facts, PlayedScript, Script, ToolResult
from headway_analysis.preflight.playing import EpisodeCutError, NoReplyError, each
from headway_api.document import JsonView
from headway_sandbox.environment import Environment
from headway_sandbox.testing.playing import (
    Malformed,
    Model,
    Player,
    Recorded,
    Seen,
    Tokens,
    about,
    baseline,
    of_recorded,
)
from headway_sandbox.testing.report import Report
from headway_sandbox.testing.sandbox import Sandboxes

__all__ = [
    "Call",
    "EpisodeCutError",
    "Malformed",
    "Recorded",
    "Report",
    "Sandboxes",
    "Seen",
    "ToolResult",
    "check_environment",
    "each",
    "episode",
    "examine",
]

MODEL_FREE = frozenset(check.id for check in CHECKS if not check.needs_model)
"""Ids of the checks that judge data, environment, reward and score, with any agent."""


def episode(
    environment: str | type[Environment] | Sandboxes,
    row: JsonView,
    calls: Sequence[Call] = (),
    answer: str | None = None,
    *,
    seed: int = 0,
    truncated: bool = False,
    **more: Any,
) -> PlayedScript:
    """Play one episode of `environment`, in a process of its own: reset, tool calls, reward and score.

    `more`: fields of `Sandboxes`, such as `config` and `folders`. A fault of the environment raises nothing
    here: the result's `error` says what failed, with method, file and line.
    """
    script = Script("episode", "episode", row, seed, tuple(calls), answer, truncated=truncated)
    return Player(sandboxes_of(environment, **more), 1).play(script)


def check_environment(
    environment: str | type[Environment] | Sandboxes,
    rows: Sequence[JsonView],
    agent: Model | None = None,
    *,
    allow: Collection[str] = (),
    **more: Any,
) -> Report:
    """Apply the preflight's checks to an environment; returns the report if nothing needs a fix.

    `allow`: ids of checks whose alarms are known and accepted. The other arguments are those of `examine`.

    Raises:
        AssertionError: a method failed, or a check fails or warns; the text says what to change.
    """
    report = examine(environment, rows, agent, **more)
    if report.broken or set(report.named("Fail", "Warn")) - set(allow):
        raise AssertionError(report.text(without=allow))
    return report


def examine(
    environment: str | type[Environment] | Sandboxes,
    rows: Sequence[JsonView],
    agent: Model | None = None,
    *,
    recorded: Sequence[Recorded] = (),
    episodes: int = 64,
    checks: Collection[str] = MODEL_FREE,
    facts: Facts | None = None,
    tokens: Tokens = about,
    workers: int | None = None,
    validation: Sequence[JsonView] = (),
    test: Sequence[JsonView] = (),
    **more: Any,
) -> Report:
    """Apply the checks; returns the report whatever they find.

    Args:
        environment: `module:Class`, the class itself, or the `Sandboxes` to start.
        rows: training rows.
        agent: plays `episodes` of them, in groups of `facts.group_size`.
        recorded: episodes to play again instead of an agent.
        checks: ids of the checks to apply.
        facts: the job's facts, if the defaults do not apply; `rows`, `validation` and `test` are added.
        tokens: counts a text's tokens; by default a token has four characters.
        workers: sandboxes that run at once; by default one for each core.
        more: fields of `Sandboxes`, such as `config` and `folders`.

    Raises:
        ValueError: neither an agent nor recorded episodes are given, or a check is unknown.
        AssertionError: the environment cannot be imported, or refuses its configuration.
    """
    if unknown := set(checks) - {check.id for check in CHECKS}:
        raise ValueError(f"checks: {', '.join(sorted(unknown))}: these checks do not exist")
    if (agent is None) == (not recorded):
        raise ValueError("give an agent or recorded episodes: the checks judge their results")
    known = with_rows(facts or Facts(rows), rows, validation, test)
    player = Player(sandboxes_of(environment, **more), workers)
    try:
        player.start()
    except NoReplyError as failure:
        raise AssertionError(str(failure)) from None
    if agent is not None:
        measured = baseline(player, agent, known, episodes, tokens)
    else:
        measured = of_recorded(player, recorded, known, tokens)
    asked = [check for check in CHECKS if check.id in checks]
    played = player.all(run.scripts_of(measured, checks=asked))
    return Report(measured, played, run.findings(measured, played, checks=asked))


def with_rows(
    facts: Facts, rows: Sequence[JsonView], validation: Sequence[JsonView], test: Sequence[JsonView]
) -> Facts:
    """The job's facts about these rows."""
    return dataclasses.replace(
        facts, rows=rows, validation=validation or facts.validation, test=test or facts.test
    )


def sandboxes_of(environment: str | type[Environment] | Sandboxes, **more: Any) -> Sandboxes:
    """The `Sandboxes` that start an environment.

    A class is imported by its module's name, from the folder from which this interpreter imported it.
    """
    if isinstance(environment, Sandboxes):
        return environment
    if isinstance(environment, str):
        return Sandboxes(environment, **more)
    module = sys.modules[environment.__module__]
    home = Path(str(module.__file__)).resolve().parent
    for _ in environment.__module__.split(".")[1:]:
        home = home.parent
    more["folders"] = [home, *more.get("folders", ())]
    return Sandboxes(f"{environment.__module__}:{environment.__qualname__}", **more)
