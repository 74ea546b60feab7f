"""Condition types, their reasons, and how a list of conditions changes.

A condition says what is true, not what happened. Readers trust a condition only if its `observedGeneration`
equals the object's generation. `lastTransitionTime` changes only when the status does.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.exits import CONDITION_REASON

ConditionStatus = Literal["True", "False", "Unknown"]
MESSAGE_LIMIT = 32768


class ConditionType(StrEnum):
    """What can be true of a job. The operator sets each condition, unless the condition's text names another
    writer."""

    ACCEPTED = "Accepted"
    """This operator can run the spec."""
    CANDIDATES_RESOLVED = "CandidatesResolved"
    """For an evaluation: every candidate of the spec refers to a model that exists. False: the message names
    what is missing. The job waits for the candidate, or has continued without it."""
    PREFLIGHT_PASSED = "PreflightPassed"
    """The checks that run before anything expensive starts have passed."""
    LEARNER_READY = "LearnerReady"
    """Every learner process runs."""
    ROLLOUT_READY = "RolloutReady"
    """At least one rollout server takes requests. If there are several sets (evaluations, and a server for
    held-out rows), each set that is needed now has such a server."""
    SANDBOXES_READY = "SandboxesReady"
    """The broker can hand out sandboxes."""
    WEIGHTS_IN_SYNC = "WeightsInSync"
    """As many rollout servers as spec.rollout.replicas asks for hold the current weights, verified. A server
    for held-out rows has not failed to load its weights. While servers load new weights, the condition keeps
    its status; False lasts until it is True. The coordinator sets it, without observedGeneration, because it
    does not know which generation of the spec it runs. While a job is suspended or has ended, the operator
    sets it to Unknown, until a resumed job has a coordinator again."""
    HEALTHY = "Healthy"
    """No signal is raised, and no fault of environment or agent recurs. False: the reason is
    EpisodesFailing or the most severe signal, and the message names all of them. Unknown: too little is known
    yet. The coordinator sets it, without observedGeneration. An evaluation has it once a fault has recurred.
    While a job is suspended, the condition keeps its status."""
    PROGRESSING = "Progressing"
    """Steps are being completed, or candidates measured."""
    CHECKPOINT_AVAILABLE = "CheckpointAvailable"
    """There is a checkpoint to resume from."""
    GATE_PASSED = "GatePassed"
    """For an evaluation: the candidate passes spec.gate; the message has the numbers. The coordinator sets
    it, without observedGeneration."""
    BUDGET_LOW = "BudgetLow"
    """Less than a fifth of a limit of spec.budget is unspent. The coordinator sets it, without
    observedGeneration. On an RLBudget the operator sets it."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """Nothing runs, and the possible cost of the next episodes does not fit spec.budget; the message has the
    lowest limit that would suffice. The coordinator sets it, without observedGeneration. On an RLBudget the
    operator sets it: a job needs more than is left."""
    SUSPENDED = "Suspended"
    """Every pod is gone. spec.suspend is true, the job is paused (`Paused`; status.pause says why), or its
    budget is exhausted (`BudgetExhausted`; status.budget says how far)."""
    COMPLETE = "Complete"
    """The job has succeeded. Terminal."""
    FAILED = "Failed"
    """The job has failed. Terminal."""
    READY = "Ready"
    """What spec.readinessPolicy asks for has been reached; or spec.suspend is true and every pod is gone,
    unless the policy is Succeeded."""
    RECONCILING = "Reconciling"
    """The job has not reached the requested state yet, and the operator works on it."""
    STALLED = "Stalled"
    """The job will not reach the requested state without a person's help; the message names the cause."""


