"""The operator's part of a job's status: conditions, roles, state and times, true of one generation.

The coordinator owns the rest, and the condition that only it can judge (`WeightsInSync`), which is left out
here so that server-side apply leaves it alone. But a coordinator that is gone cannot take back what it said:
of a job that is suspended or has ended the operator says, by force, that nothing is known of weights, and
goes on saying so until a coordinator has spoken again. Left out before, an item would stay of which the old
coordinator's field manager owns the key alone; without its required fields the API server refuses it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from headway_api import names
from headway_api.conditions import (
    WITHOUT_COORDINATOR,
    Condition,
    ConditionType,
    Reason,
    condition,
    find,
    is_true,
    merge,
)
from headway_api.recipes import warnings
from headway_api.spec.training import RLTrainingJob
from headway_api.status import RLTrainingJobStatus, Role, State
from headway_operator.plan.context import Context
from headway_operator.plan.health import RoleHealth, Trouble
from headway_operator.plan.situation import Situation, no_progress

OWN: Final = frozenset(
    {
        ConditionType.ACCEPTED,
        ConditionType.PREFLIGHT_PASSED,
        ConditionType.LEARNER_READY,
        ConditionType.ROLLOUT_READY,
        ConditionType.SANDBOXES_READY,
        ConditionType.PROGRESSING,
        ConditionType.CHECKPOINT_AVAILABLE,
        ConditionType.SUSPENDED,
        ConditionType.COMPLETE,
        ConditionType.FAILED,
        ConditionType.READY,
        ConditionType.RECONCILING,
        ConditionType.STALLED,
    }
)
PREFLIGHT_DONE: Final = ("Passed", "Warned", "Skipped")


def refused(before: RLTrainingJobStatus, generation: int, refusal: str, now: datetime) -> RLTrainingJobStatus:
    """Of a job whose spec cannot be run, and of which nothing runs."""
    return halted(before, generation, Trouble(Reason.INVALID_SPEC, refusal), now, _accepted(refusal))


def _accepted(refusal: str | None) -> Condition:
    if refusal is None:
        return condition(ConditionType.ACCEPTED, True, Reason.ACCEPTED)
    return condition(ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, refusal)


def halted(
    before: RLTrainingJobStatus, generation: int, why: Trouble, now: datetime, *more: Condition
) -> RLTrainingJobStatus:
    """Of a job that needs somebody's help whatever its spec asks for; `more` is true beside that."""
    status = _with(before, [*more, *_stuck(why)], generation, now)
    return status.model_copy(update={"state": "Stalled", "reason": str(why.reason)})


def waiting(before: RLTrainingJobStatus, generation: int, text: str, now: datetime) -> RLTrainingJobStatus:
    """Of a job that cannot begin before another has ended."""
    reason = Reason.WAITING_FOR_WEIGHTS
    ready = condition(ConditionType.READY, False, reason, text)
    working = condition(ConditionType.RECONCILING, True, reason, text)
    status = _with(before, [_accepted(None), *_trio(ready, working=working)], generation, now)
    return status.model_copy(update={"state": "Pending", "reason": str(reason)})


def of(context: Context, situation: Situation) -> RLTrainingJobStatus:
    """The operator's part of the status."""
    before, now = context.job.status, situation.now
    finished = situation.failure is not None or situation.complete
    fresh = [
        _accepted(situation.refusal),
        _preflight(context.job),
        _checkpoint(context.job),
        _suspended(context, situation),
        *_roles(situation),
        _progressing(context, situation),
        *_terminal(context, situation),
        *_weights(context, situation),
    ]
    fresh += _kstatus(context, situation, fresh)
    status = _with(before, fresh, context.job.metadata.generation, now)
    state, reason = _state(context, situation, status.conditions)
    return status.model_copy(
        update={
            "state": state,
            "reason": reason,
            "warm_start": context.warm_start or before.warm_start,
            "warnings": [] if situation.refusal else warnings(context.spec),
            "start_time": before.start_time or now.replace(microsecond=0),
            "completion_time": now.replace(microsecond=0) if finished else None,
            "suspended_seconds": _suspended_seconds(context, situation),
            "roles": _all_roles(before, situation),
            "rollout_replicas": _replicas(situation),
            "rollout_selector": _selector(context),
        }
    )


