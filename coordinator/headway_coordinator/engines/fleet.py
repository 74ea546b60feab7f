"""The rollout servers, live: discovered by DNS, given their weights, asked for tokens.

A server is kept holding the wanted version in one slot, and is watched. A request goes to another server when
its own fails it or falls silent, and not because its own left discovery, or lacks weights that came to be
wanted meanwhile. The caller's deadline bounds everything here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable

import aiohttp
from pydantic import ValidationError

from headway_api import logs
from headway_api.backoff import doubled
from headway_api.conditions import Reason
from headway_api.model_names import POLICY, name_of
from headway_api.records import PolicyVersion, WeightsManifest, WeightsState
from headway_coordinator.engines import vllm, weights
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.router import UNANNOUNCED, Endpoint, Failure, Router, Server
from headway_coordinator.engines.schemas import Suspects
from headway_coordinator.faults import InfraFault
from headway_coordinator.http import Unreachable, UpstreamError

DISCOVER_SECONDS = 1.0
CHECK_SECONDS = 5.0
RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
"""Between two loads of weights that a server refuses, at most: each may fetch a whole model."""
SILENT_LOOKS = 2
"""Looks in a row that a server must leave unanswered before its requests go elsewhere: what they have sampled
is thrown away then, and a busy machine, this one included, may miss one look."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.25, 5.0
"""Before a server is asked again for a turn that it failed: doubled each time, or a request that no server
can answer would keep them all from answering others."""
TRIES = 12
"""Servers that may fail one turn, one after the other, before it is the turn that is taken to be at fault."""
STATIC = ("lora", "base")
"""Kinds of weights that nothing replaces while a request samples from them."""
NOTHING = WeightsState(version=None, ready=False)
"""What a server says of a slot that it let go of."""
STARTING = 503
"""Status with which a server answers that still loads the base model: no failure, it will take weights."""

_log = logging.getLogger(__name__)


def _reason(error: UpstreamError | Unreachable | ValidationError, seconds: float) -> Reason:
    """Of which kind a load is that brought no answer to be used, after so many seconds."""
    if not isinstance(error, Unreachable) or error.answered:
        return Reason.UPDATE_FAILED
    return Reason.UPDATE_TIMED_OUT if seconds >= weights.LOAD_SECONDS else Reason.SERVER_SILENT


def retry_after(failures: int) -> float:
    """Seconds until a server that answered so many loads in a row with an error is told to load again."""
    return doubled(failures, RETRY_SECONDS, LAST_RETRY_SECONDS)


class NotTaken(Exception):
    """A server answered that it does not take the weights, and why."""


