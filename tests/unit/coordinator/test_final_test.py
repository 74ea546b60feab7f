"""The final test: at a job's end, the test split is played once with the best and the untrained weights."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from job_rig import Job, manifest, report

from headway_analysis.billing.segments import total
from headway_analysis.measures.episodes import Evaluation
from headway_api.exits import JobError
from headway_api.metrics import family
from headway_api.prices import DEFAULT
from headway_api.records import EpisodeRecord, GroupRecord, Purpose, UsageClass
from headway_api.spec.candidate import CandidateRescore
from headway_coordinator import projections
from headway_coordinator.dataset import Order, position_of
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.rescore import stored
from headway_coordinator.final_test import Judged, chosen
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group import Plan
from headway_coordinator.spool import decode
from headway_coordinator.state import State

ROWS = 24


class Graded(Job):
    """A job in which each step's weights answer the share of rows that `skill` gives for the step."""

    def __init__(self, folder: Path, *, beside: bool = True) -> None:
        super().__init__(folder, beside=beside)
        self.skill = {0: 0.25, 2: 0.9, 4: 0.5}
        self.data.test = [{"prompt": f"t{n}"} for n in range(ROWS)]

    async def episode(self, task: Task) -> EpisodeRecord:
        record = await super().episode(task)
        if task.purpose is Purpose.TRAIN or record.reward is None:
            return record
        step = (self.slot if self.beside else self.rotation).wanted[-1]
        rows = ROWS if task.purpose is Purpose.EVALUATION else 3
        row = int(task.group_id.rpartition("-")[2])
        right = float(row < self.skill[step] * rows)
        return record.model_copy(update={"reward": right, "score": right})

    def tested(self, step: int) -> list[GroupRecord]:
        uris = self.store.list(self.layout.evaluation_groups(f"step-{step}"))
        return [decode(self.store.get(uri)) for uri in uris]


@pytest.mark.parametrize("beside", [True, False])
async def test_the_best_step_is_judged_against_the_untrained_one(tmp_path: Path, beside: bool) -> None:
    job = Graded(tmp_path, beside=beside)
    shown: dict[int, dict[str, float]] = {}
    job.on_test = shown.__setitem__
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        found = projections.test(training.state)
        job_report = projections.report("job", job.spec, job.layout, training.state, {}, DEFAULT, 0)
    assert (job.slot if beside else job.rotation).wanted[-2:] == [2, 0]
    assert found is not None
    assert found.base is not None
    assert (found.step, found.rows) == (2, ROWS)
    tuned, base = ([e.score or 0.0 for g in job.tested(step) for e in g.episodes] for step in (2, 0))
    assert found.tuned.external_score is not None
    value, low, high = map(float, re.findall(r"[\d.]+", found.tuned.external_score))
    assert value == pytest.approx(fmean(tuned), abs=1e-4)
    assert low < value < high
    assert (found.base.external_score or "").startswith(f"{fmean(base):.4f}".rstrip("0"))
    ahead = re.findall(r"[-\d.]+", found.external_score_difference or "")
    value, low, high, p = map(float, ahead)
    assert value == pytest.approx(fmean(tuned) - fmean(base), abs=1e-4)
    assert 0 < low < value < high
    assert 0 < p < 0.01
    report = json.loads(json.dumps(job_report))["test"]
    assert report["tuned"]["all"]["external_score"]["value"] == pytest.approx(fmean(tuned))
    assert report["base"]["all"]["success"]["value"] == pytest.approx(fmean(base))
    assert report["difference"]["external_score"]["value"] == pytest.approx(fmean(tuned) - fmean(base))
    assert shown[2]["test/external_score/mean"] == pytest.approx(fmean(tuned))
    assert shown[2]["test/base/external_score"] == pytest.approx(fmean(base))
    assert shown[2]["test/difference/external_score"] == pytest.approx(fmean(tuned) - fmean(base))
    assert [family(name).name for name in shown[2]]
    used = total(job.ledger.days)
    assert used[UsageClass.EVALUATION_SAMPLE] > 0
    assert used == job.recounted()


async def test_both_weights_get_the_same_rows_and_seeds(tmp_path: Path) -> None:
    job = Graded(tmp_path)
    async with job.coordinator() as (_, learner, running):
        await asyncio.gather(learner.run(), running)
    tasks = [task for task in job.tasks if task.purpose is Purpose.EVALUATION]
    asked = {
        step: sorted(
            (t.row["prompt"], t.index, t.sampling_seed, t.environment_seed)
            for t in tasks
            if name in t.group_id
        )
        for step, name in ((2, "step-2-"), (0, "step-0-"))
    }
    assert asked[2] == asked[0]
    assert len(asked[0]) == ROWS