def own_part(status: RLTrainingJobStatus) -> RLTrainingJobStatus:
    """Only what the operator writes, of a status as it is stored."""
    return RLTrainingJobStatus(
        observed_generation=status.observed_generation,
        state=status.state,
        reason=status.reason,
        conditions=[known for known in status.conditions if _is_own(known)],
        warm_start=status.warm_start,
        warnings=status.warnings,
        start_time=status.start_time,
        completion_time=status.completion_time,
        suspended_seconds=status.suspended_seconds,
        roles=status.roles,
        rollout_replicas=status.rollout_replicas,
        rollout_selector=status.rollout_selector,
    )


def _is_own(known: Condition) -> bool:
    return known.type in OWN or (
        known.type == ConditionType.WEIGHTS_IN_SYNC and known.reason in WITHOUT_COORDINATOR
    )


def ended(before: RLTrainingJobStatus, now: datetime) -> RLTrainingJobStatus:
    """Of a job that has ended, whose coordinator may have had one more word while it was being stopped."""
    said = find(before.conditions, ConditionType.WEIGHTS_IN_SYNC)
    if said is None or _is_own(said):
        return own_part(before)
    reason = Reason.FAILED if is_true(before.conditions, ConditionType.FAILED) else Reason.SUCCEEDED
    return _with(before, [_nothing_known(reason)], before.observed_generation, now)


def _with(
    before: RLTrainingJobStatus, fresh: list[Condition], generation: int | None, now: datetime
) -> RLTrainingJobStatus:
    stamped = [
        item.model_copy(
            update={"observed_generation": generation, "last_transition_time": now.replace(microsecond=0)}
        )
        for item in fresh
    ]
    # Merged with the coordinator's too: what it said last is what a status that changes has changed from.
    conditions = [known for known in merge(before.conditions, stamped) if _is_own(known)]
    return own_part(before).model_copy(update={"conditions": conditions, "observed_generation": generation})


def preflight_passed(job: RLTrainingJob) -> bool:
    """Whether accelerators may be asked for."""
    found = job.status.preflight
    return job.spec.preflight.policy == "Off" or (found is not None and found.state in PREFLIGHT_DONE)


def _preflight(job: RLTrainingJob) -> Condition:
    kind, found = ConditionType.PREFLIGHT_PASSED, job.status.preflight
    if found is None or found.state == "Pending":
        return condition(kind, None, Reason.PENDING)
    failed = [check for check in found.checks if not check.passed]
    text = "; ".join(f"{check.field}: {check.message}" if check.field else check.message for check in failed)
    match found.state:
        case "Running":
            return condition(kind, None, Reason.RUNNING)
        case "Failed":
            return condition(kind, False, Reason.CHECK_FAILED, text)
        case "Warned":
            return condition(kind, False, Reason.WARNED, text)
        case "Skipped":
            return condition(kind, None, Reason.SKIPPED, "spec.preflight.policy is Off")
        case _:
            return condition(kind, True, Reason.PASSED, f"{len(found.checks)} checks passed")


def _checkpoint(job: RLTrainingJob) -> Condition:
    latest = job.status.checkpoints.latest if job.status.checkpoints else None
    if latest is None:
        return condition(ConditionType.CHECKPOINT_AVAILABLE, False, Reason.NO_CHECKPOINT)
    # Not the step: the condition would be written again at every one of them.
    return condition(
        ConditionType.CHECKPOINT_AVAILABLE, True, Reason.CHECKPOINTED, "see status.checkpoints.latest"
    )


def _suspended(context: Context, situation: Situation) -> Condition:
    kind = ConditionType.SUSPENDED
    if situation.suspended:
        return condition(kind, True, Reason.SUSPENDED, "spec.suspend is true and every pod is gone")
    if context.spec.suspend:
        return condition(kind, False, Reason.SUSPENDING, "pods are being stopped")
    known = find(context.job.status.conditions, kind)
    resumed = known is not None and (known.status == "True" or known.reason == Reason.RESUMED)
    return condition(kind, False, Reason.RESUMED if resumed else Reason.NOT_SUSPENDED)


def _suspended_seconds(context: Context, situation: Situation) -> int | None:
    before = context.job.status
    known = find(before.conditions, ConditionType.SUSPENDED)
    if known is None or known.status != "True" or situation.suspended:
        return before.suspended_seconds
    return (before.suspended_seconds or 0) + int((situation.now - known.last_transition_time).total_seconds())


