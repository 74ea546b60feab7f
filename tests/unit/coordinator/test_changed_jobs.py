"""Changes to a running job: what each remedy does to groups, steps and bill, even if a process dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_rig import Job, manifest
from played_jobs import a_small_spec, acting
from scripted_learner import ScriptedLearner
from watched import a_signal

from headway_analysis.billing.segments import total
from headway_analysis.signals.definition import Level, Reading, Signal
from headway_analysis.signals.history import History
from headway_api.decisions import Decision
from headway_api.exits import JobError
from headway_api.in_force import Directive, InForce
from headway_api.records import Batch, EpisodeRecord, GroupRecord, Purpose, StepReport
from headway_api.signals import SignalName as S
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.trust import RemedyName
from headway_coordinator.bounds import StepConflictError, oldest_step
from headway_coordinator.dataset import position_of
from headway_coordinator.episode import Task
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.scheduler.choice import CHOICES, Order
from headway_coordinator.spool import decode
from headway_coordinator.training import Training


def groups_of(job: Job) -> list[GroupRecord]:
    return [decode(job.store.get(uri)) for uri in job.store.list(job.layout.train_groups)]


def reports_of(job: Job) -> list[StepReport]:
    uris = sorted(job.store.list(job.layout.step_histories))
    return [StepReport.model_validate_json(job.store.get(uri)) for uri in uris]


def decisions_of(job: Job) -> list[Decision]:
    uris = [
        u for u in sorted(job.store.list(job.layout.remedies)) if u.count("-kept") + u.count("orders") == 0
    ]
    return [Decision.model_validate_json(job.store.get(uri)) for uri in uris]


def decided_elsewhere(
    job: Job, step: int, remedy: RemedyName, restore: Sequence[int] = (), **in_force: int
) -> Decision:
    """Store the job's first decision, as another coordinator would write it."""
    found = Decision(
        number=1,
        step=step,
        directive=Directive(remedy=remedy, restore=[*restore]),
        in_force=InForce.model_validate({"number": 1, **in_force}),
        why="because",
    )
    job.store.put(job.layout.remedy(1), found.model_dump_json().encode())
    return found


def held(job: Job) -> None:
    """Check what must be true of any job, whatever was changed and whichever process died."""
    reports, groups = reports_of(job), {group.group_id: group for group in groups_of(job)}
    trained = [group for report in reports for group in report.groups]
    assert len(trained) == len(set(trained)), "each group once"
    gone = {name for name, group in groups.items() if group.abandoned is not None}
    assert not gone & set(trained), "trained or given up"
    for report in reports:
        for name in report.groups:
            oldest = oldest_step(groups[name])
            assert oldest is not None
            between = [r for r in reports if oldest < r.step < report.step]
            with_gradient = [r for r in between if r.directive is None]
            assert len(with_gradient) <= bound_at(job, report), "as old as is allowed at that step"
            assert not any(r.restored is not None for r in between), "of a policy that is gone"
    numbers = [decision.number for decision in decisions_of(job)]
    assert numbers == [*range(1, len(numbers) + 1)], "none is skipped"
    done = [report.in_force.number for report in reports]
    assert done == sorted(done)
    rebuilt = Ledger(job.store, job.layout)
    rebuilt.load()
    assert total(rebuilt.days) == total(job.ledger.days) == job.recounted()


def bound_at(job: Job, report: StepReport) -> int:
    bound = report.in_force.max_steps_off_policy
    return job.spec.algorithm.max_steps_off_policy if bound is None else bound


async def ordered(
    job: Job, order: str, *, at: int = 3, on: Callable[[ScriptedLearner], None] = lambda learner: None
) -> tuple[Training, ScriptedLearner]:
    """Run a whole job, to which a person orders a change before step `at` + 1."""
    async with job.coordinator() as (training, learner, running):
        on(learner)
        await learner.run(steps=at)
        training.remedies.order = order
        await asyncio.gather(learner.run(), running)
    return training, learner


