"""Decides which server answers: pure bookkeeping of servers, their weights and their load.

A server is in rotation if it is healthy, holds the wanted version, and does not rest. Servers enter by
`discovered` and `holds`. They leave by `discovered`, by `lost`, or when a new version is wanted. A server
that loses requests rests after each loss, longer and longer, while there is another one to ask.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from headway_api.backoff import doubled
from headway_api.conditions import Reason
from headway_api.records import PolicyVersion
from headway_coordinator.engines import weights

SLACK: Final = 2
"""An episode stays if its server has at most this many episodes more than another. A server with many
episodes may have a quarter of its own more. Moving loses the cached prefix, which costs a prefill."""

FIRST_REST_SECONDS: Final = 1.0
"""The rest after one loss. It is short, because a server that takes weights or restarts fails only once."""
LAST_REST_SECONDS: Final = 60.0


UNANNOUNCED: Final = "the learner has not announced weights yet"


def rest_after(losses: int) -> float:
    """Seconds that a server rests after this many losses in a row."""
    return doubled(losses, FIRST_REST_SECONDS, LAST_REST_SECONDS)


@dataclass(frozen=True)
class Endpoint:
    """The addresses of one rollout server."""

    engine: str
    """Base URL of vLLM."""
    weights: str
    """Base URL of the weight agent beside it."""


@dataclass(frozen=True)
class Failure:
    """Why a server is out of rotation until weights have been verified there again."""

    reason: Reason
    message: str
    """The server's own words, if it gave any."""


ALWAYS_BEHIND: Final = Failure(
    Reason.UPDATE_TIMED_OUT,
    f"always behind: for more than {weights.LOAD_SECONDS:.0f} s every load finished after newer weights "
    "were published, because a load takes longer than a step",
)
"""The failure of a server whose loads all succeed, but too late. It has no numbers, because they would change
at every step."""


@dataclass(frozen=True)
class Reading:
    """How full a server was when it reported."""

    version: PolicyVersion
    """The weights that it held."""
    kv_use: float
    """Share of its KV cache in use, 0 to 1."""
    preemptions: float
    """Requests preempted since its start, including those for new weights."""
    waiting: float
    """Requests that it had not begun to compute."""


@dataclass
class Server:
    """What is known of one rollout server."""

    endpoint: Endpoint
    version: PolicyVersion | None = None
    """Verified weights; None while unknown, loading or failed."""
    inflight: int = 0
    losses: int = 0
    """Times in a row that the server lost requests, without an answer in between."""
    rests_until: float = 0.0
    """When its rest ends, by the router's clock."""
    problem: str = "its weight agent has not answered yet"
    """Why the server is not in rotation, in its own words; empty if there is no reason."""
    failure: Failure | None = None
    """The server's last failure; None once it holds the wanted weights."""
    in_step_at: float = math.inf
    """When the server last held the wanted weights, by the router's clock. If it has not held them since it
    arrived or failed, when it first held any weights. Infinite before that: a start is not a slow load."""
    canary_error: float | None = None
    """Mean absolute difference to the manifest's canary, measured when `version` was loaded."""
    reading: Reading | None = None
    """The reading of the last look. None if it was not in rotation, or did not answer."""


@dataclass(frozen=True)
class SessionAffinity:
    """Where an episode took its last turn."""

    endpoint: Endpoint
    version: PolicyVersion
    """The version it sampled. Other versions do not find its cached prefix."""


