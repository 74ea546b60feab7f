"""Conditions that jobs of every kind have, each as a function of the job and its health. Pure."""

from __future__ import annotations

from headway_api import names
from headway_api.conditions import Condition, ConditionType, Reason, condition, find
from headway_api.status import Preflight
from headway_operator.plan import budget as budgets
from headway_operator.plan import pause as pauses
from headway_operator.plan.context import Context, Job
from headway_operator.plan.health import Issue
from headway_operator.plan.job_health import JobHealth, needs_help, no_progress


def accepted(refusal: str | None) -> Condition:
    """Whether the spec can run."""
    if refusal is None:
        return condition(ConditionType.ACCEPTED, True, Reason.ACCEPTED)
    return condition(ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, refusal)


def preflight(job: Job) -> Condition:
    """What the coordinator reports about its checks."""
    kind, found = ConditionType.PREFLIGHT_PASSED, job.status.preflight
    if found is None or found.state == "Pending":
        return condition(kind, None, Reason.PENDING)
    text = "; ".join(_failed(found))
    match found.state:
        case "Running":
            return condition(kind, None, Reason.RUNNING)
        case "Sampling":
            # No numbers, or the condition would change at every episode.
            text = "the untrained model samples episodes; see status.preflight"
            return condition(kind, None, Reason.SAMPLING, text)
        case "Failed":
            return condition(kind, False, Reason.CHECK_FAILED, text)
        case "Warned":
            return condition(kind, False, Reason.WARNED, text)
        case "Skipped":
            return condition(kind, None, Reason.SKIPPED, "spec.preflight.policy is Off")
        case _:
            warned = [check.message for check in found.checks if check.warning]
            warned += [f"{each.check}: {each.message}" for each in found.findings if each.verdict == "Warn"]
            passed = len(found.checks) + sum(each.verdict == "Pass" for each in found.findings)
            text = "; warning: ".join([f"{passed} checks passed", *warned])
            return condition(kind, True, Reason.PASSED, text)


def _failed(found: Preflight) -> list[str]:
    """The message of each failed check, with its name if it uses baseline episodes."""
    static = [check for check in found.checks if not check.passed]
    said = [f"{check.field}: {check.message}" if check.field else check.message for check in static]
    return said + [f"{each.check}: {each.message}" for each in found.findings if each.verdict == "Fail"]


def suspended(context: Context, situation: JobHealth) -> Condition:
    """Whether every pod is gone on purpose."""
    kind = ConditionType.SUSPENDED
    if context.held:
        why = held_by(context)
        if situation.suspended:
            return condition(kind, True, why.reason, f"every pod is gone: {why.message}")
        return condition(kind, False, Reason.SUSPENDING, f"pods are being stopped: {why.message}")
    known = find(context.job.status.conditions, kind)
    if known is not None and known.status == "True":
        return condition(kind, False, Reason.RESUMED, pauses.words_of_resumed(context.job))
    if known is not None and known.reason == Reason.RESUMED:
        return condition(kind, False, Reason.RESUMED, known.message)
    return condition(kind, False, Reason.NOT_SUSPENDED)


def held_by(context: Context) -> Issue:
    """Why a job should have no pods. The spec comes first, then the pause."""
    found, spent = context.pause, context.exhausted
    told = [f"the job is {pauses.words(context.job, found)}"] if found is not None else []
    told += [budgets.words(context.job, spent)] if spent is not None else []
    if context.spec.suspend:
        return Issue(Reason.SUSPENDED, ", and ".join(["spec.suspend is true", *told]))
    return Issue(Reason.BUDGET_EXHAUSTED if found is None else Reason.PAUSED, ", and ".join(told))


def role(kind: ConditionType, situation: JobHealth, name: str, more: Issue | None = None) -> Condition:
    """Whether a role can do its work; `more` is an obstacle besides its own pods."""
    health = situation.role(name)
    if health is None:
        reason = Reason.SUCCEEDED if situation.complete else Reason.NOT_STARTED
        return condition(kind, False, reason)
    issue = health.issue or more
    if health.pending_since is None and health.ready and more is None:
        text = issue.message if issue else ""
        return condition(kind, True, Reason.PODS_READY, text)
    if issue:
        return condition(kind, False, issue.reason, issue.message)
    reason = Reason.PODS_NOT_READY if health.at_work else Reason.STARTING
    return condition(kind, False, reason, f"{health.ready} of {health.desired} pods are ready")


def serving(situation: JobHealth) -> list[Condition]:
    """Conditions of servers and sandboxes."""
    return [
        role(ConditionType.ROLLOUT_READY, situation, names.ROLLOUT),
        role(ConditionType.SANDBOXES_READY, situation, names.BROKER, situation.sandbox_issue),
    ]


