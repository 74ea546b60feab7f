"""Who is at fault if all episodes of a candidate fail before any candidate has an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from evaluation_rig import EvalJob, spec

from headway_api.exits import JobError, job_error
from headway_coordinator.bounds import FATAL_CAUSE_EPISODES, LOST_LIMIT
from headway_coordinator.dataset import position_of
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.run import WRITING, Evaluation
from headway_coordinator.evaluation.state import CandidateState
from headway_coordinator.faults import Cause

TOOL = Cause("ToolFailed", "the tool refund raised KeyError", "spec.environment.entrypoint")
ROWS = 4 * LOST_LIMIT


def fails_by(
    evaluation: Evaluation, job: EvalJob, cause: Cause | None, fails: Callable[[Task], bool]
) -> None:
    """Let the episodes for which `fails` is True fail, with `cause` as the recorded cause if there is one."""

    def one(task: Task) -> bool:
        if (failed := fails(task)) and cause is not None:
            evaluation.faults.note(task.episode_id, cause)
        return failed

    job.fails = one


def is_of(name: str) -> Callable[[Task], bool]:
    """A predicate that is True for the episodes of candidate `name`."""
    return lambda task: task.group_id.startswith(f"e-{name}-")


def states(evaluation: Evaluation) -> tuple[CandidateState, CandidateState]:
    return evaluation.state.candidates["base"], evaluation.state.candidates["tuned"]


async def ending(evaluation: Evaluation, job: EvalJob, *sets: int) -> JobError:
    """Run a job whose candidates use these server sets, a shared one or one each.

    Returns the error that ends it.
    """
    members = NAMES[len(sets)]
    units = [job.unit(*names, server_set=at) for names, at in zip(members, sets, strict=True)]
    with pytest.raises(ExceptionGroup) as raised:
        await evaluation.run(units)
    error = job_error(raised.value)
    assert error is not None
    return error


NAMES = {1: [("base", "tuned")], 2: [("base",), ("tuned",)]}


@pytest.mark.parametrize("cause", [None, TOOL])
async def test_the_first_candidate_that_fails_leaves_others_measured(
    tmp_path: Path, cause: Cause | None
) -> None:
    rows = 2 * (2 * LOST_LIMIT + 4 * WRITING)
    job = EvalJob(tmp_path, rows=rows)
    evaluation = await job.coordinator()
    fails_by(evaluation, job, cause, is_of("base"))
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    base, tuned = states(evaluation)
    assert (tuned.stage, len(tuned.tries)) == ("Complete", rows)
    assert (base.stage, base.reason) == ("Failed", "EpisodesFailing")
    assert "correct what only this candidate has" in str(base.message)
    assert len(base.tries) < rows, "it is given up, whatever was in flight"


@pytest.mark.parametrize("cause", [None, TOOL])
async def test_candidate_that_is_put_off_is_measured_in_the_end(tmp_path: Path, cause: Cause | None) -> None:
    """The cause of the failures is gone by then, and no episode of the candidate runs twice."""
    job = EvalJob(tmp_path, rows=ROWS)
    evaluation = await job.coordinator()
    base, tuned = states(evaluation)
    fails_by(evaluation, job, cause, lambda task: not base.was_put_off)
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert {base.stage, tuned.stage} == {"Complete"}
    assert base.was_put_off
    assert base.message is None
    assert len(base.tries) == len(tuned.tries) == ROWS
    assert len({task.episode_id for task in job.tasks}) == len(job.tasks)


@pytest.mark.parametrize("sets", [(0,), (0, 1)])
async def test_one_cause_for_all_candidates_ends_the_job(tmp_path: Path, sets: tuple[int, ...]) -> None:
    job = EvalJob(tmp_path, rows=ROWS)
    evaluation = await job.coordinator()
    fails_by(evaluation, job, TOOL, lambda task: True)
    error = await ending(evaluation, job, *sets)
    assert error.permanent
    assert error.termination.reason == "ToolFailed"
    assert error.termination.field == TOOL.field
    assert len(job.tasks) < 2 * (FATAL_CAUSE_EPISODES + 4 * job.spec.rollout.max_concurrency)


@pytest.mark.parametrize("sets", [(0,), (0, 1)])
async def test_lost_rows_of_all_candidates_end_the_process(tmp_path: Path, sets: tuple[int, ...]) -> None:
    job = EvalJob(tmp_path, rows=ROWS)
    evaluation = await job.coordinator()
    fails_by(evaluation, job, None, lambda task: True)
    error = await ending(evaluation, job, *sets)
    assert (error.permanent, error.termination.reason) == (False, "EpisodesFailing")


async def test_a_failure_before_the_first_turn_ends_the_job_at_once(tmp_path: Path) -> None:
    """No candidate has taken a turn, so the others would fail too."""
    job = EvalJob(tmp_path, rows=ROWS)
    job.turns = 0
    evaluation = await job.coordinator()
    fails_by(evaluation, job, TOOL, lambda task: True)
    error = await ending(evaluation, job, 0, 1)
    assert (error.permanent, error.termination.reason) == (True, "ToolFailed")
    assert not any(map(is_of("tuned"), job.tasks))


async def test_another_failure_before_the_first_turn_ends_no_job(tmp_path: Path) -> None:
    """For example, a sandbox is lost during a reset, while the cause of another candidate is fatal."""
    job = EvalJob(tmp_path, rows=ROWS)
    evaluation = await job.coordinator()
    base, tuned = states(evaluation)
    lost: list[str] = []

    def fails(task: Task) -> bool:
        first = is_of("tuned")(task) and not lost
        job.turns = 0 if first else 2
        if first:
            lost.append(task.episode_id)
        elif is_of("base")(task):
            evaluation.faults.note(task.episode_id, TOOL)
        return first or is_of("base")(task)

    job.fails = fails
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert lost
    assert (tuned.stage, base.stage, base.was_put_off) == ("Complete", "Failed", True)


@pytest.mark.parametrize("reason", ["AgentFailed", "AgentHangs"])
async def test_an_agent_that_waits_for_its_first_turn_is_put_off(tmp_path: Path, reason: str) -> None:
    """The candidate's model may not answer, or its chat template may refuse the first request."""
    job = EvalJob(tmp_path, rows=ROWS)
    job.turns = 0
    evaluation = await job.coordinator()
    cause = Cause(reason, "the agent failed: exit status 1", "spec.agent.sandboxed")
    fails_by(evaluation, job, cause, is_of("base"))
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    base, tuned = states(evaluation)
    assert (tuned.stage, base.stage, base.was_put_off) == ("Complete", "Failed", True)


