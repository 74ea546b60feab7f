"""Runs a training job's validations: groups on the same held-out rows at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from headway_api.records import GroupRecord, Purpose
from headway_api.rows import Row
from headway_coordinator.dataset import Order
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group import Plan


def due(step: int, *, every: int, at_start: bool, last: bool) -> bool:
    """Whether the model is validated after `step`."""
    if step == 0:
        return at_start
    return every > 0 and (last or step % every == 0)


def plans(rows: Sequence[Row], step: int, size: int, sampling: Sampling, job_seed: int) -> list[Plan]:
    """The plans of one validation's groups, in the order of the rows in the file."""
    order = Order(rows=len(rows), seed=job_seed, shuffle=False)
    return [
        Plan(
            slot=order.slot(position),
            purpose=Purpose.VALIDATION,
            step=step,
            row=row,
            size=size,
            sampling=sampling,
            job_seed=job_seed,
        )
        for position, row in enumerate(rows)
    ]


def standing(found: Iterable[GroupRecord]) -> list[GroupRecord]:
    """The group that counts for each row, in the order of group ids.

    This is the last group that was answered, or the last one at all if none was.
    """
    by_attempt = sorted(
        found, key=lambda group: max((episode.attempt for episode in group.episodes), default=-1)
    )
    chosen = {group.group_id: group for group in by_attempt if group.unanswered}
    chosen |= {group.group_id: group for group in by_attempt if not group.unanswered}
    return [chosen[group_id] for group_id in sorted(chosen)]


def refused(groups: Sequence[GroupRecord]) -> bool:
    """Whether some groups were not played because the budget is exhausted, so no group begins any more."""
    found = (group.abandoned for group in groups)
    return any(why is not None and why.reason == "BudgetExhausted" for why in found)


def complete(groups: Sequence[GroupRecord], rows: int) -> bool:
    """Whether a validation of `rows` rows is over: each row was tried, and at least one was answered."""
    return len(groups) >= rows and any(group.scored for group in groups)


async def validate(
    wanted: Sequence[Plan],
    have: Sequence[GroupRecord],
    run: Callable[[Plan], Coroutine[Any, Any, GroupRecord]],
) -> list[GroupRecord]:
    """Run the groups in `wanted` that are not in `have`. Returns the groups of all plans, in order."""
    done = {group.group_id: group for group in have}
    async with asyncio.TaskGroup() as tasks:
        running = {
            plan.group_id: tasks.create_task(run(plan)) for plan in wanted if plan.group_id not in done
        }
    done |= {group_id: task.result() for group_id, task in running.items()}
    return [done[plan.group_id] for plan in wanted]