class Fleet:
    """All rollout servers of the job, as far as one slot of theirs goes. Each slot has a fleet of its own.

    Args:
        slot: where the servers hold the wanted weights.
        unannounced: what there is to say while no weights are wanted.
        on_load: a server took weights, so many seconds after it was told of them.
        on_sync: the first server is in rotation with the weights of a step, so many seconds after the
            learner's report of it.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        key: str,
        discover: Discover,
        on_load: Callable[[float], None] = lambda seconds: None,
        on_sync: Callable[[int, float], None] = lambda step, seconds: None,
        *,
        slot: str = POLICY,
        unannounced: str = UNANNOUNCED,
    ) -> None:
        self._http = http
        self._key = key
        self._discover = discover
        self._on_load = on_load
        self._on_sync = on_sync
        self._slot = slot
        self._reported: float | None = None
        """When the wanted weights were reported (monotonic), until a server is in rotation with them."""
        self._manifest: WeightsManifest | None = None
        self._released = False
        """Servers are to hold nothing in the slot."""
        self._changed = asyncio.Condition()
        self._keepers: dict[Endpoint, asyncio.Task[None]] = {}
        self._leaving: dict[Endpoint, asyncio.Task[None]] = {}
        self._asking: defaultdict[Endpoint, set[asyncio.Timeout]] = defaultdict(set)
        """Of each server the requests in flight, by what ends their patience with it."""
        self._loading: dict[Endpoint, tuple[PolicyVersion, asyncio.Timeout]] = {}
        """Of each server that is told of new weights, which, and what ends the wait for its answer."""
        self.router = Router(unannounced=unannounced)
        self.reroutes, self._schemas = 0, Suspects()
        """Times that a request was lost with its server and asked again."""
        self.verification_failures = 0
        """Loads that ended with a server saying that the weights are not those of their manifest."""

    async def want(self, manifest: WeightsManifest, reported: float | None = None) -> None:
        """From now on only servers that hold `manifest` are asked.

        `reported` is when the learner reported its step (monotonic), for `on_sync`; None where that is not
        known, as after a restart.
        """
        self._manifest, self._reported, self._released = manifest, reported, False
        self.router.want(manifest.version)
        await self._notify()

    async def release(self) -> None:
        """Have every server let go of the slot, once no request uses it; from now on no weights are wanted.

        A server that does not answer is told again while `run` goes on. The slot of the trained policy lasts
        as long as its server: what lies there stays until other weights are wanted.
        """
        self._manifest, self._reported, self._released = None, None, self._slot != POLICY
        self.router.wanted = None
        await self._notify()
        if self._released:
            await asyncio.gather(*map(self._release, list(self.router.servers)))

    async def _release(self, endpoint: Endpoint) -> None:
        try:
            await weights.release(self._http, endpoint.weights, self._key, self._slot)
        except (UpstreamError, Unreachable) as error:
            logs.event(_log, "not-released", level=logging.WARNING, slot=self._slot, error=str(error))

    async def ready(self) -> None:
        """Return once a server is in rotation. The caller sets the deadline."""
        async with self._changed:
            await self._changed.wait_for(self.router.in_rotation)

    async def generate(self, session: str, request: vllm.Request, timeout: float) -> vllm.Sampled:
        """Sample from the wanted version; `timeout` seconds for each server asked.

        Raises:
            SchemaRefused: its schema was, or servers were lost with it.
            InfraFault: the request itself was refused, or failed every server that was asked.
        """
        failures, failed = 0, set[Endpoint]()
        while True:
            await self.ready()
            server, manifest = self.router.pick(session, failed), self._manifest
            if server is None or manifest is None:
                continue
            try:
                with self._schemas.watched(request.schema):
                    return await self._ask(server, manifest, request, timeout)
            except vllm.ServerLost as error:
                failures, lost = failures + 1, error
            failed.add(server.endpoint)
            logs.event(_log, "server-lost", level=logging.WARNING, session=session, error=str(lost))
            if failures == TRIES:
                raise InfraFault(f"{failures} servers failed this turn, one after the other; at last: {lost}")
            self.reroutes += 1
            if manifest.version == self.router.wanted:
                self.router.lost_request(server.endpoint, str(lost))
            await self._notify()
            if all(other.endpoint in failed for other in self.router.in_rotation()):
                await asyncio.sleep(doubled(failures, FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS))

    async def _ask(
        self, server: Server, manifest: WeightsManifest, request: vllm.Request, timeout: float
    ) -> vllm.Sampled:
        """Sample from one server.

        Raises:
            ServerLost: it failed, went or fell silent.
            InfraFault: the request itself was refused.
        """
        url, version = server.endpoint.engine, manifest.version
        asking, patience = self._asking[server.endpoint], asyncio.timeout(None)
        server.inflight += 1
        asking.add(patience)
        try:
            async with patience:
                sampled = await vllm.generate(
                    self._http, url, name_of(manifest, self._slot), version, request, timeout,
                    key=self._key, slot=self._slot, static=manifest.kind in STATIC,
                )  # fmt: skip
                await self._proven(server, version, sampled.versions[-1].version)
                server.losses = 0
                return sampled
        except TimeoutError as error:
            raise vllm.ServerLost(f"{url} went, or fell silent") from error
        finally:
            asking.discard(patience)
            server.inflight -= 1

    def _give_up(self, endpoint: Endpoint) -> None:
        """Have the requests in flight on a server go elsewhere."""
        now = asyncio.get_running_loop().time()
        for patience in self._asking.pop(endpoint, ()):
            patience.reschedule(now)

    async def _proven(self, server: Server, asked: PolicyVersion, newest: PolicyVersion) -> None:
        """A turn that went on under newer weights counts once its server has shown that they are right: the
        newest of them, which may be more than one version ahead of those that were asked for.

        Raises:
            ServerLost: it has not.
        """

        def gone() -> bool:
            return self.router.servers.get(server.endpoint) is not server or server.version is None

        def proven() -> bool:
            return server.version is not None and not server.version < newest

        if newest == asked:
            return
        async with self._changed:
            await self._changed.wait_for(lambda: gone() or proven())
        if gone():
            raise vllm.ServerLost(f"weights {newest}, taken during the turn, were not verified")

    async def run(self) -> None:
        """Discover servers and keep their weights, until cancelled."""
        try:
            while True:
                came, went = self.router.discovered(await self._discover())
                for endpoint in went:
                    self._keepers.pop(endpoint).cancel()
                    self._leaving[endpoint] = asyncio.create_task(self._see_off(endpoint))
                if went:
                    await self._notify()
                for endpoint in came:
                    if (leaving := self._leaving.pop(endpoint, None)) is not None:
                        leaving.cancel()
                    logs.event(_log, "server-found", server=endpoint.engine)
                    self._keepers[endpoint] = asyncio.create_task(self._mind(endpoint))
                for keeper in self._keepers.values():
                    if keeper.done():
                        keeper.result()
                await asyncio.sleep(DISCOVER_SECONDS)
        finally:
            tasks = [*self._keepers.values(), *self._leaving.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _mind(self, endpoint: Endpoint) -> None:
        """All that is done for one server."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._keep(endpoint))
            both.create_task(self._watch(endpoint))

    async def _see_off(self, endpoint: Endpoint) -> None:
        """Let a server that left discovery end its requests: it may only have been slow to say that it is
        ready. They go elsewhere at its first silence."""
        while self._asking.get(endpoint):
            try:
                await self._state(endpoint)
            except (UpstreamError, ValidationError):
                pass
            except Unreachable as error:
                if not error.answered:
                    self._give_up(endpoint)
            await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self, endpoint: Endpoint) -> None:
        """See whether a server answers at all, be it taking weights; give it up once it is silent."""
        silent = 0
        while True:
            try:
                state = await self._state(endpoint)
                silent = 0
                self._look_again(endpoint, state)
            except (UpstreamError, ValidationError):
                silent = 0
            except Unreachable as error:
                silent = 0 if error.answered else silent + 1
                if silent >= SILENT_LOOKS:
                    self.router.silent(endpoint, str(error))
                    self._give_up(endpoint)
                    await self._notify()
            await asyncio.sleep(RETRY_SECONDS if silent else CHECK_SECONDS)

    def _look_again(self, endpoint: Endpoint, state: WeightsState) -> None:
        """End a load that still waits for its answer where the server has taken the weights."""
        version, loading = self._loading.get(endpoint, (None, None))
        if loading is not None and state.ready and state.version == version:
            del self._loading[endpoint]
            loading.reschedule(asyncio.get_running_loop().time())

    async def _state(self, endpoint: Endpoint) -> WeightsState:
        """What a server holds in the slot."""
        return await weights.state(self._http, endpoint.weights, self._key, self._slot)

    async def _keep(self, endpoint: Endpoint) -> None:
        """Keep one server holding the wanted weights."""
        seen, failures = self._manifest, 0
        while True:
            manifest = self._manifest
            if manifest is not seen:
                seen, failures = manifest, 0
            try:
                pause = CHECK_SECONDS if await self._bring(endpoint, manifest) else RETRY_SECONDS
            except NotTaken as error:
                self.router.lost(endpoint, str(error))
                failures += 1
                pause = retry_after(failures)
            except (UpstreamError, Unreachable, ValidationError) as error:
                self.router.lost(endpoint, str(error))
                failures, pause = 0, RETRY_SECONDS
            await self._notify()
            await self._pause(endpoint, manifest, pause)

    async def _bring(self, endpoint: Endpoint, manifest: WeightsManifest | None) -> bool:
        """One look at a server, and a load where it lacks the wanted weights; says whether it has them.

        Raises:
            NotTaken: it answered the load with an error.
        """
        state = await self._state(endpoint)
        if manifest is None:
            self.router.lost(endpoint, state.error or self.router.unannounced)
            if self._released and state != NOTHING:
                await self._release(endpoint)
            return False
        if state.version != manifest.version or not state.ready:
            state = await self._load(endpoint, manifest, state)
        if state.version == manifest.version and state.ready:
            self.router.holds(endpoint, manifest.version, state.canary_error)
            self._synced(manifest)
            return True
        self.router.lost(endpoint, state.error or f"holds version {state.version}")
        return False

    async def _load(
        self, endpoint: Endpoint, manifest: WeightsManifest, before: WeightsState
    ) -> WeightsState:
        """Tell a server of new weights, and note how that went.

        That it did not take weights which were overtaken meanwhile is no failure: they may be gone already.

        Raises:
            NotTaken: it answered with an error.
        """
        started = time.monotonic()
        try:
            after = await self._loaded(endpoint, manifest)
        except (UpstreamError, Unreachable, ValidationError) as error:
            if isinstance(error, UpstreamError) and error.status == STARTING:
                self.router.starting(endpoint)
            elif manifest.version == self.router.wanted:
                reason = _reason(error, time.monotonic() - started)
                self.router.failed(endpoint, Failure(reason, str(error)))
            raise
        logs.event(
            _log, "weights-loaded", server=endpoint.weights, slot=self._slot, **after.model_dump(mode="json")
        )
        if after.version == manifest.version and after.ready:
            self._on_load(time.monotonic() - started)
        elif after.error is not None:
            failure = Failure(Reason(after.reason or Reason.UPDATE_FAILED), after.error)
            wrong = failure.reason is Reason.VERIFICATION_FAILED
            if wrong or manifest.version == self.router.wanted:
                self.router.failed(endpoint, failure)
            # A server that failed for good says so again until it has ended: that is still one failure.
            self.verification_failures += wrong and after != before
            raise NotTaken(after.error)
        return after

    async def _loaded(self, endpoint: Endpoint, manifest: WeightsManifest) -> WeightsState:
        """What a server says once it has taken weights, or failed to. Where `_watch` finds that it has taken
        them, this answer may have been lost on its way, and it is asked again."""
        try:
            async with asyncio.timeout(None) as loading:
                self._loading[endpoint] = manifest.version, loading
                try:
                    return await weights.load(self._http, endpoint.weights, self._key, manifest, self._slot)
                finally:
                    self._loading.pop(endpoint, None)
        except TimeoutError:
            return await self._state(endpoint)

    def _synced(self, manifest: WeightsManifest) -> None:
        if self._reported is not None and manifest.version == self.router.wanted:
            self._on_sync(manifest.version.step, time.monotonic() - self._reported)
            self._reported = None

    async def _pause(self, endpoint: Endpoint, seen: WeightsManifest | None, seconds: float) -> None:
        """Sleep, but wake at once for new weights or a loss."""
        server = self.router.servers.get(endpoint)
        usable = server is not None and server.version is not None

        def news() -> bool:
            lost = usable and server is not None and server.version is None
            return self._manifest is not seen or lost

        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(news)
        except TimeoutError:
            return

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
