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
    """Whether the preflight has passed, as the coordinator reports it."""
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
    messages = [f"{check.field}: {check.message}" if check.field else check.message for check in static]
    return messages + [f"{each.check}: {each.message}" for each in found.findings if each.verdict == "Fail"]


def suspended(context: Context, job_health: JobHealth) -> Condition:
    """Whether the job is suspended, paused or out of budget, and every pod is gone."""
    kind = ConditionType.SUSPENDED
    if context.suspended:
        why = why_suspended(context)
        if job_health.suspended:
            return condition(kind, True, why.reason, f"every pod is gone: {why.message}")
        return condition(kind, False, Reason.SUSPENDING, f"pods are being stopped: {why.message}")
    known = find(context.job.status.conditions, kind)
    if known is not None and known.status == "True":
        return condition(kind, False, Reason.RESUMED, pauses.words_of_resumed(context.job))
    if known is not None and known.reason == Reason.RESUMED:
        return condition(kind, False, Reason.RESUMED, known.message)
    return condition(kind, False, Reason.NOT_SUSPENDED)


def why_suspended(context: Context) -> Issue:
    """Why a job should have no pods. `spec.suspend` comes first, then the pause, then the budget."""
    found, spent = context.pause, context.exhausted
    reasons = [f"the job is {pauses.words(context.job, found)}"] if found is not None else []
    reasons += [budgets.words(context.job, spent)] if spent is not None else []
    if context.spec.suspend:
        return Issue(Reason.SUSPENDED, ", and ".join(["spec.suspend is true", *reasons]))
    return Issue(Reason.BUDGET_EXHAUSTED if found is None else Reason.PAUSED, ", and ".join(reasons))


def role(kind: ConditionType, job_health: JobHealth, name: str, more: Issue | None = None) -> Condition:
    """Whether a role can do its work; `more` is an obstacle besides its own pods."""
    health = job_health.role(name)
    if health is None:
        reason = Reason.SUCCEEDED if job_health.complete else Reason.NOT_STARTED
        return condition(kind, False, reason)
    issue = health.issue or more
    if health.pending_since is None and health.ready and more is None:
        text = issue.message if issue else ""
        return condition(kind, True, Reason.PODS_READY, text)
    if issue:
        return condition(kind, False, issue.reason, issue.message)
    reason = Reason.PODS_NOT_READY if health.is_running else Reason.STARTING
    return condition(kind, False, reason, f"{health.ready} of {health.desired} pods are ready")


def serving(job_health: JobHealth) -> list[Condition]:
    """The conditions RolloutReady and SandboxesReady."""
    return [
        role(ConditionType.ROLLOUT_READY, job_health, names.ROLLOUT),
        role(ConditionType.SANDBOXES_READY, job_health, names.BROKER, job_health.sandbox_issue),
    ]


def progressing(context: Context, job_health: JobHealth, working: Reason) -> Condition:
    """Whether the job makes progress; `working` is the reason while the job makes progress."""
    kind = ConditionType.PROGRESSING
    if job_health.failure or job_health.complete:
        return condition(kind, False, Reason.FAILED if job_health.failure else Reason.SUCCEEDED)
    if context.suspended:
        return condition(
            kind, False, why_suspended(context).reason if job_health.suspended else Reason.SUSPENDING
        )
    if why := needs_help(job_health):
        return condition(kind, False, why.reason, why.message)
    if text := no_progress(context, job_health):
        return condition(kind, False, Reason.NO_PROGRESS, text)
    if job_health.running:
        return condition(kind, True, working)
    return condition(kind, False, first_reason(job_health), waiting_for(job_health))


def first_reason(job_health: JobHealth) -> str:
    """The reason of the sandboxes' issue, or else of the first role's. A role that is only slow has none."""
    patient = Reason.PODS_NOT_READY if job_health.is_running else Reason.STARTING
    issues = [job_health.sandbox_issue, *(health.issue for health in job_health.roles)]
    return next((issue.reason for issue in issues if issue), patient)


