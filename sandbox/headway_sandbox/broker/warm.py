"""The pool: creates sandbox pods ahead of need, learns when they answer, and destroys them.

The API server's list and watch show which pods exist; a pod's own `/healthz` says whether it may be leased.
So a restart loses nothing: a new process lists the pods, asks each of them, and continues. A pod that has
ever been leased is never ready again. The pool probes a pod itself, as soon as the watch shows the pod's
address. Kubelet probes would cost the node an exec or a request a second for each pod, and delay the answer
by a second.

Every pod known here is in exactly one `State`; `_pods` changes only on the event loop, between awaits.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from headway_api import logs, names
from headway_api.backoff import doubled
from headway_api.bounds import shortened
from headway_api.document import Json
from headway_api.sandbox_api import Health, Problem
from headway_sandbox.broker import pods, pool, reply
from headway_sandbox.broker.kube import ApiError, PodApi, ResourceVersionExpiredError
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.pool import Pod, State

GRACE_SECONDS = 1
PAUSES = (0.5, 30.0)
"""Seconds of the first pause after an error of the API server, and of the longest pause."""
PROBE_PAUSE_SECONDS = 0.05
ERROR_CHARACTERS = 300
"""Maximum characters of an error in a pod's answer that a message repeats."""
IDLE_KEPT_SECONDS = 30.0
"""Seconds for which surplus ready pods are kept, since demand comes in waves."""
DEMAND_SECONDS = 15.0
"""Seconds over which the rate of leases is measured."""
DELETES_AT_ONCE = 8
TICK_SECONDS = 1.0

_log = logging.getLogger(__name__)


