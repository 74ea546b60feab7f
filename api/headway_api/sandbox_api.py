"""Documents exchanged with the sandbox broker and with the server inside a sandbox pod.

Broker (`/v1`, `Key.COORDINATOR_TO_BROKER`):
    POST   /leases            LeaseRequest -> 201 Lease | 503 Problem (Retry-After: seconds) | 409 Problem
    DELETE /leases/{id}       204; the pod is destroyed in the background, whatever state it is in
    POST   /owners            OwnerClaim -> 204; leases of any other owner are released
    GET    /pool              PoolState
Sandbox (the lease's own token, bound by the first `POST /lease`):
    GET    /healthz           200 Health
    POST   /lease             {"lease": str, "token": str, "deadline": float, "seconds": float} -> 204 | 409
                              if bound to another; after 95 % of `seconds` (may be left out) an environment
                              that has not returned is a Problem `EnvironmentHangs`, with file and line
    POST   /proof             Challenge -> Proof | 409 if bound to nobody; asked without the token
    POST   /reset             ResetRequest -> ResetReply
    POST   /tool              ToolCall -> ToolReply
    POST   /agent             AgentRequest -> AgentState | 409 before the reset or after the finish; starts
                              the program once: asked again, it answers how that one fares
    POST   /agent/wait        AgentWait -> AgentState, once the program has ended or the time is over
    POST   /probe             ProbeRequest -> ProbeReply: what the pod reaches
    POST   /finish            FinishRequest -> FinishReply; a program that still runs is killed first
    POST   /group             GroupRequest -> GroupReply | 409 where an episode was; it is over then
    POST   /judge/questions   QuestionWait -> Questions: what is asked of judges while /finish or /group runs
    POST   /judge/answer      Answer -> {} | 409 if no such question is open
Every refusal is a `Problem`. The server in the pod is standard library only and reads and writes the same
JSON without these models; `tests/unit/sandbox` holds the two against each other.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from headway_api import bounds
from headway_api.exits import CONDITION_REASON
from headway_api.record import Record

MAX_LEASE_NAME: Final = 200
"""Characters of a lease's or an owner's name."""
MAX_LEASE_SECONDS: Final = 86_400
"""Longest lease: the most that `spec.environment.sandbox.deadlineSeconds` allows."""
PROOF_PREFIX: Final = "headway-lease:"
"""Before a challenge: what is signed with a token is signed for this purpose alone."""
MAX_DESTINATIONS: Final = 8
MAX_AGENT_WAIT: Final = 60
"""Seconds that one `POST /agent/wait` may take."""
MOST_GROUP: Final = 64
"""Episodes of one group; `spec.algorithm.groupSize` is 32 at most."""
MAX_QUESTION_WAIT: Final = 60
"""Seconds that one `POST /judge/questions` may take."""
MAX_QUESTIONS: Final = 64
"""Questions to judges of one episode."""
TURN_REWARDS_TOLERANCE: Final = 1e-6
"""Distance that the sum of rewards of turns may have to the reward."""


Metrics = Annotated[dict[str, float], BeforeValidator(bounds.named_numbers)]
"""Numbers by name, counted before any of them is looked at."""
Messages = Annotated[list[dict[str, Any]], Field(max_length=bounds.MESSAGES, fail_fast=True)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=bounds.TOOLS, fail_fast=True)]
TurnRewards = Annotated[list[float], Field(max_length=bounds.MESSAGES, fail_fast=True)]


class Problem(Record):
    """Body of every answer that is not a success."""

    reason: Annotated[str, Field(pattern=CONDITION_REASON, max_length=64)]
    """CamelCase and stable, e.g. `EnvironmentNotImportable`, `PoolEmpty`, `LeaseMismatch`, `ToolFailed`."""
    message: str
    field: str | None = None
    """Field of the CR to change, where one is to blame."""
    permanent: bool = False
    """Asking again without a change cannot help."""


class LeaseRequest(Record):
    """Ask for a sandbox pod that no episode has used."""

    lease: str = Field(min_length=1, max_length=MAX_LEASE_NAME)
    """The episode id: asking twice for one episode returns the same lease."""
    owner: str = Field(max_length=MAX_LEASE_NAME)
    """The coordinator process that asks; see `OwnerClaim`."""
    deadline_seconds: float = Field(gt=0, le=MAX_LEASE_SECONDS)
    """The pod destroys itself after this long, whatever happens to everyone else."""


class Lease(Record):
    """A sandbox that now belongs to one episode."""

    lease: str
    pod: str
    url: str
    token: str
    waited_seconds: float


NOT_OWNER: Final = "NotOwner"
"""`Problem.reason` of a lease refused for good since another process has claimed the job's sandboxes."""