def progressing(context: Context, situation: JobHealth, at_work: Reason) -> Condition:
    """Whether the job makes progress; `at_work` is the reason while it does."""
    kind = ConditionType.PROGRESSING
    if situation.failure or situation.complete:
        return condition(kind, False, Reason.FAILED if situation.failure else Reason.SUCCEEDED)
    if context.held:
        return condition(kind, False, held_by(context).reason if situation.suspended else Reason.SUSPENDING)
    if why := needs_help(situation):
        return condition(kind, False, why.reason, why.message)
    if text := no_progress(context, situation):
        return condition(kind, False, Reason.NO_PROGRESS, text)
    if situation.running:
        return condition(kind, True, at_work)
    return condition(kind, False, first_reason(situation), waiting_for(situation))


def first_reason(situation: JobHealth) -> str:
    """The reason of the sandboxes, or of the first role with an issue. A role that is only slow has none."""
    patient = Reason.PODS_NOT_READY if situation.at_work else Reason.STARTING
    issues = [situation.sandbox_issue, *(health.issue for health in situation.roles)]
    return next((issue.reason for issue in issues if issue), patient)


def waiting_for(situation: JobHealth) -> str:
    """Roles that cannot work yet, and why. A coordinator becomes ready after the sandbox it waits for."""
    if situation.sandbox_issue:
        return "; ".join(said_once([issue.message for issue in situation.issues]))
    short = [health for health in situation.roles if health.pending_since or not health.ready]
    texts = [
        health.issue.message
        if health.issue
        else f"{health.field or health.role}: {health.ready} of {health.desired} pods are ready"
        for health in short
    ]
    return "; ".join(texts)


def said_once(messages: list[str]) -> list[str]:
    """The messages without those that another one contains. For sandboxes that are never created, the
    coordinator reports the same fault without pod and fix."""
    different = [*dict.fromkeys(messages)]
    return [
        each for each in different if not any(_holds(other, each) for other in different if other != each)
    ]


def _holds(longer: str, message: str) -> bool:
    """Whether one message of a field contains another one of that field."""
    field, mark, words = message.partition(": ")
    return bool(mark) and longer.startswith(field + mark) and words in longer


def kstatus(context: Context, situation: JobHealth, progress: Condition) -> list[Condition]:
    """Ready, Stalled and Reconciling, by which GitOps tools judge the job. `progress` is Progressing."""
    ready, reconciling = ConditionType.READY, ConditionType.RECONCILING
    policy = context.spec.readiness_policy
    if situation.failure:
        return stuck(situation.failure)
    if situation.complete:
        return trio(condition(ready, True, Reason.SUCCEEDED))
    if situation.refusal is not None:
        return stuck(Issue(Reason.INVALID_SPEC, situation.refusal))
    if context.held:
        if situation.suspended:
            return at_rest(context)
        return trio(
            condition(ready, False, Reason.SUSPENDING),
            working=condition(reconciling, True, Reason.SUSPENDING),
        )
    if situation.obstacle and situation.blocked:
        return stuck(situation.obstacle)
    if why := needs_help(situation):
        return stuck(why)
    if progress.reason == Reason.NO_PROGRESS:
        return stuck(Issue(progress.reason, progress.message))
    if policy == "Accepted" or (policy == "Running" and situation.running):
        return trio(condition(ready, True, Reason.ACCEPTED if policy == "Accepted" else Reason.RUNNING))
    obstacle = situation.obstacle
    text = obstacle.message if obstacle else waiting_for(situation)
    reason = obstacle.reason if obstacle else first_reason(situation)
    return trio(condition(ready, False, reason, text), working=condition(reconciling, True, reason, text))


def at_rest(context: Context) -> list[Condition]:
    """Conditions of a suspended job.

    It is ready: every pod is gone, as its spec asks, so nothing is left to wait for. But a job with the
    readiness policy Succeeded is stalled: it cannot succeed until somebody resumes it, so a pipeline neither
    continues nor waits in vain. A job that is paused, or whose budget is exhausted, is not as its spec asks,
    so it is stalled under every policy.
    """
    why = held_by(context)
    if why.reason in (Reason.PAUSED, Reason.BUDGET_EXHAUSTED):
        return stuck(why)
    if context.spec.readiness_policy == "Succeeded":
        text = "spec.suspend is true: the job cannot succeed before it is false"
        return stuck(Issue(Reason.SUSPENDED, text))
    return trio(condition(ConditionType.READY, True, Reason.SUSPENDED, "spec.suspend is true"))


def stuck(why: Issue) -> list[Condition]:
    """Conditions of a job that needs somebody's help to continue."""
    return trio(
        condition(ConditionType.READY, False, why.reason, why.message),
        condition(ConditionType.STALLED, True, why.reason, why.message),
    )


def trio(
    ready: Condition, stalled: Condition | None = None, working: Condition | None = None
) -> list[Condition]:
    """All three conditions; an omitted one is False."""
    return [
        ready,
        stalled or condition(ConditionType.STALLED, False, Reason.RECONCILED),
        working or condition(ConditionType.RECONCILING, False, Reason.RECONCILED),
    ]
