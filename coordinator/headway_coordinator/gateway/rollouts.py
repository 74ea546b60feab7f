"""The state of an episode for its external agent, in MTRL's protocol: a secret address, a status, a reward.

    PENDING -- complete-rollout(ready) --> READY -- update-reward --> REWARD_RECEIVED
       +------ complete-rollout(failed) -> FAILED

Only PENDING allows turns and tool calls. The end of the episode closes its rollout. While the rollout is
remembered, later calls are refused with the message that the trajectory is over. This module only keeps
state; `server.py` has the HTTP routes.
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
from headway_coordinator.faults import CandidateError, Cause
from headway_coordinator.gateway.asks import Session
from headway_coordinator.gateway.refusals import GatewayError, bad, not_in_valid_status
from headway_coordinator.gateway.rewards import metrics_in, rewards_in
from headway_coordinator.sandboxes import Tools
from headway_coordinator.trajectory.calls import Message, Tool

TOKEN_LENGTH = 43
"""Number of letters in a token: 245 bits. A token has no digits, because clients look for status codes in
error texts that contain the URL."""
ID_SEPARATOR = "."
"""Separates an episode's id from its token, in the rollout id that the agent receives."""
CONVERSATIONS = 32
"""Number of delivered turns whose conversations are kept. It exceeds the number of turns at once, so that
each of these deliveries can be taken back."""
REMEMBERED = 4096
"""Number of closed tokens that are remembered, so that a late call is refused because the rollout is over."""