async def test_rows_lost_before_it_was_put_off_do_not_count_again(tmp_path: Path) -> None:
    """Rows that were in flight when the candidate was put off do not count again either."""
    job = EvalJob(tmp_path, rows=100)
    evaluation = await job.coordinator()
    base, tuned = states(evaluation)
    again: set[str] = set()

    def fails(task: Task) -> bool:
        if is_of("base")(task) and tuned.stage == "Complete":
            again.add(task.group_id)
            return len(again) == 1
        return is_of("base")(task)

    job.fails = fails
    await evaluation.run([job.unit("base", server_set=0, places=64), job.unit("tuned", server_set=1)])
    assert again
    assert (base.stage, len(base.tries), base.was_put_off) == ("Complete", 100, True)


async def test_last_row_of_a_complete_candidate_proves_nothing(tmp_path: Path) -> None:
    """The complete candidate lost that row long ago, so the failing candidate fails alone."""
    job = EvalJob(tmp_path, rows=ROWS)
    evaluation = await job.coordinator()
    job.fails = lambda task: is_of("base")(task) or position_of(task.group_id) == ROWS - 1
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    base, tuned = states(evaluation)
    assert tuned.stage == "Complete"
    assert (base.stage, base.reason) == ("Failed", "EpisodesFailing")


async def test_few_rows_that_all_fail_are_retried(tmp_path: Path) -> None:
    """They are fewer than `LOST_LIMIT`, but no candidate is at fault."""
    job = EvalJob(tmp_path, rows=3)
    evaluation = await job.coordinator()
    job.fails = lambda task: True
    with pytest.raises(JobError) as raised:
        await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert (raised.value.permanent, raised.value.termination.reason) == (False, "EpisodesFailing")
    assert raised.value.termination.message.endswith("no candidate has a scored row; the last error: lost")
    again = await job.coordinator()
    job.fails = lambda task: False
    await again.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert {candidate.stage for candidate in states(again)} == {"Complete"}


