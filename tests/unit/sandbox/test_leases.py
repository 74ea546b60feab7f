"""Who may request sandboxes, and what others are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from headway_api.sandbox_api import NOT_OWNER, LeaseRequest
from headway_sandbox.broker.leases import LeaseRefusedError, Leases
from headway_sandbox.broker.pool import Pod


class Empty:
    """A pool that has listed its pods, and found none."""

    problem = None

    def __init__(self) -> None:
        self.listed = asyncio.Event()
        self.listed.set()

    def subscribe(self, found: Any, lost: Any, token: Any) -> None:
        return None

    async def take(self, seconds: float) -> Pod:
        raise TimeoutError


def request(owner: str) -> LeaseRequest:
    return LeaseRequest(lease="e", owner=owner, deadline_seconds=60)


async def reason(leases: Leases, owner: str) -> tuple[int, str, bool]:
    with pytest.raises(LeaseRefusedError) as refused:
        await leases.grant(request(owner))
    return refused.value.status, refused.value.problem.reason, refused.value.problem.permanent


async def test_a_coordinator_loses_sandboxes_only_to_anothers_claim() -> None:
    """`NotOwner` ends a coordinator, so a broker that does not know its owner yet never answers it."""
    empty: Any = Empty()
    metrics: Any = None
    async with aiohttp.ClientSession() as http:
        leases = Leases(empty, http, "s", metrics)
        free = (503, "PoolEmpty", False)
        assert await reason(leases, "job-0") == free
        leases.claim("job-0")
        assert await reason(leases, "job-0") == free
        leases.claim("job-1")
        assert await reason(leases, "job-0") == (409, NOT_OWNER, True)
        assert await reason(leases, "job-1") == free
        forgetful = Leases(empty, http, "s", metrics)
        assert await reason(forgetful, "job-0") == free
