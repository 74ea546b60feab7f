"""Applies `spec.failurePolicy.rules` to failures. Pure.

Coordinator and learner are Jobs. Their rules become the Job's pod failure policy, and the Job controller
counts their failures. Servers and brokers are Deployments: the kubelet restarts their processes in place, and
nobody counts failures by exit code. For these, the operator judges each end of a process once. The status
records which ends were judged, so a restarted operator continues from there.

If a process ended several times between two reconciles, only its last end is visible. The earlier ends count
as equal to it. A pod that was deleted on purpose has not failed.

Restarting a role takes two reconciles: the status names the pods, then the operator deletes them. So the
failure is counted even if the operator restarts in between, and each pod is deleted once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from headway_api import exits, names
from headway_api.document import Json
from headway_api.failures import MAX_MATCHED, MAX_PODS, Failures, MatchedFailure, PodEndings, RoleFailures
from headway_api.spec.failures import FailureRule
from headway_operator.plan.context import Context
from headway_operator.plan.observed import (
    WORKLOADS,
    Observed,
    conditions,
    containers,
    is_ending,
    is_over,
    moment,
    role_of,
    true_condition,
    unit_of,
)

CONTAINER: Final = {names.JUDGE: names.ROLLOUT, names.SUITE_BROKER: names.BROKER}
"""Name of a role's own container, if it differs from the role."""
RULE_ROLE: Final = {names.SUITE_BROKER: names.BROKER}
"""Role -> its name in rules, if that differs."""
DISRUPTED: Final = "DisruptionTarget"
OWN_RULES: Final = 2
"""Rules of a Job's pod failure policy that come before the user's."""
MATCHED_AT: Final = re.compile(r"matching FailJob rule at index (\d+)")
"""The Job controller's message about the rule that failed a Job."""


def pod_failure_policy(role: str, rules: Sequence[FailureRule]) -> Json:
    """The policy of a role's Job: fixed rules, then the user's rules, then a rule that ignores disruptions.

    A fault that only a change can fix fails the Job at once. A restart that is not a failure is not counted.
    Rules for other roles are omitted.
    """
    users = [_as_job_rule(role, rule) for rule in rules]
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": _codes(role, "In", (exits.PERMANENT,))},
            {"action": "Ignore", "onExitCodes": _codes(role, "In", (exits.RESTART,))},
            *[rule for rule in users if rule is not None],
            {"action": "Ignore", "onPodConditions": [{"type": DISRUPTED, "status": "True"}]},
        ]
    }


def _as_job_rule(role: str, rule: FailureRule) -> Json | None:
    if rule.role not in (None, role):
        return None
    # A Job has no action Restart. The operator deletes the pods instead, and the Job counts them as failed.
    action = "Count" if rule.action == "Restart" else rule.action
    if rule.on_exit_codes is not None:
        found = rule.on_exit_codes
        return {"action": action, "onExitCodes": _codes(role, found.operator, found.values)}
    patterns = [{"type": each.type, "status": each.status} for each in rule.on_pod_conditions]
    return {"action": action, "onPodConditions": patterns}


def _codes(container: str, operator: str, values: Iterable[int]) -> Json:
    return {"containerName": container, "operator": operator, "values": sorted(set(values))}


@dataclass(frozen=True)
class Ending:
    """The end of a process, or the failure of a whole pod."""

    role: str
    pod: str
    number: int
    """Number of this end of the pod's process, from 1; 0 if the whole pod has failed."""
    at: datetime
    code: int | None = None
    """Exit code of the role's container; None if it has not ended."""
    conditions: dict[str, Json] = field(default_factory=dict)
    """Conditions of the pod, if it has failed."""

    @property
    def is_fixed(self) -> bool:
        """Whether the exit code decides what follows, regardless of the rules."""
        return self.code in (exits.PERMANENT, exits.RESTART)


def decided(rules: Sequence[FailureRule], ending: Ending) -> MatchedFailure | None:
    """The decision of the first rule that matches a failure; None if none does."""
    if ending.is_fixed:
        return None
    role = RULE_ROLE.get(ending.role, ending.role)
    for number, rule in enumerate(rules):
        if rule.role not in (None, role):
            continue
        by_code, by_condition = _matches_code(rule, ending.code), _matching_condition(rule, ending)
        if by_code or by_condition:
            return MatchedFailure(
                time=ending.at,
                role=role,
                pod=ending.pod,
                ending=ending.number,
                exit_code=ending.code,
                condition=by_condition,
                action=rule.action,
                rule=number,
            )
    return None


def _matches_code(rule: FailureRule, code: int | None) -> bool:
    """Whether a rule matches an exit code. 0 is not a failure, so NotIn does not match it either."""
    if rule.on_exit_codes is None or not code:
        return False
    return (code in rule.on_exit_codes.values) == (rule.on_exit_codes.operator == "In")


def _matching_condition(rule: FailureRule, ending: Ending) -> str | None:
    for pattern in rule.on_pod_conditions:
        found = ending.conditions.get(pattern.type)
        if found is not None and found["status"] == pattern.status:
            return pattern.type
    return None


