"""The live rollout servers: found by DNS, loaded with weights, and asked for tokens.

Each server is watched, and is made to hold the wanted version in one weight slot. A request moves to another
server only if its own server fails or stops responding. It stays on a server that left discovery, or that
lacks newer weights which became wanted meanwhile. The caller's deadline bounds every wait here.
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
from headway_coordinator.faults import InfraError
from headway_coordinator.http import PeerUnreachableError, UpstreamError

DISCOVER_SECONDS = 1.0
CHECK_SECONDS = 5.0
RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
"""The longest pause between two loads of weights that a server refuses, because each may fetch a whole
model."""
SILENT_LOOKS = 2
"""Unanswered checks in a row after which a server's requests move to other servers. Moving discards the
tokens sampled so far. One check may fail only because the server's or the coordinator's machine is busy."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.25, 5.0
"""The pause before a server is asked again for a turn that it failed, doubled each time. Otherwise a request
that no server can answer would keep all of them busy."""
TRIES = 12
"""Failures of servers in a row after which the turn itself counts as the cause."""
STATIC = ("lora", "base")
"""Kinds of weights that nothing replaces while a request samples from them."""
NOTHING = WeightsState(version=None, ready=False)
"""The state of a slot that a server has released."""
STARTING = 503
"""A server answers with this status while it loads the base model. That is not a failure: the server will
take weights later."""

_log = logging.getLogger(__name__)


def _reason(error: UpstreamError | PeerUnreachableError | ValidationError, seconds: float) -> Reason:
    """The kind of failure of a load that took `seconds` and gave no usable answer."""
    if not isinstance(error, PeerUnreachableError) or error.answered:
        return Reason.UPDATE_FAILED
    return Reason.UPDATE_TIMED_OUT if seconds >= weights.LOAD_SECONDS else Reason.SERVER_SILENT


def retry_after(failures: int) -> float:
    """Seconds until the next load on a server, after this many loads in a row with an error."""
    return doubled(failures, RETRY_SECONDS, LAST_RETRY_SECONDS)


class WeightsRefusedError(Exception):
    """A server answered that it does not take the weights, and why."""


