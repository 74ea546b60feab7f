"""Documents exchanged with the sandbox broker and with the server inside a sandbox pod.

Broker (`/v1`, `Key.COORDINATOR_TO_BROKER`):
    POST   /leases            LeaseRequest -> 201 Lease | 503 Problem (Retry-After: seconds) | 409 Problem
    DELETE /leases/{id}       204; the pod is destroyed in the background, whatever state it is in
    POST   /owners            OwnerClaim -> 204; leases of any other owner are released
    GET    /pool              PoolState
Sandbox (the lease's own token, bound by the first `POST /lease`):
    GET    /healthz           200 Health
    POST   /lease             {"lease": str, "token": str, "deadline": float, "seconds": float} -> 204 | 409
                              if bound to another. After 95 % of `seconds` (may be left out) an environment
                              that has not returned is a Problem `EnvironmentHangs`, with file and line
    POST   /proof             Challenge -> Proof | 409 if bound to nobody; asked without the token
    POST   /reset             ResetRequest -> ResetReply
    POST   /tool              ToolCall -> ToolReply
    POST   /agent             AgentRequest -> AgentState | 409 before the reset or after the finish; starts
                              the program once: a repeated request returns the state of this program
    POST   /agent/wait        AgentWait -> AgentState, once the program has ended or the time is over
    POST   /probe             ProbeRequest -> ProbeReply: what the pod reaches
    POST   /finish            FinishRequest -> FinishReply; a program that still runs is killed first
    POST   /group             GroupRequest -> GroupReply | 409 if the sandbox ran an episode; the sandbox
                              ends afterwards
    POST   /judge/questions   QuestionWait -> Questions: questions to judges while /finish or /group runs
    POST   /judge/answer      Answer -> {} | 409 if no such question is open
Every refusal is a `Problem`. The server in the pod is standard library only, and reads and writes the same
JSON without these models. `tests/unit/sandbox` compares the two.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from headway_api import bounds
from headway_api.exits import CONDITION_REASON
from headway_api.record import Record

MAX_LEASE_NAME: Final = 200
"""Maximum characters of a lease's or an owner's name."""
MAX_LEASE_SECONDS: Final = 86_400
"""Longest lease in seconds: the most that `spec.environment.sandbox.deadlineSeconds` allows."""
PROOF_PREFIX: Final = "headway-lease:"
"""Prefix of a challenge, so that a signature with a token serves this purpose only."""
MAX_DESTINATIONS: Final = 8
MAX_AGENT_WAIT: Final = 60
"""Maximum seconds that one `POST /agent/wait` may take."""
MAX_GROUP: Final = 64
"""Maximum episodes of one group; `spec.algorithm.groupSize` is 32 at most."""
MAX_QUESTION_WAIT: Final = 60
"""Maximum seconds that one `POST /judge/questions` may take."""
MAX_QUESTIONS: Final = 64
"""Maximum questions to judges in one episode."""
TURN_REWARDS_TOLERANCE: Final = 1e-6
"""Largest difference between the sum of turn rewards and the reward."""


Metrics = Annotated[dict[str, float], BeforeValidator(bounds.named_numbers)]
"""Named metrics. Their count is checked before any number is parsed."""
Messages = Annotated[list[dict[str, Any]], Field(max_length=bounds.MESSAGES, fail_fast=True)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=bounds.TOOLS, fail_fast=True)]
TurnRewards = Annotated[list[float], Field(max_length=bounds.MESSAGES, fail_fast=True)]


class Problem(Record):
    """Body of every answer that is not a success."""

    reason: Annotated[str, Field(pattern=CONDITION_REASON, max_length=64)]
    """CamelCase and stable, e.g. `EnvironmentNotImportable`, `PoolEmpty`, `LeaseMismatch`, `ToolFailed`."""
    message: str
    field: str | None = None
    """Field of the CR to change, if one is the cause."""
    permanent: bool = False
    """Whether a retry without a change would fail again."""


class LeaseRequest(Record):
    """Ask for a sandbox pod that no episode has used."""

    lease: str = Field(min_length=1, max_length=MAX_LEASE_NAME)
    """The episode id. Asking twice for one episode returns the same lease."""
    owner: str = Field(max_length=MAX_LEASE_NAME)
    """The coordinator process that asks; see `OwnerClaim`."""
    deadline_seconds: float = Field(gt=0, le=MAX_LEASE_SECONDS)
    """The pod deletes itself after this many seconds, whatever happens to the rest of the job."""


class Lease(Record):
    """A sandbox that now belongs to one episode."""

    lease: str
    pod: str
    url: str
    token: str
    waited_seconds: float


NOT_OWNER: Final = "NotOwner"
"""`Problem.reason` of a lease that is refused permanently, because another process has claimed the job's
sandboxes."""


class OwnerClaim(Record):
    """A coordinator process claims the job's sandboxes; the broker releases its predecessor's leases."""

    owner: str = Field(max_length=MAX_LEASE_NAME)


class PoolState(Record):
    """State of the broker's pool, which shows why nothing starts."""

    ready: int
    starting: int
    leased: int
    problem: Problem | None = None
    """Why pods do not become ready, in the Kubernetes API's or the environment's own words."""