def judged(context: Context, observed: Observed) -> Observed:
    """The observed cluster, with the decisions of the job's rules."""
    before, rules = context.job.status.failures, context.spec.failure_policy.rules
    if not rules:  # also if a refused spec's rules cannot be read: keep earlier decisions
        return _with(observed, before)
    count = _Count(rules, before or Failures(), observed)
    for role, kind in WORKLOADS.items():
        for pod in observed.pods(role):
            if kind == "Job":
                count.pod_of_job(pod)
            else:
                count.pod_of_deployment(pod)
    return _with(observed, count.result())


def _with(observed: Observed, failures: Failures | None) -> Observed:
    return replace(observed, failures=failures)


class _Count:
    """Judges all pods of a job once, starting from the decisions in the status."""

    def __init__(self, rules: Sequence[FailureRule], before: Failures, observed: Observed) -> None:
        self._rules = rules
        self._before = before
        self._observed = observed
        self._known = {entry.pod: entry for entry in before.pods}
        self._pods: dict[str, PodEndings] = {}
        self._units = {(unit.role, unit.unit): unit.model_copy() for unit in before.roles}
        self._fresh: list[MatchedFailure] = []
        self._restarts: dict[tuple[str, str], datetime] = {}
        """Role and unit to restart -> time of the failure."""

    def pod_of_job(self, pod: Json) -> None:
        """Record the rule that a Job's policy applied to a failed pod. The Job itself counts the failure."""
        known = self._known.get(_name(pod))
        if pod.get("status", {}).get("phase") == "Failed" and not (known and known.restarting):
            found = decided(self._rules, _failure(pod, number=1))
            self._fresh += [found] if found is not None else []
        self._keep(known)

    def pod_of_deployment(self, pod: Json) -> None:
        """Judge the new ends of a pod's processes."""
        known = self._known.get(_name(pod), PodEndings(pod=_name(pod)))
        failed = _has_failed(pod)
        if known.restarting or known.over or (is_ending(pod) and not failed):
            return self._keep(known)
        if failed:
            self._judge(pod, _failure(pod, number=0), times=1, unmatched=0)
            return self._keep(known.model_copy(update={"over": True}))
        own, others = _own_container(pod), _restarts_of_others(pod)
        endings = _endings(own)
        if (new := endings - known.endings) > 0:
            self._judge(pod, _failure(pod, number=endings, whole=False), times=new, unmatched=new)
        if (more := others - known.others) > 0:
            self._unit(pod).counted += more
        maximum = max(endings, known.endings)
        return self._keep(PodEndings(pod=known.pod, endings=maximum, others=max(others, known.others)))

    def _judge(self, pod: Json, ending: Ending, *, times: int, unmatched: int) -> None:
        """Count `times` ends of a process, or `unmatched` ends if no rule matches."""
        found, unit = decided(self._rules, ending), self._unit(pod)
        if found is None:
            unit.counted += 0 if ending.code == exits.RESTART else unmatched
            return
        self._fresh.append(found)
        key = (unit.role, unit.unit)
        if found.action == "Ignore":
            unit.ignored += times
        elif found.action != "Restart":
            unit.counted += times
        elif key not in self._restarts:
            unit.counted += 1
            self._restarts[key] = ending.at

    def _unit(self, pod: Json) -> RoleFailures:
        key = (role_of(pod) or "", unit_of(pod))
        return self._units.setdefault(key, RoleFailures(role=key[0], unit=key[1]))

    def _keep(self, entry: PodEndings | None) -> None:
        if entry is not None and entry != PodEndings(pod=entry.pod):
            self._pods[entry.pod] = entry

    def result(self) -> Failures | None:
        """All decisions and counts, earlier ones included; None if there are none."""
        matched = _newest(self._before.matched, self._fresh)
        new = {_id(found) for found in matched} - {_id(found) for found in self._before.matched}
        for found in matched:
            if _id(found) in new and found.action == "Restart" and WORKLOADS.get(found.role) == "Job":
                self._restarts[found.role, ""] = found.time
        for (role, unit), at in self._restarts.items():
            self._mark(role, unit, at)
        units = [unit for unit in self._units.values() if unit.counted or unit.ignored]
        made = Failures(
            matched=matched,
            roles=sorted(units, key=lambda unit: (unit.role, unit.unit)),
            pods=sorted(self._pods.values(), key=lambda entry: entry.pod)[:MAX_PODS],
        )
        return made if made != Failures() else None

    def _mark(self, role: str, unit: str, at: datetime) -> None:
        """Mark the unit's pods that existed at time `at` for deletion."""
        for pod in self._observed.pods(role):
            older = moment(pod["metadata"]["creationTimestamp"]) <= at
            if older and unit_of(pod) == unit and not (is_over(pod) or is_ending(pod)):
                entry = self._pods.get(_name(pod), PodEndings(pod=_name(pod)))
                self._pods[entry.pod] = entry.model_copy(update={"restarting": True})