@pytest.mark.parametrize("sampler", CHOICES)
async def test_groups_too_old_for_the_on_policy_remedy_are_given_up(tmp_path: Path, sampler: Order) -> None:
    job = Job(tmp_path, a_small_spec(sampler=sampler))
    job.pause = lambda task: 0.002 * (task.sampling_seed % 7)
    training, learner = await ordered(job, "OnPolicy")
    assert [report.step for report in reports_of(job) if report.directive] == [4]
    assert training.state.in_force == InForce(number=1, max_steps_off_policy=0)
    assert training.scheduler.slots == 2
    assert set(training.state.abandoned) <= {"TooOld", "NoStepLeft"}
    assert training.state.abandoned["TooOld"] > 0
    assert [batch.step for batch in learner.batches] == [*range(1, 9)]
    assert training.state.finished == "MaxSteps"
    held(job)


async def test_a_remedy_is_one_of_the_jobs_steps(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec(steps=6))
    training, learner = await ordered(job, "ReferenceKl")
    assert [len(batch.groups) for batch in learner.batches] == [2, 2, 2, 0, 2, 2]
    assert training.state.step == 6
    assert training.state.idle == [4]
    assert [batch.in_force.number for batch in learner.batches] == [0, 0, 0, 1, 1, 1]
    assert training.state.abandoned == {"NoStepLeft": 2}, "those of the step that trained nothing"
    held(job)


async def test_learner_only_change_loses_no_group(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec(steps=12, sampler="in_order"))
    training, learner = await ordered(job, "LowerLearningRate", at=4)
    trained = [group.group_id for batch in learner.batches for group in batch.groups]
    assert [position_of(name) for name in trained] == [*range(22)]
    assert training.state.in_force.learning_rate == 1.3e-5


@pytest.mark.parametrize("sampler", CHOICES)
async def test_groups_sampled_before_a_rollback_are_not_trained(tmp_path: Path, sampler: Order) -> None:
    job = Job(tmp_path, a_small_spec(sampler=sampler), rows=20)
    job.pause = lambda task: 0.002 * (task.sampling_seed % 7)
    training, learner = await ordered(job, "RollBack")
    [change] = [report for report in reports_of(job) if report.directive]
    best = training.state.validated
    assert (change.step, change.restored) == (4, next(step for step in best if step < 4))
    after = [group for batch in learner.batches if batch.step > 4 for group in batch.groups]
    assert all((oldest_step(group) or 0) >= 4 for group in after)
    rolled_back = [g for g in groups_of(job) if g.abandoned and g.abandoned.reason == "RolledBack"]
    assert rolled_back
    assert all((oldest_step(group) or 0) < 4 for group in rolled_back)
    assert training.state.abandoned["RolledBack"] == len(rolled_back)
    assert training.state.discarded["RolledBack"] > 0
    held(job)


async def test_no_group_begins_between_a_rollbacks_decision_and_step(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec(), rows=20)
    async with job.coordinator() as (training, learner, _), aiohttp.ClientSession() as http:
        await learner.run(steps=3)
        training.remedies.order = "RollBack"
        found = await learner.take(http, 4)
        assert isinstance(found, Batch)
        assert found.directive is not None
        before = {task.group_id for task in job.tasks}
        await asyncio.sleep(0.1)
        assert {task.group_id for task in job.tasks} == before
        assert training.batch_ready, "it is the learner's turn"
        await learner.announce(http, learner.commit(4, [], **learner.does(found)))
        async with asyncio.timeout(5):
            while {task.group_id for task in job.tasks} == before:
                await asyncio.sleep(0.01)


async def test_rollback_ends_all_running_groups(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec(sampler="ready_first"), rows=40)
    job.pause = lambda task: 1000.0 if position_of(task.group_id) in (4, 5) and "t" in task.group_id else 0.0
    training, _ = await ordered(job, "RollBack", at=2)
    stuck = {g.group_id: g for g in groups_of(job) if position_of(g.group_id) in (4, 5)}
    assert {g.abandoned.reason for g in stuck.values() if g.abandoned} == {"RolledBack"}
    assert training.scheduler.leaving == set()
    assert training.state.finished == "MaxSteps"
    held(job)


async def test_new_groups_are_smaller_and_earlier_ones_are_trained(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec(steps=14, sampler="in_order"), rows=40)
    _, learner = await ordered(job, "SmallerGroups")
    sizes = [len(group.episodes) for batch in learner.batches for group in batch.groups]
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes) == {4, 2}
    assert [len(batch.groups) for batch in learner.batches if batch.step != 4] == [2] * 13
    held(job)


