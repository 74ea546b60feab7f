"""Metrics by task. A column of the dataset names the task of a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from headway_analysis.measures.episodes import rewards, scored, scores, spread, success
from headway_analysis.measures.metrics import Metrics
from headway_analysis.measures.names import apart
from headway_api.records import EpisodeRecord, GroupRecord

MAX_TASKS: Final = 32
"""The most tasks with metrics of their own. The rows of all other tasks count as one task, `OTHER`."""
OTHER: Final = "other"

ByTask = dict[str, dict[str, float]]
"""Task -> name of a metric -> its value."""


def bounded(tasks: Sequence[str]) -> list[str]:
    """The task of each row. If there are too many, those with the fewest rows become `OTHER`."""
    counts = Counter(tasks)
    kept = set(sorted(counts, key=lambda task: (-counts[task], task))[:MAX_TASKS])
    return [task if task in kept else OTHER for task in tasks]


def grouped(groups: Sequence[GroupRecord], tasks: Sequence[str]) -> dict[str, list[GroupRecord]]:
    """Groups by task, in the order of the tasks' names. `tasks`: the task of each row of the dataset."""
    found: dict[str, list[GroupRecord]] = {task: [] for task in sorted({tasks[g.row] for g in groups})}
    for group in groups:
        found[tasks[group.row]].append(group)
    return found


def summarize(groups: Sequence[GroupRecord], tasks: Sequence[str], threshold: float) -> ByTask:
    """The results of each task of a validation. A task without a scored episode has no means."""
    return {
        task: _one(scored(members), threshold) | {"rows": float(len(members))}
        for task, members in grouped(groups, tasks).items()
    }


def _one(episodes: Sequence[EpisodeRecord], threshold: float) -> dict[str, float]:
    if not episodes:
        return {}
    return {
        "reward": spread(rewards(episodes)).mean,
        "external_score": spread(scores(episodes)).mean,
        "success": spread([float(success(episode, threshold)) for episode in episodes]).mean,
    }


def shown(prefix: str, found: Mapping[str, Mapping[str, float]]) -> Metrics:
    """The metrics of tasks as `<prefix>/task_<metric>/<task>`; `names.apart` shortens the task's name."""
    return {
        f"{prefix}/task_{name}/{apart(task)}": value
        for task, metrics in found.items()
        for name, value in metrics.items()
    }


def batch(groups: Sequence[GroupRecord], tasks: Sequence[str]) -> Metrics:
    """The mean reward of each task in a training batch, and how many of its groups it has."""
    found: ByTask = {}
    for task, members in grouped(groups, tasks).items():
        found[task] = {"reward": spread(rewards(scored(members))).mean, "groups": float(len(members))}
    return shown("rollout", found)
