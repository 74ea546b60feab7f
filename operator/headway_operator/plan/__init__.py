"""The plan: what must exist for a job, what must go, and what its status says. Pure.

preparing   identity, settings, policies, coordinator, broker; the coordinator checks the job
running     and learner, rollout servers, once its preflight has passed: no accelerator before
suspending  no workload; what costs nothing stays
refused     what runs already, until it ends; nothing is made or changed
ended       nothing: taken down in order (`teardown`)
deleted     the same, and then the job lets go of its finalizer

A job is held by the finalizer from before its first object until after its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from headway_api import names
from headway_api.conditions import ConditionType, Reason, find, is_finished
from headway_api.status import RLTrainingJobStatus
from headway_operator.config import DEFAULT_MANAGER, OperatorConfig
from headway_operator.plan import (
    admission,
    broker,
    coordinator,
    identity,
    learner,
    network,
    rollout,
    settings,
    status,
    teardown,
    warm_start,
)
from headway_operator.plan.context import Context, Json, Wanted
from headway_operator.plan.health import (
    EVIDENCE_SECONDS,
    RoleHealth,
    Trouble,
    failure,
    is_complete,
    pod_trouble,
    role_health,
)
from headway_operator.plan.observed import (
    CHILDLESS_SECONDS,
    Observed,
    holds,
    is_ending,
    is_over,
    moment,
)
from headway_operator.plan.reading import Refusal, parse, salvage
from headway_operator.plan.situation import Situation, stalls_at


@dataclass(frozen=True)
class Plan:
    """What to do about a job now."""

    wanted: tuple[Wanted, ...] = ()
    doomed: tuple[Json, ...] = ()
    """Objects to delete."""
    status: RLTrainingJobStatus | None = None
    """The operator's part; None leaves it as it is."""
    held: bool | None = None
    """Whether the job has to carry the teardown finalizer; None leaves it as it is."""
    delete_job: bool = False
    again_seconds: float | None = None
    """When time alone will change the plan."""
    ending: bool = False
    """The status becomes terminal with this plan: it should be made from a fresh view."""


def make(raw: Json, platform: OperatorConfig, observed: Observed, obstacle: Trouble | None = None) -> Plan:
    """The plan for a job as it stands. `obstacle` is what the last attempt to carry it out met."""
    if raw["spec"].get("managedBy", DEFAULT_MANAGER) != platform.manager:
        return Plan()
    before = RLTrainingJobStatus.model_validate(raw.get("status", {}))
    if is_ending(raw):
        return _deleted(raw, before, observed)
    if observed.namespace_ends:
        # Pods of a namespace go before anything else, and the Job controller, which counts failures by index,
        # lets go of a learner's pod only for its successor, which nobody can create there: each would wait
        # for the other. Without the Job nobody counts.
        return Plan(delete_job=True)
    if is_finished(before.conditions):
        return _ended(raw, before, observed)
    job = parse(raw)
    if isinstance(job, Refusal):
        return _refused(Context(salvage(raw), platform), observed, job.messages)
    context = Context(job, platform)
    if messages := admission.refusals(context):
        return _refused(context, observed, messages)
    if messages := warm_start.refusals(context, observed.source, observed.now):
        made = _refused(context, observed, messages)
        # An event of the other job brings up that job alone.
        moments = (made.again_seconds, warm_start.LOOK_SECONDS)
        return replace(made, again_seconds=min(seconds for seconds in moments if seconds is not None))
    if text := warm_start.waits_for(context, observed.source):
        told = status.waiting(job.status, job.metadata.generation, text, observed.now)
        held = bool(observed.objects)  # made when the choice was, which no status has kept
        return Plan(status=told, held=held, again_seconds=warm_start.LOOK_SECONDS)
    chosen = warm_start.chosen(context, observed.source)
    return _alive(replace(context, warm_start=chosen), observed, obstacle)


def _refused(context: Context, observed: Observed, messages: Sequence[str]) -> Plan:
    """Nothing is made or changed; what runs by an earlier spec goes on, and ends like any other job.

    Of a spec that cannot be read whole, `context` holds what can be.
    """
    refusal = "; ".join(messages)
    if observed.objects:
        return _alive(context, observed, None, refusal)
    job = context.job
    told = status.refused(job.status, job.metadata.generation, refusal, observed.now)
    return Plan(status=told, held=False)


def _alive(
    context: Context, observed: Observed, obstacle: Trouble | None, refusal: str | None = None
) -> Plan:
    if context.spec.suspend:
        return _suspending(context, observed, obstacle, refusal)
    # A coordinator that was restarted checks again; what runs goes on meanwhile.
    begun = observed.workload(names.LEARNER) is not None
    running = begun or (refusal is None and status.preflight_passed(context.job))
    roles = _roles(context, observed, running)
    end = failure(context, observed, roles) or _deadline(context, observed.now)
    complete = end is None and is_complete(observed.workload(names.COORDINATOR))
    situation = Situation(
        now=observed.now,
        roles=roles if end is None and not complete else [],
        sandbox_trouble=_sandbox_trouble(observed),
        failure=end,
        complete=complete,
        obstacle=obstacle,
        blocked=obstacle is not None and obstacle.reason == Reason.NAME_CONFLICT,
        refusal=refusal,
    )
    told = status.of(context, situation)
    if end or complete:
        return Plan(status=told, ending=True, again_seconds=0)
    again = _again(context, observed, situation)
    if refusal is not None:
        return Plan(status=told, again_seconds=again)
    wanted = tuple(_base(context) + _workloads(context, running))
    return Plan(wanted, _surplus(observed, wanted), told, held=True, again_seconds=again)


