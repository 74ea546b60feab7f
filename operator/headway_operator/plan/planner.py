"""Makes the plan: objects that must exist for a job, objects to delete, and the job's status. Pure.

These objects exist in each phase of a job:

waiting     nothing, while the job needs weights that another job does not have yet
preparing   identity, settings, policies, coordinator, broker; the coordinator checks the job. Also the
            servers of judges, once the coordinator waits for a judge whose model the job serves
sampling    also one rollout server: it samples the untrained model of an RLTrainingJob without a learner
running     also the workloads that need accelerators, but only after the preflight has passed. For an
            RLTrainingJob: learner and rollout servers; for an RLEvalJob: the server sets that are needed now
suspending  no workload; objects that cost nothing stay. The same holds for a paused job
refused     the workloads that run already, until the job ends; nothing is created or changed
ended       nothing: everything is removed in order (`teardown`)
deleted     the same, and then the finalizer is removed

The finalizer is added before the job's first object, and removed after its last object is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from headway_api import names
from headway_api.conditions import Reason, is_finished
from headway_api.document import Json
from headway_api.spec.budget import RLBudget
from headway_operator.config import OperatorConfig
from headway_operator.plan import (
    accelerators,
    broker,
    coordinator,
    deadline,
    failures,
    grants,
    identity,
    judges,
    network,
    pause,
    settings,
    status,
    teardown,
)
from headway_operator.plan.context import Context, JobStatus, Wanted
from headway_operator.plan.health import (
    EVIDENCE_SECONDS,
    Issue,
    RoleHealth,
    checks_wait,
    failure,
    is_complete,
    pod_issue,
    role_health,
    together,
)
from headway_operator.plan.job_health import JobHealth, needs_help_at, stalls_at
from headway_operator.plan.job_kind import JobKind, ResolvedReferences
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.observed import (
    POD_CREATION_SECONDS,
    Observed,
    is_ending,
    is_over,
    moment,
    true_condition,
)
from headway_operator.plan.reading import SpecRefusal, manager_of, parse, parse_status, read_partly
from headway_operator.wire import UNREAD

LOOK_SECONDS: Final = 30.0
"""Seconds between two reconciles of a job that waits for another job, or is refused because of it."""


@dataclass(frozen=True)
class Plan:
    """What to do about a job now."""

    wanted: tuple[Wanted, ...] = ()
    to_delete: tuple[Json, ...] = ()
    """Objects to delete."""
    status: JobStatus | None = None
    """The operator's part of the status; None leaves it as it is."""
    finalizer: bool | None = None
    """Whether the job must carry the teardown finalizer; None leaves it as it is."""
    delete_job: bool = False
    requeue_after: float | None = None
    """Seconds until time alone changes the plan."""
    ending: bool = False
    """The status becomes terminal with this plan, so the plan must be made from a fresh read of the job."""


def make(raw: Json, platform: OperatorConfig, observed: Observed, obstacle: Issue | None = None) -> Plan:
    """The plan for a job in its current state. `obstacle` blocked the last attempt to carry a plan out."""
    if manager_of(raw) != platform.manager:
        return Plan()
    kind = job_kind_of(raw)
    before = parse_status(kind.model, raw)
    made = _make(kind, raw, before, platform, observed, obstacle)
    counted = _counted(made, kind, before, platform, observed)
    if is_ending(raw) or is_finished(before.conditions):
        return counted
    if observed.budget == "unread":
        return counted  # the existing grant remains
    return _granted(counted, kind, raw, before, observed.budget)


def _granted(made: Plan, kind: JobKind, raw: Json, before: JobStatus, budget: RLBudget | None) -> Plan:
    """The plan, with the job's grant from the namespace's budget in its status."""
    uid, begun = raw["metadata"]["uid"], before.start_time is not None
    grant = None if budget is None else grants.of_job(budget, uid, before.grant, begun=begun)
    if grant == before.grant:
        return made
    new_status = made.status or kind.own_part(before)
    made = replace(made, status=new_status.model_copy(update={"grant": grant}))
    if before.grant is not None or made.ending:
        return made
    # Write the grant before anything is created: a coordinator without a grant is not bounded.
    return replace(made, wanted=(), to_delete=(), requeue_after=0)


