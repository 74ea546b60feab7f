"""Chooses the episodes of a training job that become traces in MLflow: of validations, and some of each step.

The job's stored records alone decide. So a coordinator that starts again chooses the same episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final, TypeVar

from headway_analysis.measures.tries import Rules, Try, TryPlace, tries_of
from headway_api.records import EpisodeRecord, GroupRecord, Purpose, ValidationRecord
from headway_api.run_files import RunFiles
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.metrics.traces import Traced

MAX_VALIDATED: Final = 500
"""The most episodes of validations, in equal numbers for each validation, from the first rows."""
MAX_STEPS: Final = 125
"""The most steps whose episodes are chosen. If a job has more steps, the chosen ones are evenly spaced."""
GROUPS_OF_STEP: Final = 2
"""Chosen groups of a step: the first and the last. The best and the worst episode of each become traces."""
T = TypeVar("T")


def episodes(files: RunFiles, spec: RLTrainingJobSpec) -> Iterator[Traced]:
    """The episodes, of validations first, by step. Raises what `RunFiles` raises.

    One group is in memory at a time.
    """
    rules = Rules(spec.evaluation.success_threshold, spec.agent.turn_limit)
    validations = evenly(files.validations(), MAX_VALIDATED)
    for record in validations:
        yield from islice(_validated(files, record, rules), MAX_VALIDATED // len(validations))
    for report in evenly([each for each in files.steps() if each.groups], MAX_STEPS):
        uris = [*map(files.layout.train_group, evenly(report.groups, GROUPS_OF_STEP))]
        for group in files.groups(uris):
            for one, episode in best_and_worst(group, rules):
                yield Traced(one, episode, (Purpose.TRAIN, report.step))


def _validated(files: RunFiles, record: ValidationRecord, rules: Rules) -> Iterator[Traced]:
    """The tries at the rows of a validation, by row."""
    uris = [files.layout.validation_group(record.step, group) for group in sorted(record.rows)]
    pairs = chain.from_iterable(_pairs(group, rules) for group in files.groups(uris))
    return (Traced(one, episode, (Purpose.VALIDATION, record.step)) for one, episode in pairs)


def best_and_worst(group: GroupRecord, rules: Rules) -> list[tuple[Try, EpisodeRecord]]:
    """The best and the worst scored episode of a group by reward. Of equal ones, the first."""
    scored = [(one, episode) for one, episode in _pairs(group, rules) if one.reward is not None]
    if not scored:
        return []
    best, worst = max(scored, key=_reward), min(scored, key=_reward)
    return [best] if worst is best else [best, worst]


def _reward(pair: tuple[Try, EpisodeRecord]) -> float:
    return pair[0].reward or 0.0


def _pairs(group: GroupRecord, rules: Rules) -> Iterator[tuple[Try, EpisodeRecord]]:
    return zip(tries_of(group, TryPlace("", group.row), rules), group.episodes, strict=True)


def evenly(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items, evenly spaced. The first and the last are among them."""
    if len(items) <= limit:
        return [*items]
    return [items[round(at * (len(items) - 1) / max(1, limit - 1))] for at in range(limit)]
