"""An episode as its agent sees it from outside: a secret address, a status, a reward. MTRL's protocol.

    PENDING -- complete-rollout(ready) --> READY -- update-reward --> REWARD_RECEIVED
       +------ complete-rollout(failed) -> FAILED

Turns and tools are for PENDING alone. Whatever ends the episode closes its rollout: what comes later is told
that the trajectory is over, for as long as it is remembered. State only; `server.py` speaks HTTP.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headway_api.bounds import shortened
from headway_coordinator.faults import CandidateFault, Cause
from headway_coordinator.gateway.asks import Session
from headway_coordinator.gateway.refusals import GatewayError, bad, not_in_valid_status
from headway_coordinator.gateway.rewards import metrics_in, rewards_in
from headway_coordinator.sandboxes import Tools
from headway_coordinator.trajectory.calls import Message, Tool

TOKEN_LENGTH = 43
"""Letters of a token: 245 bits. No digits: clients look for status codes in error texts that hold the URL."""
ID_SEPARATOR = "."
"""Between an episode's id and its address, in the id that its agent is given."""
CONVERSATIONS = 32
"""Delivered turns that are remembered with their conversations: more than may be taken back at once."""
REMEMBERED = 4096
"""Addresses that are over and still known, for an answer that says so."""


class Status(StrEnum):
    """Where a rollout stands, in MTRL's words."""

    PENDING = "PENDING"
    READY = "READY"
    REWARD_RECEIVED = "REWARD_RECEIVED"
    FAILED = "FAILED"


