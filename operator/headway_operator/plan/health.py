"""Finds what is wrong with a role, as Kubernetes itself reports it, and decides whether the job fails.

These functions read everything from objects and keep no state. So the messages of a deleted pod are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from headway_api import exits, names, pod_lacks
from headway_api.conditions import Reason
from headway_api.document import Json
from headway_operator.plan import failures, images
from headway_operator.plan.context import Context
from headway_operator.plan.images import Outlook
from headway_operator.plan.observed import (
    WORKLOADS,
    Observed,
    conditions,
    containers,
    has_succeeded,
    is_ending,
    is_over,
    is_ready,
    moment,
    role_of,
    runs_on,
    terminations,
    true_condition,
)

ESSENTIAL: Final = (
    names.COORDINATOR,
    names.BROKER,
    names.SUITE_BROKER,
    names.LEARNER,
    names.ROLLOUT,
    names.JUDGE,
)
REPLACEABLE: Final = (names.ROLLOUT, names.JUDGE)
"""Roles that can work as soon as one of their pods is ready."""
EVIDENCE_SECONDS: Final = 5.0
"""Seconds to wait for the failed pod of a failed Job, since different watches report Job and pod."""

OUT_OF_RESTARTS: Final = ("BackoffLimitExceeded", "MaxFailedIndexesExceeded")
"""Reasons of a Job whose pods failed too often. The second is for Jobs that count failures by index."""
LAST_WORDS: Final = 1500
"""Maximum characters from the end of a log that a message repeats."""

WAITING: Final = {
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.CREATE_FAILED,
    "CreateContainerError": Reason.CREATE_FAILED,
    "RunContainerError": Reason.CREATE_FAILED,
    "CrashLoopBackOff": Reason.CRASH_LOOP,
}


@dataclass(frozen=True)
class Issue:
    """What is wrong, as reason and message for a condition."""

    reason: str
    message: str
    outlook: Outlook | None = None
    """What to expect for a container that cannot be created."""
    since: datetime | None = None
    """Since when the container cannot be created."""


@dataclass(frozen=True)
class RoleHealth:
    """The pods of a role, compared with the number that is wanted."""

    role: str
    desired: int
    ready: int
    restarts: int
    issue: Issue | None
    pending_since: datetime | None
    """Since when the role has had too few ready pods to do its work; None while it has enough."""
    is_running: bool
    """Enough of its processes run or have completed, whether or not they answer probes right now."""
    blocker: str = ""
    """The pod that the role has waited for longest, as text for a message."""
    field: str = ""
    """The field that asks for the role, if the role's name does not show it."""
    ready_unscaled: int = 0
    """Ready pods that spec.rollout.replicas does not count."""


def pod_issue(pod: Json) -> Issue | None:
    """The most important issue of a pod, if it has one."""
    name = pod["metadata"]["name"]
    for container in containers(pod):
        waiting = container.get("state", {}).get("waiting") or {}
        ended = (
            container.get("state", {}).get("terminated")
            or container.get("lastState", {}).get("terminated")
            or {}
        )
        if ended.get("reason") == "OOMKilled" and not container.get("ready"):
            limit = _memory_limit(pod, container["name"])
            text = pod_lacks.of_memory(role_of(pod), name, container["name"], limit)
            return Issue(Reason.OUT_OF_MEMORY, text)
        reason = WAITING.get(waiting.get("reason", ""))
        if reason == Reason.CRASH_LOOP:
            return Issue(reason, f"pod {name}: {waiting['reason']}: {_ending(ended)}")
        if reason:
            return _not_made(pod, container["name"], waiting)
    known = conditions(pod)
    scheduled = known.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return Issue(
            Reason.UNSCHEDULABLE, pod_lacks.of_scheduler(role_of(pod), name, scheduled.get("message", ""))
        )
    if (message := _evicted(pod)) is not None:
        return Issue(Reason.DISRUPTED, pod_lacks.of_eviction(name, message))
    if is_over(pod):
        return Issue(Reason.PROCESS_FAILED, f"pod {name}: {_last_words(pod)}")
    return None