class Reason(StrEnum):
    """Why a condition has its status. Stable: alerts and scripts match on these."""

    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    NAME_CONFLICT = "NameConflict"

    RESOLVED = "Resolved"
    CANDIDATE_MISSING = "CandidateMissing"
    CHECKPOINT_MISSING = "CheckpointMissing"

    PASSED = "Passed"
    CHECK_FAILED = "CheckFailed"
    WARNED = "Warned"
    SKIPPED = "Skipped"
    RUNNING = "Running"

    PENDING = "Pending"
    QUEUED = "Queued"
    WAITING_FOR_WEIGHTS = "WaitingForWeights"
    STARTING = "Starting"
    PODS_READY = "PodsReady"
    PODS_NOT_READY = "PodsNotReady"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CREATE_FAILED = "CreateFailed"
    AGENT_UNREACHABLE = "AgentUnreachable"
    CONTESTED = "Contested"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOP = "CrashLoop"
    DISRUPTED = "Disrupted"

    JOBS_NOT_REPORTING = "JobsNotReporting"
    TOO_MANY_JOBS = "TooManyJobs"
    BUDGET_LEFT = "BudgetLeft"
    BUDGET_LOW = "BudgetLow"
    BUDGET_EXHAUSTED = "BudgetExhausted"

    SYNCED = "Synced"
    VERIFICATION_FAILED = "VerificationFailed"
    UPDATE_FAILED = "UpdateFailed"
    UPDATE_TIMED_OUT = "UpdateTimedOut"
    SERVER_SILENT = "ServerSilent"

    NO_SIGNAL_RAISED = "NoSignalRaised"
    EPISODES_FAILING = "EpisodesFailing"

    STEPPING = "Stepping"
    EVALUATING = "Evaluating"
    NO_PROGRESS = "NoProgress"
    NOT_STARTED = "NotStarted"

    CHECKPOINTED = "Checkpointed"
    NO_CHECKPOINT = "NoCheckpoint"

    SUSPENDED = "Suspended"
    SUSPENDING = "Suspending"
    PAUSED = "Paused"
    RESUMED = "Resumed"
    NOT_SUSPENDED = "NotSuspended"

    EVALUATED = "Evaluated"
    GATE_NOT_PASSED = "GateNotPassed"
    GATE_NOT_JUDGED = "GateNotJudged"
    CANDIDATE_FAILED = "CandidateFailed"
    MAX_STEPS_REACHED = "MaxStepsReached"
    DATA_EXHAUSTED = "DataExhausted"
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
    PENDING_DEADLINE_EXCEEDED = "PendingDeadlineExceeded"
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
    FAILURE_RULE_MATCHED = "FailureRuleMatched"
    PREFLIGHT_FAILED = "PreflightFailed"
    SAMPLING = "Sampling"
    PROCESS_FAILED = "ProcessFailed"

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    RECONCILED = "Reconciled"
    RECONCILING = "Reconciling"
    DELETING = "Deleting"


TERMINAL = (ConditionType.COMPLETE, ConditionType.FAILED)
WITHOUT_COORDINATOR = frozenset({Reason.SUSPENDED, Reason.RESUMED, Reason.SUCCEEDED, Reason.FAILED})
"""Reasons of WeightsInSync that the operator sets; the coordinator uses others."""


class Condition(StatusModel):
    """One statement that is true, false or unknown."""

    type: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z]*$", max_length=64)]
    """What the condition is about."""
    status: ConditionStatus
    """Whether it is true."""
    reason: Annotated[str, Field(pattern=CONDITION_REASON, max_length=64)]
    """Why, in one word that scripts may match on."""
    message: Annotated[str, Field(max_length=MESSAGE_LIMIT)] = ""
    """Why, for people: what is wrong and what to change."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """metadata.generation of the spec that this is based on."""
    last_transition_time: datetime
    """When the status last changed."""


def condition(
    kind: ConditionType,
    status: bool | None,
    reason: Reason | str,
    message: str = "",
    *,
    generation: int | None = None,
    now: datetime | None = None,
) -> Condition:
    """A condition as of `now`; `status` None is Unknown. The message is cut to the length that the API
    allows."""
    return Condition(
        type=kind.value,
        status="Unknown" if status is None else "True" if status else "False",
        reason=str(reason),
        message=message[:MESSAGE_LIMIT],
        observed_generation=generation,
        last_transition_time=(now or datetime.now(UTC)).replace(microsecond=0),
    )


def merge(old: Iterable[Condition], new: Iterable[Condition]) -> list[Condition]:
    """`old` updated with `new` by type: the order is kept, and new types come last.

    A condition whose status did not change keeps its transition time, so that merging the same
    conditions again changes nothing.
    """
    merged = {known.type: known for known in old}
    for fresh in new:
        known = merged.get(fresh.type)
        if known is not None and known.status == fresh.status:
            fresh = fresh.model_copy(update={"last_transition_time": known.last_transition_time})
        merged[fresh.type] = fresh
    return list(merged.values())


def find(conditions: Iterable[Condition], kind: ConditionType) -> Condition | None:
    """The condition of this type, if there is one."""
    return next((known for known in conditions if known.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: ConditionType) -> bool:
    """Whether the condition of this type is there and True."""
    known = find(conditions, kind)
    return known is not None and known.status == "True"


def is_finished(conditions: Iterable[Condition]) -> bool:
    """Whether the job has succeeded or failed; this never becomes false again."""
    known = list(conditions)
    return any(is_true(known, kind) for kind in TERMINAL)