@pytest.mark.parametrize("sampler", CHOICES)
async def test_batches_are_twice_as_large_after_the_remedy(tmp_path: Path, sampler: Order) -> None:
    job = Job(tmp_path, a_small_spec(sampler=sampler), rows=20)
    training, learner = await ordered(job, "LargerBatch")
    assert [len(batch.groups) for batch in learner.batches] == [2, 2, 2, 0, 4, 4, 4, 4]
    assert training.scheduler.slots == 12
    assert training.epochs_done == 1
    held(job)


@pytest.mark.parametrize("sampler", CHOICES)
async def test_a_batch_that_shrinks_again_leaves_nothing_too_old(tmp_path: Path, sampler: Order) -> None:
    job = Job(tmp_path, a_small_spec(steps=12, sampler=sampler), rows=40)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=3)
        training.remedies.order = "LargerBatch"
        await learner.run(steps=3)
        training.remedies.order = "Undo"
        await asyncio.gather(learner.run(), running)
    assert [len(batch.groups) for batch in learner.batches] == [2, 2, 2, 0, 4, 4, 0, 2, 2, 2, 2, 2]
    assert training.scheduler.slots == 6
    assert training.state.in_force == InForce(number=2)
    held(job)


async def test_a_job_near_the_end_of_its_data_counts_remaining_steps(tmp_path: Path) -> None:
    of = a_small_spec(steps=40)
    once = of.schedule.model_copy(update={"max_epochs": 1})
    job = Job(tmp_path, of.model_copy(update={"schedule": once}), rows=20)
    async with job.coordinator() as (training, learner, running):
        assert training.steps == 10
        await learner.run(steps=3)
        training.remedies.order = "LargerBatch"
        await learner.run(steps=1)
        assert training.steps == 4 + 14 // 4
        await asyncio.gather(learner.run(), running)
    assert training.state.finished == "MaxEpochs"
    assert [len(batch.groups) for batch in learner.batches] == [2, 2, 2, 0, 4, 4, 4]
    held(job)


def one_epoch() -> RLTrainingJobSpec:
    of = a_small_spec(steps=40, batchSize=1)
    return of.model_copy(update={"schedule": of.schedule.model_copy(update={"max_epochs": 1})})


async def test_job_with_last_groups_failed_waits_for_learners_change(
    tmp_path: Path,
) -> None:
    """Otherwise the job would end too early, and would test and export weights that are not its last."""
    job, plain, lost = Job(tmp_path, one_epoch(), rows=6), Job.episode, asyncio.Event()

    async def episode(task: Task) -> EpisodeRecord:
        if task.purpose is Purpose.TRAIN and position_of(task.group_id) >= 4:
            await lost.wait()
        return await plain(job, task)

    job.episode = episode  # type: ignore[method-assign]
    job.fails = lambda task: lost.is_set() and task.purpose is Purpose.TRAIN
    async with job.coordinator() as (training, learner, running), aiohttp.ClientSession() as http:
        await learner.run(steps=4)
        training.remedies.order = "RollBack"
        found = await learner.take(http, 5)
        assert isinstance(found, Batch)
        lost.set()
        async with asyncio.timeout(5):
            while not training.scheduler.done:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert training.state.finished is None
        await learner.announce(http, learner.commit(5, [], **learner.does(found)))
        await asyncio.gather(learner.run(), running)
    assert (training.state.step, training.state.finished) == (5, "MaxEpochs")
    assert 5 in training.state.evaluations, "what it went back to is judged"
    held(job)


async def test_a_change_that_uses_up_the_data_is_redone_on_resume(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, one_epoch(), rows=6)
    async with job.coordinator() as (training, learner, _):
        await learner.run(steps=3)
        training.remedies.order = "RollBack"
        await learner.run(steps=1)
        assert training.scheduler.left == 0, "what waited is given up"
    rolled_back(job, to=2)
    async with job.coordinator() as (training, learner, running):
        learner._publish = lambda step: manifest(step, incarnation=1)
        await asyncio.gather(learner.run(), running)
    assert (training.state.step, training.state.finished) == (4, "MaxEpochs")
    assert [entry.step for entry in training.remedies.course.entries] == [4]
    assert total(job.ledger.days) == job.recounted()