def _roles(situation: Situation) -> list[Condition]:
    return [
        _role_condition(ConditionType.LEARNER_READY, situation, names.LEARNER, None),
        _role_condition(ConditionType.ROLLOUT_READY, situation, names.ROLLOUT, None),
        _role_condition(ConditionType.SANDBOXES_READY, situation, names.BROKER, situation.sandbox_trouble),
    ]


def _role_condition(kind: ConditionType, situation: Situation, role: str, more: Trouble | None) -> Condition:
    health = situation.role(role)
    if health is None:
        reason = Reason.SUCCEEDED if situation.complete else Reason.NOT_STARTED
        return condition(kind, False, reason)
    trouble = health.trouble or more
    if health.pending_since is None and health.ready and more is None:
        text = trouble.message if trouble else ""
        return condition(kind, True, Reason.PODS_READY, text)
    if trouble:
        return condition(kind, False, trouble.reason, trouble.message)
    reason = Reason.PODS_NOT_READY if health.at_work else Reason.STARTING
    return condition(kind, False, reason, f"{health.ready} of {health.desired} pods are ready")


def _progressing(context: Context, situation: Situation) -> Condition:
    kind = ConditionType.PROGRESSING
    if situation.failure or situation.complete:
        return condition(kind, False, Reason.FAILED if situation.failure else Reason.SUCCEEDED)
    if context.spec.suspend:
        return condition(kind, False, Reason.SUSPENDED if situation.suspended else Reason.SUSPENDING)
    if text := no_progress(context, situation):
        return condition(kind, False, Reason.NO_PROGRESS, text)
    if situation.running:
        return condition(kind, True, Reason.EVALUATING if _evaluating(context.job) else Reason.STEPPING)
    return condition(kind, False, _first_reason(situation), _waiting_for(situation))


def _evaluating(job: RLTrainingJob) -> bool:
    return job.status.progress is not None and job.status.progress.evaluating is not None


def _first_reason(situation: Situation) -> str:
    """The first role's in trouble; a role that just takes its time has none."""
    patient = Reason.PODS_NOT_READY if situation.at_work else Reason.STARTING
    return next((health.trouble.reason for health in situation.roles if health.trouble), patient)


def _waiting_for(situation: Situation) -> str:
    short = [health for health in situation.roles if health.pending_since or not health.ready]
    texts = [
        health.trouble.message
        if health.trouble
        else f"{health.role}: {health.ready} of {health.desired} pods are ready"
        for health in short
    ]
    return "; ".join(texts)


def _terminal(context: Context, situation: Situation) -> list[Condition]:
    if situation.failure:
        return [condition(ConditionType.FAILED, True, situation.failure.reason, situation.failure.message)]
    if not situation.complete:
        return []
    progress = context.job.status.progress
    if progress and progress.step >= context.spec.schedule.max_steps:
        text = f"{progress.step} steps, as spec.schedule.maxSteps asked for"
        return [condition(ConditionType.COMPLETE, True, Reason.MAX_STEPS_REACHED, text)]
    epochs = context.spec.schedule.max_epochs
    text = f"the rows left of spec.schedule.maxEpochs ({epochs}) do not fill another batch"
    return [condition(ConditionType.COMPLETE, True, Reason.DATA_EXHAUSTED, text)]


def _weights(context: Context, situation: Situation) -> list[Condition]:
    """What is known of servers' weights where no coordinator can say it; nothing where one can."""
    if situation.failure:
        return [_nothing_known(Reason.FAILED)]
    if situation.complete:
        return [_nothing_known(Reason.SUCCEEDED)]
    if situation.suspended:
        return [_nothing_known(Reason.SUSPENDED)]
    said = find(context.job.status.conditions, ConditionType.WEIGHTS_IN_SYNC)
    return [_nothing_known(Reason.RESUMED)] if said is not None and _is_own(said) else []


def _nothing_known(reason: Reason) -> Condition:
    text = {
        Reason.SUSPENDED: "the job is suspended and has no rollout servers",
        Reason.RESUMED: "the job was suspended; its coordinator has not looked at rollout servers since",
    }.get(reason, "the job has ended and has no rollout servers")
    return condition(ConditionType.WEIGHTS_IN_SYNC, None, reason, text)