@dataclass
class Router:
    """Rotation with the least loaded server first. An episode stays where its prefix is cached.

    Servers enter rotation one after the other: with new weights, after a restart, or as an addition. Episodes
    that sample before the last server is back use the first servers, and some of them move later.
    """

    wanted: PolicyVersion | None = None
    unannounced: str = UNANNOUNCED
    """The problem to report while no weights are wanted."""
    replicas: int = 1
    """The number of servers that the job asks for."""
    servers: dict[Endpoint, Server] = field(default_factory=dict)
    gone: dict[Endpoint, Failure] = field(default_factory=dict)
    """Failures of servers that left before they recovered, and that no new server has replaced."""
    met: bool = False
    """Whether, since the last failure, as many servers as asked for held the wanted weights at the same
    time."""
    sessions: dict[str, SessionAffinity] = field(default_factory=dict)
    _episodes: Counter[Endpoint] = field(default_factory=Counter)
    """The number of `sessions` by server. Counting them at each turn would take time in proportion to the
    episodes."""
    preemptions: int = 0
    """Requests that servers preempted because of a full cache, as far as this process saw."""
    clock: Callable[[], float] = time.monotonic

    def discovered(self, endpoints: Iterable[Endpoint]) -> tuple[set[Endpoint], set[Endpoint]]:
        """Set the servers that exist now. Returns those that came and those that left."""
        now = set(endpoints)
        came, went = now - self.servers.keys(), self.servers.keys() - now
        behind = dict.fromkeys(self.behind(self.clock()), ALWAYS_BEHIND)
        for endpoint in came:
            self.servers[endpoint] = Server(endpoint, failure=self.gone.pop(endpoint, None))
        for endpoint in went:
            failure = self.servers.pop(endpoint).failure or behind.get(endpoint)
            if failure is not None:
                self.gone[endpoint], self.met = failure, False
        return came, went

    def want(self, version: PolicyVersion) -> None:
        """Set the wanted weights. Servers that held the previous ones count as in step until now."""
        for server in self._in_sync():
            server.in_step_at = self.clock()
        self.wanted = version

    def holds(self, endpoint: Endpoint, version: PolicyVersion, canary_error: float | None = None) -> None:
        """Note that the server's weights were verified to be `version`."""
        if server := self.servers.get(endpoint):
            server.version, server.problem, server.failure = version, "", None
            server.canary_error = canary_error
            now = self.clock()
            server.in_step_at = now if version == self.wanted else min(server.in_step_at, now)
        if len(self._in_sync()) >= self.replicas:
            self.met = True
            self.gone.clear()

    def failed(self, endpoint: Endpoint, failure: Failure) -> None:
        """Note that the server failed to take weights."""
        if server := self.servers.get(endpoint):
            server.failure, server.in_step_at, self.met = failure, math.inf, False
            self.lost(endpoint, failure.message)

    def silent(self, endpoint: Endpoint, problem: str) -> None:
        """Note that the server does not answer. Its earlier failure is still reported."""
        server = self.servers.get(endpoint)
        if server is not None and server.failure is None:
            self.failed(endpoint, Failure(Reason.SERVER_SILENT, problem))
        self.lost(endpoint, problem)

    def starting(self, endpoint: Endpoint) -> None:
        """Note that the server is not up yet, perhaps after a restart. Its load does not count as slow."""
        if server := self.servers.get(endpoint):
            server.in_step_at = math.inf

    def lost(self, endpoint: Endpoint, problem: str) -> None:
        """Note that the server cannot be used until `holds` notes verified weights again."""
        if server := self.servers.get(endpoint):
            server.version, server.problem = None, problem

    def lost_request(self, endpoint: Endpoint, problem: str) -> None:
        """Note that the server did not answer a request.

        Losses during its rest count as the same loss, because all requests on a server fail at the same time.
        """
        server, now = self.servers.get(endpoint), self.clock()
        if server is not None and now >= server.rests_until:
            server.losses += 1
            server.rests_until = now + rest_after(server.losses)
        self.lost(endpoint, problem)

    def in_rotation(self) -> list[Server]:
        """Servers that may be asked, ordered by address so that ties always break in the same way.

        Resting servers are left out, unless there are no others.
        """
        usable, now = self._in_sync(), self.clock()
        rested = [server for server in usable if now >= server.rests_until]
        return sorted(rested or usable, key=lambda server: server.endpoint.engine)

    def _in_sync(self) -> list[Server]:
        """Servers that hold the wanted weights."""
        return [s for s in self.servers.values() if self.wanted is not None and s.version == self.wanted]

    def verified(self) -> list[Server]:
        """Servers with verified weights: the wanted ones, or older ones that they will replace."""
        return [server for server in self.servers.values() if server.version is not None]

    def behind(self, now: float) -> list[Endpoint]:
        """Servers that have held only weights older than the wanted ones, for longer than a load may take.

        Their loads succeed too late, so they get no requests.
        """
        overtaken = (server for server in self.verified() if server.version != self.wanted)
        return [s.endpoint for s in overtaken if now - s.in_step_at > weights.LOAD_SECONDS]

    def pick(self, session: str, failed: Collection[Endpoint] = ()) -> Server | None:
        """The server for an episode's turn; None if none is in rotation.

        The episode's own server comes first if its prefix is cached there and the server has not too many
        episodes. Otherwise it is the server with the fewest. Servers that `failed` this turn come last.
        """
        usable = self.in_rotation()
        usable = [server for server in usable if server.endpoint not in failed] or usable
        if self.wanted is None or not usable:
            return None
        affinity, others = self._leave(session), self._episodes
        server = min(usable, key=lambda s: (others[s.endpoint], s.inflight))
        if affinity is not None and affinity.version == self.wanted:
            limit = others[server.endpoint] + max(SLACK, others[affinity.endpoint] // 4)
            if others[affinity.endpoint] <= limit:
                server = next((s for s in usable if s.endpoint == affinity.endpoint), server)
        self.sessions[session] = SessionAffinity(server.endpoint, self.wanted)
        self._episodes[server.endpoint] += 1
        return server

    def forget(self, session: str) -> None:
        """Note that the episode is over."""
        self._leave(session)

    def _leave(self, session: str) -> SessionAffinity | None:
        affinity = self.sessions.pop(session, None)
        if affinity is not None:
            self._episodes[affinity.endpoint] -= 1
        return affinity

    def problem(self) -> str | None:
        """Why nothing can be sampled; None if a server is in rotation."""
        if self.in_rotation():
            return None
        if self.wanted is None:
            return self.unannounced
        if not self.servers:
            return "no rollout server has an address yet"
        problems = [f"{s.endpoint.engine}: {s.problem}" for s in self.servers.values() if s.problem]
        return (
            "; ".join(problems[:3])
            or f"{len(self.servers)} rollout servers are loading version {self.wanted}"
        )
