"""Recurring faults of environment and agent: which are the same, what is shown, when a job gives up."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_rig import Job, spec

from headway_api.conditions import Condition, ConditionType, find
from headway_api.exits import JobError, job_error
from headway_api.sandbox_api import PoolState
from headway_coordinator.engines.router import Endpoint, Router
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.projections import healthy as of_evaluation
from headway_coordinator.faults import Cause
from headway_coordinator.recurring import CLEAR_AFTER, RAISED, Recurring, alike, given_up, rounded
from headway_coordinator.signals import healthy
from headway_coordinator.stall import blocker
from headway_sandbox.faults import fault

ENTRYPOINT = "spec.environment.entrypoint"


def raises(value: object) -> None:
    raise KeyError(value)


def elsewhere(value: object) -> None:
    raise KeyError(value)


def cause_of(where: str, call: object, value: object) -> Cause:
    """The cause that a sandbox reports for a method that raised."""
    assert callable(call)
    try:
        call(value)
    except KeyError as error:
        problem = fault("ToolFailed", where, error).problem
    return Cause(str(problem["reason"]), str(problem["message"]), str(problem["field"]))


def hangs(tool: str, line: int = 7) -> Cause:
    text = f"tool {tool} has not returned by the end of the episode's time: /env/env.py:{line} in {tool}"
    return Cause("EnvironmentHangs", text, ENTRYPOINT)


TOOL = cause_of("tool look_up", raises, 1)


def after(*ends: Cause | None, at_once: int = 1) -> Recurring:
    """The state after episodes that ended with these causes, one after the other.

    None is an episode with a reward.
    """
    found = Recurring()
    for number, cause in enumerate(ends):
        if cause is not None:
            found.note(f"e{number}", cause)
        found.ended(f"e{number}", scored=cause is None, at_once=at_once)
    return found


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (TOOL, cause_of("tool look_up", raises, 2), True),
        (TOOL, cause_of("tool look_up", elsewhere, 1), False),
        (TOOL, cause_of("tool pay", raises, 1), False),
        (hangs("pay"), hangs("pay", line=8), True),
        (hangs("pay"), hangs("look_up"), False),
        (Cause("AgentFailed", "exit 1 at 12:01", None), Cause("AgentFailed", "exit 1 at 12:02", None), True),
        (Cause("AgentFailed", "no key", None), Cause("AgentFailed", "no module", None), False),
    ],
)
def test_faults_with_the_same_repair_count_as_one(one: Cause, other: Cause, same: bool) -> None:
    assert (alike(one) == alike(other)) is same


def test_a_fault_is_reported_once_it_recurs() -> None:
    assert after(TOOL, None, TOOL).standing == []
    [found] = after(TOOL, None, TOOL, None, cause_of("tool look_up", raises, 9)).standing
    assert found.count == RAISED
    assert found.words.startswith(f"{ENTRYPOINT}: tool look_up raised KeyError: 9 (")
    assert f"{__file__}:" in found.words
    assert found.words.endswith("It has ended 2 episodes or more")


def test_a_recurring_fault_is_cleared_once_it_has_stopped() -> None:
    ends = [TOOL] * RAISED + [None] * (CLEAR_AFTER - 1)
    assert after(*ends).standing
    assert not after(*ends, None).standing


def test_a_recurring_faults_count_is_shown_rounded() -> None:
    counts = [1, 2, 4, 5, 19, 20, 99, 100, 4999]
    assert [rounded(count) for count in counts] == [1, 2, 2, 5, 10, 20, 50, 100, 2000]
    found = Recurring()
    changes = 0
    for number in range(100):
        found.note(str(number), TOOL)
        changes += found.ended(str(number), scored=False)
    assert changes == 6, "at 3, 5, 10, 20, 50 and 100"


def test_the_fault_that_ends_most_episodes_is_listed_first() -> None:
    found = after(*[hangs("pay")] * 3, *[TOOL] * 4).standing
    assert [each.cause.reason for each in found] == ["ToolFailed", "EnvironmentHangs"]


@pytest.mark.parametrize(
    ("ends", "at_once", "gives_up"),
    [
        ([TOOL] * 11, 1, False),
        ([TOOL] * 12, 1, True),
        ([TOOL] * 12, 8, False),
        ([TOOL] * 16, 8, True),
        ([None, *[TOOL] * 50], 1, False),
        ([hangs("pay"), hangs("look_up"), TOOL] * 4, 1, True),
        ([Cause("AgentFailed", "no key", "spec.agent.http")] * 50, 1, False),
        ([Cause("AgentFailed", "no key", "spec.agent.sandboxed.command")] * 12, 1, True),
        ([Cause("RewardFailed", "x", "spec.suites[arc].image")] * 50, 1, False),
    ],
)
def test_a_job_without_a_success_gives_up_in_the_end(
    ends: list[Cause | None], at_once: int, gives_up: bool
) -> None:
    assert (after(*ends, at_once=at_once).fatal_cause is not None) is gives_up


@pytest.mark.parametrize("begun", [False, True])
def test_giving_up_is_permanent_unless_the_job_had_begun(begun: bool) -> None:
    [found] = after(*[TOOL] * 12).standing
    error = given_up(found, begun=begun)
    assert error.permanent is not begun
    assert (error.termination.reason, error.termination.field) == ("ToolFailed", ENTRYPOINT)
    assert "It ended 12 episodes, and no episode was scored" in error.termination.message


def test_the_condition_reports_a_fault_and_its_end() -> None:
    ends = [TOOL] * RAISED
    condition = healthy([], after(*ends).standing)
    assert (condition.type, condition.status, condition.reason) == ("Healthy", "False", "EpisodesFailing")
    assert condition.message.startswith(f"{ENTRYPOINT}: tool look_up raised KeyError")
    assert healthy([], after(*ends, *[None] * CLEAR_AFTER).standing).status == "Unknown"


def test_an_evaluation_has_the_condition_once_a_fault_recurs() -> None:
    conditions: list[Condition] = []
    assert of_evaluation(conditions, []) == []
    conditions = of_evaluation(conditions, after(*[TOOL] * RAISED).standing)
    assert conditions[0].reason == "EpisodesFailing"
    assert of_evaluation(conditions, [])[0].status == "True"


def failing(job: Job, which: str = "") -> list[str]:
    """Let a job's episodes fail by a tool.

    Returns a list to which each change of the condition adds its reason.
    """
    reasons: list[str] = []
    job.fails = lambda task: task.group_id.startswith(which)
    training: list[object] = []

    async def episode(task: Task) -> object:
        record = await Job.episode(job, task)
        if record.reward is None:
            training[0].faults.note(record.episode_id, TOOL)  # type: ignore[attr-defined]
        return record

    job.episode = episode  # type: ignore[method-assign, assignment]
    job.on_change = lambda: reasons.append(healthy([], training[0].faults.standing).reason)  # type: ignore[attr-defined]
    job.known = training  # type: ignore[attr-defined]
    return reasons


async def test_a_tool_that_always_fails_ends_the_job_permanently(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(), rows=40)
    reasons = failing(job)
    async with job.coordinator() as (training, learner, running):
        job.known.append(training)  # type: ignore[attr-defined]
        await training.report(learner.commit(0, []))
        with pytest.raises(ExceptionGroup) as raised:
            await running
    error = job_error(raised.value)
    assert isinstance(error, JobError)
    assert error.permanent
    assert error.termination.reason == "ToolFailed"
    assert "EpisodesFailing" in reasons
    assert len(job.tasks) < 100


async def test_a_stall_names_the_tool(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.pause = lambda task: 1000.0
    router = Router()
    async with job.coordinator() as (training, learner, _):
        await training.report(learner.commit(0, []))
        endpoint = Endpoint("http://a", "http://a:1")
        router.wanted = training.state.reports[-1].version
        router.discovered([endpoint])
        router.holds(endpoint, router.wanted)
        for number in range(RAISED):
            training.faults.note(str(number), hangs("pay"))
            training.faults.ended(str(number), scored=False)
        found = blocker(training, router, PoolState(ready=0, starting=0, leased=2), 600.0)
    assert "tool pay has not returned" in found.words
    assert found.patience > 600


def test_a_healthy_condition_that_a_predecessor_left_is_found() -> None:
    [condition] = of_evaluation([], after(*[TOOL] * RAISED).standing)
    assert find([condition], ConditionType.HEALTHY) is condition
