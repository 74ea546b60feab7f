"""Decides when a job has run too long (`spec.activeDeadlineSeconds`). Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from headway_api.conditions import ConditionType, Reason, find
from headway_api.finishing import FINISHING_SECONDS
from headway_operator.plan.context import Context
from headway_operator.plan.health import Issue


def ends_at(context: Context, now: datetime) -> datetime | None:
    """The time at which the job will have run too long; None if it has no deadline."""
    limit, artifacts = context.spec.active_deadline_seconds, context.job.status.artifacts
    if limit is None:
        return None
    finishing = FINISHING_SECONDS if artifacts is not None and artifacts.report is not None else 0
    return _active_since(context, now) + timedelta(seconds=limit + finishing)


def passed(context: Context, now: datetime, field_to_shorten: str) -> Issue | None:
    """Why the job fails, if its deadline has passed. `field_to_shorten`: what to lower for a shorter job."""
    end = ends_at(context, now)
    if end is None or now < end:
        return None
    return Issue(
        Reason.ACTIVE_DEADLINE_EXCEEDED,
        f"spec.activeDeadlineSeconds: the job has run for {context.spec.active_deadline_seconds} s; raise it "
        f"in a new job, or lower {field_to_shorten}",
    )


def _active_since(context: Context, now: datetime) -> datetime:
    """The start time, moved by the time for which the job was suspended."""
    stored = context.job.status
    start = stored.start_time or now
    known = find(stored.conditions, ConditionType.SUSPENDED)
    open_suspension = now - known.last_transition_time if known and known.status == "True" else timedelta()
    return start + timedelta(seconds=stored.suspended_seconds or 0) + open_suspension