async def test_change_the_learner_refuses_has_no_effect_and_no_retry(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec())

    def refuse(learner: ScriptedLearner) -> None:
        learner.refuses = lambda directive: True

    training, learner = await ordered(job, "OnPolicy", on=refuse)
    assert [report.step for report in reports_of(job) if report.refused] == [4]
    assert training.state.in_force == InForce()
    assert training.scheduler.slots == 6
    [entry] = training.remedies.course.entries
    assert (entry.state, entry.why) == ("Refused", "NotApplicable: it was told to refuse")
    assert [len(batch.groups) for batch in learner.batches] == [2, 2, 2, 0, 2, 2, 2, 2]
    held(job)


async def test_an_order_runs_once_even_if_the_annotation_remains(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec(steps=12))
    async with job.coordinator() as (training, learner, _):
        training.remedies.order = "SmallerGroups"
        await learner.run(steps=4)
        assert [d.order for d in decisions_of(job)] == ["SmallerGroups"]
    async with job.coordinator() as (training, learner, running):
        training.remedies.order = "SmallerGroups"
        await learner.run(steps=2)
        training.remedies.order = "SmallerGroups@2"
        await learner.run(steps=2)
        training.remedies.order = None
        await asyncio.gather(learner.run(), running)
    assert [d.order for d in decisions_of(job)] == ["SmallerGroups"]
    refused = training.remedies.refused("SmallerGroups@2")
    assert refused is not None
    assert "groupSize is 2" in refused.why
    held(job)


async def test_a_refused_order_stays_refused(tmp_path: Path) -> None:
    """A restart does not carry out a refused order, even if it would apply by then."""
    job = Job(tmp_path, a_small_spec())
    async with job.coordinator() as (training, learner, _):
        training.remedies.order = "RollBack"
        await learner.run(steps=1)
        assert training.remedies.refused("RollBack") is not None
    async with job.coordinator() as (training, learner, running):
        training.remedies.order = "RollBack"
        await asyncio.gather(learner.run(), running)
    assert decisions_of(job) == []


async def test_an_empty_step_without_a_decision_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec())
    async with job.coordinator() as (training, learner, _), aiohttp.ClientSession() as http:
        await learner.run(steps=3)
        training.remedies.order = "OnPolicy"
        found = await learner.take(http, 4)
        assert isinstance(found, Batch)
        fields = learner.does(found) | {"directive": Directive(remedy="OnPolicy", restore=[0])}
        with pytest.raises(StepConflictError, match="was not decided"):
            await training.report(learner.commit(4, [], **fields))
    async with Job(tmp_path / "other", a_small_spec()).coordinator() as (training, learner, _):
        await learner.run(steps=3)
        with pytest.raises(StepConflictError, match="was not decided"):
            await training.report(learner.commit(4, [], **fields))


# Processes die. Each new coordinator receives the order again, because the annotation remains.


async def asked(job: Job, order: str) -> Batch:
    """A coordinator decides on the change, and dies before the learner does anything."""
    async with job.coordinator() as (training, learner, _), aiohttp.ClientSession() as http:
        training.remedies.order = order
        found = await learner.take(http, 4)
        assert isinstance(found, Batch)
        return found


async def begun(job: Job) -> None:
    async with job.coordinator() as (_, learner, _):
        await learner.run(steps=3)


async def recorded(job: Job, order: str) -> None:
    """The learner makes the change and stores its report, but no coordinator receives the report."""
    found = await asked(job, order)
    learner = job.learner("http://nowhere")
    learner.resume()
    learner.commit(found.step, [], **learner.does(found))


async def heard(job: Job, order: str) -> None:
    """A coordinator receives the learner's report of the change, and then dies."""
    async with job.coordinator() as (training, learner, _):
        training.remedies.order = order
        await learner.run(steps=1)


async def heard_in_part(job: Job, order: str) -> None:
    """A coordinator dies after it has given up one of several groups."""
    async with job.coordinator() as (training, learner, _):
        training.remedies.order = order
        plain, given = training._durable.give_up, []

        async def give_up(group: GroupRecord, why: Any) -> GroupRecord:
            if given:
                raise asyncio.CancelledError
            given.append(group)
            return await plain(group, why)

        training._durable.give_up = give_up  # type: ignore[method-assign]
        taking = asyncio.create_task(learner.run(steps=1))
        await asyncio.wait([taking], timeout=5)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