class Health(Record):
    """The lease that a sandbox's server says it has. A broker believes this only with a `Proof`."""

    lease: str | None = Field(min_length=1, max_length=MAX_LEASE_NAME)
    deadline: float | None = Field(gt=0, allow_inf_nan=False)
    """Unix time at which the lease ends; None without a lease."""


class Challenge(Record):
    """Ask a sandbox to prove that it holds the token of its lease."""

    challenge: str = Field(pattern="^[0-9a-f]{64}$")


class Proof(Record):
    """HMAC-SHA-256 of PROOF_PREFIX and the challenge, with the token, in hexadecimal."""

    proof: str = Field(pattern="^[0-9a-f]{64}$")


class ResetRequest(Record):
    """Put the environment into its first state for one row."""

    row: dict[str, Any]
    """Every column of the dataset row."""
    seed: int


class ResetReply(Record):
    """What the agent sees first."""

    messages: Messages
    """OpenAI chat messages to begin with (system and user)."""
    tools: Tools
    """OpenAI tool specs (`{"type": "function", "function": {...}}`)."""
    grouped: bool = False
    """Whether the environment also rewards whole groups: `/group`."""


class ToolCall(Record):
    """One tool call of the model."""

    name: str
    arguments: dict[str, Any]


class ToolReply(Record):
    """The tool's answer. A failing tool is an observation, not an error of the platform."""

    content: str
    done: bool = False
    """Whether the environment has reached a final state; the episode then ends after this turn."""


Protocol = Literal["TCP", "UDP"]


class Destination(Record):
    """A destination that a sandbox tries to reach."""

    name: str
    """Name for people; a sandbox does not get it."""
    address: str
    port: int = Field(gt=0, lt=65536)
    protocol: Protocol = "TCP"
    """With UDP, the sandbox sends a question to a name server."""


class ProbeRequest(Record):
    """Try to connect to each destination."""

    destinations: list[dict[str, Any]] = Field(max_length=MAX_DESTINATIONS)
    """`address`, `port` and `protocol` of each."""


class ProbedAtStart(Record):
    """What a sandbox tried by itself while it started."""

    destinations: list[dict[str, Any]] = Field(max_length=MAX_DESTINATIONS)
    """`address`, `port` and `protocol` of each."""
    reached: list[bool] = Field(max_length=MAX_DESTINATIONS)
    age: float = Field(ge=0)


class ProbeReply(Record):
    """Result of a probe."""

    reached: list[bool] = Field(max_length=MAX_DESTINATIONS)
    """Whether each destination answered, in their order."""
    age: float = Field(ge=0)
    """Seconds since the pod's start."""
    protocols: list[str] = Field(default=["TCP"], max_length=8)
    """Protocols that the server can try; an older server tries everything over TCP."""
    start: ProbedAtStart | None = None
    """What the sandbox tried while it started. None: it was not asked to try anything."""