def _counted(
    made: Plan, kind: JobKind, before: JobStatus, platform: OperatorConfig, observed: Observed
) -> Plan:
    """The plan, with its status extended by the accelerators that pods hold."""
    pods = [*observed.pods(), *observed.leaving]
    accounts = accelerators.updated(before.accelerators, pods, observed.now, platform.accelerator)
    new_status = made.status
    if new_status is None and accounts != before.accelerators:
        new_status = kind.own_part(before)
    if new_status is not None:
        new_status = new_status.model_copy(update={"accelerators": accounts})
    if (again := accelerators.requeue_after(accounts, observed.now)) is None:
        return replace(made, status=new_status)
    return replace(made, status=new_status, requeue_after=_sooner(made.requeue_after, max(1.0, again)))


def _make(
    kind: JobKind,
    raw: Json,
    before: JobStatus,
    platform: OperatorConfig,
    observed: Observed,
    obstacle: Issue | None,
) -> Plan:
    if is_ending(raw):
        return _deleted(kind, raw, before, observed)
    if observed.namespace_ends:
        # A terminating namespace deletes its pods first. The Job controller counts failures by index, and
        # releases a learner's pod only after it created the successor, which the namespace forbids. So the
        # two would wait for each other. Deleting the custom resource ends this deadlock.
        return Plan(delete_job=True)
    if is_finished(before.conditions):
        return _ended(kind, raw, before, observed)
    if (why := raw.get(UNREAD)) is not None:
        return _refused(kind, Context(read_partly(kind.model, raw), platform), observed, (why,))
    job = parse(kind.model, raw)
    if isinstance(job, SpecRefusal):
        return _refused(kind, Context(read_partly(kind.model, raw), platform), observed, job.messages)
    context = Context(job, platform)
    observed = failures.judged(context, observed)
    if messages := kind.refusals(context):
        return _refused(kind, context, observed, messages)
    return _accepted(kind, kind.resolve(context, observed), observed, obstacle)


def _accepted(
    kind: JobKind, resolved: ResolvedReferences, observed: Observed, obstacle: Issue | None
) -> Plan:
    """The plan for a valid job, depending on the state of the jobs that it names."""
    context = resolved.context
    if resolved.refusals:
        made = _refused(kind, context, observed, resolved.refusals)
        return replace(made, requeue_after=_sooner(made.requeue_after, LOOK_SECONDS))
    if resolved.failure is not None:
        job_health = JobHealth(now=observed.now, failure=resolved.failure)
        return Plan(status=status.of(kind, context, job_health), ending=True, requeue_after=0)
    if resolved.lacks is not None and resolved.waits_until is not None:
        return _waiting(kind, resolved, observed)
    if resolved.fresh and not observed.objects:
        job_health = JobHealth(now=observed.now, suspended=context.suspended, lacks=resolved.lacks)
        return Plan(status=status.of(kind, context, job_health), requeue_after=0)
    return _alive(kind, context, observed, obstacle)


def _waiting(kind: JobKind, resolved: ResolvedReferences, observed: Observed) -> Plan:
    """The plan for a job that cannot begin until another job has progressed far enough."""
    assert resolved.lacks is not None
    assert resolved.waits_until is not None
    left = (resolved.waits_until - observed.now).total_seconds() + 0.5
    begun = bool(observed.objects)  # created after an earlier choice, which the status has lost
    if resolved.context.suspended and not begun:
        job_health = JobHealth(now=observed.now, suspended=True, lacks=resolved.lacks)
        new_status = status.of(kind, resolved.context, job_health)
    else:
        new_status = status.waiting(kind, resolved.context, resolved.lacks, observed.now)
    return Plan(status=new_status, finalizer=begun, requeue_after=min(LOOK_SECONDS, left))


def _sooner(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)


def sources(raw: Json) -> tuple[str, ...]:
    """Names of the training jobs, in the same namespace, that a stored job waits for.

    Empty if its spec is malformed: each job that changes calls this for all other jobs, so it must not fail.
    """
    try:
        return job_kind_of(raw).sources(raw)
    except (AttributeError, KeyError, TypeError):
        return ()


def _refused(kind: JobKind, context: Context, observed: Observed, messages: Sequence[str]) -> Plan:
    """The plan for a refused spec: nothing is created or changed.

    Workloads of an earlier spec continue, and the job ends like any other. If the spec cannot be read whole,
    `context` contains the readable part.
    """
    refusal = "; ".join(messages)
    if observed.objects:
        seen = failures.judged(context, observed)
        return _alive(kind, kind.as_it_runs(context, seen), seen, None, refusal)
    job = context.job
    new_status = status.refused(kind, job.status, job.metadata.generation, refusal, observed.now)
    return Plan(status=new_status, finalizer=False)