def _evicted(pod: Json) -> str | None:
    """Why the cluster evicts a pod; None if it does not.

    The condition DisruptionTarget says so, except for a pod that exceeded its limits, such as a full volume.
    The kubelet does not call that a disruption, and it counts as a restart.
    """
    status, disrupted = pod.get("status", {}), conditions(pod).get("DisruptionTarget")
    if disrupted is not None:
        return str(disrupted.get("message", ""))
    return status.get("message") if status.get("reason") == "Evicted" else None


def _not_made(pod: Json, container: str, waiting: Json) -> Issue:
    """The issue of a container that lacks its image, or something else that it needs to be created."""
    reason, message = waiting["reason"], waiting.get("message", "")
    if reason in images.PULLS:
        text, outlook = images.of_pull(pod, container, reason, message)
        return Issue(Reason.IMAGE_PULL_FAILED, text, outlook, _not_ready_since(pod))
    text = images.of_creation(pod, container, reason, message)
    return Issue(Reason.CREATE_FAILED, text, Outlook.MAY_PASS, _not_ready_since(pod))


def _memory_limit(pod: Json, container: str) -> str | None:
    specs = (spec for spec in pod["spec"].get("containers", []) if spec["name"] == container)
    found: Json = next(specs, {})
    limit: str | None = found.get("resources", {}).get("limits", {}).get("memory")
    return limit


def _ending(ended: Json) -> str:
    if found := exits.parse(ended.get("message")):
        return found.sentence
    text = f"exit code {ended.get('exitCode')}" + (f" ({ended['reason']})" if ended.get("reason") else "")
    words = (ended.get("message") or "").strip()
    return f"{text}: {words[-LAST_WORDS:]}" if words else text


def _last_words(pod: Json) -> str:
    endings = [_ending(ended) for ended in terminations(pod) if ended.get("exitCode")]
    status = pod.get("status", {})
    return "; ".join(endings) or status.get("message") or status.get("reason") or "it ended"


def role_health(observed: Observed, role: str, desired: int, restarts_before: int) -> RoleHealth:
    """The current health of a role."""
    if is_complete(observed.workload(role)):
        return RoleHealth(role, desired, desired, restarts_before, None, None, is_running=True)
    # A rank that has completed does not count as missing while the others finish.
    done = [pod for pod in observed.pods(role) if WORKLOADS[role] == "Job" and has_succeeded(pod)]
    pods = [pod for pod in observed.pods(role) if not (is_over(pod) or is_ending(pod) or pod in done)]
    ready = sum(is_ready(pod) for pod in pods) + len(done)
    waiting = [pod for pod in pods if not is_ready(pod)]
    issues = [issue for pod in waiting if (issue := _issue_with_rule(observed, pod))]
    workload = observed.workload(role)
    queued = _queued(workload)
    issue = queued or next(iter(issues), None) or _workload_issue(observed, workload)
    needed = 1 if role in REPLACEABLE else desired
    enough = ready >= needed or queued is not None
    pending_since, blocker = (None, "") if enough else _pending(waiting, workload)
    return RoleHealth(
        role=role,
        desired=desired,
        ready=min(ready, desired),
        restarts=max(restarts_before, _restarts(observed, role)),
        issue=None if ready >= desired else issue or _failed_pod_issue(observed, role, pods),
        pending_since=pending_since,
        is_running=ready + sum(map(runs_on, waiting)) >= needed,
        blocker=blocker,
    )


def checks_wait(context: Context) -> Issue | None:
    """What the preflight waits for, as reported by the coordinator, which alone sees it."""
    found = context.job.status.preflight
    waits = found.waits_for if found is not None and found.state == "Running" else None
    served = {names.check_of_judge(each.name) for each in context.spec.judges if each.model is not None}
    # If the job serves the judge, the issue of its pods says more. Baseline episodes wait for no pod.
    if waits is None or waits.name in served or waits.name == names.CHECK_BASELINE:
        return None
    reason = Reason.AGENT_UNREACHABLE if waits.name == names.CHECK_AGENT else Reason.CREATE_FAILED
    return Issue(reason, f"{waits.field}: {waits.message}" if waits.field else waits.message)


def _queued(workload: Json | None) -> Issue | None:
    """Why a Job has no pods although nothing is wrong: another controller suspended it, as queues do.

    No deadline applies meanwhile. The operator itself deletes Jobs, and never suspends one.
    """
    if workload is None or workload["kind"] != "Job":
        return None
    if not workload.get("spec", {}).get("suspend") and true_condition(workload, "Suspended") is None:
        return None
    name = workload["metadata"]["name"]
    words = (
        f"another controller, such as a queue, suspended Job {name}; it starts when its spec.suspend is false"
    )
    return Issue(Reason.QUEUED, words)