ORDERS: list[tuple[str, Order]] = [
    ("OnPolicy", "windowed"),
    ("OnPolicy", "ready_first"),
    ("RollBack", "in_order"),
    ("RollBack", "windowed"),
    ("LargerBatch", "ready_first"),
    ("LargerBatch", "in_order"),
    ("SmallerGroups", "windowed"),
]
DEATHS: list[Callable[[Job, str], Any]] = [asked, recorded, heard, heard_in_part]


@pytest.mark.parametrize(("order", "sampler"), ORDERS)
@pytest.mark.parametrize("death", DEATHS)
async def test_the_change_is_made_once_whichever_process_dies(
    tmp_path: Path, death: Callable[[Job, str], Any], order: str, sampler: Order
) -> None:
    job = Job(tmp_path, a_small_spec(sampler=sampler), rows=20)
    await begun(job)
    for _ in range(2 if death is asked else 1):
        await death(job, order)
    async with job.coordinator() as (training, learner, running):
        training.remedies.order = order
        await asyncio.gather(learner.run(), running)
    [decision] = decisions_of(job)
    assert (decision.number, decision.step, decision.order) == (1, 4, order)
    assert [report.step for report in reports_of(job) if report.directive] == [4]
    assert training.state.in_force == decision.in_force
    assert training.state.step == 8
    held(job)


@pytest.mark.parametrize(("order", "sampler"), ORDERS)
async def test_a_learner_that_resumes_before_the_change_makes_it_again(
    tmp_path: Path, order: str, sampler: Order
) -> None:
    """Steps 4 (the change), 5 and 6 are not durable, so the learner takes them again in the same way."""
    job = Job(tmp_path, a_small_spec(steps=9, sampler=sampler), rows=40)
    await begun(job)
    async with job.coordinator() as (training, learner, _):
        training.remedies.order = order
        await learner.run(steps=3)
        first = {batch.step: batch for batch in learner.batches}
    rolled_back(job, to=3)
    async with job.coordinator() as (training, learner, running):
        training.remedies.order = order
        assert (training.state.step, training.state.in_force.number) == (3, 0)
        learner._publish = lambda step: manifest(step, incarnation=1)
        await asyncio.gather(learner.run(), running)
    again = {batch.step: batch for batch in learner.batches}
    assert again[4].directive == first[4].directive
    assert again[4].in_force == first[4].in_force
    for step in (5, 6):
        assert [g.group_id for g in again[step].groups] == [g.group_id for g in first[step].groups]
    [decision] = decisions_of(job)
    assert (decision.number, decision.step) == (1, 4)
    assert training.state.step == 9
    trained = [group for report in reports_of(job) for group in report.groups]
    assert len(trained) == len(set(trained))
    assert total(job.ledger.days) == job.recounted()


async def test_a_group_without_tokens_stays_in_its_step(tmp_path: Path) -> None:
    """A group without tokens has no age, which would show whether it began before the rollback."""
    job, plain = Job(tmp_path, a_small_spec(steps=9, sampler="in_order"), rows=40), Job.episode

    async def episode(task: Task) -> EpisodeRecord:
        record = await plain(job, task)
        mute = task.purpose is Purpose.TRAIN and training.state.went_back
        return record.model_copy(update={"rows": [], "turns": []}) if mute and task.group_id < end else record

    job.episode, end = episode, "t0-000013"  # type: ignore[method-assign]
    async with job.coordinator() as (training, learner, _):
        await learner.run(steps=3)
        training.remedies.order = "RollBack"
        await learner.run(steps=3)
    before = {report.step: report.groups for report in reports_of(job)}
    assert min(before[5]) < end
    rolled_back(job, to=3)
    async with job.coordinator() as (training, learner, running):
        learner._publish = lambda step: manifest(step, incarnation=1)
        await asyncio.gather(learner.run(), running)
    after = {report.step: report.groups for report in reports_of(job)}
    assert [after[step] for step in (5, 6)] == [before[step] for step in (5, 6)]
    assert total(job.ledger.days) == job.recounted()


