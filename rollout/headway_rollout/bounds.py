"""What a job may do at most: steps, age of a token, failures in a row. Pure."""

from __future__ import annotations

from headway_api.exits import JobError
from headway_api.records import Batch, GroupRecord
from headway_api.spec.training import RLTrainingJobSpec

LOST_LIMIT = 8
"""Groups that may be abandoned one after the other before the job gives up for now."""


def lost(group: GroupRecord) -> JobError:
    """Why a job whose episodes all fail cannot go on: in the words of the last failure."""
    errors = [episode.error for episode in group.episodes if episode.error]
    return JobError(
        "EpisodesFailing",
        f"all episodes of one group after the other failed; at last: {errors[-1] if errors else 'unknown'}",
        permanent=False,
    )


def steps_in(rows: int, spec: RLTrainingJobSpec) -> int:
    """Steps the job will take: a batch always has batchSize prompts, so a rest of the data is left."""
    return min(spec.schedule.max_steps, rows * spec.schedule.max_epochs // spec.algorithm.batch_size)


def check_lag(batch: Batch, max_lag: int) -> None:
    """The staleness bound, held against the tokens themselves.

    Raises:
        JobError: `StaleBatch`: a token is older than maxStepsOffPolicy allows.
    """
    for group in batch.groups:
        steps = [s.version.step for e in group.scored for row in e.rows for s in row.versions]
        if steps and min(steps) < batch.step - 1 - max_lag:
            raise JobError(
                "StaleBatch",
                f"group {group.group_id} has tokens of step {min(steps)} in the batch of step {batch.step}: "
                "this is a fault of Headway, please report it with the artifact store's trajectories folder",
                field="spec.algorithm.maxStepsOffPolicy",
            )