class OwnerClaim(Record):
    """A coordinator process announces itself; what its predecessor held is given back."""

    owner: str = Field(max_length=MAX_LEASE_NAME)


class PoolState(Record):
    """What the broker would answer to whoever asks why nothing starts."""

    ready: int
    starting: int
    leased: int
    problem: Problem | None = None
    """Why pods do not become ready: the API's or the environment's own words."""


class Health(Record):
    """Who holds a sandbox, in its server's words; a broker believes a lease that is proved alone."""

    lease: str | None = Field(min_length=1, max_length=MAX_LEASE_NAME)
    deadline: float | None = Field(gt=0, allow_inf_nan=False)
    """Unix time; None where the lease is."""


class Challenge(Record):
    """Show that you hold the token of your lease."""

    challenge: str = Field(pattern="^[0-9a-f]{64}$")


class Proof(Record):
    """HMAC-SHA-256 of PROOF_PREFIX and the challenge, with the token, in hexadecimal."""

    proof: str = Field(pattern="^[0-9a-f]{64}$")


class ResetRequest(Record):
    """Put the environment in its first state for one row."""

    row: dict[str, Any]
    """Every column of the dataset row."""
    seed: int


class ResetReply(Record):
    """What the agent gets to see."""

    messages: Messages
    """OpenAI chat messages to begin with (system and user)."""
    tools: Tools
    """OpenAI tool specs (`{"type": "function", "function": {...}}`)."""
    grouped: bool = False
    """The environment rewards whole groups too: `/group`."""


class ToolCall(Record):
    """One call the model made."""

    name: str
    arguments: dict[str, Any]


class ToolReply(Record):
    """What the tool answered. A failing tool is an observation, not an error of the platform."""

    content: str
    done: bool = False
    """The environment has reached a final state; the episode ends after this turn."""


Protocol = Literal["TCP", "UDP"]


class Destination(Record):
    """Where a sandbox tries to get."""

    name: str
    """What it is, for people; a sandbox is not told."""
    address: str
    port: int = Field(gt=0, lt=65536)
    protocol: Protocol = "TCP"
    """UDP: a question to a name server."""


class ProbeRequest(Record):
    """Try to connect to each of them."""

    destinations: list[dict[str, Any]] = Field(max_length=MAX_DESTINATIONS)
    """`address`, `port` and `protocol` of each."""


class ProbedAtStart(Record):
    """What a sandbox tried by itself while it began."""

    destinations: list[dict[str, Any]] = Field(max_length=MAX_DESTINATIONS)
    """`address`, `port` and `protocol` of each."""
    reached: list[bool] = Field(max_length=MAX_DESTINATIONS)
    age: float = Field(ge=0)


class ProbeReply(Record):
    """What came of it."""

    reached: list[bool] = Field(max_length=MAX_DESTINATIONS)
    """Of each destination whether it answered, in their order."""
    age: float = Field(ge=0)
    """Seconds since the pod's start."""
    protocols: list[str] = Field(default=["TCP"], max_length=8)
    """What it tries; an older server tries everything over TCP."""
    start: ProbedAtStart | None = None
    """None of a sandbox that was not told to try anything."""