def _base(context: Context) -> list[Wanted]:
    return identity.objects(context) + settings.objects(context) + network.objects(context)


def _workloads(context: Context, running: bool) -> list[Wanted]:
    first = coordinator.objects(context) + broker.objects(context)
    return first + (learner.objects(context) + rollout.objects(context) if running else [])


def _roles(context: Context, observed: Observed, running: bool) -> list[RoleHealth]:
    desired = {names.COORDINATOR: 1, names.BROKER: 1}
    if running:
        desired |= {names.LEARNER: context.spec.learner.nodes, names.ROLLOUT: context.spec.rollout.replicas}
    restarts = {role.name: role.restarts for role in context.job.status.roles}
    return [
        role_health(context, observed, role, count, restarts.get(role, 0)) for role, count in desired.items()
    ]


def _sandbox_trouble(observed: Observed) -> Trouble | None:
    """Why no sandbox starts. They end by the minute, so one that is over is no trouble while others start."""
    pods = [pod for pod in observed.pods(names.SANDBOX) if not is_ending(pod)]
    coming = [pod for pod in pods if not is_over(pod)]
    failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
    troubles = [pod_trouble(pod) for pod in coming or failed]
    return troubles[0] if troubles and all(troubles) else None


def _active_since(context: Context, now: datetime) -> datetime:
    """The start, moved by the time the job was suspended."""
    told = context.job.status
    start = told.start_time or now
    known = find(told.conditions, ConditionType.SUSPENDED)
    open_suspension = now - known.last_transition_time if known and known.status == "True" else timedelta()
    return start + timedelta(seconds=told.suspended_seconds or 0) + open_suspension


def _deadline(context: Context, now: datetime) -> Trouble | None:
    limit = context.spec.active_deadline_seconds
    if limit is None or now - _active_since(context, now) < timedelta(seconds=limit):
        return None
    return Trouble(
        Reason.ACTIVE_DEADLINE_EXCEEDED,
        f"spec.activeDeadlineSeconds: the job has run for {limit} s; raise it in a new job, or lower "
        "spec.schedule.maxSteps",
    )


def _suspending(context: Context, observed: Observed, obstacle: Trouble | None, refusal: str | None) -> Plan:
    gone = not observed.pods() and not observed.of_kinds("Job", "Deployment")
    situation = Situation(now=observed.now, suspended=gone, obstacle=obstacle, refusal=refusal)
    told = status.of(context, situation)
    doomed = (*teardown.stopping(observed), *observed.of_kinds("Service"))
    again = None if gone else teardown.LOOK_SECONDS
    wanted = tuple(_base(context)) if refusal is None else ()
    return Plan(wanted, doomed, told, held=True, again_seconds=again)


def _deleted(raw: Json, before: RLTrainingJobStatus, observed: Observed) -> Plan:
    if not observed.objects:
        return Plan(held=False)
    told = None
    if text := teardown.late(raw, observed):
        why = Trouble(Reason.DELETING, text)
        told = status.halted(before, raw["metadata"]["generation"], why, observed.now)
    return Plan(doomed=teardown.doomed(raw, observed), status=told, again_seconds=teardown.LOOK_SECONDS)


def _ended(raw: Json, before: RLTrainingJobStatus, observed: Observed) -> Plan:
    if observed.objects:
        return Plan(doomed=teardown.doomed(raw, observed), again_seconds=teardown.LOOK_SECONDS)
    return _after_the_end(raw, before, observed.now)


def _after_the_end(raw: Json, before: RLTrainingJobStatus, now: datetime) -> Plan:
    told = status.ended(before, now)
    seconds = raw["spec"].get("ttlSecondsAfterFinished")
    if seconds is None or before.completion_time is None:
        return Plan(status=told, held=False)
    left = (before.completion_time + timedelta(seconds=seconds) - now).total_seconds()
    return Plan(status=told, held=False, delete_job=left <= 0, again_seconds=left if left > 0 else None)


def _surplus(observed: Observed, wanted: tuple[Wanted, ...]) -> tuple[Json, ...]:
    """The job's objects that the plan does not name: of an older version, or of a role that is not wanted.

    Pods belong to their workloads and the broker.
    """
    named = {item.ref for item in wanted}
    return tuple(
        body
        for body in observed.objects
        if body["kind"] != "Pod"
        and (body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]) not in named
    )


def _again(context: Context, observed: Observed, situation: Situation) -> float | None:
    """Seconds until a deadline may have passed."""
    moments = []
    if (stalls := stalls_at(context, situation)) and stalls > observed.now:
        moments.append(stalls)
    if (limit := context.spec.active_deadline_seconds) is not None:
        moments.append(_active_since(context, observed.now) + timedelta(seconds=limit))
    patience = timedelta(seconds=context.spec.pending_deadline_seconds)
    moments += [health.pending_since + patience for health in situation.roles if health.pending_since]
    if any(health.pending_since and not observed.pods(health.role) for health in situation.roles):
        moments.append(observed.now + timedelta(seconds=CHILDLESS_SECONDS + 1))
    moments += [
        moment(failed["lastTransitionTime"]) + timedelta(seconds=EVIDENCE_SECONDS + 1)
        for role in (names.COORDINATOR, names.LEARNER)
        if (failed := holds(observed.workload(role), "Failed"))
    ]
    left = [(when - observed.now).total_seconds() for when in moments]
    return max(0.5, min(left)) if left else None


def utc_now() -> datetime:
    """The time as plans are given it."""
    return datetime.now(UTC)