def together(sets: list[RoleHealth]) -> RoleHealth:
    """Several sets of servers, or several brokers, as one role. Each must have enough pods of its own."""
    late = [(each.pending_since, each.blocker, each.field) for each in sets if each.pending_since]
    since, blocker, field = min(late, default=(None, "", ""))
    return RoleHealth(
        role=sets[0].role,
        desired=sum(health.desired for health in sets),
        ready=sum(health.ready for health in sets),
        restarts=max(health.restarts for health in sets),
        issue=next((health.issue for health in sets if health.issue), None),
        pending_since=since,
        is_running=all(health.is_running for health in sets),
        blocker=blocker,
        field=field,
    )


def is_complete(workload: Json | None) -> bool:
    """Whether a Job has completed."""
    return true_condition(workload, "Complete") is not None


def _failed_pod_issue(observed: Observed, role: str, alive: list[Json]) -> Issue | None:
    """Why the last pod failed, until another pod replaces it."""
    over = _failed_pods(observed, role)
    return _issue_with_rule(observed, over[-1]) if over and not alive else None


def _issue_with_rule(observed: Observed, pod: Json) -> Issue | None:
    """What is wrong with a pod, and the rule that decided on its failure."""
    issue, rule = pod_issue(pod), failures.of_pod(observed, pod)
    return replace(issue, message=f"{issue.message}{rule}") if issue is not None and rule else issue


def _failed_pods(observed: Observed, role: str) -> list[Json]:
    return [pod for pod in observed.pods(role) if pod.get("status", {}).get("phase") == "Failed"]


def _workload_issue(observed: Observed, workload: Json | None) -> Issue | None:
    """Why a workload cannot create its pods. A Deployment has a condition for that; for a Job, only
    events report it."""
    if workload is None:
        return None
    failure = true_condition(workload, "ReplicaFailure") or {}
    words = failure.get("message") or observed.refusals.get(workload["metadata"]["uid"])
    return Issue(Reason.CREATE_FAILED, pod_lacks.of_creation(role_of(workload), words)) if words else None


def _pending(waiting: list[Json], workload: Json | None) -> tuple[datetime | None, str]:
    if waiting:
        since, name = min((_not_ready_since(pod), pod["metadata"]["name"]) for pod in waiting)
        return since, f"pod {name}"
    if workload is None:
        return None, ""
    # There is no pod. Count from the workload's last change: it may just be replacing its pod.
    stamps = [workload["metadata"]["creationTimestamp"]]
    stamps += [item["lastTransitionTime"] for item in conditions(workload).values()]
    return max(map(moment, stamps)), f"a pod of {workload['kind']} {workload['metadata']['name']}"


def _not_ready_since(pod: Json) -> datetime:
    ready = conditions(pod).get("Ready", {}).get("lastTransitionTime")
    return moment(ready or pod["metadata"]["creationTimestamp"])