class AgentRequest(Record):
    """Start the agent of the episode as a program in its sandbox (`spec.agent.sandboxed`)."""

    command: list[str] = Field(min_length=1)
    """Program and arguments. One that cannot be started is a permanent Problem `AgentNotStarted`."""
    episode: dict[str, Any]
    """Written as JSON to the file that HEADWAY_EPISODE_FILE names to the program, for it to read."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the program, over those of the container."""


class AgentWait(Record):
    """Wait for the program to end."""

    seconds: float = Field(ge=0, le=MAX_AGENT_WAIT)
    """Longest wait; the state is answered then, whatever it is."""


class AgentState(Record):
    """How the program fares."""

    running: bool
    exit_code: int | None
    """Of a program that ended: its exit status, 128 + n where signal n ended it. None while it runs."""
    output: str
    """The last 4 KiB of what it wrote to stdout and stderr."""


class FinishRequest(Record):
    """The episode is over; the environment now scores what happened."""

    messages: list[dict[str, Any]]
    """The whole conversation, as the coordinator recorded it."""
    truncated: bool
    reported: list[float] | None = None
    """What an http agent says its episode is worth, one value or one a turn; the environment judges it.
    None: it said nothing, or is not asked (`spec.agent.http.reportsReward`)."""
    reported_metrics: dict[str, float] = Field(default_factory=dict)
    """The parts of it that the agent sent along."""
    turns: int = Field(default=0, ge=0)
    """Turns that reached the agent: so many rewards of turns the environment may give."""
    judges: list[str] = Field(default_factory=list)
    """Names of the judges that reward and score may ask. Whoever asks then answers, by `/judge/questions`."""


class GroupEpisode(Record):
    """A finished episode, as the others of its group are held against it."""

    messages: list[dict[str, Any]]
    truncated: bool
    turns: int = Field(ge=0)
    """Turns that reached the agent."""
    reward: float
    """What `/finish` said of it alone."""
    metrics: dict[str, float] = Field(default_factory=dict)


class GroupRequest(Record):
    """A group is over; the environment rewards its episodes against each other."""

    row: dict[str, Any]
    seed: int
    episodes: list[GroupEpisode] = Field(min_length=1)
    judges: list[str] = Field(default_factory=list)
    """As in `FinishRequest`."""


class GroupReward(Record):
    """Of one episode; in the place of what `/finish` said."""

    reward: float
    metrics: Metrics = Field(default_factory=dict)
    turn_rewards: TurnRewards | None = None


class GroupReply(Record):
    """One reward for each episode, in their order."""

    rewards: Annotated[list[GroupReward], Field(max_length=MOST_GROUP, fail_fast=True)]


class QuestionWait(Record):
    """Wait for questions to judges."""

    seconds: float = Field(ge=0, le=MAX_QUESTION_WAIT)
    """Longest wait; then there are none."""


class Question(Record):
    """What reward or score asks of a judge."""

    id: int = Field(ge=0, lt=MAX_QUESTIONS)
    """Of this episode."""
    name: str = Field(min_length=1, max_length=bounds.NAME)
    """Of the judge."""
    messages: Messages = Field(min_length=1)
    """OpenAI chat messages."""
    answer_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema that the answer is to hold to; None: it is text."""


class Questions(Record):
    """New questions; each is told once."""

    questions: Annotated[list[Question], Field(max_length=MAX_QUESTIONS, fail_fast=True)]


class Answer(Record):
    """A judge's answer to one of them."""

    id: int
    answer: Any
    """Text, or JSON where the question has a schema."""


class FinishReply(Record):
    """The environment's judgement."""

    reward: float
    """Dense, trained on; must lie in `spec.reward.range`, and within `bounds.SCORE`."""
    score: float
    """Strict and external, reported; success is `score >= successThreshold`."""
    metrics: Metrics = Field(default_factory=dict)
    turn_rewards: TurnRewards | None = None
    """What each turn that reached the agent earned, in their order; they add up to `reward`. None: all of it
    came at the end."""