@dataclass
class Rollout:
    """One attempt at one episode, open to its agent."""

    session: Session
    job_arn: str
    sandbox: Tools
    tools: Sequence[Tool]
    """The environment's tools, for an agent that wants them."""
    reward_range: tuple[float, float]
    takes_reward: bool
    expires_at: float
    """Monotonic."""
    lenient: bool = False
    """Whether what is not applied of a request is ignored, and not refused."""
    token: str = field(default_factory=lambda: new_token())
    """Its address. A prompt that is sent again comes with another."""
    former: list[str] = field(default_factory=list)
    """Those that it came with before."""
    holder: str | None = None
    """The one by which the agent acts."""
    status: Status = Status.PENDING
    closed: bool = False
    """The episode is over, whatever the agent still wants."""
    error: str | None = None
    """Why the agent gave up, where it said so."""
    rewards: list[float] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    refused: str | None = None
    """What was wrong with the last reward that the agent sent."""
    truncated: str | None = None
    """Why the model could not go on: the context, or the most tokens of a turn or an episode."""
    faults: dict[str, str] = field(default_factory=dict)
    """Faults of the platform, by the request that met them, until that request is answered after all."""
    cause: Cause | None = None
    """What of the job's own parts failed when its agent called a tool."""
    candidate_fault: CandidateFault | None = None
    """Why no model answers any more."""
    lost: set[str] = field(default_factory=set)
    """Requests for a turn whose client left before its answer came."""
    delivered: dict[int, list[Message]] = field(default_factory=dict)
    """Conversations of the last turns that reached the agent, by their nodes, in the order they did."""
    instructed: set[int] = field(default_factory=set)
    """Nodes of turns whose first message was of theirs alone."""
    calls: int = 0
    """Calls of the agent that are running."""
    called_at: float = field(default_factory=time.monotonic)
    """When the last one began or ended."""
    _tokens_done: set[str] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def trajectory_id(self) -> str:
        """The episode's id."""
        return self.session.episode_id

    @property
    def rollout_id(self) -> str:
        """The same with the address in it: MTRL's agents send it with every call, to whatever base URL."""
        return f"{self.trajectory_id}{ID_SEPARATOR}{self.token}"

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of the agent is running."""
        self.calls += 1
        self.called_at = time.monotonic()
        try:
            yield
        finally:
            self.calls -= 1
            self.called_at = time.monotonic()

    def check(self, job_arn: str | None, trajectory_id: str | None) -> None:
        """Refuse what names another job or trajectory than the token's own."""
        trajectory, _, token = (trajectory_id or "").partition(ID_SEPARATOR)
        if token and token not in (self.token, *self.former):
            trajectory = f"{trajectory} of another attempt"
        wanted = (("JobArn", job_arn, self.job_arn), ("TrajectoryId", trajectory, self.trajectory_id))
        for name, given, own in wanted:
            if given and not hmac.compare_digest(_bytes(given), own.encode()):
                raise GatewayError(
                    403,
                    "trajectory_mismatch",
                    f"{name} is {shortened(repr(given), 100)}, but this address and token belong to {own!r}; "
                    "send what the platform's metadata said, to the endpoint that came with it",
                    param=name,
                )

    @property
    def fault(self) -> str | None:
        """A fault of the platform that was not made good."""
        return next(iter(self.faults.values()), None)

    @property
    def conversation(self) -> list[Message]:
        """Of the last turn that reached the agent: the messages, and the model's answer."""
        return next(reversed(self.delivered.values()), [])

    def answered(
        self, request: str, node: int, conversation: list[Message], *, instructed: bool = False
    ) -> None:
        """A turn reaches the agent: what its request met before is made good, and the agent went on.

        Args:
            request: what asked for it.
            node: the turn's.
            conversation: up to and with the answer.
            instructed: as `Ask.instructed`.
        """
        self.instructed.discard(node)
        self.instructed.update([node] if instructed else [])
        self.session.unseen.discard(node)
        self.faults.pop(request, None)
        self.lost.clear()
        self.delivered.pop(node, None)
        self.delivered[node] = conversation
        while len(self.delivered) > CONVERSATIONS:
            del self.delivered[next(iter(self.delivered))]

    def unanswered(self, node: int) -> None:
        """It did not after all."""
        self.session.unseen.add(node)
        self.delivered.pop(node, None)

    def redacted(self, text: str) -> str:
        """What an agent wrote, without the address: it may quote its prompt."""
        for token in (self.token, *self.former):
            text = text.replace(token, "...")
        return text

    @property
    def begun(self) -> bool:
        """Whether the agent acts already."""
        return self.holder is not None

    def hold(self, token: str) -> None:
        """One run of the agent acts, the first whose call is accepted.

        A prompt is sent again where nobody knows whether it arrived, so two may be at work. Turns of both in
        one episode would be trained with the reward of one.
        """
        self.require_holder(token)
        self.holder = token

    def require_holder(self, token: str) -> None:
        """Refuse a call of another run than the one that acts."""
        if self.holder not in (None, token):
            raise not_in_valid_status(
                f"trajectory {self.trajectory_id} is not in valid status for this address: its prompt was "
                "sent again, and another run of the agent acts in it"
            )

    @property
    def is_open(self) -> bool:
        """Whether the agent may still act."""
        return not self.closed and self.status is Status.PENDING

    def require_open(self, what: str) -> None:
        """Refuse a turn or a tool call when the rollout is over."""
        if not self.is_open:
            raise not_in_valid_status(
                f"trajectory {self.trajectory_id} is not in valid status for {what}: {self._described}"
            )

    def complete(self, status: str, error: str | None = None, client_token: str | None = None) -> None:
        """The agent is done (`ready`), or gave up (`failed`).

        Raises:
            Refusal: it said so before, the episode is over, or the status is neither.
        """
        if self._repeated("complete", client_token):
            return
        wanted = {"ready": Status.READY, "failed": Status.FAILED}.get(status.lower())
        if wanted is None:
            raise bad("Status", f"{shortened(status, 60)!r} is neither 'ready' nor 'failed'")
        if not self.is_open:
            raise self._cannot(wanted)
        self.status, self.error = wanted, error
        self._done("complete", client_token)

    def reward(self, values: object, metrics: object = None, client_token: str | None = None) -> None:
        """The agent's own reward: one value, or one a turn.

        Raises:
            Refusal: not finite, out of range, of another number, or not now, or not by this agent.
        """
        if self._repeated("reward", client_token):
            return
        if not self.takes_reward:
            raise GatewayError(
                403,
                "reward_not_accepted",
                "the environment alone judges this episode; for an agent that reports rewards use "
                "spec.agent.http with reportsReward: true",
                param="Rewards",
            )
        if self.closed:
            raise self._cannot(Status.REWARD_RECEIVED)
        try:
            found = rewards_in(values, self.session.taken, self.reward_range)
            named = metrics_in(metrics)
        except GatewayError as refusal:
            self.refused = str(refusal)
            raise
        if self.status is not Status.READY:
            raise self._cannot(Status.REWARD_RECEIVED, "; complete-rollout with status ready comes first")
        self.status, self.rewards, self.metrics = Status.REWARD_RECEIVED, found, named
        self._done("reward", client_token)

    def end(self, fault: CandidateFault) -> None:
        """No model answers this agent any more: `until` and `require_candidate` raise `fault`."""
        self.candidate_fault = fault
        self._changed.set()

    def require_candidate(self) -> None:
        """Raise the fault that ended the candidate, if one did."""
        if self.candidate_fault is not None:
            raise self.candidate_fault

    def close(self) -> None:
        """The episode is over."""
        self.closed = True
        self._changed.set()

    def remains(self) -> Rollout:
        """What late calls are answered by, without what was said."""
        session = self.session
        empty = Session(episode_id=session.episode_id, seed=session.seed, sampling=session.sampling)
        return replace(self, session=empty, tools=(), delivered={})

    async def until(self, *wanted: Status) -> None:
        """Return once the status is one of those. The caller sets the deadline.

        Raises:
            CandidateFault: no model answers any more.
        """
        while self.status not in wanted:
            self.require_candidate()
            self._changed.clear()
            await self._changed.wait()

    def _cannot(self, wanted: Status, hint: str = "") -> GatewayError:
        return not_in_valid_status(
            f"Cannot transition trajectory {self.trajectory_id} to {wanted}: {self._described}{hint}"
        )

    @property
    def _described(self) -> str:
        return "the episode is over" if self.closed else f"its status is {self.status}"

    def _repeated(self, what: str, client_token: str | None) -> bool:
        return client_token is not None and f"{what}/{client_token}" in self._tokens_done

    def _done(self, what: str, client_token: str | None) -> None:
        if client_token is not None:
            self._tokens_done.add(f"{what}/{client_token}")
        self._changed.set()


