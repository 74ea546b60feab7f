"""A job's limits: steps, the age of a token, failures in a row, and rollbacks. Pure."""

from __future__ import annotations

from typing import Final

from headway_api.exits import JobError, job_error
from headway_api.records import Abandoned, Batch, GroupRecord, PolicyVersion, StepReport
from headway_api.staleness import staleness

MIN_SCORED = 2
"""A training group with fewer scored episodes is abandoned: there is nothing to compare."""
NO_STEP_LEFT: Final = Abandoned(reason="NoStepLeft", message="too few groups are left to fill another batch")
SUPERSEDED: Final = "Superseded"
TOO_OLD: Final = Abandoned(
    reason="TooOld",
    message="an earlier coordinator stored the group late: the weights that sampled it are too old now",
)
TOO_OLD_NOW: Final = Abandoned(
    reason="TooOld",
    message="a remedy has lowered maxStepsOffPolicy or batchSize, so no step can train the group in time",
)
ROLLED_BACK: Final = Abandoned(
    reason="RolledBack", message="a remedy went back to a step before the weights that sampled it"
)
GIVEN_UP: Final = {"TooOld": TOO_OLD_NOW, "NoStepLeft": NO_STEP_LEFT, "RolledBack": ROLLED_BACK}
"""Why a group is abandoned when a remedy leaves no step that may train it, by reason."""
FATAL_CAUSE_EPISODES: Final = 12
"""The job ends once recurring causes have ended this many episodes, and twice the number in flight at once,
before any episode is scored."""
LOST_LIMIT = 8
"""Lost groups in a row after which the job ends, until it is restarted. A training job with more slots than
this ends only after as many as it has slots."""


class StepConflictError(Exception):
    """The learner asks for, or reports, a step that does not follow the last one."""


def has_lost_too_many(size: int, lost: int) -> bool:
    """Whether a training group can no longer get the scored episodes that it needs.

    `lost` of its `size` episodes failed permanently.
    """
    return size - lost < MIN_SCORED


def lost(group: GroupRecord) -> JobError:
    """The error of a job whose episodes all fail. It quotes the last failure."""
    text = f"all episodes of several groups in a row failed; the last error: {last_error(group)}"
    return JobError("EpisodesFailing", text, permanent=False)


def last_error(group: GroupRecord) -> str:
    """Why a group has no score."""
    errors = [episode.error for episode in group.episodes if episode.error]
    return group.abandoned.message if group.abandoned else errors[-1] if errors else "unknown"


def rollback(report: StepReport, last: StepReport, latest: PolicyVersion | None) -> JobError | None:
    """The error of a coordinator whose learner resumed at an older step; None if it did not.

    The coordinator ends with it and is started again.

    Args:
        report: what the learner announces.
        last: the report of the last step taken.
        latest: the newest recorded version, where a successor would begin.
    """
    newer = report.version.incarnation > last.version.incarnation
    if not newer or report.step >= last.step or report.version != latest:
        return None
    return JobError(
        "LearnerRolledBack",
        f"the learner was at step {last.step} and resumed at step {report.step}, the newest durable one, "
        f"as version {report.version}. The coordinator restarts at that step, and the groups of later "
        "steps are trained again",
        permanent=False,
        counted=False,
    )


def superseded(why: str) -> JobError:
    """Why a coordinator ends when another one runs its job. `why` describes the other one.

    The job has no fault: if this process's pod is still wanted, it starts again, and the restart is not
    counted.
    """
    return JobError(
        SUPERSEDED,
        f"another coordinator continues this job, so this one ends and writes nothing more: {why}",
        permanent=False,
        counted=False,
    )


def oldest_step(group: GroupRecord) -> int | None:
    """The step of the oldest version that sampled a token of the group. None if it has no token to train."""
    rows = [row for episode in group.scored for row in episode.rows]
    return min((span.version.step for row in rows for span in row.versions), default=None)


def check_staleness(batch: Batch, max_staleness: int, went_back: int = 0) -> None:
    """Check the staleness bound on the tokens themselves.

    Args:
        went_back: the newest step that went back to older weights.

    Raises:
        JobError: `StaleBatch`: a token is older than maxStepsOffPolicy allows, or a rollback has discarded
            its weights.
    """
    for group in batch.groups:
        oldest = oldest_step(group)
        if oldest is None:
            continue
        if staleness(oldest, batch.step, batch.idle) > max_staleness or oldest < went_back:
            raise JobError(
                "StaleBatch",
                f"group {group.group_id} has tokens of step {oldest} in the batch of step {batch.step}. "
                "This is a fault of Headway: report it with the artifact store's trajectories folder",
                field="spec.algorithm.maxStepsOffPolicy",
            )


def is_superseded(error: BaseException | None) -> bool:
    """Whether a process ends because another has replaced it. The status then belongs to the other one."""
    found = job_error(error)
    return found is not None and found.termination.reason == SUPERSEDED