def _alive(
    kind: JobKind,
    context: Context,
    observed: Observed,
    obstacle: Issue | None,
    refusal: str | None = None,
) -> Plan:
    if context.suspended:
        return _suspending(kind, context, observed, obstacle, refusal)
    if pause.is_resumed(context.job):
        # End the pause before anything is created: a starting coordinator reads whether the job is paused.
        job_health = JobHealth(now=observed.now, refusal=refusal)
        return Plan(status=status.of(kind, context, job_health), finalizer=True, requeue_after=0)
    # A restarted coordinator repeats its checks. What runs already continues meanwhile.
    begun = kind.has_accelerator_workloads(observed) or (
        refusal is None and kind.preflight_passed(context.job)
    )
    first = not begun and refusal is None and kind.samples_first(context.job, observed)
    seen = kind.in_use(context, observed)
    roles = _roles(kind, context, seen, begun, first)
    end = failure(context, seen, roles) or deadline.passed(context, observed.now, kind.field_to_shorten)
    complete = end is None and is_complete(observed.workload(names.COORDINATOR))
    goes_on = end is None and not complete
    job_health = JobHealth(
        now=observed.now,
        roles=roles if goes_on else [],
        begun=begun and goes_on,
        sandbox_issue=_sandbox_issue(context, observed),
        failure=end,
        complete=complete,
        obstacle=obstacle,
        blocked=obstacle is not None and obstacle.reason == Reason.NAME_CONFLICT,
        failures=seen.failures,
        refusal=refusal,
    )
    new_status = status.of(kind, context, job_health)
    if not goes_on:
        return Plan(status=new_status, ending=True, requeue_after=0)
    again = _again(context, observed, job_health)
    if refusal is not None:
        return Plan(status=new_status, requeue_after=again)
    wanted = tuple(_base(kind, context) + _workloads(kind, context, observed, begun, first))
    going = (*_surplus(observed, wanted), *failures.to_delete(context, observed))
    return Plan(wanted, going, new_status, finalizer=True, requeue_after=again)


def _base(kind: JobKind, context: Context) -> list[Wanted]:
    return [
        *identity.manifests(context, kind.roles),
        *settings.manifests(context, kind.config(context)),
        *network.manifests(context, kind.roles),
    ]


def _workloads(kind: JobKind, context: Context, observed: Observed, begun: bool, first: bool) -> list[Wanted]:
    early = coordinator.manifests(context) + broker.manifests(context)
    if begun or judges.needed(context, observed):
        early += judges.manifests(context)
    if begun:
        return early + kind.after_preflight(context)
    return early + (kind.first_servers(context) if first else [])


def _roles(kind: JobKind, context: Context, observed: Observed, begun: bool, first: bool) -> list[RoleHealth]:
    restarts = {role.name: role.restarts for role in context.job.status.roles}
    early = [
        _coordinator(
            context, role_health(observed, names.COORDINATOR, 1, restarts.get(names.COORDINATOR, 0))
        ),
        _brokers(context, observed, restarts.get(names.BROKER, 0)),
    ]
    if begun or judges.needed(context, observed):
        early += judges.roles(context, observed, restarts.get(names.JUDGE, 0))
    if begun:
        return early + kind.after_preflight_roles(context, observed, restarts)
    return early + (kind.first_roles(context, observed, restarts) if first else [])


def _brokers(context: Context, observed: Observed, restarts: int) -> RoleHealth:
    """Health of the job's broker, together with those of its suites."""
    own = role_health(observed, names.BROKER, 1, restarts)
    suites = [
        role_health(observed.of_suite(suite.name), names.SUITE_BROKER, 1, restarts)
        for suite in context.suites
    ]
    return together([own, *suites]) if suites else own


def _sandbox_issue(context: Context, observed: Observed) -> Issue | None:
    """Why no sandbox of the environment or of a suite starts; None if sandboxes start."""
    pools = [observed.of_suite(name) for name in (None, *(suite.name for suite in context.suites))]
    return next((issue for pool in pools if (issue := _pool_issue(pool))), _never_created(context))


def _coordinator(context: Context, health: RoleHealth) -> RoleHealth:
    """Health of the coordinator. Its issue is what its checks wait for, since it becomes ready after them."""
    return health if health.issue else replace(health, issue=checks_wait(context))