class AgentRequest(Record):
    """Start the agent of the episode as a program in its sandbox (`spec.agent.sandboxed`)."""

    command: list[str] = Field(min_length=1)
    """Program and arguments. If it cannot be started, the answer is a permanent Problem `AgentNotStarted`."""
    episode: dict[str, Any]
    """The episode, written as JSON to the file that HEADWAY_EPISODE_FILE names, for the program to read."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the program. They override variables of the container."""


class AgentWait(Record):
    """Wait for the program to end."""

    seconds: float = Field(ge=0, le=MAX_AGENT_WAIT)
    """Maximum wait. If the program still runs then, the answer is its present state."""


class AgentState(Record):
    """State of the program."""

    running: bool
    exit_code: int | None
    """Exit status of a program that ended, or 128 + n if signal n ended it. None while it runs."""
    output: str
    """The last 4 KiB of the program's output to stdout and stderr."""


class FinishRequest(Record):
    """The episode is over; the environment now scores it."""

    messages: list[dict[str, Any]]
    """The whole conversation, as the coordinator recorded it."""
    truncated: bool
    reported: list[float] | None = None
    """Reward that an http agent reports: one value, or one for each turn. The environment judges with it.
    None: the agent reported nothing, or need not (`spec.agent.http.reportsReward`)."""
    reported_metrics: dict[str, float] = Field(default_factory=dict)
    """Parts of the reported reward by name, as the agent sent them."""
    turns: int = Field(default=0, ge=0)
    """Number of turns that reached the agent. The environment may give a turn reward for each of them."""
    judges: list[str] = Field(default_factory=list)
    """Names of the judges that reward and score may ask. The caller must then answer, by
    `/judge/questions`."""


class GroupEpisode(Record):
    """A finished episode, for comparison with the others of its group."""

    messages: list[dict[str, Any]]
    truncated: bool
    turns: int = Field(ge=0)
    """Turns that reached the agent."""
    reward: float
    """Reward that `/finish` gave for this episode alone."""
    metrics: dict[str, float] = Field(default_factory=dict)


class GroupRequest(Record):
    """A group is over; the environment compares its episodes and rewards them."""

    row: dict[str, Any]
    seed: int
    episodes: list[GroupEpisode] = Field(min_length=1)
    judges: list[str] = Field(default_factory=list)
    """As in `FinishRequest`."""


class GroupReward(Record):
    """Reward of one episode, which replaces what `/finish` gave."""

    reward: float
    metrics: Metrics = Field(default_factory=dict)
    turn_rewards: TurnRewards | None = None


class GroupReply(Record):
    """One reward for each episode, in their order."""

    rewards: Annotated[list[GroupReward], Field(max_length=MAX_GROUP, fail_fast=True)]


class QuestionWait(Record):
    """Wait for questions to judges."""

    seconds: float = Field(ge=0, le=MAX_QUESTION_WAIT)
    """Maximum wait. If there is no question by then, the list is empty."""


class Question(Record):
    """A question of reward or score to a judge."""

    id: int = Field(ge=0, lt=MAX_QUESTIONS)
    """Number of the question within this episode."""
    name: str = Field(min_length=1, max_length=bounds.NAME)
    """Name of the judge."""
    messages: Messages = Field(min_length=1)
    """OpenAI chat messages."""
    answer_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON schema that the answer must follow. None: the answer is text."""


class Questions(Record):
    """New questions; each is returned once."""

    questions: Annotated[list[Question], Field(max_length=MAX_QUESTIONS, fail_fast=True)]


class JudgeAnswer(Record):
    """A judge's answer to a question."""

    id: int
    answer: Any
    """Text, or JSON if the question has a schema."""


class FinishReply(Record):
    """The environment's judgement."""

    reward: float
    """Dense reward to train on; must lie in `spec.reward.range`, and within `bounds.SCORE`."""
    score: float
    """Strict external score, for reports; success is `score >= successThreshold`."""
    metrics: Metrics = Field(default_factory=dict)
    turn_rewards: TurnRewards | None = None
    """Rewards of the turns that reached the agent, in their order; they add up to `reward`. None: the whole
    reward came at the end."""