async def test_episodes_of_the_test_split_can_be_scored_again(tmp_path: Path) -> None:
    """An evaluation with the same seed and rows reads them as the candidate `step-N`."""
    job = Graded(tmp_path)
    async with job.coordinator() as (_, learner, running):
        await asyncio.gather(learner.run(), running)
    found = stored("again", CandidateRescore(uri=job.layout.root, candidate="step-2"), job.store)
    assert {place: episode.reward for place, episode in found.items()} == {
        (row, 0): float(row < job.skill[2] * ROWS) for row in range(ROWS)
    }
    order = Order(rows=ROWS, seed=job.spec.seed, shuffle=False)
    again = {
        row: Plan(
            order.slot(row), Purpose.EVALUATION, 0, {}, 1, Sampling(1.0, 1.0, 8), job.spec.seed,
            candidate="again",
        ).task(0, 0)
        for row in range(ROWS)
    }  # fmt: skip
    tested = [task for task in job.tasks if "step-2-" in task.group_id]
    assert {position_of(task.group_id): task.environment_seed for task in tested} == {
        row: task.environment_seed for row, task in again.items()
    }


async def test_a_restart_samples_only_missing_groups(tmp_path: Path) -> None:
    job = Graded(tmp_path)
    job.pause = lambda task: 1000.0 if task.group_id == "e-step-2-000003" else 0.0
    async with job.coordinator() as (training, learner, running):
        playing = asyncio.create_task(learner.run())
        while len(job.tested(2)) < ROWS - 1:
            await asyncio.sleep(0.005)
        assert training.state.evaluating == 2
        assert training.state.finished is None
        playing.cancel()
    tried = len(job.tasks)
    job.pause = lambda task: 0.0
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        assert projections.test(training.state) is not None
        again = [task.group_id for task in job.tasks[tried:] if "step-2-" in task.group_id]
        assert again == ["e-step-2-000003"]
        assert total(job.ledger.days) == job.recounted()
        before = projections.test(training.state)
    tried = len(job.tasks)
    async with job.coordinator() as (training, _, running):
        await running
        assert projections.test(training.state) == before
    assert len(job.tasks) == tried


async def test_failed_row_is_kept_apart_and_retried_only_on_restart(tmp_path: Path) -> None:
    job = Graded(tmp_path)
    job.fails = lambda task: task.group_id == "e-step-0-000001"
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        found = projections.test(training.state)
    assert found is not None
    assert training.state.evaluations.keys() == {0, 2, 4}, (
        "a failed row of the test does not count in a validation"
    )
    assert total(job.ledger.days) == job.recounted()
    assert len(job.tested(0)) == ROWS - 1


async def test_final_test_without_answers_fails_the_job_retriably(tmp_path: Path) -> None:
    job = Graded(tmp_path)
    job.fails = lambda task: task.purpose is Purpose.EVALUATION
    async with job.coordinator() as (training, learner, running):
        playing = asyncio.create_task(learner.run())
        with pytest.raises(ExceptionGroup) as failed:
            await running
        playing.cancel()
    assert failed.group_contains(JobError, match="lost")
    assert training.state.tested is None


def test_weights_of_the_tested_steps_are_kept() -> None:
    state = State(reports=[report(step) for step in range(5)])
    state.evaluations = {s: Evaluation(s, v, v, v, 3, 0) for s, v in ((0, 0.1), (2, 0.9), (4, 0.5))}
    assert chosen(state, [0, 2, 4]) == Judged(tuned=2, base=0)
    assert chosen(state, [0, 4]) == Judged(tuned=4, base=0)
    assert chosen(state, [4]) == Judged(tuned=4, base=None)
    state.evaluations = {}
    assert chosen(state, [0, 4]) == Judged(tuned=4, base=0), "the last step without validation"


async def test_trained_weights_are_tested_alone_if_untrained_are_gone(tmp_path: Path) -> None:
    job = Graded(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=1)
        job.store.delete(job.store.list(job.layout.weights(0)))
        await asyncio.gather(learner.run(), running)
        found = projections.test(training.state)
    assert found is not None
    assert (found.step, found.base, found.external_score_difference) == (2, None, None)
    assert job.tested(0) == []


async def test_untrained_weights_are_tested_once_if_they_are_best(tmp_path: Path) -> None:
    job = Graded(tmp_path)
    job.skill = {0: 0.9, 2: 0.2, 4: 0.2}
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        found = projections.test(training.state)
    assert found is not None
    assert found.step == 0
    assert found.tuned == found.base
    assert len([task for task in job.tasks if task.purpose is Purpose.EVALUATION]) == ROWS


async def test_learner_restart_does_not_change_what_is_tested(tmp_path: Path) -> None:
    job = Graded(tmp_path, beside=False)
    begun, go = asyncio.Event(), asyncio.Event()
    plain = job.episode

    async def episode(task: Task) -> EpisodeRecord:
        if task.purpose is Purpose.EVALUATION:
            begun.set()
            await go.wait()
        return await plain(task)

    job.episode = episode  # type: ignore[method-assign]
    async with job.coordinator() as (training, learner, running):
        playing = asyncio.create_task(learner.run())
        await begun.wait()
        last = training.state.reports[-1]
        resumed_at = manifest(4, incarnation=1)
        await training.report(last.model_copy(update={"version": resumed_at.version, "weights": resumed_at}))
        assert job.rotation.wanted[-1] == 2
        go.set()
        await asyncio.gather(playing, running)
    assert job.rotation.wanted[-2:] == [2, 0]
