"""Which server answers: pure bookkeeping of servers, what they hold and what they are doing.

A server is in rotation exactly when it is healthy, its weights are the version wanted, and it does not rest.
Servers enter by `discovered` and `holds`, and leave by `discovered`, `lost`, or by a new version being
wanted. One that loses requests rests after each loss, longer and longer, while there is another one to ask.
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
"""Episodes that a server may have, beside one, more than another server has (a quarter of its own where that
is more) before that one moves: its cached prefix stays behind, which costs the other server a prefill."""

FIRST_REST_SECONDS: Final = 1.0
"""After one loss: what breaks off once, as when a server takes weights or restarts, costs little."""
LAST_REST_SECONDS: Final = 60.0


UNANNOUNCED: Final = "the learner has not announced weights yet"


def rest_after(losses: int) -> float:
    """Seconds that a server rests after so many losses, one after the other."""
    return doubled(losses, FIRST_REST_SECONDS, LAST_REST_SECONDS)


@dataclass(frozen=True)
class Endpoint:
    """Addresses of one rollout server."""

    engine: str
    """Base URL of vLLM."""
    weights: str
    """Base URL of the weight agent beside it."""


@dataclass(frozen=True)
class Failure:
    """Why a server is out of rotation until weights have been verified there again."""

    reason: Reason
    message: str
    """In the server's own words, where it said any."""


ALWAYS_BEHIND: Final = Failure(
    Reason.UPDATE_TIMED_OUT,
    f"always behind: for more than {weights.LOAD_SECONDS:.0f} s it has held none but overtaken weights, as "
    "it takes longer to load them than a step takes",
)
"""Of a server whose every load ends well, and too late. No numbers of its own: they would be others at every
step."""


@dataclass(frozen=True)
class Reading:
    """How full a server said it is."""

    version: PolicyVersion
    """Weights it held."""
    kv_use: float
    """Share of its KV cache in use, 0 to 1."""
    preemptions: float
    """Requests it has taken out of the cache since it started, those for new weights included."""
    waiting: float
    """Requests it had not begun to compute."""


@dataclass
class Server:
    """One rollout server as it is known now."""

    endpoint: Endpoint
    version: PolicyVersion | None = None
    """Verified weights; None while unknown, loading or failed."""
    inflight: int = 0
    losses: int = 0
    """Times that it lost requests, one after the other, without an answer in between."""
    rests_until: float = 0.0
    """By the router's clock."""
    problem: str = "its weight agent has not answered yet"
    """Why it is not in rotation, in the server's own words; empty where there is nothing to say."""
    failure: Failure | None = None
    """What ended badly there last; None once it holds the wanted weights."""
    in_step_at: float = math.inf
    """When it last held the wanted weights, or first any since it came or failed, by the router's clock; not
    when it came, for a start is no load."""
    canary_error: float | None = None
    """Mean absolute difference to the manifest's canary, as measured when `version` was loaded."""
    reading: Reading | None = None
    """As of the last look; None where it was not in rotation, or did not answer."""


@dataclass(frozen=True)
class Home:
    """Where an episode took its last turn."""

    endpoint: Endpoint
    version: PolicyVersion
    """Weights that it was asked of: under others nothing of its prefix is found."""


