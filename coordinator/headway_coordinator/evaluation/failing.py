"""Decides what to do with a candidate whose episodes all fail. Pure.

While no candidate has an answered row, the fault may be in the candidate, or in something that all candidates
share. If another candidate can still be measured, its result will show which. So the failing candidate is put
off: the rest of its rows is measured after the other candidates. If no other candidate can show it, the job
ends.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, GroupRecord, SampledBy
from headway_api.spec.suite import field_of as suite_field
from headway_coordinator.bounds import lost
from headway_coordinator.endpoint.owner import OfCandidate
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.faults import CandidateError, Cause
from headway_coordinator.recurring import AGENT_FAILED, AGENT_HANGS, Recurring, alike, given_up

Verdict: TypeAlias = Literal["go on", "put off"] | JobError | CandidateError
"""What to do with the candidate. An error ends the job, or the candidate alone."""
OF_AGENTS: Final = (AGENT_FAILED, AGENT_HANGS)
"""Causes for which a model may be to blame, even before its first turn."""
GO_ON: Final = "go on"
PUT_OFF: Final = "put off"


def after_episode(
    state: EvalState,
    candidate: CandidateState,
    faults: Recurring,
    record: EpisodeRecord,
    cause: Cause | None,
    sampled_by: SampledBy,
) -> Verdict:
    """Decide what to do after an episode.

    Args:
        state: the state of all candidates.
        candidate: the candidate that played the episode.
        faults: why episodes of all candidates failed.
        record: the episode.
        cause: the part of the job that failed in the episode; None if none did.
        sampled_by: as `GroupRecord.sampled_by`.
    """
    found = faults.fatal_cause
    if found is None or candidate.stage != "Running":
        return GO_ON
    # A fault before the first turn is not the model's, so it concerns all candidates. There are two
    # exceptions: an agent may fail because it waits for the model, and a rescored episode samples no turn.
    by_it = cause is not None and alike(cause) == alike(found.cause) and cause.reason not in OF_AGENTS
    shared = by_it and not record.turns and sampled_by != "nobody"
    own = candidate.faults.fatal_cause
    if own is None and not shared:
        return GO_ON
    if state.others_may_tell(candidate) and not shared:
        return PUT_OFF
    return given_up(own or found, begun=state.own_rows_answered)


def after_lost_rows(
    state: EvalState, candidate: CandidateState, faults: Recurring, group: GroupRecord, sampled_by: SampledBy
) -> Verdict:
    """Decide what to do after a running candidate has lost `LOST_LIMIT` consecutive groups.

    Only this candidate fails if its endpoint or its suite is to blame, or if other candidates get answers. An
    endpoint is not to blame if another cause is known.

    Args:
        state: the state of all candidates.
        candidate: the candidate that played the groups.
        faults: why episodes of all candidates failed.
        group: the last of the groups.
        sampled_by: as `GroupRecord.sampled_by`.
    """
    if faults.worst_cause() is not None and (cause := candidate.faults.worst_cause()) is not None:
        if state.others_may_tell(candidate):
            return PUT_OFF
        return given_up(cause, begun=state.own_rows_answered)
    fault = lost(group)
    at_endpoint = sampled_by == "endpoint"
    if group.suite is not None and (at_endpoint or state.own_rows_answered):
        return CandidateError("SuiteFailing", str(fault), suite_field(group.suite, "task"))
    if at_endpoint and not candidate.faults.standing:
        return CandidateError("EndpointFailing", str(fault), OfCandidate(candidate.name).field("url"))
    if state.others_are_answered(candidate):
        text = f"{fault}; other candidates get answers, so correct what only this candidate has"
        return CandidateError(fault.termination.reason, text, f"spec.candidates[{candidate.name}]")
    return PUT_OFF if state.others_may_tell(candidate) else fault


def nothing_scored(state: EvalState, faults: Recurring) -> JobError | None:
    """The error that ends a job without any scored row, after all rows were measured; None if there is none.

    The error has the cause, if one is known. Otherwise it is not permanent, so the next process retries the
    rows of candidates with rollout servers.

    Args:
        state: the state of all candidates.
        faults: why episodes of all candidates failed.
    """
    unscored = [candidate for candidate in state.candidates.values() if candidate.ended_unscored]
    if not unscored or state.own_rows_answered:
        return None
    if (found := faults.worst_cause()) is not None:
        return given_up(found, begun=False)
    if not any(candidate.may_retry for candidate in unscored):
        return None
    text = f"no candidate has a scored row; the last error: {unscored[-1].last_error}"
    return JobError("EpisodesFailing", text, permanent=False)
