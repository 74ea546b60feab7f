"""The operator's part of a job's status: conditions, roles, state and times.

The part describes one generation of the spec. The coordinator owns the other fields, and the conditions that
only it can judge. They are omitted here, so server-side apply does not touch them. A `JobKind` adds what only
its kind of job has.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from headway_api import names
from headway_api.conditions import Condition, ConditionType, Reason, condition, find, is_true, merge
from headway_api.status import Role, State
from headway_operator.plan import conditions as judged
from headway_operator.plan.context import Context, JobStatus
from headway_operator.plan.health import Issue, RoleHealth
from headway_operator.plan.job_health import JobHealth
from headway_operator.plan.job_kind import JobKind
from headway_operator.plan.rollout import scaled

COMMON: Final = frozenset(
    {
        ConditionType.ACCEPTED,
        ConditionType.PREFLIGHT_PASSED,
        ConditionType.ROLLOUT_READY,
        ConditionType.SANDBOXES_READY,
        ConditionType.PROGRESSING,
        ConditionType.SUSPENDED,
        ConditionType.COMPLETE,
        ConditionType.FAILED,
        ConditionType.READY,
        ConditionType.RECONCILING,
        ConditionType.STALLED,
    }
)
"""Conditions that the operator owns for every kind of job."""
PREFLIGHT_DONE: Final = ("Passed", "Warned", "Skipped")


def refused(kind: JobKind, before: JobStatus, generation: int, refusal: str, now: datetime) -> JobStatus:
    """Status of a job whose spec cannot run, and that has nothing running."""
    why = Issue(Reason.INVALID_SPEC, refusal)
    return halted(kind, before, generation, why, now, judged.accepted(refusal))


def halted(
    kind: JobKind, before: JobStatus, generation: int, why: Issue, now: datetime, *more: Condition
) -> JobStatus:
    """Status of a job that needs help, whatever its spec asks for; `more` are further conditions."""
    status = _with(kind, before, [*more, *judged.stalled_conditions(why)], generation, now)
    return status.model_copy(update={"state": "Stalled", "reason": str(why.reason)})


def waiting(kind: JobKind, context: Context, why: Issue, now: datetime) -> JobStatus:
    """Status of a job that cannot begin until another job has progressed far enough."""
    before, job_health = context.job.status, JobHealth(now=now, lacks=why)
    ready = condition(ConditionType.READY, False, why.reason, why.message)
    working = condition(ConditionType.RECONCILING, True, why.reason, why.message)
    fresh = [judged.accepted(None), *kind.resolution(context, job_health)]
    if find(before.conditions, ConditionType.SUSPENDED):
        fresh.append(judged.suspended(context, job_health))
    fresh += judged.kstatus_conditions(ready, working=working)
    status = _with(kind, before, fresh, context.job.metadata.generation, now)
    seconds = _suspended_seconds(context, job_health)
    return status.model_copy(
        update={"state": "Pending", "reason": str(why.reason), "suspended_seconds": seconds}
    )


def of(kind: JobKind, context: Context, job_health: JobHealth) -> JobStatus:
    """The operator's part of the status of a job that has not ended before this reconcile."""
    before, now = context.job.status, job_health.now
    finished = job_health.failure is not None or job_health.complete
    progressing = judged.progressing(context, job_health, kind.working_state(context)[1])
    fresh = [
        judged.accepted(job_health.refusal),
        judged.preflight(context.job),
        judged.suspended(context, job_health),
        *kind.resolution(context, job_health),
        *kind.conditions(context, job_health),
        *judged.serving(job_health),
        progressing,
        *_terminal(kind, context, job_health),
        *judged.kstatus(context, job_health, progressing),
    ]
    status = _with(kind, before, fresh, context.job.metadata.generation, now)
    state, reason = _state(kind, context, job_health, status.conditions)
    return status.model_copy(
        update={
            "state": state,
            "reason": reason,
            "start_time": before.start_time or now.replace(microsecond=0),
            "completion_time": now.replace(microsecond=0) if finished else None,
            "suspended_seconds": _suspended_seconds(context, job_health),
            "roles": _all_roles(before, job_health),
            "failures": job_health.failures or before.failures,
            "rollout_replicas": _replicas(job_health),
            "rollout_selector": _selector(context),
        }
    ).model_copy(update=kind.kind_fields(context, job_health))