@dataclass
class Router:
    """Rotation, least loaded first, and an episode stays where its prefix is cached.

    Servers come back one after the other: from new weights, from a restart, as one more. Whoever samples
    before the last of them is back does so on the first ones, and moves over later.
    """

    wanted: PolicyVersion | None = None
    unannounced: str = UNANNOUNCED
    """What there is to say while no weights are wanted."""
    replicas: int = 1
    """Servers that the job asks for."""
    servers: dict[Endpoint, Server] = field(default_factory=dict)
    gone: dict[Endpoint, Failure] = field(default_factory=dict)
    """Of servers that went before they were mended, and whose place nothing has taken."""
    met: bool = False
    """Since the last failure, as many servers as are asked for have held the wanted weights at one moment."""
    sessions: dict[str, Home] = field(default_factory=dict)
    _episodes: Counter[Endpoint] = field(default_factory=Counter)
    """`sessions` by where they are: counted anew, each turn would cost as much as there are episodes."""
    preemptions: int = 0
    """Requests that servers took out of a full cache, as far as this process saw."""
    clock: Callable[[], float] = time.monotonic

    def discovered(self, endpoints: Iterable[Endpoint]) -> tuple[set[Endpoint], set[Endpoint]]:
        """The servers there are now; returns those that came and those that went."""
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
        """From now on these are the weights wanted: whoever held the last ones was in step until now."""
        for server in self._in_sync():
            server.in_step_at = self.clock()
        self.wanted = version

    def holds(self, endpoint: Endpoint, version: PolicyVersion, canary_error: float | None = None) -> None:
        """The server's weights were verified to be `version`."""
        if server := self.servers.get(endpoint):
            server.version, server.problem, server.failure = version, "", None
            server.canary_error = canary_error
            now = self.clock()
            server.in_step_at = now if version == self.wanted else min(server.in_step_at, now)
        if len(self._in_sync()) >= self.replicas:
            self.met = True
            self.gone.clear()

    def failed(self, endpoint: Endpoint, failure: Failure) -> None:
        """The server was told to take weights and did not."""
        if server := self.servers.get(endpoint):
            server.failure, server.in_step_at, self.met = failure, math.inf, False
            self.lost(endpoint, failure.message)

    def silent(self, endpoint: Endpoint, problem: str) -> None:
        """The server answers nothing. What it failed at before is still what there is to say."""
        server = self.servers.get(endpoint)
        if server is not None and server.failure is None:
            self.failed(endpoint, Failure(Reason.SERVER_SILENT, problem))
        self.lost(endpoint, problem)

    def starting(self, endpoint: Endpoint) -> None:
        """The server is not up yet, perhaps again: that is no load that takes long."""
        if server := self.servers.get(endpoint):
            server.in_step_at = math.inf

    def lost(self, endpoint: Endpoint, problem: str) -> None:
        """The server cannot be used until it `holds` something again."""
        if server := self.servers.get(endpoint):
            server.version, server.problem = None, problem

    def lost_request(self, endpoint: Endpoint, problem: str) -> None:
        """The server did not answer a request. What it loses while it rests anyway is the same loss: all that
        runs on a server breaks off at once."""
        server, now = self.servers.get(endpoint), self.clock()
        if server is not None and now >= server.rests_until:
            server.losses += 1
            server.rests_until = now + rest_after(server.losses)
        self.lost(endpoint, problem)

    def in_rotation(self) -> list[Server]:
        """Servers that may be asked, by address so that ties are broken alike everywhere. Those that rest are
        none of them, unless there are no others."""
        usable, now = self._in_sync(), self.clock()
        rested = [server for server in usable if now >= server.rests_until]
        return sorted(rested or usable, key=lambda server: server.endpoint.engine)

    def _in_sync(self) -> list[Server]:
        """Servers that hold the wanted weights."""
        return [s for s in self.servers.values() if self.wanted is not None and s.version == self.wanted]

    def verified(self) -> list[Server]:
        """Servers that hold weights known to be right: the wanted ones, or those they are to replace."""
        return [server for server in self.servers.values() if server.version is not None]

    def behind(self, now: float) -> list[Endpoint]:
        """Servers that have held none but overtaken weights for longer than a load may take: none of their
        loads failed, and yet they answer nothing."""
        overtaken = (server for server in self.verified() if server.version != self.wanted)
        return [s.endpoint for s in overtaken if now - s.in_step_at > weights.LOAD_SECONDS]

    def pick(self, session: str, failed: Collection[Endpoint] = ()) -> Server | None:
        """The server with the fewest episodes, or this one's own while its prefix is cached there and the
        server has not too many; None while none is in rotation. One that `failed` this turn is the last."""
        usable = self.in_rotation()
        usable = [server for server in usable if server.endpoint not in failed] or usable
        if self.wanted is None or not usable:
            return None
        home, others = self._leave(session), self._episodes
        server = min(usable, key=lambda s: (others[s.endpoint], s.inflight))
        if home is not None and home.version == self.wanted:
            most = others[server.endpoint] + max(SLACK, others[home.endpoint] // 4)
            if others[home.endpoint] <= most:
                server = next((s for s in usable if s.endpoint == home.endpoint), server)
        self.sessions[session] = Home(server.endpoint, self.wanted)
        self._episodes[server.endpoint] += 1
        return server

    def forget(self, session: str) -> None:
        """The episode is over."""
        self._leave(session)

    def _leave(self, session: str) -> Home | None:
        home = self.sessions.pop(session, None)
        if home is not None:
            self._episodes[home.endpoint] -= 1
        return home

    def problem(self) -> str | None:
        """Why nothing can be sampled; None while a server is in rotation."""
        if self.in_rotation():
            return None
        if self.wanted is None:
            return self.unannounced
        if not self.servers:
            return "no rollout server has an address yet"
        said = [f"{s.endpoint.engine}: {s.problem}" for s in self.servers.values() if s.problem]
        return "; ".join(said[:3]) or f"{len(self.servers)} rollout servers are taking version {self.wanted}"
