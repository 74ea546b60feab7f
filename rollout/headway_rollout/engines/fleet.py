"""The rollout servers, live: discovered by DNS, given their weights, asked for tokens.

One task a server keeps it holding the wanted version; a request whose server is lost goes to another one, for
as long as its caller waits. The caller's deadline bounds everything here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable

import aiohttp
from pydantic import ValidationError

from headway_api import names
from headway_api.records import PolicyVersion, WeightsManifest, WeightsState
from headway_rollout import logs
from headway_rollout.engines import vllm, weights
from headway_rollout.engines.router import Endpoint, Failure, Router, Server
from headway_rollout.http import Refused, Unreachable
from headway_rollout.model_names import name_of

DISCOVER_SECONDS = 1.0
CHECK_SECONDS = 5.0
RETRY_SECONDS = 1.0
STARTING = 503
"""Status with which a server answers that still loads the base model: no failure, it will take weights."""

Discover = Callable[[], Awaitable[set[Endpoint]]]

_log = logging.getLogger(__name__)


def by_dns(host: str) -> Discover:
    """The addresses behind a headless Service; none while the name does not resolve."""

    async def discover() -> set[Endpoint]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except socket.gaierror:
            return set()
        return {_endpoint(str(address[0])) for *_, address in found}

    return discover


def _endpoint(ip: str) -> Endpoint:
    host = f"[{ip}]" if ":" in ip else ip
    return Endpoint(f"http://{host}:{names.PORT_ENGINE}", f"http://{host}:{names.PORT_WEIGHTS}")


class Fleet:
    """All rollout servers of the job.

    Args:
        on_load: a server took weights, so many seconds after it was told of them.
        on_sync: the first server is in rotation with the weights of a step, so many seconds after the
            learner's report of it.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        token: str,
        discover: Discover,
        on_load: Callable[[float], None] = lambda seconds: None,
        on_sync: Callable[[int, float], None] = lambda step, seconds: None,
    ) -> None:
        self._http = http
        self._token = token
        self._discover = discover
        self._on_load = on_load
        self._on_sync = on_sync
        self._reported: float | None = None
        """When the wanted weights were reported (monotonic), until a server is in rotation with them."""
        self._manifest: WeightsManifest | None = None
        self._changed = asyncio.Condition()
        self._keepers: dict[Endpoint, asyncio.Task[None]] = {}
        self.router = Router()
        self.reroutes = 0
        self.verification_failures = 0
        """Loads that ended with a server saying that the weights are not those of their manifest."""

    async def want(self, manifest: WeightsManifest, reported: float | None = None) -> None:
        """From now on only servers that hold `manifest` are asked.

        `reported` is when the learner reported its step (monotonic), for `on_sync`; None where that is not
        known, as after a restart.
        """
        self._manifest, self._reported = manifest, reported
        self.router.wanted = manifest.version
        await self._notify()

    async def ready(self) -> None:
        """Return once a server is in rotation. The caller sets the deadline."""
        async with self._changed:
            await self._changed.wait_for(self.router.in_rotation)

    async def generate(self, session: str, request: vllm.Request, timeout: float) -> vllm.Sampled:
        """Sample from the wanted version; `timeout` seconds for each server asked.

        Raises:
            InfraFault: the request itself was refused.
        """
        while True:
            await self.ready()
            server, manifest = self.router.pick(session), self._manifest
            if server is None or manifest is None:
                continue
            server.inflight += 1
            try:
                sampled = await vllm.generate(
                    self._http, server.endpoint.engine, name_of(manifest), manifest.version, request, timeout
                )
                await self._proven(server, manifest.version, sampled.versions[-1].version)
                return sampled
            except vllm.ServerLost as error:
                self.reroutes += 1
                logs.event(_log, "server-lost", level=logging.WARNING, session=session, error=str(error))
                if manifest.version == self.router.wanted:
                    self.router.lost(server.endpoint, str(error))
                await self._notify()
            finally:
                server.inflight -= 1

    async def _proven(self, server: Server, asked: PolicyVersion, newest: PolicyVersion) -> None:
        """A turn that went on under newer weights counts once its server has shown that they are right.

        Raises:
            ServerLost: it has not, or is gone.
        """

        def gone() -> bool:
            return self.router.servers.get(server.endpoint) is not server or server.version is None

        if newest == asked:
            return
        async with self._changed:
            await self._changed.wait_for(lambda: gone() or server.version != asked)
        if gone():
            raise vllm.ServerLost(f"weights {newest}, taken during the turn, were not verified")

    async def run(self) -> None:
        """Discover servers and keep their weights, until cancelled."""
        try:
            while True:
                came, went = self.router.discovered(await self._discover())
                for endpoint in went:
                    self._keepers.pop(endpoint).cancel()
                if went:
                    await self._notify()
                for endpoint in came:
                    logs.event(_log, "server-found", server=endpoint.engine)
                    self._keepers[endpoint] = asyncio.create_task(self._keep(endpoint))
                for keeper in self._keepers.values():
                    if keeper.done():
                        keeper.result()
                await asyncio.sleep(DISCOVER_SECONDS)
        finally:
            for keeper in self._keepers.values():
                keeper.cancel()
            await asyncio.gather(*self._keepers.values(), return_exceptions=True)

    async def _keep(self, endpoint: Endpoint) -> None:
        """Keep one server holding the wanted weights."""
        while True:
            manifest = self._manifest
            try:
                held = await self._bring(endpoint, manifest)
            except (Refused, Unreachable, ValidationError) as error:
                self.router.lost(endpoint, str(error))
                held = False
            await self._notify()
            await self._pause(endpoint, manifest, CHECK_SECONDS if held else RETRY_SECONDS)

    async def _bring(self, endpoint: Endpoint, manifest: WeightsManifest | None) -> bool:
        """One look at a server, and a load where it lacks the wanted weights; says whether it has them."""
        state = await weights.state(self._http, endpoint.weights, self._token)
        if manifest is None:
            self.router.lost(endpoint, state.error or "waiting for the learner's weights")
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
        """Tell a server of new weights, and note how that went."""
        started = time.monotonic()
        try:
            after = await weights.load(self._http, endpoint.weights, self._token, manifest)
        except (Refused, ValidationError) as error:
            if not isinstance(error, Refused) or error.status != STARTING:
                self.router.failed(endpoint, Failure("UpdateFailed", str(error)))
            raise
        logs.event(_log, "weights-loaded", server=endpoint.weights, **after.model_dump(mode="json"))
        if after.version == manifest.version and after.ready:
            self._on_load(time.monotonic() - started)
        elif after.error is not None:
            failure = Failure(after.reason or "UpdateFailed", after.error)
            self.router.failed(endpoint, failure)
            # A server that failed for good says so again until it has ended: that is still one failure.
            self.verification_failures += failure.reason == "VerificationFailed" and after != before
        return after

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