def common_part(status: JobStatus) -> dict[str, Any]:
    """The fields that the operator writes for any kind of job, as stored, without the conditions."""
    return {
        "observed_generation": status.observed_generation,
        "state": status.state,
        "reason": status.reason,
        "start_time": status.start_time,
        "completion_time": status.completion_time,
        "suspended_seconds": status.suspended_seconds,
        "roles": status.roles,
        "failures": status.failures,
        "accelerators": status.accelerators,
        "grant": status.grant,
        "rollout_replicas": status.rollout_replicas,
        "rollout_selector": status.rollout_selector,
    }


def ended(kind: JobKind, before: JobStatus, generation: int, now: datetime) -> JobStatus:
    """Status of a job that has ended.

    Later edits of the spec change no condition, so the conditions also describe the new generation. The
    coordinator may have written once more while it was being stopped, so `final_conditions` replaces what it
    wrote.
    """
    own = [known for known in before.conditions if kind.is_own(known)]
    return _with(kind, before, [*own, *kind.final_conditions(before)], generation, now)


def _with(
    kind: JobKind, before: JobStatus, fresh: list[Condition], generation: int | None, now: datetime
) -> JobStatus:
    stamped = [
        item.model_copy(
            update={"observed_generation": generation, "last_transition_time": now.replace(microsecond=0)}
        )
        for item in fresh
    ]
    # Also merge with the coordinator's conditions: a change from its last value is a transition.
    own = [known for known in merge(before.conditions, stamped) if kind.is_own(known)]
    return kind.own_part(before).model_copy(
        update={"conditions": own, "observed_generation": generation, **kind.fields_of(own)}
    )


def _suspended_seconds(context: Context, job_health: JobHealth) -> int | None:
    before = context.job.status
    known = find(before.conditions, ConditionType.SUSPENDED)
    if known is None or known.status != "True" or job_health.suspended:
        return before.suspended_seconds
    elapsed = job_health.now - known.last_transition_time
    return (before.suspended_seconds or 0) + int(elapsed.total_seconds())


def _terminal(kind: JobKind, context: Context, job_health: JobHealth) -> list[Condition]:
    if job_health.failure:
        return [condition(ConditionType.FAILED, True, job_health.failure.reason, job_health.failure.message)]
    return [kind.completed(context)] if job_health.complete else []


def _state(
    kind: JobKind, context: Context, job_health: JobHealth, known: list[Condition]
) -> tuple[State, str]:
    """The job's state in one word, and the reason of the condition that decides it."""
    if job_health.failure:
        return "Failed", job_health.failure.reason
    if job_health.complete:
        return "Complete", _reason(known, ConditionType.COMPLETE)
    if context.suspended:
        reason = _reason(known, ConditionType.SUSPENDED)
        return ("Suspended" if job_health.suspended else "Suspending"), reason
    if is_true(known, ConditionType.STALLED):
        return "Stalled", _reason(known, ConditionType.STALLED)
    progressing = _reason(known, ConditionType.PROGRESSING)
    if any(health.issue and health.issue.reason == Reason.QUEUED for health in job_health.roles):
        return "Queued", str(Reason.QUEUED)
    if job_health.is_running:
        return kind.working_state(context)[0], _unhealthy(context.job.status) or progressing
    if state := kind.coming_up(context, job_health):
        return state, progressing
    checks = context.job.status.preflight
    if checks and checks.state in ("Running", "Sampling") and not job_health.issues:
        return "Preflight", _reason(known, ConditionType.PREFLIGHT_PASSED)
    return "Pending", progressing


def _unhealthy(status: JobStatus) -> str:
    """Why a running job is unhealthy, as its coordinator reports; empty if it is not."""
    known = find(status.conditions, ConditionType.HEALTHY)
    return known.reason if known is not None and known.status == "False" else ""


def _reason(known: list[Condition], kind: ConditionType) -> str:
    found = find(known, kind)
    return found.reason if found else ""


def _all_roles(before: JobStatus, job_health: JobHealth) -> list[Role]:
    """Roles that are or were wanted. The restarts of a role still count after its pods are gone."""
    now = {health.role: _role(health) for health in job_health.roles}
    past = {role.name: Role(name=role.name, restarts=role.restarts) for role in before.roles}
    return [(past | now)[name] for name in sorted(past | now)]


def _role(health: RoleHealth) -> Role:
    message = health.issue.message[:1024] if health.issue else None
    return Role(
        name=health.role,
        desired=health.desired,
        ready=health.ready,
        restarts=health.restarts,
        message=message,
    )


def _replicas(job_health: JobHealth) -> int:
    rollout = job_health.role(names.ROLLOUT)
    return rollout.ready - rollout.ready_unscaled if rollout else 0


def _selector(context: Context) -> str:
    pairs = scaled(context)
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))