class Rollouts:
    """Open rollouts by token, and those that were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_token: dict[str, Rollout] = {}
        self._over: list[str] = []

    @contextmanager
    def open(self, rollout: Rollout) -> Iterator[Rollout]:
        """Let the agent in until the block ends."""
        self._by_token[rollout.token] = rollout
        try:
            yield rollout
        finally:
            rollout.close()
            tokens = [*rollout.former, rollout.token]
            self._by_token |= dict.fromkeys(tokens, rollout.remains())
            self._over += tokens
            while len(self._over) > REMEMBERED:
                del self._by_token[self._over.pop(0)]

    def renew(self, rollout: Rollout) -> bool:
        """Give an open rollout another address, unless an agent acts in it already; whether it has one now.

        The former ones are good as well, until somebody acts: see `Rollout.hold`.
        """
        if rollout.begun:
            return False
        rollout.former.append(rollout.token)
        rollout.token = new_token()
        self._by_token[rollout.token] = rollout
        return True

    def find(self, token: str) -> Rollout:
        """The rollout whose token it is.

        Raises:
            Refusal: nobody's, or expired.
        """
        rollout = self._by_token.get(token)
        if rollout is None:
            raise GatewayError(
                404,
                "trajectory_not_found",
                "no running episode has this address or token: the episode ended, or the coordinator was "
                "started again and runs it anew with another one",
            )
        if self._clock() > rollout.expires_at:
            raise GatewayError(
                401, "token_expired", f"the token of trajectory {rollout.trajectory_id} has expired"
            )
        return rollout


def token_in(rollout_id: object) -> str:
    """The address in an agent's id of its rollout; empty where there is none."""
    return rollout_id.partition(ID_SEPARATOR)[2] if isinstance(rollout_id, str) else ""


def new_token() -> str:
    """A secret that nobody can guess."""
    return "".join(secrets.choice(string.ascii_letters) for _ in range(TOKEN_LENGTH))


def _bytes(header: str) -> bytes:
    """A header as it came, whatever bytes it holds."""
    return header.encode(errors="surrogateescape")
