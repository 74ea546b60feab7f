"""Makes the functions that run a training job's episodes, one for each set of rollout servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from headway_api.config import JobConfig
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.choice import GatewayAddresses, agent_of
from headway_coordinator.backends import of_servers
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.worst import Limits
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.episode import Episodes, Rules, Sessions
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.group import Run
from headway_coordinator.judges.answering import Judges
from headway_coordinator.preflight.run import Ready
from headway_coordinator.recurring import Recurring
from headway_coordinator.relative import RelativeJudge
from headway_coordinator.sandboxes import Broker, Witness


def episode_limits(spec: RLTrainingJobSpec, context_length: int) -> Limits:
    """The bounds of an episode, in a job whose conversations may have `context_length` tokens."""
    return Limits(
        context_length=context_length,
        turns=spec.agent.turn_limit,
        sandbox_seconds=spec.environment.sandbox.deadline_seconds,
        retries=spec.rollout.max_retries,
        judging_seconds=(spec.rollout.max_retries + 1) * 2 * spec.rollout.timeout_seconds,
    )


@dataclass
class EpisodeRunners:
    """Makes a function that runs an episode, for each set of servers that samples."""

    job: JobConfig
    ready: Ready
    broker: Broker
    http: aiohttp.ClientSession
    server: GatewayServer
    """The gateway that agents outside this process call."""
    addresses: GatewayAddresses
    faults: Recurring
    """Collects why episodes failed."""
    budget: Budget
    """What the job may use."""
    judges: Judges = field(default_factory=Judges)
    """The judges that the environment may ask."""
    places: list[TurnLimiter] = field(default_factory=list)
    """The turn limiter of each set of servers."""
    relative: RelativeJudge = field(init=False)
    """Rewards the episodes of a group relative to each other, if the environment does so."""

    def __post_init__(self) -> None:
        self.relative = RelativeJudge(self._rules, self.broker, self.judges, self.faults)

    def on(
        self, fleet: Fleet, limiter: AdaptiveSemaphore, witness: Callable[[str], Witness] | None = None
    ) -> Run:
        """A function that runs episodes sampled by `fleet`. `limiter` bounds their turns.

        Args:
            witness: given an episode's id, returns a witness that notes what its sandbox answers.
        """
        self.places.append(TurnLimiter(limiter.follower()))
        return self.sharing(fleet, witness)

    def sharing(self, fleet: Fleet, witness: Callable[[str], Witness] | None = None) -> Run:
        """A function that runs episodes in another weight slot of the servers that `on` last received.

        Episodes of both slots share one turn limiter.
        """
        places = self.places[-1]
        seconds = self.job.spec.rollout.timeout_seconds
        ready = self.ready
        backend = of_servers(ready.renderer, fleet, ready.context_length, seconds, places)
        return self._run(backend, fleet.router, witness)

    def at(self, chat: EndpointChat, limiter: AdaptiveSemaphore, witness: Callable[[str], Witness]) -> Run:
        """A function that runs episodes sampled at an endpoint. `limiter` bounds their turns."""
        self.places.append(TurnLimiter(limiter.follower()))
        return self._run(Backend(chat, self.places[-1]), chat, witness)

    def _run(
        self, backend: Backend, sessions: Sessions, witness: Callable[[str], Witness] | None = None
    ) -> Run:
        agent = agent_of(self.job, backend, self.server, self.addresses, self.http)
        broker = self.broker if witness is None else self.broker.witnessed(witness)
        heard = (self.faults.note, self.judges, self.relative.learn)
        return Episodes(self._rules, agent, broker, sessions, *heard).run

    @property
    def _rules(self) -> Rules:
        spec = self.job.spec
        return Rules(
            timeout_seconds=spec.rollout.timeout_seconds,
            sandbox_seconds=spec.environment.sandbox.deadline_seconds,
            reward_range=(spec.reward.range[0], spec.reward.range[1]),
            agent_field=spec.agent.field,
            tokens=self._max_tokens,
        )

    @property
    def limits(self) -> Limits:
        """The bounds of an episode."""
        return episode_limits(self.job.spec, self.ready.context_length)

    def _max_tokens(self) -> int | None:
        """The most tokens of an episode.

        Only an agent with its own loop has such a limit, and only under a budget.
        """
        bounded = self.budget.bounded and self.job.spec.agent.turn_limit is None
        return self.limits.tokens if bounded else None
