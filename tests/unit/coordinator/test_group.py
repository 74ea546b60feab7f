"""A group that can no longer give an advantage is stopped at once with a reason. Its samples are kept."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from episodes import a_group, sealed
from hypothesis import given
from hypothesis import strategies as st

from headway_api.records import Abandoned, EpisodeRecord, Outcome, Purpose, UsageClass
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.bounds import MIN_SCORED, NO_STEP_LEFT, has_lost_too_many
from headway_coordinator.cancel_token import CancelToken, StoppedError
from headway_coordinator.dataset import Slot
from headway_coordinator.episode import Task
from headway_coordinator.faults import CandidateError
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.ledger.events import DISCARDS, discarded_tokens, of_group

WHY = Abandoned(reason="TooFewScored", message="its sandbox died")
SEEDS = [(116040206, 1983676663), (1707439548, 475415611)]
"""(environment seed, sampling seed) of an episode of training, and of one of validation."""


def plan(size: int, purpose: Purpose = Purpose.TRAIN) -> groups.Plan:
    return groups.Plan(
        slot=Slot(position=0, epoch=0, row=0),
        purpose=purpose,
        step=0,
        row={"prompt": "p"},
        size=size,
        sampling=Sampling(1.0, 1.0, 64),
        job_seed=0,
    )


def test_evaluation_candidates_share_seeds_but_not_episode_ids() -> None:
    one, other = (
        replace(plan(2, Purpose.EVALUATION), candidate=name, slot=Slot(position=7, epoch=0, row=7))
        for name in ("base", "tuned")
    )
    for index, attempt in product(range(2), (0, 1, 100, 101)):
        mine, theirs = one.task(index, attempt), other.task(index, attempt)
        assert mine.environment_seed == theirs.environment_seed
        assert mine.sampling_seed == theirs.sampling_seed
        assert mine.episode_id == f"e-base-000007-{index}-{attempt}"
        assert theirs.episode_id == f"e-tuned-000007-{index}-{attempt}"
    tries = {one.task(index, attempt).sampling_seed for index in range(2) for attempt in (0, 1)}
    assert len(tries) == 4, "each try samples on its own"


def test_seeds_of_training_and_validation_never_change() -> None:
    """The expected seeds are from before evaluations had seeds.

    They must not change, so that stored runs replay.
    """
    found = [plan(2, purpose).task(1, 2) for purpose in (Purpose.TRAIN, Purpose.VALIDATION)]
    assert [(task.environment_seed, task.sampling_seed) for task in found] == SEEDS


async def test_a_group_records_its_owner_and_its_sampler() -> None:
    wanted = replace(plan(1, Purpose.EVALUATION), candidate="frontier", sampled_by="endpoint")
    found = await groups.run(
        wanted, Episodes(0, 0.0).run, AdaptiveSemaphore(1), start_number=0, max_retries=0
    )
    assert (found.group_id, found.candidate, found.sampled_by) == (
        "e-frontier-000000",
        "frontier",
        "endpoint",
    )


async def test_an_episode_records_when_it_began_to_wait_for_a_place() -> None:
    queued: list[tuple[float, float]] = []

    async def episode(task: Task) -> EpisodeRecord:
        assert task.queued_at is not None
        queued.append((task.queued_at, time.time()))
        await asyncio.sleep(0.05)
        return sealed(task.group_id, task.index, reward=None if is_first(task) else 1.0, attempt=task.attempt)

    def is_first(task: Task) -> bool:
        return task.index == 0 and task.attempt == 0

    before = time.time()
    await groups.run(plan(2), episode, AdaptiveSemaphore(1), start_number=0, max_retries=1)
    (first, _), (second, began), (retry, _) = queued
    assert before <= first <= second < before + 0.05
    assert began - second >= 0.04, "the place was taken"
    assert retry >= before + 0.04, "a retry waits since the attempt before it ended"


async def test_a_failed_candidate_ends_its_group() -> None:
    async def episode(task: Task) -> EpisodeRecord:
        raise CandidateError("EndpointDenied", "the token is not taken", "spec.candidates[x].endpoint")

    wanted = replace(plan(3, Purpose.EVALUATION), candidate="x")
    with pytest.raises(ExceptionGroup) as caught:
        await groups.run(wanted, episode, AdaptiveSemaphore(3), start_number=0, max_retries=2)
    assert caught.group_contains(CandidateError, match="the token is not taken")


class Episodes:
    """Scripted episodes of up to four turns, some of them lost. Counts the turns of each."""

    def __init__(self, seed: int, losses: float) -> None:
        self._seed = seed
        self._losses = losses
        self.turns: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        """Turns taken after the group was stopped."""

    async def run(self, task: Task) -> EpisodeRecord:
        chance = random.Random(f"{self._seed}/{task.episode_id}")
        self.turns[task.episode_id] = 0
        lost = chance.random() < self._losses
        try:
            async with task.stop.guard():
                for _ in range(chance.randint(1, 4)):
                    await asyncio.sleep(0)
                    if task.stop.why is not None:
                        self.late[task.episode_id] += 1
                    self.turns[task.episode_id] += 1
        except StoppedError:
            lost = True
        reward = None if lost else 1.0
        turns = self.turns[task.episode_id]
        return sealed(task.group_id, task.index, reward=reward, attempt=task.attempt, turns=turns)


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 6),
    losses=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    places=st.integers(1, 6),
    purpose=st.sampled_from(list(Purpose)),
    ended=st.none() | st.integers(0, 8),
)
def test_group_is_sampled_exactly_as_long_as_it_is_trainable(
    seed: int, size: int, losses: float, places: int, purpose: Purpose, ended: int | None
) -> None:
    """After `ended` passes of the event loop, the job has no step left for the group."""
    asyncio.run(_is_sampled_as_long(Episodes(seed, losses), plan(size, purpose), places, ended))


async def _is_sampled_as_long(
    episodes: Episodes, wanted: groups.Plan, places: int, ended: int | None
) -> None:
    limiter = AdaptiveSemaphore(places)
    async with asyncio.timeout(10):
        running = asyncio.create_task(
            groups.run(wanted, episodes.run, limiter, start_number=0, max_retries=1)
        )
        if ended is not None:
            for _ in range(ended):
                await asyncio.sleep(0)
            wanted.stop.now(NO_STEP_LEFT)
        group = await running
    kept = group.episodes + group.discarded
    assert {e.episode_id: len(e.turns) for e in kept} == dict(episodes.turns), "each attempt, once"
    assert len({e.index for e in group.episodes}) == len(group.episodes)
    assert set(episodes.late.values()) <= {1}, "a cancellation takes a moment, in which a turn may end"
    assert (limiter.used, limiter.waiting) == (0, 0)
    if ended is None and wanted.purpose is Purpose.TRAIN:
        assert (group.abandoned is not None) == (len(group.scored) < MIN_SCORED)
        assert group.abandoned is None or group.abandoned.reason == "TooFewScored"
    if group.abandoned is None:
        assert len(group.episodes) == wanted.size
        assert all(len([e for e in group.discarded if e.index == i]) <= 1 for i in range(wanted.size))
    else:
        assert {event.usage_class for event in of_group(group)} <= {UsageClass.DISCARDED}


@pytest.mark.parametrize(
    ("size", "lost", "certain"), [(2, 0, False), (2, 1, True), (8, 6, False), (8, 7, True)]
)
def test_a_group_with_too_many_losses_is_recognized_at_once(size: int, lost: int, certain: bool) -> None:
    assert has_lost_too_many(size, lost) is certain


async def test_the_loss_that_stopped_the_group_gives_the_reason() -> None:
    async def episode(task: Task) -> EpisodeRecord:
        if task.index == 2:
            with pytest.raises(StoppedError, match="TooFewScored: lost"):
                async with task.stop.guard():
                    await asyncio.Event().wait()
        else:
            await asyncio.sleep(0.01)
        return sealed(task.group_id, task.index, reward=None, attempt=task.attempt)

    async with asyncio.timeout(5):
        group = await groups.run(plan(3), episode, AdaptiveSemaphore(3), start_number=0, max_retries=0)
    assert group.abandoned == Abandoned(reason="TooFewScored", message="lost")
    assert [e.outcome for e in group.episodes] == [Outcome.INFRA_ERROR] * 3


async def test_a_validation_group_continues_despite_losses() -> None:
    async def episode(task: Task) -> EpisodeRecord:
        await asyncio.sleep(0.01 * task.index)
        reward = 1.0 if task.index == 2 else None
        return sealed(task.group_id, task.index, reward=reward, attempt=task.attempt)

    group = await groups.run(
        plan(3, Purpose.VALIDATION), episode, AdaptiveSemaphore(3), start_number=0, max_retries=0
    )
    assert group.abandoned is None
    assert len(group.scored) == 1


async def test_a_waiting_episode_of_a_stopped_group_never_begins() -> None:
    wanted, limiter = plan(2), AdaptiveSemaphore(1)
    async with limiter:
        running = asyncio.create_task(
            groups.run(wanted, Episodes(0, 0.0).run, limiter, start_number=0, max_retries=0)
        )
        await asyncio.sleep(0.01)
        wanted.stop.now(NO_STEP_LEFT)
        async with asyncio.timeout(5):
            group = await running
    assert (group.episodes, group.abandoned) == ([], NO_STEP_LEFT)
    assert limiter.used == 0


async def test_guard_raises_the_first_reason_it_was_stopped_for() -> None:
    stop = CancelToken()
    begun = asyncio.Event()

    async def guarded() -> None:
        async with stop.guard():
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(guarded())
    await begun.wait()
    stop.now(WHY)
    stop.now(NO_STEP_LEFT)
    with pytest.raises(StoppedError, match="TooFewScored: its sandbox died"):
        await task
    with pytest.raises(StoppedError):
        await guarded()
    assert stop.why == WHY


async def test_guard_leaves_other_cancellations_and_deadlines_alone() -> None:
    stop = CancelToken()

    async def guarded(seconds: float | None) -> None:
        async with stop.guard(), asyncio.timeout(seconds):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await guarded(0.01)
    task = asyncio.create_task(guarded(None))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with stop.guard():
        pass
    stop.now(WHY)
    await asyncio.sleep(0.01)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0, "a guard that was left is not stopped"


def test_discarded_tokens_are_counted_by_reason() -> None:
    trained = a_group("t0-000000", [1.0, 0.0, None], retried=1)
    found = discarded_tokens(trained)
    assert set(found) == {"InfraError", "Retried"}
    given_up = trained.model_copy(update={"abandoned": NO_STEP_LEFT})
    everything = discarded_tokens(given_up)
    assert set(everything) == {"NoStepLeft"}
    assert set(found) | set(everything) <= set(DISCARDS)
    for group in (trained, given_up):
        events = [event for event in of_group(group) if event.usage_class is UsageClass.DISCARDED]
        assert discarded_tokens(group).total() == sum(event.quantity for event in events)