def _never_created(context: Context) -> Issue | None:
    """The broker's message about a sandbox that the preflight waits for, as reported by the coordinator.

    Only the broker learns that the API server refused a pod.
    """
    waits = checks_wait(context)
    return waits if waits is not None and waits.reason == Reason.CREATE_FAILED else None


def _pool_issue(observed: Observed) -> Issue | None:
    """Why no sandbox of a pool starts. Sandboxes end all the time: a failed one is fine if others start."""
    pods = [pod for pod in observed.pods(names.SANDBOX) if not is_ending(pod)]
    coming = [pod for pod in pods if not is_over(pod)]
    failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
    issues = [pod_issue(pod) for pod in coming or failed]
    return issues[0] if issues and all(issues) else None


def _suspending(
    kind: JobKind,
    context: Context,
    observed: Observed,
    obstacle: Issue | None,
    refusal: str | None,
) -> Plan:
    gone = not (observed.pods() or observed.leaves() or observed.of_kinds("Job", "Deployment"))
    job_health = JobHealth(now=observed.now, suspended=gone, obstacle=obstacle, refusal=refusal)
    new_status = status.of(kind, context, job_health)
    to_delete = (*teardown.stopping(observed), *observed.of_kinds("Service"))
    again = teardown.LOOK_SECONDS if not gone else 0 if pause.is_named(context.job) else None
    wanted = tuple(_base(kind, context)) if refusal is None else ()
    return Plan(wanted, to_delete, new_status, finalizer=True, requeue_after=again)


def _deleted(kind: JobKind, raw: Json, before: JobStatus, observed: Observed) -> Plan:
    if not observed.objects and not observed.leaves():
        return Plan(finalizer=False)
    new_status = None
    if text := teardown.late(raw, observed):
        why = Issue(Reason.DELETING, text)
        new_status = status.halted(kind, before, raw["metadata"]["generation"], why, observed.now)
    return Plan(
        to_delete=teardown.to_delete(raw, observed), status=new_status, requeue_after=teardown.LOOK_SECONDS
    )


def _ended(kind: JobKind, raw: Json, before: JobStatus, observed: Observed) -> Plan:
    if observed.objects or observed.leaves():
        return Plan(to_delete=teardown.to_delete(raw, observed), requeue_after=teardown.LOOK_SECONDS)
    return _after_the_end(kind, raw, before, observed.now)


def _after_the_end(kind: JobKind, raw: Json, before: JobStatus, now: datetime) -> Plan:
    new_status = status.ended(kind, before, raw["metadata"]["generation"], now)
    seconds = raw["spec"].get("ttlSecondsAfterFinished")
    if seconds is None or before.completion_time is None:
        return Plan(status=new_status, finalizer=False)
    left = (before.completion_time + timedelta(seconds=seconds) - now).total_seconds()
    return Plan(
        status=new_status, finalizer=False, delete_job=left <= 0, requeue_after=left if left > 0 else None
    )


def _surplus(observed: Observed, wanted: tuple[Wanted, ...]) -> tuple[Json, ...]:
    """The job's objects that are not in the plan: of an older version, or of a role that is not wanted.

    Pods are excluded, since their workloads and the broker own them.
    """
    named = {item.ref for item in wanted}
    return tuple(
        body
        for body in observed.objects
        if body["kind"] != "Pod"
        and (body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]) not in named
    )


def _again(context: Context, observed: Observed, job_health: JobHealth) -> float | None:
    """Seconds until a deadline may have passed."""
    moments = []
    moments += needs_help_at(job_health)
    if (stalls := stalls_at(context, job_health)) and stalls > observed.now:
        moments.append(stalls)
    if (ends_at := deadline.ends_at(context, observed.now)) is not None:
        moments.append(ends_at)
    patience = timedelta(seconds=context.spec.pending_deadline_seconds)
    moments += [health.pending_since + patience for health in job_health.roles if health.pending_since]
    if any(health.pending_since and not observed.pods(health.role) for health in job_health.roles):
        moments.append(observed.now + timedelta(seconds=POD_CREATION_SECONDS + 1))
    moments += [
        moment(failed["lastTransitionTime"]) + timedelta(seconds=EVIDENCE_SECONDS + 1)
        for role in (names.COORDINATOR, names.LEARNER)
        if (failed := true_condition(observed.workload(role), "Failed"))
    ]
    left = [(when - observed.now).total_seconds() for when in moments]
    return max(0.5, min(left)) if left else None


def utc_now() -> datetime:
    """The current time in UTC, for plans."""
    return datetime.now(UTC)
