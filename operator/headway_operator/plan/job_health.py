"""What the planner found out about a job that it keeps alive, and whether such a job moves."""

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
"""How long what a pod cannot be made without may be missing before a person is called: a registry may be
away, a Secret may come with another tool."""

READINESS: Final = {
    names.LEARNER: ConditionType.LEARNER_READY,
    names.ROLLOUT: ConditionType.ROLLOUT_READY,
}
"""Condition of each role that the job's work waits for."""


@dataclass(frozen=True)
class JobHealth:
    """The status is a function of this and of the status before."""

    now: datetime
    roles: list[RoleHealth] = field(default_factory=list)
    sandbox_issue: Issue | None = None
    failure: Issue | None = None
    complete: bool = False
    suspended: bool = False
    """Every pod is gone."""
    obstacle: Issue | None = None
    """An object could not be created or changed: the API server's own words."""
    blocked: bool = False
    """The obstacle will not pass by itself."""
    begun: bool = False
    """The preflight is over, and what it held back is wanted."""
    lacks: Issue | None = None
    """What other jobs do not have and this one needs, where that has just been found out."""
    failures: Failures | None = None
    """What the rules of spec.failurePolicy have decided, where they were asked just now."""
    refusal: str | None = None
    """Why the spec as it is now is not accepted; what runs was made by an earlier one."""

    @property
    def issues(self) -> list[Issue]:
        """What keeps the job from its work: that of sandboxes first, for a coordinator waits for them."""
        short = [health for health in self.roles if health.pending_since or not health.ready]
        found = [self.sandbox_issue, *(health.issue for health in short)]
        return [issue for issue in found if issue is not None]

    def role(self, name: str) -> RoleHealth | None:
        """A role that is wanted now."""
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
    def at_work(self) -> bool:
        """Whether no process is missing, though one may be slow to answer."""
        return self.begun and all(health.at_work for health in self.roles)


def needs_help(situation: JobHealth) -> Issue | None:
    """What nobody but a person can mend: at once where the kubelet's words say so, else after `PATIENCE`."""
    return next(
        (
            issue
            for issue in situation.issues
            if issue.outlook is Outlook.NEEDS_HELP
            or (issue.since is not None and situation.now - issue.since >= PATIENCE)
        ),
        None,
    )


def needs_help_at(situation: JobHealth) -> list[datetime]:
    """When what may pass by itself will have had its time."""
    moments = [issue.since + PATIENCE for issue in situation.issues if issue.since is not None]
    return [moment for moment in moments if moment > situation.now]


def _last_moved(job: Job) -> datetime | None:
    return job.status.progress.updated_time if job.status.progress else None


def _running_since(job: Job, situation: JobHealth) -> datetime | None:
    kinds = [READINESS[health.role] for health in situation.roles if health.role in READINESS]
    kinds = kinds or [ConditionType.SANDBOXES_READY]
    moments = [
        known.last_transition_time
        for kind in kinds
        if (known := find(job.status.conditions, kind)) and known.status == "True"
    ]
    return max(moments) if len(moments) == len(kinds) else None


def _sampling_waits(job: Job) -> str | None:
    """What baseline episodes wait for, as the coordinator says while it samples them."""
    checks = job.status.preflight
    waits = checks.waits_for if checks is not None and checks.state == "Sampling" else None
    return None if waits is None else waits.message


def stalls_at(context: Context, situation: JobHealth) -> datetime | None:
    """When a job that runs, or samples its baseline, will have been silent for too long, unless something
    goes forward before. A server that has just become ready is not known to the coordinator yet."""
    ready = _running_since(context.job, situation)
    if _sampling_waits(context.job) and situation.all_ready and ready:
        return ready + PATIENCE
    since = [m for m in (ready, _last_moved(context.job)) if m]
    if not situation.running or not since:
        return None
    return max(since) + timedelta(seconds=context.platform.stalled_after_seconds)


def no_progress(context: Context, situation: JobHealth) -> str | None:
    """What to say of a job that runs and gets nowhere; the coordinator knows best."""
    progress = context.job.status.progress
    if situation.running and progress and progress.stalled:
        return progress.stalled
    moment = stalls_at(context, situation)
    if moment is None or situation.now < moment:
        return None
    if (waits := _sampling_waits(context.job)) is not None:
        return waits
    limit = context.platform.stalled_after_seconds
    blockers = [health.issue.message for health in situation.roles if health.issue]
    text = f"nothing has gone forward for {int(limit)} s although every role runs"
    return f"{text}: {'; '.join(blockers)}" if blockers else f"{text}; see the coordinator's log"