def rolled_back(job: Job, to: int) -> None:
    """Let the learner resume at an older step: store the step's report again, in a newer incarnation."""
    import json

    before = StepReport.model_validate_json(job.store.get(job.layout.checkpoint_report(to, 0)))
    weights = manifest(to, 1)
    resumed_at = before.model_copy(update={"version": weights.version, "weights": weights})
    job.store.put(job.layout.latest, json.dumps({"step": to}).encode())
    for uri in (job.layout.checkpoint_report(to, 0), job.layout.step_history(to)):
        job.store.put(uri, resumed_at.model_dump_json().encode())


async def test_two_coordinators_apply_the_same_decision(tmp_path: Path) -> None:
    """The older coordinator wrote its decision after the newer one had begun."""
    job = Job(tmp_path, a_small_spec())
    await begun(job)
    async with job.coordinator() as (newer, learner, running), aiohttp.ClientSession() as http:
        newer.remedies.order = "SmallerGroups"
        theirs = decided_elsewhere(job, 4, "OnPolicy", max_steps_off_policy=0)
        found = await learner.take(http, 4)
        assert isinstance(found, Batch)
        assert found.directive == theirs.directive, "what stands is done"
        await asyncio.gather(learner.run(), running)
    assert [(d.number, d.step, d.directive.remedy) for d in decisions_of(job)] == [
        (1, 4, "OnPolicy"),
        (2, 5, "SmallerGroups"),
    ]
    held(job)


async def test_a_decision_for_a_step_that_was_trained_has_no_effect(tmp_path: Path) -> None:
    job = Job(tmp_path, a_small_spec())
    await begun(job)
    decided_elsewhere(job, 2, "OnPolicy", max_steps_off_policy=0)
    async with job.coordinator() as (training, learner, running):
        training.remedies.order = "SmallerGroups"
        await asyncio.gather(learner.run(), running)
    assert training.state.in_force == InForce(number=2, group_size=2)
    held(job)


async def test_decided_later_rollback_leaves_prior_steps_their_groups(
    tmp_path: Path,
) -> None:
    """The older coordinator had already reached a later step when it wrote its decision."""
    job = Job(tmp_path, a_small_spec(steps=9), rows=40)
    await begun(job)
    decided_elsewhere(job, 7, "RollBack", restore=[0])
    job.patience = 20
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    assert [report.step for report in reports_of(job) if report.directive] == [7]
    assert training.state.finished == "MaxSteps"
    held(job)


async def test_a_decision_without_effect_has_none_in_a_repeat(tmp_path: Path) -> None:
    """The repeated step gets its earlier groups, which are trained and billed as part of it."""
    job = Job(tmp_path, a_small_spec(steps=9), rows=40)
    await begun(job)
    decided_elsewhere(job, 3, "OnPolicy", max_steps_off_policy=0)
    before = {report.step: report.groups for report in reports_of(job)}
    rolled_back(job, to=2)
    async with job.coordinator() as (training, learner, running):
        learner._publish = lambda step: manifest(step, incarnation=1)
        await asyncio.gather(learner.run(), running)
    assert [report.step for report in reports_of(job) if report.directive] == []
    assert {report.step: report.groups for report in reports_of(job)}[3] == before[3]
    assert training.state.finished == "MaxSteps"
    assert total(job.ledger.days) == job.recounted()


@pytest.mark.ci
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), beside=st.booleans(), sampler=st.sampled_from(list(CHOICES)))
def test_repeatedly_changed_job_survives_any_death(
    seed: int, beside: bool, sampler: Order, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asyncio.run(_survives(seed, tmp_path_factory.mktemp("job"), beside, sampler))


async def _survives(seed: int, folder: Path, beside: bool, sampler: Order) -> None:
    chance = random.Random(seed)
    job = Job(folder, a_small_spec(steps=14, sampler=sampler), rows=30, beside=beside)
    job.fails = lambda task: random.Random(task.episode_id).random() < 0.1
    job.pause = lambda task: chance.random() * 0.01
    names = ["OnPolicy", "SmallerGroups", "LargerBatch", "RollBack", "ReferenceKl", "Undo"]
    orders = [f"{chance.choice(names)}@{n}" for n in range(4)]
    refuses = {name for name in names if chance.random() < 0.2}
    for life in range(40):
        async with job.coordinator() as (training, learner, running):
            learner.refuses = lambda directive: directive.remedy in refuses
            alive = asyncio.gather(learner.run(), running)
            ends = None if life > 6 else asyncio.get_running_loop().time() + chance.random() * 0.4
            for moment in ticks(alive):
                training.remedies.order = chance.choice([None, *orders])
                await asyncio.wait([alive], timeout=0.02)
                if alive.done() or (ends is not None and asyncio.get_running_loop().time() > ends):
                    break
                assert moment < 3000
            if alive.done() and not isinstance(alive.exception(), JobError):
                alive.result()
                break
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)
    assert training.state.finished is not None
    assert [report.step for report in reports_of(job)] == [*range(training.state.step + 1)]
    ordered_once = [decision.order for decision in decisions_of(job)]
    assert len(ordered_once) == len(set(ordered_once))
    for earlier, later in pairwise(decisions_of(job)):
        assert earlier.step < later.step
    held(job)


