"""Writes episodes of a run as a log of Inspect AI. Pure, except for `write`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from headway_analysis.measures.tries import Rules, TryPlace, a_try
from headway_analysis.report import inspect_log
from headway_analysis.report.inspect_log import Head, PlayedEpisode
from headway_api.spec.agent import AgentSpec
from headway_cli.episodes import Shown
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun
from headway_cli.task_rows import SPLITS

ENDING: Final = ".eval"
UNKNOWN: Final = "unknown"
"""Name of the model in the log, if the run does not name its model."""


def write(path: Path, run: StoredRun, shown: Sequence[Shown], task: str = "") -> None:
    """Write episodes as a log of Inspect AI.

    Each episode becomes a sample. The sample's id is the episode's group, and its epoch, from 1, is the
    episode's index in the group.

    Args:
        path: the file, with the ending `.eval`.
        run: the run that has the episodes.
        shown: the episodes.
        task: the task of all these episodes; empty if it is not known.

    Raises:
        RunNotFoundError: Inspect AI is not installed, or the file cannot be written.
    """
    if not path.parent.is_dir():
        raise RunNotFoundError(f"--out {path}: there is no folder {path.parent}")
    head = head_of(run, shown)
    try:
        inspect_log.write_episodes(path, head, played(run, shown, head, task))
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise RunNotFoundError(
            f"{package} is not installed, and it writes the log: pip install 'headway[coordinator]'"
        ) from error
    except OSError as error:
        raise RunNotFoundError(f"--out {path}: {error.strerror or error}") from error


def head_of(run: StoredRun, shown: Sequence[Shown]) -> Head:
    """The log's header: the run's name, model, data and limits."""
    models = list(dict.fromkeys(model_of(run, each) for each in shown))
    purposes = sorted({each.group.purpose.value for each in shown})
    return Head(
        run.name,
        str(run.job.get("namespace") or ""),
        str(run.job.get("uid") or ""),
        model=", ".join(models) or UNKNOWN,
        data=_data(run, shown),
        rows=len({each.group.row for each in shown}),
        epochs=1 + max((each.episode.index for each in shown), default=0),
        turn_limit=_turn_limit(run),
        more={"purposes": purposes},
    )


def model_of(run: StoredRun, each: Shown) -> str:
    """Name of the model that played an episode: the candidate, or the job's base model."""
    return each.group.candidate or run.base or UNKNOWN


def played(
    run: StoredRun, shown: Sequence[Shown], head: Head, task: str = ""
) -> list[tuple[str, PlayedEpisode]]:
    """The episodes as tries, each with its model, its record, and earlier attempts that were discarded."""
    measure = run.spec.get("evaluation") or {}
    rules = Rules(float(measure.get("successThreshold", 1.0)), head.turn_limit)
    found: list[tuple[str, PlayedEpisode]] = []
    for each in shown:
        group, episode = each.group, each.episode
        place = TryPlace(
            candidate=group.candidate or "",
            row=group.row,
            task=group.suite or task,
            row_id=group.group_id,
            suite=group.suite is not None,
        )
        earlier = [one for one in group.discarded if one.index == episode.index]
        one = a_try(episode, place, rules, earlier, group.sampled_by, group.model)
        found.append((model_of(run, each), (one, episode, earlier)))
    return found


def _data(run: StoredRun, shown: Sequence[Shown]) -> str:
    """URI of the dataset; empty if the run does not name it."""
    data = run.spec.get("data") or {}
    if not run.evaluates:
        data = data.get(SPLITS[shown[0].group.purpose]) if shown else None
    return str((data or {}).get("uri", ""))


def _turn_limit(run: StoredRun) -> int | None:
    """Maximum turns of the built-in agent; None for another agent, or if another version wrote the spec."""
    try:
        return AgentSpec.model_validate(run.spec.get("agent") or {}).turn_limit if run.job else None
    except ValidationError:
        return None