class Fleet:
    """All rollout servers of the job, for one of their weight slots. Each slot has a fleet of its own.

    Args:
        slot: the name of the weight slot in which the servers hold the wanted weights.
        unannounced: the problem to report while no weights are wanted.
        on_load: called after each successful load of weights, with the seconds that it took.
        on_sync: called with a step, and the seconds since the learner's report of it, when the first server
            with its weights is in rotation.
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
        """When the wanted weights were reported, in monotonic seconds. None once a server is in rotation with
        them."""
        self._manifest: WeightsManifest | None = None
        self._released = False
        """Whether servers must hold nothing in the slot."""
        self._changed = asyncio.Condition()
        self._sync_tasks: dict[Endpoint, asyncio.Task[None]] = {}
        self._leaving: dict[Endpoint, asyncio.Task[None]] = {}
        self._asking: defaultdict[Endpoint, set[asyncio.Timeout]] = defaultdict(set)
        """By server: the requests in flight, as the timeouts that end their wait."""
        self._loading: dict[Endpoint, tuple[PolicyVersion, asyncio.Timeout]] = {}
        """By server that loads new weights: the version, and the timeout that ends the wait for its
        answer."""
        self.router = Router(unannounced=unannounced)
        self.reroutes, self._schemas = 0, Suspects()
        """`reroutes`: requests that were lost with a server and sent to another."""
        self.verification_failures = 0
        """Loads after which a server found that the weights do not match their manifest."""

    async def want(self, manifest: WeightsManifest, reported: float | None = None) -> None:
        """Ask only servers that hold `manifest` from now on.

        `reported` is when the learner reported its step (monotonic), for `on_sync`. It is None if unknown, as
        after a restart.
        """
        self._manifest, self._reported, self._released = manifest, reported, False
        self.router.want(manifest.version)
        await self._notify()

    async def release(self) -> None:
        """Have every server release the slot, once no request uses it. No weights are wanted from then on.

        A server that does not answer is asked again while `run` goes on. The slot of the trained policy is
        never released: it keeps its weights until others are wanted.
        """
        self._manifest, self._reported, self._released = None, None, self._slot != POLICY
        self.router.wanted = None
        await self._notify()
        if self._released:
            await asyncio.gather(*map(self._release, list(self.router.servers)))

    async def _release(self, endpoint: Endpoint) -> None:
        try:
            await weights.release(self._http, endpoint.weights, self._key, self._slot)
        except (UpstreamError, PeerUnreachableError) as error:
            logs.event(_log, "not-released", level=logging.WARNING, slot=self._slot, error=str(error))

    async def ready(self) -> None:
        """Return once a server is in rotation. The caller sets the deadline."""
        async with self._changed:
            await self._changed.wait_for(self.router.in_rotation)

    async def generate(self, session: str, request: vllm.Request, timeout: float) -> vllm.Sampled:
        """Sample from the wanted version. Each server that is asked has `timeout` seconds.

        Raises:
            SchemaRefusedError: a server refuses the schema, or servers were lost while they used it.
            InfraError: the request itself was refused, or every server that was asked failed.
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
            except vllm.ServerLostError as error:
                failures, lost = failures + 1, error
            failed.add(server.endpoint)
            logs.event(_log, "server-lost", level=logging.WARNING, session=session, error=str(lost))
            if failures == TRIES:
                raise InfraError(f"{failures} servers in a row failed this turn; the last error: {lost}")
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
            ServerLostError: the server failed, left or stopped responding.
            InfraError: the request itself was refused.
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
            raise vllm.ServerLostError(f"{url} ended or stopped responding") from error
        finally:
            asking.discard(patience)
            server.inflight -= 1

    def _give_up(self, endpoint: Endpoint) -> None:
        """Move the requests in flight on a server to other servers."""
        now = asyncio.get_running_loop().time()
        for patience in self._asking.pop(endpoint, ()):
            patience.reschedule(now)

    async def _proven(self, server: Server, asked: PolicyVersion, newest: PolicyVersion) -> None:
        """Wait until a server has proven the weights that it loaded during a turn.

        Only then does the turn count. `newest` may be more than one version ahead of `asked`.

        Raises:
            ServerLostError: the server did not prove these weights.
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
            raise vllm.ServerLostError(f"weights {newest}, loaded during the turn, were not verified")

    async def run(self) -> None:
        """Discover servers and keep their weights up to date, until cancelled."""
        try:
            while True:
                came, went = self.router.discovered(await self._discover())
                for endpoint in went:
                    self._sync_tasks.pop(endpoint).cancel()
                    self._leaving[endpoint] = asyncio.create_task(self._drain(endpoint))
                if went:
                    await self._notify()
                for endpoint in came:
                    if (leaving := self._leaving.pop(endpoint, None)) is not None:
                        leaving.cancel()
                    logs.event(_log, "server-found", server=endpoint.engine)
                    self._sync_tasks[endpoint] = asyncio.create_task(self._maintain(endpoint))
                for task in self._sync_tasks.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(DISCOVER_SECONDS)
        finally:
            tasks = [*self._sync_tasks.values(), *self._leaving.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _maintain(self, endpoint: Endpoint) -> None:
        """Keep the wanted weights on one server and check that it answers, until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._sync(endpoint))
            both.create_task(self._watch(endpoint))

    async def _drain(self, endpoint: Endpoint) -> None:
        """Let a server that left discovery finish its requests.

        The server may only have been slow to report that it is ready. Its requests move once it stops
        responding.
        """
        while self._asking.get(endpoint):
            try:
                await self._state(endpoint)
            except (UpstreamError, ValidationError):
                pass
            except PeerUnreachableError as error:
                if not error.answered:
                    self._give_up(endpoint)
            await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self, endpoint: Endpoint) -> None:
        """Check that a server answers at all, even while it takes weights. Give it up once it is silent."""
        silent = 0
        while True:
            try:
                state = await self._state(endpoint)
                silent = 0
                self._look_again(endpoint, state)
            except (UpstreamError, ValidationError):
                silent = 0
            except PeerUnreachableError as error:
                silent = 0 if error.answered else silent + 1
                if silent >= SILENT_LOOKS:
                    self.router.silent(endpoint, str(error))
                    self._give_up(endpoint)
                    await self._notify()
            await asyncio.sleep(RETRY_SECONDS if silent else CHECK_SECONDS)

    def _look_again(self, endpoint: Endpoint, state: WeightsState) -> None:
        """If the server has taken the weights, end a load that still waits for the answer."""
        version, loading = self._loading.get(endpoint, (None, None))
        if loading is not None and state.ready and state.version == version:
            del self._loading[endpoint]
            loading.reschedule(asyncio.get_running_loop().time())

    async def _state(self, endpoint: Endpoint) -> WeightsState:
        """The weights that a server holds in the slot."""
        return await weights.state(self._http, endpoint.weights, self._key, self._slot)

    async def _sync(self, endpoint: Endpoint) -> None:
        """Keep the wanted weights on one server."""
        seen, failures = self._manifest, 0
        while True:
            manifest = self._manifest
            if manifest is not seen:
                seen, failures = manifest, 0
            try:
                pause = CHECK_SECONDS if await self._bring(endpoint, manifest) else RETRY_SECONDS
            except WeightsRefusedError as error:
                self.router.lost(endpoint, str(error))
                failures += 1
                pause = retry_after(failures)
            except (UpstreamError, PeerUnreachableError, ValidationError) as error:
                self.router.lost(endpoint, str(error))
                failures, pause = 0, RETRY_SECONDS
            await self._notify()
            await self._pause(endpoint, manifest, pause)

    async def _bring(self, endpoint: Endpoint, manifest: WeightsManifest | None) -> bool:
        """Check a server once, and load the wanted weights if it lacks them. Returns whether it has them.

        Raises:
            WeightsRefusedError: the server answered the load with an error.
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
        """Have a server load new weights, and note the result.

        If newer weights are wanted meanwhile, a failed load does not count as a failure: the files of the
        older weights may be deleted already.

        Raises:
            WeightsRefusedError: the server answered with an error.
        """
        started = time.monotonic()
        try:
            after = await self._loaded(endpoint, manifest)
        except (UpstreamError, PeerUnreachableError, ValidationError) as error:
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
            # A server with a permanent failure reports it at every try until its process ends. All of these
            # reports count as one failure.
            self.verification_failures += wrong and after != before
            raise WeightsRefusedError(after.error)
        return after

    async def _loaded(self, endpoint: Endpoint, manifest: WeightsManifest) -> WeightsState:
        """The server's answer once it has taken weights, or failed to.

        The answer may be lost on its way. If `_watch` finds that the server has taken the weights, this asks
        for its state.
        """
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

        def has_changed() -> bool:
            lost = usable and server is not None and server.version is None
            return self._manifest is not seen or lost

        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(has_changed)
        except TimeoutError:
            return

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