class NoSandboxError(Exception):
    """There will be no sandbox until something outside changes."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


OnFound = Callable[[Pod, str, float], None]
"""Called for a pod that turns out to be leased already: (pod, lease, deadline in Unix time)."""
TokenOf = Callable[[str, Pod], str]
"""(lease, pod) -> the token that the pod has if it was granted this lease."""


class WarmPool:
    """The pool of one job's sandboxes, which keeps some ready."""

    def __init__(
        self,
        api: PodApi,
        http: aiohttp.ClientSession,
        kind: pods.SandboxKind,
        platform: pods.Platform,
        limits: pool.Limits,
        metrics: Metrics,
    ) -> None:
        self._api = api
        self._http = http
        self._kind = kind
        self._platform = platform
        self._limits = limits
        self._metrics = metrics
        self._pods: dict[str, Pod] = {}
        self._leaving: set[str] = set()
        self._waiters: deque[asyncio.Future[Pod]] = deque()
        self._handed_out: deque[float] = deque()
        self._start_seconds = 2.0
        self._failures = self._made = 0
        self._not_before = 0.0
        self._unanswered, self._has_answered = 0, False
        self._wake = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._deleting = asyncio.Semaphore(DELETES_AT_ONCE)
        self._found: OnFound = lambda pod, lease, deadline: None
        self._lost: Callable[[Pod], None] = lambda pod: None
        self._token: TokenOf = lambda lease, pod: secrets.token_hex()
        self.problem: Problem | None = None
        self.listed = asyncio.Event()
        """Set when every pod that existed at the start has been asked for its lease."""
        self.last_contact = time.monotonic()
        """When the API server last answered, on the monotonic clock."""

    def subscribe(self, found: OnFound, lost: Callable[[Pod], None], token: TokenOf) -> None:
        """Set the callbacks for a pod that is found leased, for a lost leased pod, and for tokens."""
        self._found, self._lost, self._token = found, lost, token

    async def run(self) -> None:
        """Follow the cluster and keep the pool at its size, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._follow())
            group.create_task(self._maintain())

    # counts

    @property
    def episode_seconds(self) -> float:
        """Seconds that an episode may take from its lease on."""
        return float(self._kind.config.spec.rollout.timeout_seconds)

    def counts(self) -> pool.Counts:
        """Numbers of pods by state, and of waiting episodes."""
        tally = dict.fromkeys(State, 0)
        for pod in self._pods.values():
            tally[pod.state] += 1
        waiting = sum(not waiter.done() for waiter in self._waiters)
        leaving = len(self._leaving)
        return pool.Counts(tally[State.STARTING], tally[State.READY], tally[State.LEASED], waiting, leaving)

    def demand(self) -> pool.Demand:
        """The demand of the last seconds."""
        horizon = time.monotonic() - DEMAND_SECONDS
        while self._handed_out and self._handed_out[0] < horizon:
            self._handed_out.popleft()
        return pool.Demand(len(self._handed_out) / DEMAND_SECONDS, self._start_seconds)

    # handing out and taking back

    async def take(self, timeout: float) -> Pod:
        """Lease a ready pod; first come, first served.

        Raises:
            TimeoutError: no pod became ready within `timeout` seconds.
            NoSandboxError: there will be no pod until something outside changes.
        """
        if self.problem is not None and self.problem.permanent:
            raise NoSandboxError(self.problem)
        waiter: asyncio.Future[Pod] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._serve()
        self._wake.set()
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except (TimeoutError, asyncio.CancelledError):
            if not waiter.cancel() and not waiter.cancelled() and waiter.exception() is None:
                self.destroy(waiter.result(), "abandoned")
            raise

    def _serve(self) -> None:
        """Give ready pods, the oldest first, to waiting requests."""
        while self._waiters and self._waiters[0].done():
            self._waiters.popleft()
        if not self._waiters:
            return
        ready = sorted(
            (p for p in self._pods.values() if p.state is State.READY), key=lambda p: p.ready_since
        )
        for pod in ready:
            while self._waiters and self._waiters[0].done():
                self._waiters.popleft()
            if not self._waiters:
                return
            pod.state = State.LEASED
            self._handed_out.append(time.monotonic())
            self._waiters.popleft().set_result(pod)

    def destroy(self, pod: Pod, why: str) -> None:
        """Delete a pod in the background. It leaves the pool at once."""
        if self._pods.pop(pod.name, None) is not None:
            self._leaving.add(pod.name)
            self._metrics.destroyed(why)
            self._spawn(self._delete(pod))
            self._wake.set()

    async def _delete(self, pod: Pod) -> None:
        async with self._deleting:
            failures = 0
            while True:
                try:
                    await self._api.delete(pod.name, pod.uid, GRACE_SECONDS)
                    return
                except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                    logs.event(_log, "delete-failed", level=logging.WARNING, pod=pod.name, error=str(error))
                    failures += 1
                    await asyncio.sleep(doubled(failures, *PAUSES))

    # creating

    async def _maintain(self) -> None:
        while True:
            self._retire()
            self._create_missing()
            self._metrics.show(self.counts())
            self._wake.clear()
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _create_missing(self) -> None:
        if not self.listed.is_set() or time.monotonic() < self._not_before:
            return
        if self.problem is not None and self.problem.permanent:
            return
        for _ in range(self._missing()):
            pod = Pod(f"{self._kind.config.stem}-{names.SANDBOX}-{secrets.token_hex(4)}", time.monotonic())
            self._pods[pod.name] = pod
            self._spawn(self._create(pod))

    def _missing(self) -> int:
        """Pods to create now.

        After a pod that ended because of its image, and until one answers, the rest of `MAX_UNANSWERED` pods
        start together. They show whether any pod of this image will answer.
        """
        wanted = pool.creates(self._limits, self.counts(), self.demand())
        if wanted and self._unanswered and not self._has_answered:
            return pool.tries(self._limits, self.counts(), pods.MAX_UNANSWERED - self._unanswered)
        return min(wanted, 1) if self._failures else wanted

    async def _create(self, pod: Pod) -> None:
        self._made += 1
        try:
            body = pods.manifest(self._kind, self._platform, pod.name, self._made)
            made = await self._api.create(body)
            pod.uid = made["metadata"]["uid"]
            self._metrics.created()
        except ApiError as error:
            self._pods.pop(pod.name, None)
            self._failed(Problem(reason=error.reason, message=str(error)))
        except (aiohttp.ClientError, TimeoutError) as error:
            # The pod may exist: then the watch will show it. If not, it is given up after PENDING_SECONDS.
            logs.event(_log, "create-unanswered", level=logging.WARNING, pod=pod.name, error=str(error))

    def _failed(self, problem: Problem) -> None:
        self._failures += 1
        self._not_before = time.monotonic() + pool.pause_after(self._failures)
        if problem != self.problem:
            logs.event(_log, "pool-problem", level=logging.WARNING, **problem.model_dump())
        self.problem = problem
        self._metrics.failed(problem.reason)
        if problem.permanent:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_exception(NoSandboxError(problem))

    def _retire(self) -> None:
        """Replace pods that are too old or never answered, and remove ready pods that nobody needs."""
        now = time.monotonic()
        extra = pool.surplus(self._limits, self.counts(), self.demand())
        for pod in list(self._pods.values()):
            if pod.state is State.STARTING and (late := pool.overdue(pod, now)):
                problem = Problem(reason="SandboxNotReady", message=f"pod {pod.name} {late}")
                self._failed(self.problem or problem)
                self.destroy(pod, "start-timeout")
            elif pod.state is State.READY and now - pod.created > pods.IDLE_SECONDS:
                self.destroy(pod, "too-old")
            elif pod.state is State.READY and extra and now - pod.ready_since > IDLE_KEPT_SECONDS:
                extra -= 1
                self.destroy(pod, "surplus")

    # following

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                version = await self._list()
                failures = 0
                await self._watch(version)
            except ResourceVersionExpiredError:
                continue
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                logs.event(_log, "watch-failed", level=logging.WARNING, error=str(error))
                failures += 1
                await asyncio.sleep(doubled(failures, *PAUSES))

    async def _list(self) -> str:
        listed, version = await self._api.list(pods.selector(self._kind))
        self.last_contact = time.monotonic()
        items = [item for item in listed if pods.is_ours(item, self._kind)]
        present = {item["metadata"]["name"] for item in items}
        self._leaving &= present
        for pod in list(self._pods.values()):
            if pod.seen and pod.name not in present:
                self._gone(pod)
        probes = [task for item in items if (task := self._observe(item)) is not None]
        if not self.listed.is_set():
            if probes:
                await asyncio.wait(probes, timeout=2 * reply.PROBE_SECONDS)
            self.listed.set()
            self._wake.set()
        return version

    async def _watch(self, version: str) -> None:
        selector = pods.selector(self._kind)
        while True:
            async for kind, item in self._api.watch(selector, version):
                self.last_contact = time.monotonic()
                version = item["metadata"]["resourceVersion"]
                if kind != "BOOKMARK" and not pods.is_ours(item, self._kind):
                    continue
                if kind == "DELETED":
                    if pod := self._pods.get(item["metadata"]["name"]):
                        self._gone(pod)
                    self._leaving.discard(item["metadata"]["name"])
                    self._wake.set()
                elif kind != "BOOKMARK":
                    self._observe(item)

    def _observe(self, item: Json) -> asyncio.Task[None] | None:
        """Apply the API server's state of one pod; returns the probe that it starts, if any."""
        meta = item["metadata"]
        name = meta["name"]
        if name in self._leaving or "deletionTimestamp" in meta:
            if pod := self._pods.get(name):
                self._gone(pod)
            self._leaving.add(name)
            return None
        pod = self._pods.setdefault(name, Pod(name, time.monotonic()))
        pod.uid, pod.seen = meta["uid"], True
        if pods.ended(item):
            if pod.state is not State.LEASED:
                self._failed(self._ended(item))
            self._dropped(pod)
            self._leaving.add(name)
            self._spawn(self._delete(pod))
            return None
        if (ip := pods.address(item)) and pod.state is State.STARTING and pod.running_since is None:
            pod.url, pod.running_since = pods.url_of(ip), time.monotonic()
            return self._spawn(self._probe(pod))
        problem = pods.problem_of(item)
        if pod.state is State.STARTING and problem is not None and problem != self.problem:
            self._failed(problem)
        return None

    def _ended(self, item: Json) -> Problem:
        """Why a pod ended before its episode; permanent if pods of this image never answer."""
        problem = pods.problem_of(item) or Problem(reason=pods.ENDED, message=item["metadata"]["name"])
        self._unanswered = self._unanswered + 1 if pods.failed_by_image(item) else 0
        given_up = self._unanswered >= pods.MAX_UNANSWERED and not self._has_answered
        return pods.repeated_failure(problem) if given_up else problem

    def _gone(self, pod: Pod) -> None:
        """Handle a pod that somebody else deleted. Its replacement waits, to avoid a race."""
        if pod.state is not State.LEASED:
            message = f"pod {pod.name} was deleted, and not by this broker"
            self._failed(Problem(reason="SandboxDeleted", message=message))
        self._dropped(pod)

    def _dropped(self, pod: Pod) -> None:
        if self._pods.pop(pod.name, None) is None:
            return
        if pod.state is State.LEASED:
            self._metrics.failed("PodGone")
            self._lost(pod)
        self._wake.set()

    async def _probe(self, pod: Pod) -> None:
        """Ask a pod for its lease until it answers, or until `_retire` gives it up."""
        while self._pods.get(pod.name) is pod and pod.state is State.STARTING:
            try:
                health = await reply.health(self._http, str(pod.url), lambda lease: self._token(lease, pod))
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(PROBE_PAUSE_SECONDS)
            except ValueError as error:
                self._unfit(pod, shortened(str(error), ERROR_CHARACTERS))
            else:
                self._answered(pod, health)

    def _unfit(self, pod: Pod, why: str) -> None:
        """Destroy a pod whose answers are invalid. No other pod is affected."""
        if self._pods.get(pod.name) is not pod:
            return
        remedy = "let its image run the server of the sandbox image that it is built on"
        message = f"pod {pod.name} does not answer as a sandbox: {why}; {remedy}"
        self._failed(Problem(reason="SandboxUnfit", message=message, field="spec.environment.image"))
        self.destroy(pod, "unfit")

    def _answered(self, pod: Pod, health: Health) -> None:
        if self._pods.get(pod.name) is not pod:
            return
        now, self._has_answered = time.monotonic(), True
        if health.lease is not None and health.deadline is not None:
            pod.state = State.LEASED
            self._found(pod, health.lease, health.deadline)
            return
        pod.state, pod.ready_since = State.READY, now
        self._start_seconds = 0.8 * self._start_seconds + 0.2 * (now - pod.created)
        self._metrics.started(now - pod.created)
        self.problem, self._failures, self._not_before = None, 0, 0.0
        self._serve()
        self._wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work in the task group of `run`. A bug ends the broker; the next one rebuilds its state."""
        if self._group is None:
            raise RuntimeError("the pool is not running")
        return self._group.create_task(work)