def ticks(alive: asyncio.Future[Any]) -> Iterator[int]:
    moment = 0
    while not alive.done():
        yield moment
        moment += 1


# The job changes itself at a signal.


def collapse(over: Callable[[int], bool]) -> Signal:
    """A signal that is over its threshold at the steps for which `over` returns True."""

    def judge(history: History) -> Reading | None:
        if history.latest("rollout/reward/mean") is None:
            return None
        return Reading(Level.OVER if over(history.now) else Level.CLEAR, 1.0, 0.5, "it is 1")

    return a_signal(judge, name=S.REWARD_COLLAPSED)


def acting_job(tmp_path: Path, over: Callable[[int], bool], **collapse_spec: Any) -> Job:
    of = a_small_spec(steps=70, maxStepsOffPolicy=1, batchSize=1)
    quiet = of.evaluation.model_copy(update={"every_steps": 5})
    job = Job(tmp_path, acting(of.model_copy(update={"evaluation": quiet}), **collapse_spec), rows=40)
    job.catalogue = [collapse(over)]
    return job


async def test_a_raised_signal_is_remedied_without_a_person(tmp_path: Path) -> None:
    job = acting_job(tmp_path, lambda step: 8 <= step < 20, remedies=("OnPolicy", "CispoToPpo"))
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    [decision] = decisions_of(job)
    assert (decision.step, decision.signal, decision.directive.remedy) == (11, S.REWARD_COLLAPSED, "OnPolicy")
    [entry] = training.remedies.course.entries
    assert (entry.state, entry.ended) == ("Kept", 36)
    assert entry.after is not None
    assert entry.after.steps == 10
    held(job)


async def test_a_useless_remedy_is_undone_and_the_next_one_is_tried(tmp_path: Path) -> None:
    job = acting_job(tmp_path, lambda step: step >= 8, remedies=("OnPolicy", "SmallerGroups"), max_remedies=2)
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    assert [(d.step, d.directive.remedy, d.directive.undo) for d in decisions_of(job)] == [
        (11, "OnPolicy", False),
        (37, "OnPolicy", True),
        (38, "SmallerGroups", False),
        (64, "SmallerGroups", True),
    ]
    assert [entry.state for entry in training.remedies.course.entries] == ["Undone", "Undone"]
    assert training.state.in_force == InForce(number=4)
    held(job)


@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_a_restarted_coordinator_makes_the_same_decisions(tmp_path: Path, deaths: int) -> None:
    """Two jobs have the same seed and rewards. In one of them, coordinators die between the steps."""

    def a_job(name: str) -> Job:
        return acting_job(tmp_path / name, lambda step: step >= 8, remedies=("OnPolicy", "SmallerGroups"))

    whole, broken = a_job("whole"), a_job("broken")
    async with whole.coordinator() as (_, learner, running):
        await asyncio.gather(learner.run(), running)
    for _ in range(deaths):
        async with broken.coordinator() as (_, learner, running):
            await learner.run(steps=11)
    async with broken.coordinator() as (_, learner, running):
        await asyncio.gather(learner.run(), running)

    def decided(job: Job) -> list[Any]:
        return [(d.number, d.step, d.directive, d.in_force, d.signal) for d in decisions_of(job)]

    assert decided(whole) == decided(broken)
    assert len(decided(whole)) == 4
    held(broken)
