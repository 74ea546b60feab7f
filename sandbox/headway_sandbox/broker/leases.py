"""Records which episode holds which sandbox, and until when.

The broker binds a pod's server to a lease. The server refuses every other token from then on. The token is a
function of the broker's key, the lease and the pod. So a restarted broker, which remembers nothing, gives the
same answer as its predecessor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import aiohttp

from headway_api import logs
from headway_api.sandbox_api import NOT_OWNER, Lease, LeaseRequest, Problem
from headway_sandbox.broker import proof
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.pool import Pod
from headway_sandbox.broker.warm import WarmPool

WAIT_SECONDS = 20.0
"""Maximum seconds that a request waits for a ready sandbox. Then the response asks the client to retry."""
BIND_SECONDS = 5.0
EXPIRE_EVERY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class LeaseRefusedError(Exception):
    """The broker grants no lease."""

    def __init__(self, status: int, problem: Problem, retry_after: float | None = None) -> None:
        super().__init__(problem.message)
        self.status = status
        self.problem = problem
        self.retry_after = retry_after


@dataclass
class LeasedPod:
    """One lease."""

    pod: Pod
    owner: str | None
    """None if the broker found the lease on a pod after a restart. The next claim of ownership ends it."""
    deadline: float
    """Unix time."""
    waited_seconds: float = 0.0


class Leases:
    """Leases of one job. An id has one lease at a time; asking again returns the same lease."""

    def __init__(self, pool: WarmPool, http: aiohttp.ClientSession, key: str, metrics: Metrics) -> None:
        self._pool = pool
        self._http = http
        self._key = key.encode()
        self._metrics = metrics
        self._leased: dict[str, LeasedPod] = {}
        self._asking: dict[str, asyncio.Task[LeasedPod]] = {}
        self._asking_owner: dict[str, str] = {}
        self._owner: str | None = None
        pool.subscribe(self._found, self._lost, self._token)

    async def run(self) -> None:
        """Destroy sandboxes whose lease has expired, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_SECONDS)
            for lease in [name for name, leased in self._leased.items() if leased.deadline < time.time()]:
                self._end(lease, "deadline")

    async def grant(self, request: LeaseRequest) -> Lease:
        """Lease a sandbox to one episode.

        Raises:
            LeaseRefusedError: there is no sandbox now (503), or another owner has claimed them (409).
            NoSandboxError: there will never be one.
        """
        await self._may_ask(request.owner)
        leased = self._leased.get(request.lease)
        if leased is None:
            task = self._asking.get(request.lease)
            if task is None:
                task = asyncio.create_task(self._acquire(request))
                self._asking[request.lease] = task
                self._asking_owner[request.lease] = request.owner
                task.add_done_callback(lambda done: self._asked(request.lease, done))
            # Shielded: a second client, or a retry after a broken connection, shares the same wait.
            leased = await asyncio.shield(task)
        return self._document(request.lease, leased)

    async def _may_ask(self, owner: str) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._pool.listed.wait()
        except TimeoutError:
            problem = Problem(reason="BrokerStarting", message="the broker has not listed the job's pods yet")
            raise LeaseRefusedError(503, problem, 1.0) from None
        if self._owner not in (None, owner):
            message = f"{owner} no longer owns this job's sandboxes: {self._owner} does"
            raise LeaseRefusedError(409, Problem(reason=NOT_OWNER, message=message, permanent=True))

    async def _acquire(self, request: LeaseRequest) -> LeasedPod:
        began = time.monotonic()
        while (left := WAIT_SECONDS - (time.monotonic() - began)) > 0:
            try:
                pod = await self._pool.take(left)
            except TimeoutError:
                break
            waited = time.monotonic() - began
            leased = LeasedPod(pod, request.owner, time.time() + request.deadline_seconds, waited)
            if await self._bind(request.lease, leased):
                self._leased[request.lease] = leased
                self._metrics.leased(time.monotonic() - began, warm=waited < 0.001)
                return leased
            self._pool.destroy(pod, "unbindable")
        problem = self._pool.problem or Problem(
            reason="PoolEmpty", message="every sandbox is in use or starting; ask again"
        )
        raise LeaseRefusedError(503, problem, 1.0)

    async def _bind(self, lease: str, leased: LeasedPod) -> bool:
        body = {
            "lease": lease,
            "token": self._token(lease, leased.pod),
            "deadline": leased.deadline,
            "seconds": self._pool.episode_seconds,
        }
        limit = aiohttp.ClientTimeout(total=BIND_SECONDS)
        try:
            async with self._http.post(
                f"{leased.pod.url}/lease",
                json=body,
                timeout=limit,
                allow_redirects=False,
                auto_decompress=False,
            ) as response:
                return response.status == 204
        except (aiohttp.ClientError, TimeoutError) as error:
            logs.event(_log, "bind-failed", level=logging.WARNING, pod=leased.pod.name, error=str(error))
            return False

    def _asked(self, lease: str, task: asyncio.Task[LeasedPod]) -> None:
        self._asking.pop(lease, None)
        self._asking_owner.pop(lease, None)
        if not task.cancelled():
            task.exception()  # retrieve it: perhaps no client waits any more

    def _token(self, lease: str, pod: Pod) -> str:
        return proof.token_of(self._key, pod.uid, lease)

    def _document(self, lease: str, leased: LeasedPod) -> Lease:
        return Lease(
            lease=lease,
            pod=leased.pod.name,
            url=str(leased.pod.url),
            token=self._token(lease, leased.pod),
            waited_seconds=leased.waited_seconds,
        )

    def release(self, lease: str) -> None:
        """Release a lease, held or waited for, and destroy its pod. An unknown lease is not an error."""
        if task := self._asking.get(lease):
            task.cancel()
        self._end(lease, "released")

    def claim(self, owner: str) -> None:
        """From now on, only `owner` holds leases."""
        self._owner = owner
        for lease in [name for name, leased in self._leased.items() if leased.owner != owner]:
            self._end(lease, "owner-changed")
        for lease in [name for name, asker in self._asking_owner.items() if asker != owner]:
            self._asking[lease].cancel()

    def _end(self, lease: str, why: str) -> None:
        if leased := self._leased.pop(lease, None):
            self._pool.destroy(leased.pod, why)

    def _found(self, pod: Pod, lease: str, deadline: float) -> None:
        if lease in self._leased:  # two pods were bound to this lease: keep the pod that answered first
            self._pool.destroy(pod, "duplicate")
        else:
            self._leased[lease] = LeasedPod(pod, None, deadline)

    def _lost(self, pod: Pod) -> None:
        for lease in [name for name, leased in self._leased.items() if leased.pod is pod]:
            del self._leased[lease]
