"""The driver of an evaluation: what is measured, in which order, and what a restart does not repeat."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from episodes import sealed
from evaluation_rig import EvalJob, spec

from headway_analysis.billing.segments import total
from headway_api.exits import JobError, job_error
from headway_api.records import EpisodeRecord, GroupRecord, Judgement, UsageClass
from headway_api.rows import Row
from headway_coordinator.bounds import LOST_LIMIT
from headway_coordinator.dataset import position_of
from headway_coordinator.endpoint.chat import Notes
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.run import WRITING
from headway_coordinator.faults import CandidateError, Cause


def tokens_of(episode: EpisodeRecord) -> int:
    """Tokens that the engine prefilled without its cache and sampled for the episode."""
    return sum(turn.prompt_tokens - turn.cached_tokens + turn.sampled_tokens for turn in episode.turns)


async def test_every_candidate_is_measured_on_the_same_rows_and_seeds(tmp_path: Path) -> None:
    job = EvalJob(tmp_path)
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", "tuned", server_set=0)])
    drawn: dict[str, dict[tuple[str, int], tuple[int, int]]] = {"base": {}, "tuned": {}}
    for task in job.tasks:
        place = (task.row["prompt"], task.index)
        drawn[task.group_id.split("-")[1]][place] = (task.environment_seed, task.sampling_seed)
    assert drawn["base"] == drawn["tuned"]
    assert len(drawn["base"]) == len(job.rows) * job.spec.evaluation.group_size
    assert len({sampling for _, sampling in drawn["base"].values()}) == len(drawn["base"])
    assert {name: c.stage for name, c in evaluation.state.candidates.items()} == {
        "base": "Complete",
        "tuned": "Complete",
    }
    assert evaluation.state.finished
    assert not evaluation.state.server_sets


async def test_rows_are_measured_side_by_side(tmp_path: Path) -> None:
    """A row measured for one candidate is soon measured for the other, so pairs exist early."""
    job = EvalJob(tmp_path, rows=8)
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", "tuned", server_set=0, places=2)])
    begun = [int(task.group_id.rpartition("-")[2]) for task in job.tasks]
    assert all(abs(a - b) <= 2 for a, b in zip(begun, sorted(begun), strict=True))


@pytest.mark.parametrize("parallelism", [1, 2])
async def test_no_more_sets_of_servers_run_than_requested(tmp_path: Path, parallelism: int) -> None:
    job = EvalJob(tmp_path, spec(parallelism=parallelism))
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert job.max_open == parallelism
    assert job.open == []


async def test_a_restart_repeats_nothing_that_is_durable(tmp_path: Path) -> None:
    job = EvalJob(tmp_path, rows=14)
    calls, workers = 0, 4 + WRITING

    def dies(task: Task) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 * workers + 1:  # by now a worker has made its first group of two episodes durable
            raise RuntimeError("killed")

    job.before = dies
    first = await job.coordinator()
    with pytest.raises(ExceptionGroup):
        await first.run([job.unit("base", "tuned", server_set=0)])
    kept = {uri.rpartition("/")[2] for name in ("base", "tuned") for uri in
            job.store.list(job.layout.evaluation_groups(name))}  # fmt: skip
    assert kept

    job.before, job.tasks = (lambda task: None), []
    second = await job.coordinator()
    await second.run([job.unit("base", "tuned", server_set=0)])
    repeated = {f"{task.group_id}.json.gz" for task in job.tasks} & kept
    assert not repeated
    assert all(len(candidate.tries) == 14 for candidate in second.state.candidates.values())

    undisturbed = EvalJob(tmp_path / "other", rows=14)
    third = await undisturbed.coordinator()
    await third.run([undisturbed.unit("base", "tuned", server_set=0)])
    scores = [
        {name: [t.reward for t in c.all_tries] for name, c in run.state.candidates.items()}
        for run in (second, third)
    ]
    assert scores[0] == scores[1]
    assert total(job.ledger.days) == total(undisturbed.ledger.days)


async def test_a_group_without_an_answer_is_billed_by_the_next_process(tmp_path: Path) -> None:
    """The first process died after the group was durable, and before the group was billed."""
    job = EvalJob(tmp_path, rows=1)
    job.fails = lambda task: True
    first = await job.coordinator()

    def dies(group: GroupRecord) -> None:
        raise RuntimeError("killed")

    job.ledger.group = dies  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup):
        await first.run([job.unit("base", server_set=0)])
    assert len(job.store.list(job.layout.failed_groups)) == 1
    for _ in range(2):
        again = await job.coordinator()
        assert total(job.ledger.days)[UsageClass.DISCARDED] == 2 * 2 * tokens_of(sealed("g"))
        assert not again.state.candidates["base"].tries


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [*rows[:-1], {"prompt": "other"}],
        lambda rows: [*rows, {"prompt": "one more"}],
        lambda rows: rows[:-1],
        lambda rows: [*reversed(rows)],
    ],
    ids=["other", "more", "fewer", "order"],
)
async def test_rows_that_changed_since_the_first_start_are_refused(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]]
) -> None:
    """Rows may not change even before one is done, or a second candidate would get other rows."""
    job = EvalJob(tmp_path)
    await job.coordinator()
    began = job.rows
    job.rows = change(began)
    with pytest.raises(JobError, match="restore the file") as raised:
        await job.coordinator()
    termination = raised.value.termination
    assert (termination.reason, termination.field, raised.value.permanent) == (
        "DatasetChanged",
        "spec.data.uri",
        True,
    )
    job.rows = began
    await job.coordinator()


async def test_a_finished_job_that_starts_again_samples_nothing(tmp_path: Path) -> None:
    job = EvalJob(tmp_path)
    await (await job.coordinator()).run([job.unit("base", "tuned", server_set=0)])
    job.tasks = []
    again = await job.coordinator()
    await again.run([job.unit("base", "tuned", server_set=0)])
    assert not job.tasks
    assert all(candidate.stage == "Complete" for candidate in again.state.candidates.values())


async def test_a_failed_candidate_leaves_others_their_results(tmp_path: Path) -> None:
    job = EvalJob(tmp_path)

    def refused(task: Task) -> None:
        if task.group_id.startswith("e-tuned-"):
            raise CandidateError(
                "EndpointDenied", "401; correct it", "spec.candidates[tuned].endpoint.secretRef"
            )

    job.before = refused
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned")])
    base, tuned = evaluation.state.candidates["base"], evaluation.state.candidates["tuned"]
    assert base.stage == "Complete"
    assert len(base.tries) == len(job.rows)
    assert (tuned.stage, tuned.reason) == ("Failed", "EndpointDenied")
    assert tuned.message == "spec.candidates[tuned].endpoint.secretRef: 401; correct it"


async def test_platform_failing_every_row_ends_the_process_for_retry(tmp_path: Path) -> None:
    job = EvalJob(tmp_path, rows=3 * LOST_LIMIT)
    job.fails = lambda task: True
    evaluation = await job.coordinator()
    with pytest.raises(ExceptionGroup) as raised:
        await evaluation.run([job.unit("base", "tuned", server_set=0)])
    error = job_error(raised.value)
    assert error is not None
    assert error.termination.reason == "EpisodesFailing"
    assert not error.permanent


async def test_a_candidate_fails_alone_if_others_answer_rows(tmp_path: Path) -> None:
    job = EvalJob(tmp_path, rows=3 * LOST_LIMIT)
    job.fails = lambda task: task.group_id.startswith("e-tuned-")
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", "tuned", server_set=0)])
    base, tuned = evaluation.state.candidates["base"], evaluation.state.candidates["tuned"]
    assert (base.stage, len(base.tries)) == ("Complete", len(job.rows))
    assert (tuned.stage, tuned.reason) == ("Failed", "EpisodesFailing")
    assert tuned.message is not None
    assert tuned.message.startswith("spec.candidates[tuned]: all episodes of several groups in a row failed")
    assert "correct what only this candidate has" in tuned.message


@pytest.mark.parametrize("cause", [None, Cause("ToolRaised", "the tool refund raised KeyError", None)])
async def test_rows_that_were_answered_in_an_earlier_process_count(
    tmp_path: Path, cause: Cause | None
) -> None:
    """They count even if one cause ends every episode of this process."""
    job = EvalJob(tmp_path, rows=3 * LOST_LIMIT)
    await (await job.coordinator()).run([job.unit("base", server_set=0)])
    again = await job.coordinator()

    def fails(task: Task) -> bool:
        if cause is not None:
            again.faults.note(f"{task.group_id}-{task.index}-{task.attempt}", cause)
        return True

    job.fails = fails
    await again.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert again.state.candidates["base"].stage == "Complete"
    assert again.state.candidates["tuned"].reason == "EpisodesFailing"


async def test_a_platform_that_fails_later_ends_the_process_too(tmp_path: Path) -> None:
    """By then every candidate has answered rows, so none is at fault."""
    job = EvalJob(tmp_path, rows=4 * LOST_LIMIT)
    job.fails = lambda task: position_of(task.group_id) > LOST_LIMIT
    evaluation = await job.coordinator()
    with pytest.raises(ExceptionGroup) as raised:
        await evaluation.run([job.unit("base", "tuned", server_set=0)])
    error = job_error(raised.value)
    assert error is not None
    assert error.termination.reason == "EpisodesFailing"
    assert all(candidate.stage == "Running" for candidate in evaluation.state.candidates.values())


async def test_an_endpoint_that_fails_every_row_fails_alone(tmp_path: Path) -> None:
    job = EvalJob(tmp_path, rows=3 * LOST_LIMIT)
    job.fails = lambda task: task.group_id.startswith("e-tuned-")
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned")])
    assert evaluation.state.candidates["base"].stage == "Complete"
    assert evaluation.state.candidates["tuned"].reason == "EndpointFailing"


async def test_episodes_of_an_evaluation_are_billed_as_evaluation(tmp_path: Path) -> None:
    job = EvalJob(tmp_path)
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", "tuned", server_set=0)])
    used = total(job.ledger.days)
    assert used[UsageClass.EVALUATION_SAMPLE] > 0
    assert used[UsageClass.SAMPLE] == used[UsageClass.TRAIN] == 0
    by_candidate = [total(candidate.days) for candidate in evaluation.state.candidates.values()]
    assert (
        sum(each[UsageClass.EVALUATION_SAMPLE] for each in by_candidate) == used[UsageClass.EVALUATION_SAMPLE]
    )


async def test_judges_are_billed_to_the_job_and_to_no_candidate(tmp_path: Path) -> None:
    job = EvalJob(tmp_path)
    job.judgements = [Judgement(judge="j", question="0" * 64, prompt_tokens=3, sampled_tokens=2, model="m")]
    evaluation = await job.coordinator()
    await evaluation.run([job.unit("base", "tuned", server_set=0)])
    tries = 2 * len(job.rows) * job.spec.evaluation.group_size
    assert total(job.ledger.days)[UsageClass.JUDGE_SAMPLE] == 2 * tries
    for candidate in evaluation.state.candidates.values():
        used = total(candidate.days)
        assert used[UsageClass.EVALUATION_SAMPLE] > 0
        assert not used[UsageClass.JUDGE_PROMPT]
        assert not used[UsageClass.JUDGE_SAMPLE]


async def test_episodes_keep_running_while_the_store_is_slow(tmp_path: Path) -> None:
    job = EvalJob(tmp_path, spec(evaluation={"groupSize": 1}), rows=30)
    evaluation = await job.coordinator()
    answers, put = threading.Event(), evaluation._spool.put

    def slow(group: GroupRecord) -> GroupRecord:
        assert answers.wait(60)
        return put(group)

    evaluation._spool.put = slow  # type: ignore[method-assign]
    running = asyncio.create_task(evaluation.run([job.unit("base", server_set=0, places=2)]))
    try:
        async with asyncio.timeout(30):
            while len(job.tasks) < 2 + WRITING:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(job.tasks) == 2 + WRITING, "what waits for the store is bounded"
        assert not evaluation.state.candidates["base"].tries
    finally:
        answers.set()
    await running
    assert evaluation.state.candidates["base"].stage == "Complete"
    assert len(job.tasks) == 30


async def test_a_stopped_coordinator_leaves_its_successor_the_servers(tmp_path: Path) -> None:
    """The operator deletes servers that the last status does not name. A successor would then load all models
    again.

    The operator deletes the servers of a suspended job in any case.
    """
    job = EvalJob(tmp_path)
    entered = asyncio.Event()
    never = asyncio.Event()

    async def waits(task: Task) -> None:
        entered.set()
        await never.wait()

    job.episode = waits  # type: ignore[method-assign,assignment]
    evaluation = await job.coordinator()
    running = asyncio.create_task(evaluation.run([job.unit("base", server_set=0)]))
    await entered.wait()
    assert evaluation.state.server_sets == {0}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert job.open == []
    assert evaluation.state.server_sets == {0}


async def test_a_predecessors_servers_are_kept(tmp_path: Path) -> None:
    """The operator deletes servers that the status does not name, so a restart must keep them in it."""
    job = EvalJob(tmp_path)
    evaluation = await job.coordinator([1])
    assert evaluation.state.server_sets == {1}
    order: list[set[int]] = []
    job.before = lambda task: order.append(set(evaluation.state.server_sets))
    await evaluation.run([job.unit("base", server_set=0), job.unit("tuned", server_set=1)])
    assert order[0] == {1}
    assert not evaluation.state.server_sets


async def test_servers_of_finished_candidates_are_released(tmp_path: Path) -> None:
    job = EvalJob(tmp_path)
    await (await job.coordinator()).run([job.unit("base", "tuned", server_set=0)])
    again = await job.coordinator([0])
    await again.run([job.unit("base", "tuned", server_set=0)])
    assert not again.state.server_sets


async def test_a_lost_candidate_fails_alone_and_keeps_its_rows(tmp_path: Path) -> None:
    """The candidate's episodes wait for servers that are gone, so they end at once."""
    job = EvalJob(tmp_path, rows=4)
    evaluation = await job.coordinator()
    base, tuned = evaluation.state.candidates["base"], evaluation.state.candidates["tuned"]
    episode = job.episode

    async def without_servers(task: Task) -> EpisodeRecord:
        if task.group_id.startswith("e-tuned") and position_of(task.group_id) > 0:
            await asyncio.sleep(3600)
        return await episode(task)

    job.episode = without_servers  # type: ignore[method-assign]
    running = asyncio.create_task(evaluation.run([job.unit("base", "tuned", server_set=0)]))
    async with asyncio.timeout(10):
        while not (tuned.tries and evaluation.state.in_flight["tuned"]):
            await asyncio.sleep(0.01)
        evaluation.lose("tuned", "PendingDeadlineExceeded", "rollout was not ready")
        await running
    assert (base.stage, len(base.tries)) == ("Complete", 4)
    assert (tuned.stage, tuned.reason, tuned.message) == (
        "Failed", "PendingDeadlineExceeded", "rollout was not ready",
    )  # fmt: skip
    assert [*tuned.tries] == [0]
    assert evaluation.state.in_flight.total() == 0
    evaluation.lose("base", "Late", "it has every row")
    assert base.stage == "Complete"