class Status(StrEnum):
    """The state of a rollout, in MTRL's words."""

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
    """The environment's tools, which `GET /v1/tools` lists."""
    reward_range: tuple[float, float]
    takes_reward: bool
    expires_at: float
    """When the token expires, in monotonic seconds."""
    lenient: bool = False
    """Whether fields that are not applied are ignored instead of refused."""
    token: str = field(default_factory=lambda: new_token())
    """The secret in the rollout's address. If the prompt is sent again, it has a new token."""
    former: list[str] = field(default_factory=list)
    """The tokens of earlier prompts."""
    holder: str | None = None
    """The token that the acting run of the agent uses; None: no run acts yet."""
    status: Status = Status.PENDING
    closed: bool = False
    """Whether the episode is over, even if the agent wants more."""
    error: str | None = None
    """Why the agent gave up, if it said so."""
    rewards: list[float] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    refused: str | None = None
    """Why the last reward that the agent sent was refused."""
    truncated: str | None = None
    """Why the model could not go on: the context is full, or the turn or the episode has reached its limit
    of tokens."""
    faults: dict[str, str] = field(default_factory=dict)
    """Request -> the fault of the platform that it met. The entry is removed once the request is answered."""
    cause: Cause | None = None
    """The part of the job that caused the last fault of a turn or a tool call, if it is known."""
    candidate_fault: CandidateError | None = None
    """Why the evaluated candidate cannot answer any more."""
    lost: set[str] = field(default_factory=set)
    """Requests for a turn whose client left before the answer."""
    delivered: dict[int, list[Message]] = field(default_factory=dict)
    """Node -> the conversation of a turn that reached the agent, for the last turns, in order of delivery."""
    instructed: set[int] = field(default_factory=set)
    """Nodes of turns whose first message belongs to that turn alone."""
    calls: int = 0
    """Number of the agent's calls that are running."""
    called_at: float = field(default_factory=time.monotonic)
    """When the last call began or ended, in monotonic seconds."""
    _tokens_done: set[str] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def trajectory_id(self) -> str:
        """The episode's id."""
        return self.session.episode_id

    @property
    def rollout_id(self) -> str:
        """The episode's id with the token. MTRL's agents send it with every call, to any base URL."""
        return f"{self.trajectory_id}{ID_SEPARATOR}{self.token}"

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call of the agent as running."""
        self.calls += 1
        self.called_at = time.monotonic()
        try:
            yield
        finally:
            self.calls -= 1
            self.called_at = time.monotonic()

    def check(self, job_arn: str | None, trajectory_id: str | None) -> None:
        """Refuse a call that names a job or trajectory other than those that the token belongs to."""
        trajectory, _, token = (trajectory_id or "").partition(ID_SEPARATOR)
        if token and token not in (self.token, *self.former):
            trajectory = f"{trajectory} of another attempt"
        wanted = (("JobArn", job_arn, self.job_arn), ("TrajectoryId", trajectory, self.trajectory_id))
        for name, given, own in wanted:
            if given and not hmac.compare_digest(_bytes(given), own.encode()):
                raise GatewayError(
                    403,
                    "trajectory_mismatch",
                    f"{name} is {shortened(repr(given), 100)}, but this address and token belong to "
                    f"{own!r}; send the value of the platform's metadata to the endpoint that came with it",
                    param=name,
                )

    @property
    def fault(self) -> str | None:
        """A fault of the platform that no later answer has resolved."""
        return next(iter(self.faults.values()), None)

    @property
    def conversation(self) -> list[Message]:
        """The messages of the last turn that reached the agent, with the model's answer."""
        return next(reversed(self.delivered.values()), [])

    def answered(
        self, request: str, node: int, conversation: list[Message], *, instructed: bool = False
    ) -> None:
        """Note that a turn reaches the agent.

        This resolves a fault of the same request, and clears `lost`.

        Args:
            request: the digest of the turn's request, `Turn.request`.
            node: the turn's node in the graph.
            conversation: the messages up to and including the answer.
            instructed: as `Ask.instructed`.
        """
        self.instructed.discard(node)
        self.instructed.update([node] if instructed else [])
        self.session.arrived(node)
        self.faults.pop(request, None)
        self.lost.clear()
        self.delivered.pop(node, None)
        self.delivered[node] = conversation
        while len(self.delivered) > CONVERSATIONS:
            del self.delivered[next(iter(self.delivered))]

    def unanswered(self, node: int) -> None:
        """Note that the turn did not reach the agent after all."""
        self.session.unseen.add(node)
        self.delivered.pop(node, None)

    def redacted(self, text: str) -> str:
        """An agent's text without the secret tokens. An agent that quotes its prompt may include one."""
        for token in (self.token, *self.former):
            text = text.replace(token, "...")
        return text

    @property
    def begun(self) -> bool:
        """Whether a run of the agent has made a turn, a tool call or another accepted call."""
        return self.holder is not None

    def claim(self, token: str) -> None:
        """Let only one run of the agent act: the first whose call is accepted.

        The platform sends a prompt again if it cannot tell whether the prompt arrived. So two runs of the
        agent may be active. If both added turns to the episode, both would be trained with the reward of one.
        """
        self.require_holder(token)
        self.holder = token

    def require_holder(self, token: str) -> None:
        """Refuse a call from a run other than the acting one."""
        if self.holder not in (None, token):
            raise not_in_valid_status(
                f"trajectory {self.trajectory_id} is not in valid status for this address: its prompt was "
                "sent again, and another run of the agent uses it"
            )

    @property
    def is_open(self) -> bool:
        """Whether the agent may still act."""
        return not self.closed and self.status is Status.PENDING

    def require_open(self, what: str) -> None:
        """Refuse a call once the agent may not act any more. `what` names the kind of call in the error."""
        if not self.is_open:
            raise not_in_valid_status(
                f"trajectory {self.trajectory_id} is not in valid status for {what}: {self._described}"
            )

    def complete(self, status: str, error: str | None = None, client_token: str | None = None) -> None:
        """Note that the agent is done (`ready`), or gave up (`failed`).

        Raises:
            GatewayError: the agent reported its end before, the episode is over, or `status` is unknown.
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
        """Record the agent's own reward: one value for the episode, or one for each turn.

        Raises:
            GatewayError: the values are not finite, out of range, too many or too few. Or this agent must not
                report a reward, or must complete the rollout first.
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

    def end(self, fault: CandidateError) -> None:
        """Note that the candidate cannot answer any more: `until` and `require_candidate` raise `fault`."""
        self.candidate_fault = fault
        self._changed.set()

    def require_candidate(self) -> None:
        """Raise `candidate_fault` if there is one."""
        if self.candidate_fault is not None:
            raise self.candidate_fault

    def close(self) -> None:
        """End the episode."""
        self.closed = True
        self._changed.set()

    def remains(self) -> Rollout:
        """A copy without the conversations, which is remembered to answer late calls."""
        session = self.session
        empty = Session(episode_id=session.episode_id, seed=session.seed, sampling=session.sampling)
        return replace(self, session=empty, tools=(), delivered={})

    async def until(self, *wanted: Status) -> None:
        """Return once the status is one of `wanted`. The caller must set a deadline.

        Raises:
            CandidateError: the candidate cannot answer any more.
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
    """Open rollouts by token, and remembered closed ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_token: dict[str, Rollout] = {}
        self._over: list[str] = []

    @contextmanager
    def open(self, rollout: Rollout) -> Iterator[Rollout]:
        """Admit the agent until the block ends."""
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
        """Give an open rollout a new token. Returns false, and does nothing, if an agent acts in it already.

        The earlier tokens stay valid until an agent acts: see `Rollout.claim`.
        """
        if rollout.begun:
            return False
        rollout.former.append(rollout.token)
        rollout.token = new_token()
        self._by_token[rollout.token] = rollout
        return True

    def find(self, token: str) -> Rollout:
        """The rollout with this token.

        Raises:
            GatewayError: the token belongs to no rollout, or has expired.
        """
        rollout = self._by_token.get(token)
        if rollout is None:
            raise GatewayError(
                404,
                "trajectory_not_found",
                "no running episode has this address or token: the episode ended, or the coordinator "
                "restarted and runs it again with another one",
            )
        if self._clock() > rollout.expires_at:
            raise GatewayError(
                401, "token_expired", f"the token of trajectory {rollout.trajectory_id} has expired"
            )
        return rollout


def token_in(rollout_id: object) -> str:
    """The token in an agent's rollout id; empty if there is none."""
    return rollout_id.partition(ID_SEPARATOR)[2] if isinstance(rollout_id, str) else ""


def new_token() -> str:
    """A secret that nobody can guess."""
    return "".join(secrets.choice(string.ascii_letters) for _ in range(TOKEN_LENGTH))


def _bytes(header: str) -> bytes:
    """A header's raw bytes."""
    return header.encode(errors="surrogateescape")
