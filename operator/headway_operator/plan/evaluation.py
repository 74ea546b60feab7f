"""Plans an RLEvalJob: chooses its candidates, then starts and stops sets of rollout servers for them. Pure.

The coordinator owns the condition that only it can judge (`GatePassed`). The condition remains after the job
has ended. If the job failed before the coordinator had judged the gate, the operator writes it instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from headway_api import names
from headway_api.conditions import Condition, ConditionType, Reason, condition, find, is_true
from headway_api.config import EvalConfig
from headway_api.document import Json
from headway_api.spec.evaluation import RLEvalJob
from headway_api.status import GateResult, ResolvedCandidate, RLEvalJobStatus, State
from headway_operator.plan import admission, candidates, rollout
from headway_operator.plan.context import Context, Job, JobStatus, Wanted
from headway_operator.plan.health import RoleHealth, role_health, together
from headway_operator.plan.job_health import JobHealth
from headway_operator.plan.job_kind import JobKind, ResolvedReferences
from headway_operator.plan.observed import Observed, set_of
from headway_operator.plan.status import COMMON, PREFLIGHT_DONE, common_part

NOT_JUDGED: Final = "NotJudged"


class Evaluation(JobKind):
    """RLEvalJob."""

    model = RLEvalJob
    roles = tuple(role for role in names.ROLES if role != names.LEARNER)
    own = COMMON | {ConditionType.CANDIDATES_RESOLVED}
    field_to_shorten = "spec.evaluation.maxRows"

    def sources(self, raw: Json) -> tuple[str, ...]:
        return candidates.sources(raw)

    def refusals(self, context: Context) -> list[str]:
        return admission.of_evaluation(context)

    def resolve(self, context: Context, observed: Observed) -> ResolvedReferences:
        job = context.evaluation
        if job.status.candidates:
            return ResolvedReferences(self.as_it_runs(context, observed))
        outcomes = candidates.resolve(job.spec, observed.sources)
        lacks = candidates.lacking(outcomes)
        until = candidates.waits_until(job, outcomes, observed.now)
        if until is not None and observed.now <= until:
            return ResolvedReferences(context, lacks=lacks, waits_until=until)
        found = [item for item in outcomes.values() if isinstance(item, ResolvedCandidate)]
        if not found:
            return ResolvedReferences(context, failure=lacks)
        chosen = candidates.numbered(found)
        if messages := candidates.conflicts(job.spec, chosen):
            return ResolvedReferences(context, refusals=messages)
        return ResolvedReferences(replace(context, candidates=chosen), lacks=lacks, fresh=True)

    def as_it_runs(self, context: Context, observed: Observed) -> Context:
        return candidates.without_lost_sets(candidates.kept(context), observed)

    def config(self, context: Context) -> EvalConfig:
        return EvalConfig(
            name=context.name,
            namespace=context.namespace,
            uid=context.uid,
            labels=context.cost_labels,
            spec=context.evaluation.spec,
            candidates=candidates.as_chosen(context),
            unresolved=candidates.unresolved(context),
        )

    def preflight_passed(self, job: Job) -> bool:
        found = job.status.preflight
        return found is not None and found.state in PREFLIGHT_DONE

    def has_accelerator_workloads(self, observed: Observed) -> bool:
        return observed.workload(names.ROLLOUT) is not None

    def after_preflight(self, context: Context) -> list[Wanted]:
        sets = candidates.wanted_sets(context)
        return [item for number in sets for item in rollout.manifests(context, number)]

    def after_preflight_roles(
        self, context: Context, observed: Observed, restarts: dict[str, int]
    ) -> list[RoleHealth]:
        count, before = context.spec.rollout.replicas, restarts.get(names.ROLLOUT, 0)
        sets = [
            role_health(observed.of_set(number), names.ROLLOUT, count, before)
            for number in candidates.wanted_sets(context)
        ]
        return [together(sets)] if sets else []

    def in_use(self, context: Context, observed: Observed) -> Observed:
        wanted = {None, *map(str, candidates.wanted_sets(context))}
        return replace(observed, objects=tuple(body for body in observed.objects if set_of(body) in wanted))

    def resolution(self, context: Context, job_health: JobHealth) -> list[Condition]:
        kind = ConditionType.CANDIDATES_RESOLVED
        lacks = job_health.lacks or (None if context.candidates else job_health.failure)
        if lacks:
            return [condition(kind, False, lacks.reason, lacks.message)]
        if not context.candidates or job_health.refusal is not None:
            return []
        missing = candidates.unresolved(context)
        if not missing:
            return [condition(kind, True, Reason.RESOLVED)]
        known = find(context.job.status.conditions, kind)
        if known and known.status == "False":
            return [condition(kind, False, known.reason, known.message)]
        return [condition(kind, False, Reason.CANDIDATE_MISSING, "; ".join(dict.fromkeys(missing.values())))]

    def conditions(self, context: Context, job_health: JobHealth) -> list[Condition]:
        if job_health.failure is None or context.evaluation.spec.gate is None:
            return []
        return _not_judged(context.job.status)

    def is_own(self, known: Condition) -> bool:
        return super().is_own(known) or (
            known.type == ConditionType.GATE_PASSED and known.reason == Reason.GATE_NOT_JUDGED
        )

    def final_conditions(self, status: JobStatus) -> list[Condition]:
        known = find(status.conditions, ConditionType.GATE_PASSED)
        if known is None or self.is_own(known) or not is_true(status.conditions, ConditionType.FAILED):
            return []
        return _not_judged(status)

    def own_part(self, status: JobStatus) -> RLEvalJobStatus:
        assert isinstance(status, RLEvalJobStatus)
        return RLEvalJobStatus(
            **common_part(status),
            conditions=[known for known in status.conditions if self.is_own(known)],
            candidates=status.candidates,
            gate=status.gate if status.gate is not None and status.gate.result == NOT_JUDGED else None,
        )

    def fields_of(self, conditions: Sequence[Condition]) -> dict[str, Any]:
        known = find(conditions, ConditionType.GATE_PASSED)
        if known is None or known.reason != Reason.GATE_NOT_JUDGED:
            return {}
        return {"gate": GateResult(result=NOT_JUDGED, message=known.message)}

    def kind_fields(self, context: Context, job_health: JobHealth) -> dict[str, Any]:
        return {"candidates": list(context.candidates) or context.evaluation.status.candidates}

    def completed(self, context: Context) -> Condition:
        results = context.evaluation.status.results
        measured = sum(result.state == "Complete" for result in results)
        text = f"{measured} of {len(results)} candidates were measured" if results else ""
        return condition(ConditionType.COMPLETE, True, Reason.EVALUATED, text)

    def working_state(self, context: Context) -> tuple[State, Reason]:
        return "Evaluating", Reason.EVALUATING

    def coming_up(self, context: Context, job_health: JobHealth) -> State | None:
        return "Starting" if job_health.begun else None


def _not_judged(status: JobStatus) -> list[Condition]:
    """The condition of a gate that nobody judged before the job failed; empty if it was judged."""
    known = find(status.conditions, ConditionType.GATE_PASSED)
    if known is not None and known.status != "Unknown":
        return []
    text = "the job failed before all rows were measured"
    return [condition(ConditionType.GATE_PASSED, None, Reason.GATE_NOT_JUDGED, text)]