async def test_few_rows_that_all_fail_by_one_cause_end_the_job(tmp_path: Path) -> None:
    job = EvalJob(tmp_path, rows=2)
    evaluation = await job.coordinator()
    fails_by(evaluation, job, TOOL, lambda task: True)
    with pytest.raises(JobError) as raised:
        await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert raised.value.permanent
    assert (raised.value.termination.reason, raised.value.termination.field) == ("ToolFailed", TOOL.field)


async def test_one_cause_of_endpoints_with_few_rows_ends_the_job(tmp_path: Path) -> None:
    job = EvalJob(tmp_path, rows=2)
    evaluation = await job.coordinator()
    fails_by(evaluation, job, TOOL, lambda task: True)
    with pytest.raises(JobError) as raised:
        await evaluation.run([job.unit("base"), job.unit("tuned")])
    assert (raised.value.permanent, raised.value.termination.reason) == (True, "ToolFailed")


@pytest.mark.parametrize("field", ["spec.environment.sandbox.resources", "spec.agent.http"])
async def test_endpoint_is_not_blamed_for_a_known_cause(tmp_path: Path, field: str) -> None:
    """The cause can be repaired without changing the job, so the process ends for a retry."""
    job = EvalJob(tmp_path, rows=ROWS)
    evaluation = await job.coordinator()
    cause = Cause("SandboxLost", "the sandbox was lost while tool refund ran", field)
    fails_by(evaluation, job, cause, lambda task: True)
    with pytest.raises(ExceptionGroup) as raised:
        await evaluation.run([job.unit("base"), job.unit("tuned")])
    error = job_error(raised.value)
    assert error is not None
    assert (error.permanent, error.termination.reason) == (False, "EpisodesFailing")
    assert not [one for one in states(evaluation) if one.reason == "EndpointFailing"]


async def test_lost_rows_do_not_count_as_lost_samples(tmp_path: Path) -> None:
    """A suite fails only if eight of its own samples are lost."""
    one = {"name": "sums", "image": "i", "task": "t.py@t", "limit": 2 * LOST_LIMIT, "epochs": 1}
    job = EvalJob(tmp_path, spec(suites=[one]), rows=2 * LOST_LIMIT)
    evaluation = await job.coordinator()
    own = range(LOST_LIMIT + 1, 2 * LOST_LIMIT)
    lost = {*own, 2 * LOST_LIMIT}
    job.fails = lambda task: position_of(task.group_id) in lost
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert len(own) == LOST_LIMIT - 1
    assert {candidate.stage for candidate in states(evaluation)} == {"Complete"}


async def test_endpoints_with_few_rows_fail_alone(tmp_path: Path) -> None:
    """The job ends with its results, because a restart would only ask the same endpoints again."""
    job = EvalJob(tmp_path, rows=3)
    evaluation = await job.coordinator()
    job.fails = lambda task: True
    await evaluation.run([job.unit("base"), job.unit("tuned")])
    assert [(one.stage, one.reason) for one in states(evaluation)] == [("Failed", "EpisodesFailing")] * 2


@pytest.mark.parametrize("cause", [None, TOOL])
async def test_a_candidate_without_a_scored_row_has_failed(tmp_path: Path, cause: Cause | None) -> None:
    """It has failed even if it has fewer rows than `LOST_LIMIT`."""
    job = EvalJob(tmp_path, spec(rollout={"maxConcurrency": 4, "maxRetries": 1}), rows=3)
    evaluation = await job.coordinator()
    fails_by(evaluation, job, cause, is_of("base"))
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    base, tuned = states(evaluation)
    assert tuned.stage == "Complete"
    assert (base.stage, base.reason) == ("Failed", "EpisodesFailing")
    assert "spec.candidates[base]: no row was scored" in str(base.message)
    assert str(base.message).endswith("the last error: lost")