def _kstatus(context: Context, situation: Situation, fresh: list[Condition]) -> list[Condition]:
    ready, reconciling = ConditionType.READY, ConditionType.RECONCILING
    policy = context.spec.readiness_policy
    if situation.failure:
        return _stuck(situation.failure)
    if situation.complete:
        return _trio(condition(ready, True, Reason.SUCCEEDED))
    if situation.refusal is not None:
        return _stuck(Trouble(Reason.INVALID_SPEC, situation.refusal))
    if context.spec.suspend:
        if situation.suspended:
            return _trio(condition(ready, False, Reason.SUSPENDED))
        return _trio(
            condition(ready, False, Reason.SUSPENDING),
            working=condition(reconciling, True, Reason.SUSPENDING),
        )
    if situation.obstacle and situation.blocked:
        return _stuck(situation.obstacle)
    progressing = find(fresh, ConditionType.PROGRESSING)
    if progressing and progressing.reason == Reason.NO_PROGRESS:
        return _stuck(Trouble(progressing.reason, progressing.message))
    if policy == "Accepted" or (policy == "Running" and situation.running):
        return _trio(condition(ready, True, Reason.ACCEPTED if policy == "Accepted" else Reason.RUNNING))
    obstacle = situation.obstacle
    text = obstacle.message if obstacle else _waiting_for(situation)
    reason = obstacle.reason if obstacle else _first_reason(situation)
    return _trio(condition(ready, False, reason, text), working=condition(reconciling, True, reason, text))


def _stuck(why: Trouble) -> list[Condition]:
    """Nothing will come of it without somebody's help."""
    return _trio(
        condition(ConditionType.READY, False, why.reason, why.message),
        condition(ConditionType.STALLED, True, why.reason, why.message),
    )


def _trio(
    ready: Condition, stalled: Condition | None = None, working: Condition | None = None
) -> list[Condition]:
    return [
        ready,
        stalled or condition(ConditionType.STALLED, False, Reason.RECONCILED),
        working or condition(ConditionType.RECONCILING, False, Reason.RECONCILED),
    ]


def _state(context: Context, situation: Situation, known: list[Condition]) -> tuple[State, str]:
    """One word for the printer column, and the reason of the condition it comes from."""
    if situation.failure:
        return "Failed", situation.failure.reason
    if situation.complete:
        return "Complete", _reason(known, ConditionType.COMPLETE)
    if context.spec.suspend:
        return ("Suspended" if situation.suspended else "Suspending"), _reason(known, ConditionType.SUSPENDED)
    if is_true(known, ConditionType.STALLED):
        return "Stalled", _reason(known, ConditionType.STALLED)
    progressing = _reason(known, ConditionType.PROGRESSING)
    if situation.at_work:
        return ("Evaluating" if _evaluating(context.job) else "Training"), progressing
    if context.job.status.progress and context.job.status.progress.step > 0:
        return "Restarting", progressing
    if situation.role(names.LEARNER):
        return "Starting", progressing
    if context.job.status.preflight and context.job.status.preflight.state == "Running":
        return "Preflight", _reason(known, ConditionType.PREFLIGHT_PASSED)
    return "Pending", progressing


def _reason(known: list[Condition], kind: ConditionType) -> str:
    found = find(known, kind)
    return found.reason if found else ""


def _all_roles(before: RLTrainingJobStatus, situation: Situation) -> list[Role]:
    """Those wanted now, and those that were: their restarts still count after they are gone."""
    now = {health.role: _role(health) for health in situation.roles}
    past = {role.name: Role(name=role.name, restarts=role.restarts) for role in before.roles}
    return [(past | now)[name] for name in sorted(past | now)]


def _role(health: RoleHealth) -> Role:
    message = health.trouble.message[:1024] if health.trouble else None
    return Role(
        name=health.role,
        desired=health.desired,
        ready=health.ready,
        restarts=health.restarts,
        message=message,
    )


def _replicas(situation: Situation) -> int:
    rollout = situation.role(names.ROLLOUT)
    return rollout.ready if rollout else 0


def _selector(context: Context) -> str:
    pairs = context.selector(names.ROLLOUT)
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))
