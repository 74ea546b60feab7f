"""A semaphore whose limit changes: places go out in order, within the limit, and none is ever lost."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore, Lane


class Guest:
    """A task that asks for a place and keeps it until `leave` is called."""

    def __init__(self, limiter: AdaptiveSemaphore | Lane, order: list[Guest]) -> None:
        self._limiter = limiter
        self._order = order
        self._go = asyncio.Event()
        self.inside = False
        self.task = asyncio.create_task(self._stay())

    async def _stay(self) -> None:
        async with self._limiter:
            self.inside = True
            self._order.append(self)
            try:
                await self._go.wait()
            finally:
                self.inside = False

    def leave(self) -> None:
        self._go.set()


async def settle() -> None:
    """Let the event loop run long enough that many guests in turn can get a place and leave."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_first_come_first_served_and_a_higher_limit_lets_more_in() -> None:
    limiter, order = AdaptiveSemaphore(4), list[Guest]()
    limiter.limit = 1
    guests = [Guest(limiter, order) for _ in range(5)]
    await settle()
    assert (order, limiter.used, limiter.waiting) == (guests[:1], 1, 4)
    limiter.limit = 3
    await settle()
    assert (order, limiter.used, limiter.waiting) == (guests[:3], 3, 2)
    guests[1].leave()
    await settle()
    assert order == guests[:4]
    for guest in guests:
        guest.leave()
    await settle()
    assert (order, limiter.used, limiter.waiting) == (guests, 0, 0)


async def test_a_lower_limit_evicts_no_holder_and_admits_below_it() -> None:
    limiter, order = AdaptiveSemaphore(3), list[Guest]()
    guests = [Guest(limiter, order) for _ in range(4)]
    await settle()
    limiter.limit = 1
    await settle()
    assert [guest.inside for guest in guests] == [True, True, True, False]
    for gone in (0, 1):
        guests[gone].leave()
        await settle()
        assert not guests[3].inside
    guests[2].leave()
    await settle()
    assert guests[3].inside
    guests[3].leave()


async def test_a_waiter_that_is_cancelled_is_skipped() -> None:
    limiter, order = AdaptiveSemaphore(1), list[Guest]()
    guests = [Guest(limiter, order) for _ in range(3)]
    await settle()
    guests[1].task.cancel()
    await settle()
    assert limiter.waiting == 1
    guests[0].leave()
    await settle()
    assert order == [guests[0], guests[2]]
    guests[2].leave()
    await settle()
    assert limiter.used == 0


async def test_place_granted_as_its_waiter_is_cancelled_goes_to_next() -> None:
    limiter, order = AdaptiveSemaphore(1), list[Guest]()
    guests = [Guest(limiter, order) for _ in range(3)]
    await settle()
    guests[0].leave()
    while limiter.waiting == 2:
        await asyncio.sleep(0)
    assert not guests[1].inside, "it has the place and has not run yet"
    guests[1].task.cancel()
    await settle()
    assert guests[1].task.cancelled()
    assert (order, limiter.used) == ([guests[0], guests[2]], 1)
    guests[2].leave()


async def test_an_error_inside_returns_the_place() -> None:
    limiter = AdaptiveSemaphore(1)
    with pytest.raises(KeyError):
        async with limiter:
            raise KeyError
    assert limiter.used == 0


async def test_demand_is_the_maximum_since_the_last_look() -> None:
    limiter, order = AdaptiveSemaphore(2), list[Guest]()
    guests = [Guest(limiter, order) for _ in range(3)]
    await settle()
    for guest in guests:
        guest.leave()
    await settle()
    assert limiter.demand() == (2, True)
    assert limiter.demand() == (0, False)


async def test_demand_of_a_follower_counts_for_its_leader() -> None:
    limiter = AdaptiveSemaphore(4)
    follower, order = limiter.follower(), list[Guest]()
    guests = [Guest(follower, order) for _ in range(5)]
    await settle()
    assert limiter.demand() == (4, True)
    for guest in guests:
        guest.leave()
    await settle()
    limiter.demand()
    assert limiter.demand() == (0, False)


async def test_lanes_share_all_places_and_one_may_take_them_all() -> None:
    limiter, order = AdaptiveSemaphore(4), list[Guest]()
    trains, lane = [Guest(limiter, order) for _ in range(8)], limiter.lane()
    await settle()
    assert [guest.inside for guest in trains] == [True] * 4 + [False] * 4
    validates = [Guest(lane, order) for _ in range(8)]
    await settle()
    assert not any(guest.inside for guest in validates), "nobody loses a place"
    for gone in range(4):
        trains[gone].leave()
        await settle()
    inside = sum(guest.inside for guest in trains), sum(guest.inside for guest in validates)
    assert inside == (2, 2), "half each, though all of one lane had asked before"
    for guest in trains:
        guest.leave()
    await settle()
    assert sum(guest.inside for guest in validates) == 4
    for guest in validates:
        guest.leave()
    await settle()
    assert (limiter.used, limiter.waiting, lane.used) == (0, 0, 0)


async def test_two_lanes_alternate_on_a_single_place() -> None:
    limiter, order = AdaptiveSemaphore(1), list[Guest]()
    lane = limiter.lane()
    trains = [Guest(limiter, order) for _ in range(3)]
    validates = [Guest(lane, order) for _ in range(3)]
    await settle()
    for guest in (*trains, *validates):
        guest.leave()
    await settle()
    mixed = [guest for pair in zip(trains, validates, strict=True) for guest in pair]
    assert order == mixed


@pytest.mark.parametrize("places", [0, 5])
def test_a_limit_is_between_one_and_the_ceiling(places: int) -> None:
    with pytest.raises(ValueError, match="at most 4"):
        AdaptiveSemaphore(4).limit = places


@given(seed=st.integers(0, 10**6), ceiling=st.integers(1, 5))
def test_no_place_is_ever_lost_or_given_twice(seed: int, ceiling: int) -> None:
    asyncio.run(_whatever_happens(random.Random(seed), ceiling))


async def _whatever_happens(chance: random.Random, ceiling: int) -> None:
    limiter, order, guests = AdaptiveSemaphore(ceiling), list[Guest](), list[Guest]()
    for _ in range(60):
        match chance.randrange(5):
            case 0 | 1:
                guests.append(Guest(limiter, order))
            case 2 if guests:
                chance.choice(guests).leave()
            case 3 if guests:
                chance.choice(guests).task.cancel()
            case 4:
                limiter.limit = chance.randint(1, ceiling)
        if chance.random() < 0.5:
            before = limiter.used
            await asyncio.sleep(0)
            assert limiter.used <= max(limiter.limit, before)
        if chance.random() < 0.3:
            await settle()
            assert limiter.used == sum(guest.inside for guest in guests)
            assert limiter.waiting == 0 or limiter.used >= limiter.limit
            queued = [g for g in guests if g not in order and not g.task.done()]
            assert all(guests.index(one) < guests.index(other) for one in order for other in queued)
    for guest in guests:
        guest.leave()
    async with asyncio.timeout(5):
        await asyncio.gather(*(guest.task for guest in guests), return_exceptions=True)
    assert (limiter.used, limiter.waiting) == (0, 0)