def waiting_for(job_health: JobHealth) -> str:
    """Roles that cannot work yet, and why. If sandboxes have an issue, only issues are named: the coordinator
    is not ready just because it waits for a sandbox."""
    if job_health.sandbox_issue:
        return "; ".join(without_repeats([issue.message for issue in job_health.issues]))
    short = [health for health in job_health.roles if health.pending_since or not health.ready]
    texts = [
        health.issue.message
        if health.issue
        else f"{health.field or health.role}: {health.ready} of {health.desired} pods are ready"
        for health in short
    ]
    return "; ".join(texts)


def without_repeats(messages: list[str]) -> list[str]:
    """The messages without those that another message contains. For sandboxes that are never created, the
    coordinator reports the same fault as the operator, without naming the pod and the fix."""
    different = [*dict.fromkeys(messages)]
    return [
        each for each in different if not any(_contains(other, each) for other in different if other != each)
    ]


def _contains(longer: str, message: str) -> bool:
    """Whether `longer` is about the same field as `message`, and contains its text."""
    field, mark, words = message.partition(": ")
    return bool(mark) and longer.startswith(field + mark) and words in longer


def kstatus(context: Context, job_health: JobHealth, progress: Condition) -> list[Condition]:
    """Ready, Stalled and Reconciling, by which GitOps tools judge the job. `progress` is Progressing."""
    ready, reconciling = ConditionType.READY, ConditionType.RECONCILING
    policy = context.spec.readiness_policy
    if job_health.failure:
        return stalled_conditions(job_health.failure)
    if job_health.complete:
        return kstatus_conditions(condition(ready, True, Reason.SUCCEEDED))
    if job_health.refusal is not None:
        return stalled_conditions(Issue(Reason.INVALID_SPEC, job_health.refusal))
    if context.suspended:
        if job_health.suspended:
            return at_rest(context)
        return kstatus_conditions(
            condition(ready, False, Reason.SUSPENDING),
            working=condition(reconciling, True, Reason.SUSPENDING),
        )
    if job_health.obstacle and job_health.blocked:
        return stalled_conditions(job_health.obstacle)
    if why := needs_help(job_health):
        return stalled_conditions(why)
    if progress.reason == Reason.NO_PROGRESS:
        return stalled_conditions(Issue(progress.reason, progress.message))
    if policy == "Accepted" or (policy == "Running" and job_health.running):
        return kstatus_conditions(
            condition(ready, True, Reason.ACCEPTED if policy == "Accepted" else Reason.RUNNING)
        )
    obstacle = job_health.obstacle
    text = obstacle.message if obstacle else waiting_for(job_health)
    reason = obstacle.reason if obstacle else first_reason(job_health)
    return kstatus_conditions(
        condition(ready, False, reason, text), working=condition(reconciling, True, reason, text)
    )


def at_rest(context: Context) -> list[Condition]:
    """Conditions of a suspended job.

    It is ready: every pod is gone, as its spec asks, so nothing is left to wait for. But a job with the
    readiness policy Succeeded is stalled, because it cannot succeed until somebody resumes it. So a pipeline
    does not continue, and stops waiting at once. A job that is paused, or whose budget is exhausted, is not
    as its spec asks, so it is stalled under every policy.
    """
    why = why_suspended(context)
    if why.reason in (Reason.PAUSED, Reason.BUDGET_EXHAUSTED):
        return stalled_conditions(why)
    if context.spec.readiness_policy == "Succeeded":
        text = "spec.suspend is true: the job cannot succeed until it is false"
        return stalled_conditions(Issue(Reason.SUSPENDED, text))
    return kstatus_conditions(condition(ConditionType.READY, True, Reason.SUSPENDED, "spec.suspend is true"))


def stalled_conditions(why: Issue) -> list[Condition]:
    """Conditions of a job that needs somebody's help to continue."""
    return kstatus_conditions(
        condition(ConditionType.READY, False, why.reason, why.message),
        condition(ConditionType.STALLED, True, why.reason, why.message),
    )


def kstatus_conditions(
    ready: Condition, stalled: Condition | None = None, working: Condition | None = None
) -> list[Condition]:
    """All three conditions; an omitted one is False."""
    return [
        ready,
        stalled or condition(ConditionType.STALLED, False, Reason.RECONCILED),
        working or condition(ConditionType.RECONCILING, False, Reason.RECONCILED),
    ]
