"""Plans an RLTrainingJob: starting weights before the preflight, learner and servers after it. Pure.

The coordinator owns the condition that only it can judge (`WeightsInSync`). But a coordinator that no longer
runs cannot update it. So while a job is suspended or has ended, the operator takes over the condition by
force. It writes that nothing is known about the weights. It keeps writing the condition until a coordinator
writes it again. If it stopped earlier, the old coordinator's field manager would own only the key of the
item. The API server rejects such an item, since it lacks required fields.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headway_api import names
from headway_api.conditions import (
    WITHOUT_COORDINATOR,
    Condition,
    ConditionType,
    Reason,
    condition,
    find,
    is_true,
)
from headway_api.config import JobConfig
from headway_api.document import Json
from headway_api.recipes import warnings
from headway_api.spec.training import RLTrainingJob
from headway_api.status import RLTrainingJobStatus, State
from headway_operator.plan import admission, learner, pause, rollout, warm_start
from headway_operator.plan import conditions as judged
from headway_operator.plan.context import Context, Job, JobStatus, Wanted
from headway_operator.plan.health import Issue, RoleHealth, role_health, together
from headway_operator.plan.job_health import JobHealth
from headway_operator.plan.job_kind import JobKind, ResolvedReferences
from headway_operator.plan.observed import Observed
from headway_operator.plan.status import COMMON, PREFLIGHT_DONE, common_part


class Training(JobKind):
    """RLTrainingJob."""

    model = RLTrainingJob
    roles = names.ROLES
    own = COMMON | {ConditionType.LEARNER_READY, ConditionType.CHECKPOINT_AVAILABLE}
    field_to_shorten = "spec.schedule.maxSteps"

    def sources(self, raw: Json) -> tuple[str, ...]:
        name = warm_start.source(raw)
        return (name,) if name else ()

    def refusals(self, context: Context) -> list[str]:
        return admission.of_training(context)

    def resolve(self, context: Context, observed: Observed) -> ResolvedReferences:
        other = next(iter(observed.sources.values()), None)
        if messages := warm_start.refusals(context, other, observed.now):
            return ResolvedReferences(context, refusals=messages)
        if text := warm_start.waits_for(context, other):
            lacks = Issue(Reason.WAITING_FOR_WEIGHTS, text)
            return ResolvedReferences(context, lacks=lacks, waits_until=datetime.max.replace(tzinfo=UTC))
        return ResolvedReferences(warm_start.settled(context, other))

    def as_it_runs(self, context: Context, observed: Observed) -> Context:
        return context

    def config(self, context: Context) -> JobConfig:
        spec = warm_start.resolved_spec(context.training.spec, context.warm_start)
        return JobConfig(
            name=context.name,
            namespace=context.namespace,
            uid=context.uid,
            labels=context.cost_labels,
            spec=spec,
        )

    def preflight_passed(self, job: Job) -> bool:
        assert isinstance(job, RLTrainingJob)
        found = job.status.preflight
        return job.spec.preflight.policy == "Off" or (found is not None and found.state in PREFLIGHT_DONE)

    def has_accelerator_workloads(self, observed: Observed) -> bool:
        return observed.workload(names.LEARNER) is not None

    def samples_first(self, job: Job, observed: Observed) -> bool:
        assert isinstance(job, RLTrainingJob)
        state = job.status.preflight.state if job.status.preflight is not None else None
        # A restarted coordinator repeats its static checks. The server stays meanwhile.
        again = state == "Running" and observed.workload(names.ROLLOUT) is not None
        return state == "Sampling" or again

    def first_servers(self, context: Context) -> list[Wanted]:
        return rollout.of_preflight(context)

    def first_roles(self, context: Context, observed: Observed, restarts: dict[str, int]) -> list[RoleHealth]:
        return [role_health(observed, names.ROLLOUT, 1, restarts.get(names.ROLLOUT, 0))]

    def after_preflight(self, context: Context) -> list[Wanted]:
        return learner.manifests(context) + rollout.of_training(context)

    def after_preflight_roles(
        self, context: Context, observed: Observed, restarts: dict[str, int]
    ) -> list[RoleHealth]:
        nodes, before = context.training.spec.learner.nodes, restarts.get(names.LEARNER, 0)
        return [role_health(observed, names.LEARNER, nodes, before), _servers(context, observed, restarts)]

    def in_use(self, context: Context, observed: Observed) -> Observed:
        return observed

    def resolution(self, context: Context, job_health: JobHealth) -> list[Condition]:
        return []

    def conditions(self, context: Context, job_health: JobHealth) -> list[Condition]:
        return [
            _checkpoint(context.training),
            judged.role(ConditionType.LEARNER_READY, job_health, names.LEARNER),
            *self._weights(context, job_health),
        ]

    def own_part(self, status: JobStatus) -> RLTrainingJobStatus:
        assert isinstance(status, RLTrainingJobStatus)
        return RLTrainingJobStatus(
            **common_part(status),
            conditions=[known for known in status.conditions if self.is_own(known)],
            warm_start=status.warm_start,
            warnings=status.warnings,
            resumed_pause=status.resumed_pause,
        )

    def kind_fields(self, context: Context, job_health: JobHealth) -> dict[str, Any]:
        return {
            "warm_start": context.warm_start or context.training.status.warm_start,
            "warnings": [] if job_health.refusal else warnings(context.training.spec),
            "resumed_pause": pause.ended(context.training),
        }

    def completed(self, context: Context) -> Condition:
        job = context.training
        progress, schedule = job.status.progress, job.spec.schedule
        if progress and progress.step >= schedule.max_steps:
            text = f"{progress.step} steps, as spec.schedule.maxSteps asked for{_in_vain(job.status)}"
            return condition(ConditionType.COMPLETE, True, Reason.MAX_STEPS_REACHED, text)
        if progress and progress.finished == Reason.BUDGET_EXHAUSTED:
            text = f"{progress.step} steps; nothing more fits spec.budget, and its onExhausted is Drain"
            text += _in_vain(job.status)
            return condition(ConditionType.COMPLETE, True, Reason.BUDGET_EXHAUSTED, text)
        text = (
            f"the remaining rows of spec.schedule.maxEpochs ({schedule.max_epochs}) do not fill another batch"
        )
        text += _in_vain(job.status)
        return condition(ConditionType.COMPLETE, True, Reason.DATA_EXHAUSTED, text)

    def working_state(self, context: Context) -> tuple[State, Reason]:
        progress = context.training.status.progress
        if progress is not None and progress.evaluating is not None:
            return "Evaluating", Reason.EVALUATING
        return "Training", Reason.STEPPING

    def coming_up(self, context: Context, job_health: JobHealth) -> State | None:
        progress = context.training.status.progress
        if progress and progress.step > 0:
            return "Restarting"
        return "Starting" if job_health.begun else None

    def is_own(self, known: Condition) -> bool:
        return super().is_own(known) or (
            known.type == ConditionType.WEIGHTS_IN_SYNC and known.reason in WITHOUT_COORDINATOR
        )

    def final_conditions(self, status: JobStatus) -> list[Condition]:
        known = find(status.conditions, ConditionType.WEIGHTS_IN_SYNC)
        if known is None or self.is_own(known):
            return []
        failed = is_true(status.conditions, ConditionType.FAILED)
        return [_nothing_known(Reason.FAILED if failed else Reason.SUCCEEDED)]

    def _weights(self, context: Context, job_health: JobHealth) -> list[Condition]:
        """The condition WeightsInSync if no coordinator can write it; empty if one can."""
        if job_health.failure:
            return [_nothing_known(Reason.FAILED)]
        if job_health.complete:
            return [_nothing_known(Reason.SUCCEEDED)]
        if job_health.suspended:
            return [_nothing_known(Reason.SUSPENDED)]
        known = find(context.job.status.conditions, ConditionType.WEIGHTS_IN_SYNC)
        return [_nothing_known(Reason.RESUMED)] if known is not None and self.is_own(known) else []


def _servers(context: Context, observed: Observed, restarts: dict[str, int]) -> RoleHealth:
    """Health of the rollout servers: those for training, and the one for held-out rows if the job has it."""
    spec, role, before = context.training.spec, names.ROLLOUT, restarts.get(names.ROLLOUT, 0)
    if not spec.has_validation_server:
        return role_health(observed, role, spec.rollout.replicas, before)
    train = role_health(observed.of_set(names.TRAINING_SET), role, spec.rollout.replicas, before)
    held_out = role_health(observed.of_set(names.VALIDATION_SET), role, 1, before)
    return replace(together([train, held_out]), ready_unscaled=held_out.ready)


def _checkpoint(job: RLTrainingJob) -> Condition:
    latest = job.status.checkpoints.latest if job.status.checkpoints else None
    if latest is None:
        return condition(ConditionType.CHECKPOINT_AVAILABLE, False, Reason.NO_CHECKPOINT)
    # Omit the step, or the condition would change at every step.
    return condition(
        ConditionType.CHECKPOINT_AVAILABLE, True, Reason.CHECKPOINTED, "see status.checkpoints.latest"
    )


def _in_vain(status: RLTrainingJobStatus) -> str:
    """Suffix for a completed job that learned nothing or was unhealthy; empty for any other job."""
    known, regrets = find(status.conditions, ConditionType.HEALTHY), []
    if status.usage is not None and status.usage.train_tokens == 0:
        regrets.append("no token was trained, because all rewards in each group were equal")
    if known is not None and known.status == "False":
        regrets.append(f"{known.reason}: {known.message}")
    return "".join(f"; but {regret}" for regret in regrets)


def _nothing_known(reason: Reason) -> Condition:
    text = {
        Reason.SUSPENDED: "the job is suspended and has no rollout servers",
        Reason.RESUMED: "the job was suspended; its coordinator has not checked the rollout servers since",
    }.get(reason, "the job has ended and has no rollout servers")
    return condition(ConditionType.WEIGHTS_IN_SYNC, None, reason, text)