def _restarts(observed: Observed, role: str) -> int:
    workload = observed.workload(role)
    in_place = sum(int(c.get("restartCount", 0)) for pod in observed.pods(role) for c in containers(pod))
    if workload is None or workload["kind"] != "Job":
        by_rules = failures.counted(observed, role)
        return in_place if by_rules is None else by_rules
    failed = int(workload.get("status", {}).get("failed", 0))
    # When the pod of one node fails, those of all other nodes fail too. Count them as one restart.
    return in_place + -(-failed // int(workload["spec"].get("completions", 1)))


def failure(context: Context, observed: Observed, roles: list[RoleHealth]) -> Issue | None:
    """Why the job has failed permanently, if it has."""
    return (
        _explained(observed)
        or _ended_by_rule(observed)
        or _never_made(observed)
        or _failed_workload(context, observed)
        or _too_many_restarts(context, observed, roles)
        or _waited_too_long(context, observed, roles)
    )


def set_failure(context: Context, observed: Observed, number: int) -> Issue | None:
    """Why one set of rollout servers is given up permanently, if it is. Candidates of other sets continue."""
    seen = observed.of_set(number)
    health = role_health(seen, names.ROLLOUT, context.spec.rollout.replicas, 0)
    return (
        _explained(seen)
        or _too_many_restarts(context, seen, [health])
        or _waited_too_long(context, seen, [health])
    )


def _explained(observed: Observed) -> Issue | None:
    """The failure of a process whose exit code says that a restart cannot help."""
    for role in ESSENTIAL:
        for pod in observed.pods(role):
            for ended in terminations(pod):
                if ended.get("exitCode") != exits.PERMANENT:
                    continue
                if found := exits.parse(ended.get("message")):
                    return Issue(found.reason, found.sentence)
                name = pod["metadata"]["name"]
                return Issue(
                    Reason.PROCESS_FAILED,
                    f"{role} pod {name} exited without a termination message: {_ending(ended)}",
                )
    return None


def _ended_by_rule(observed: Observed) -> Issue | None:
    """The failure that a rule of spec.failurePolicy decided."""
    words = failures.ends_the_job(observed)
    if words is None:
        return None
    endings = [pod for role in ESSENTIAL for pod in observed.pods(role) if terminations(pod)]
    last = next((_last_words(pod) for pod in reversed(endings) if pod["metadata"]["name"] in words), "")
    return Issue(Reason.FAILURE_RULE_MATCHED, f"{words}; {last}" if last else words)


def _never_made(observed: Observed) -> Issue | None:
    """The failure of a pod whose image cannot exist: any replacement would ask for the same image."""
    waiting = (pod for pod in observed.pods() if not (is_over(pod) or is_ending(pod)))
    issues = (issue for pod in waiting if (issue := pod_issue(pod)) is not None)
    return next((issue for issue in issues if issue.outlook is Outlook.NEVER), None)


def _failed_workload(context: Context, observed: Observed) -> Issue | None:
    for role, kind in WORKLOADS.items():
        failed = true_condition(observed.workload(role), "Failed") if kind == "Job" else None
        if failed is None:
            continue
        over = _failed_pods(observed, role)
        if not over and observed.now - moment(failed["lastTransitionTime"]) < timedelta(
            seconds=EVIDENCE_SECONDS
        ):
            return None
        found = pod_issue(over[-1]) if over else None
        words = found.message if found else failed.get("message", "")
        if failed.get("reason") in OUT_OF_RESTARTS:
            return _exhausted(context, role, words + failures.of_role(observed, role))
        if (rule := failures.named_by_job(context, role, failed)) is not None:
            return Issue(Reason.FAILURE_RULE_MATCHED, f"{failures.rule_words(rule)}: {role}: {words}")
        return Issue(Reason.PROCESS_FAILED, f"{role}: {words}")
    return None


def _too_many_restarts(context: Context, observed: Observed, roles: list[RoleHealth]) -> Issue | None:
    for health in roles:
        if (
            WORKLOADS[health.role] != "Deployment"
            or health.restarts <= context.spec.failure_policy.max_restarts
        ):
            continue
        endings = [pod for pod in observed.pods(health.role) if terminations(pod)]
        words = _last_words(endings[-1]) if endings else "see its log"
        return _exhausted(context, health.role, words + failures.of_role(observed, health.role))
    return None


def _exhausted(context: Context, role: str, words: str) -> Issue:
    maximum = context.spec.failure_policy.max_restarts
    return Issue(
        Reason.MAX_RESTARTS_EXCEEDED,
        f"{role} failed more than spec.failurePolicy.maxRestarts ({maximum}) times, last: {words}",
    )


def _waited_too_long(context: Context, observed: Observed, roles: list[RoleHealth]) -> Issue | None:
    patience = context.spec.pending_deadline_seconds
    late = [
        health
        for health in roles
        if health.pending_since and observed.now - health.pending_since > timedelta(seconds=patience)
    ]
    # Report a role with a known issue first. The other roles may only be waiting for it.
    late.sort(key=lambda health: health.issue is None)
    for health in late:
        words = health.issue.message if health.issue else f"{health.blocker} is not ready; see its log"
        who = health.field or health.role
        return Issue(
            Reason.PENDING_DEADLINE_EXCEEDED,
            f"{who} was not ready within spec.pendingDeadlineSeconds ({patience}): {words}",
        )
    return None