def to_delete(context: Context, observed: Observed) -> tuple[Json, ...]:
    """The pods that the stored status marks for a restart by a rule."""
    stored = context.job.status.failures
    going = {entry.pod for entry in stored.pods if entry.restarting} if stored else set()
    found = [pod for pod in observed.pods() if role_of(pod) in WORKLOADS and _name(pod) in going]
    return tuple(pod for pod in found if not (is_over(pod) or is_ending(pod)))


def counted(observed: Observed, role: str) -> int | None:
    """Counted failures of the existing Deployments of a role; None if no rule counts them."""
    if observed.failures is None:
        return None
    seen = {unit_of(body) for body in observed.of_kinds("Deployment") if role_of(body) == role}
    return sum(unit.counted for unit in observed.failures.roles if unit.role == role and unit.unit in seen)


def ends_the_job(observed: Observed) -> str | None:
    """The text of the first matched rule that fails the job, if any."""
    found = observed.failures.matched if observed.failures else []
    return next((sentence(each) for each in found if each.action == "FailJob"), None)


def named_by_job(context: Context, role: str, failed: Json) -> int | None:
    """Index of the user's rule that a role's failed Job names; None if it names none of them."""
    found = MATCHED_AT.search(failed.get("message", ""))
    own = [n for n, rule in enumerate(context.spec.failure_policy.rules) if rule.role in (None, role)]
    at = int(found[1]) - OWN_RULES if found else -1
    return own[at] if 0 <= at < len(own) else None


def of_pod(observed: Observed, pod: Json) -> str:
    """Suffix for a message about a pod: the rule that matched its last failure; empty if none did."""
    found = observed.failures.matched if observed.failures else []
    last = next((each for each in reversed(found) if each.pod == _name(pod)), None)
    return f" ({rule_words(last.rule)}: {last.action})" if last is not None else ""


def of_role(observed: Observed, role: str) -> str:
    """Suffix for a message about a role: the rule that matched its last failure; empty if none did."""
    found = observed.failures.matched if observed.failures else []
    known = RULE_ROLE.get(role, role)
    last = next((each for each in reversed(found) if each.role == known), None)
    return f" ({rule_words(last.rule)}: {last.action})" if last is not None else ""


def sentence(found: MatchedFailure) -> str:
    """A decision, for people: role, pod, exit code or condition, rule and action."""
    cause = f"exit code {found.exit_code}" if found.condition is None else f"condition {found.condition}"
    return f"{rule_words(found.rule)}: {found.role} pod {found.pod} ended with {cause}: {found.action}"


def rule_words(number: int) -> str:
    """The path of a rule, as messages name it."""
    return f"spec.failurePolicy.rules[{number}]"


def _newest(before: Iterable[MatchedFailure], fresh: Iterable[MatchedFailure]) -> list[MatchedFailure]:
    known = {_id(found): found for found in (*fresh, *before)}
    ordered = sorted(known.values(), key=lambda found: (found.time, found.pod, found.ending))
    return ordered[-MAX_MATCHED:]


def _id(found: MatchedFailure) -> tuple[str, int]:
    return found.pod, found.ending


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _has_failed(pod: Json) -> bool:
    """Whether a pod failed or was evicted. A pod that was deleted because nobody needs it has not failed."""
    evicted = is_ending(pod) and true_condition(pod, DISRUPTED) is not None
    return pod.get("status", {}).get("phase") == "Failed" or evicted


def _own_container(pod: Json) -> Json:
    name = CONTAINER.get(role_of(pod) or "", role_of(pod))
    return next((each for each in containers(pod) if each.get("name") == name), {})


def _restarts_of_others(pod: Json) -> int:
    own = _own_container(pod)
    return sum(int(each.get("restartCount", 0)) for each in containers(pod) if each is not own)


def _last_end(container: Json) -> Json:
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    found: Json = ended or {}
    return found


def _endings(container: Json) -> int:
    """How often a container's process has ended.

    `restartCount` grows when the container restarts, so a container in back-off has ended once more.
    """
    state = container.get("state", {})
    waits = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    return int(container.get("restartCount", 0)) + int(bool(state.get("terminated")) or waits)


def _failure(pod: Json, *, number: int, whole: bool = True) -> Ending:
    """The last failure of a pod: of its process, or with `whole` of the pod itself."""
    ended = _last_end(_own_container(pod))
    return Ending(
        role=role_of(pod) or "",
        pod=_name(pod),
        number=number,
        at=max(_moments(pod, ended), default=moment(pod["metadata"]["creationTimestamp"])),
        code=ended.get("exitCode"),
        conditions=conditions(pod) if whole else {},
    )


def _moments(pod: Json, ended: Json) -> Iterator[datetime]:
    """The time of a failure: when the process ended, or else when the pod was disrupted."""
    disrupted = true_condition(pod, DISRUPTED) or {}
    if stamp := ended.get("finishedAt") or disrupted.get("lastTransitionTime"):
        yield moment(stamp)
