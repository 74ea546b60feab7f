"""What a job may do at most: steps, age of a token, failures in a row, going back. Pure."""

from __future__ import annotations

from typing import Final

from headway_api.exits import JobError
from headway_api.records import Abandoned, Batch, GroupRecord, PolicyVersion, StepReport
from headway_api.staleness import lag

MIN_SCORED = 2
"""A training group with fewer scored episodes has nothing to compare: it is abandoned."""
NO_STEP_LEFT: Final = Abandoned(reason="NoStepLeft", message="too few groups are left to fill another batch")
SUPERSEDED: Final = "Superseded"
TOO_OLD: Final = Abandoned(
    reason="TooOld", message="a coordinator before this one wrote it late, sampled by weights too old by now"
)
TOO_OLD_NOW: Final = Abandoned(
    reason="TooOld",
    message="a remedy has lowered how old a trained token may be, or how many are trained at once",
)
ROLLED_BACK: Final = Abandoned(
    reason="RolledBack", message="a remedy went back behind the weights that sampled it"
)
GIVEN_UP: Final = {"TooOld": TOO_OLD_NOW, "NoStepLeft": NO_STEP_LEFT, "RolledBack": ROLLED_BACK}
"""What a group says that a remedy has no step for any more, by the reason."""
LIKE_LIMIT: Final = 12
"""Episodes that one cause may end before the first is scored, and twice as many as run at once: then the job
gives up."""
LOST_LIMIT = 8
"""Groups that may be abandoned one after the other before the job gives up for now."""


def doomed(size: int, lost: int) -> bool:
    """Whether a training group cannot get the scored episodes it needs, `lost` of its `size` having failed
    for good."""
    return size - lost < MIN_SCORED


def lost(group: GroupRecord) -> JobError:
    """Why a job whose episodes all fail cannot go on: in the words of the last failure."""
    errors = [episode.error for episode in group.episodes if episode.error]
    said = group.abandoned.message if group.abandoned else errors[-1] if errors else "unknown"
    return JobError(
        "EpisodesFailing",
        f"all episodes of one group after the other failed; at last: {said}",
        permanent=False,
    )


def rollback(report: StepReport, last: StepReport, latest: PolicyVersion | None) -> JobError | None:
    """What to end with, to be started again, where the learner resumed at an older step; else None.

    Args:
        report: what the learner announces.
        last: the report of the last step taken.
        latest: the newest version on record: where a successor would begin.
    """
    newer = report.version.incarnation > last.version.incarnation
    if not newer or report.step >= last.step or report.version != latest:
        return None
    return JobError(
        "LearnerRolledBack",
        f"the learner, which was at step {last.step}, resumed at step {report.step}, the newest that is "
        f"durable, and goes on as version {report.version}; the coordinator starts again at that step, and "
        "the groups of the steps after it are trained again",
        permanent=False,
        counted=False,
    )


def superseded(said: str) -> JobError:
    """Why a coordinator ends whose job another one goes on with, of which `said` tells.

    Nothing of the job is at fault: where this process's pod is still wanted, it starts again, uncounted.
    """
    return JobError(
        SUPERSEDED,
        f"another coordinator goes on with this job, so this one ends and writes nothing more: {said}",
        permanent=False,
        counted=False,
    )


def oldest_step(group: GroupRecord) -> int | None:
    """Step of the oldest version that sampled a token of the group; None where it has no token to train."""
    rows = [row for episode in group.scored for row in episode.rows]
    return min((span.version.step for row in rows for span in row.versions), default=None)


def check_lag(batch: Batch, max_lag: int, went_back: int = 0) -> None:
    """The staleness bound, held against the tokens themselves.

    Args:
        went_back: the newest step that went back to older weights.

    Raises:
        JobError: `StaleBatch`: a token is older than maxStepsOffPolicy allows, or of weights that the job has
            gone back from.
    """
    for group in batch.groups:
        oldest = oldest_step(group)
        if oldest is None:
            continue
        if lag(oldest, batch.step, batch.idle) > max_lag or oldest < went_back:
            raise JobError(
                "StaleBatch",
                f"group {group.group_id} has tokens of step {oldest} in the batch of step {batch.step}: "
                "this is a fault of Headway, please report it with the artifact store's trajectories folder",
                field="spec.algorithm.maxStepsOffPolicy",
            )
