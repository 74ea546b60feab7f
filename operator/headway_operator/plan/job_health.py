"""What the planner found out about a running job, and whether the job makes progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from headway_api import names
from headway_api.conditions import ConditionType, find
from headway_api.failures import Failures
from headway_operator.plan.context import Context, Job
from headway_operator.plan.health import Issue, RoleHealth
from headway_operator.plan.images import Outlook

PATIENCE: Final = timedelta(seconds=120)
"""How long something that a pod needs may be missing before the job counts as stalled. A registry may be
unavailable for a while, or another tool may still add a Secret."""

READINESS: Final = {
    names.LEARNER: ConditionType.LEARNER_READY,
    names.ROLLOUT: ConditionType.ROLLOUT_READY,
}
"""Role that the job's work depends on -> the condition that says whether it is ready."""


@dataclass(frozen=True)
class JobHealth:
    """The health of a job. The status is a function of this and the previous status."""

    now: datetime
    roles: list[RoleHealth] = field(default_factory=list)
    sandbox_issue: Issue | None = None
    failure: Issue | None = None
    complete: bool = False
    suspended: bool = False
    """The job should have no pods, and every pod is gone."""
    obstacle: Issue | None = None
    """The API server's message about an object that could not be created or changed."""
    blocked: bool = False
    """The obstacle will not disappear by itself."""
    begun: bool = False
    """The preflight is over, and the workloads that waited for it are wanted."""
    lacks: Issue | None = None
    """What this job needs and other jobs do not have, if this reconcile has just found that out."""
    failures: Failures | None = None
    """The decisions of the rules of spec.failurePolicy, if this round applied them."""
    refusal: str | None = None
    """Why the current spec is refused. The running workloads come from an earlier spec."""

    @property
    def issues(self) -> list[Issue]:
        """What keeps the job from its work. Sandboxes come first, since a coordinator waits for them."""
        short = [health for health in self.roles if health.pending_since or not health.ready]
        found = [self.sandbox_issue, *(health.issue for health in short)]
        return [issue for issue in found if issue is not None]

    def role(self, name: str) -> RoleHealth | None:
        """The health of a role; None if the role is not wanted now."""
        return next((health for health in self.roles if health.role == name), None)

    @property
    def running(self) -> bool:
        """Whether every role can do its work."""
        return self.begun and self.all_ready

    @property
    def all_ready(self) -> bool:
        """Whether every role that is wanted now has the pods that it needs."""
        return all(health.pending_since is None and health.ready for health in self.roles)

    @property
    def is_running(self) -> bool:
        """Whether every role has enough running processes, even if some answer probes too slowly."""
        return self.begun and all(health.is_running for health in self.roles)


def needs_help(job_health: JobHealth) -> Issue | None:
    """An issue that only a person can fix: at once if the kubelet's message shows it, else after
    `PATIENCE`."""
    return next(
        (
            issue
            for issue in job_health.issues
            if issue.outlook is Outlook.NEEDS_HELP
            or (issue.since is not None and job_health.now - issue.since >= PATIENCE)
        ),
        None,
    )


def needs_help_at(job_health: JobHealth) -> list[datetime]:
    """When `PATIENCE` ends for each issue that may disappear by itself."""
    moments = [issue.since + PATIENCE for issue in job_health.issues if issue.since is not None]
    return [moment for moment in moments if moment > job_health.now]


def _last_moved(job: Job) -> datetime | None:
    return job.status.progress.updated_time if job.status.progress else None


def _running_since(job: Job, job_health: JobHealth) -> datetime | None:
    kinds = [READINESS[health.role] for health in job_health.roles if health.role in READINESS]
    kinds = kinds or [ConditionType.SANDBOXES_READY]
    moments = [
        known.last_transition_time
        for kind in kinds
        if (known := find(job.status.conditions, kind)) and known.status == "True"
    ]
    return max(moments) if len(moments) == len(kinds) else None


def _sampling_waits(job: Job) -> str | None:
    """What baseline episodes wait for, as the coordinator reports while it samples them."""
    checks = job.status.preflight
    waits = checks.waits_for if checks is not None and checks.state == "Sampling" else None
    return None if waits is None else waits.message


def stalls_at(context: Context, job_health: JobHealth) -> datetime | None:
    """When a job that runs, or samples its baseline, counts as stalled unless it makes progress before.

    Baseline episodes may wait for `PATIENCE` after the servers became ready, since the coordinator does not
    know of a new server at once.
    """
    ready = _running_since(context.job, job_health)
    if _sampling_waits(context.job) and job_health.all_ready and ready:
        return ready + PATIENCE
    since = [m for m in (ready, _last_moved(context.job)) if m]
    if not job_health.running or not since:
        return None
    return max(since) + timedelta(seconds=context.platform.stalled_after_seconds)


def no_progress(context: Context, job_health: JobHealth) -> str | None:
    """The message about a job that runs without progress; the coordinator's own message, if it has one."""
    progress = context.job.status.progress
    if job_health.running and progress and progress.stalled:
        return progress.stalled
    moment = stalls_at(context, job_health)
    if moment is None or job_health.now < moment:
        return None
    if (waits := _sampling_waits(context.job)) is not None:
        return waits
    limit = context.platform.stalled_after_seconds
    blockers = [health.issue.message for health in job_health.roles if health.issue]
    text = f"the job has made no progress for {int(limit)} s, although every role runs"
    return f"{text}: {'; '.join(blockers)}" if blockers else f"{text}; see the coordinator's log"