async def test_group_being_written_when_its_candidate_is_lost_counts(tmp_path: Path) -> None:
    """The group was sampled in full and becomes durable, so it is in the measures and on the bill."""
    job = EvalJob(tmp_path)
    evaluation = await job.coordinator()
    writing, answers, put = threading.Event(), threading.Event(), evaluation._spool.put
    tuned, episode = evaluation.state.candidates["tuned"], job.episode

    def slow(group: GroupRecord) -> GroupRecord:
        writing.set()
        assert answers.wait(30)
        return put(group)

    async def the_first_row_alone(task: Task) -> EpisodeRecord:
        if position_of(task.group_id) > 0:
            await asyncio.sleep(3600)
        return await episode(task)

    evaluation._spool.put = slow  # type: ignore[method-assign]
    job.episode = the_first_row_alone  # type: ignore[method-assign]
    running = asyncio.create_task(evaluation.run([job.unit("tuned", server_set=0)]))
    try:
        assert await asyncio.to_thread(writing.wait, 30)
        evaluation.lose("tuned", "PendingDeadlineExceeded", "rollout was not ready")
        assert not tuned.tries
    finally:
        answers.set()
    async with asyncio.timeout(30):
        await running
    assert (tuned.stage, tuned.reason, [*tuned.tries]) == ("Failed", "PendingDeadlineExceeded", [0])
    assert total(job.ledger.days) == total(tuned.days)
    assert total(tuned.days)[UsageClass.EVALUATION_SAMPLE] > 0


async def test_parameters_an_endpoint_refused_survive_a_restart(tmp_path: Path) -> None:
    job = EvalJob(tmp_path)
    first = await job.coordinator()
    first.state.candidates["tuned"].notes = Notes(dropped={"seed": ""})
    await first.run([job.unit("base", "tuned")])
    again = await job.coordinator()
    assert again.state.candidates["tuned"].dropped == {"seed": ""}
    assert again.state.candidates["base"].dropped == {}
