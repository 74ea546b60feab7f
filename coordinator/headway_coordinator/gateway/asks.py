"""The types of the gateway: the request for a turn, its answer, and the state of its episode."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

from headway_api import bounds
from headway_api.bounds import shortened
from headway_api.records import MAX_IGNORED, Drift, ForkReason, Turn
from headway_coordinator.budget.spending import UNBOUNDED, Spending
from headway_coordinator.episode_clock import EpisodeClock
from headway_coordinator.gateway import drift
from headway_coordinator.gateway.allowance import NoTokensLeftError, TokenAllowance, WholeAllowance
from headway_coordinator.gateway.conversations import RecordedTurn
from headway_coordinator.gateway.texts import Continued
from headway_coordinator.trajectory.calls import Call, Message, Tool
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.lengths import size

ANY_OBJECT: Final = '{"type": "object"}'
"""The schema of any JSON object."""
OTHERS: Final = "others"
"""Replaces the names of further ignored fields once an episode's record has its maximum of names."""


class ContextFullError(NoTokensLeftError):
    """The conversation leaves no room for another token."""


class ForcedCallError(Exception):
    """A forced tool call is impossible: the gateway does not know how this model's family begins a call."""


class RenderError(Exception):
    """The model's chat template raises an error for this conversation."""


class UnknownEffortError(Exception):
    """The model's chat template does not know the requested effort."""


@dataclass(frozen=True)
class Sampling:
    """The job's parameters of sampling, which apply to every turn."""

    temperature: float
    top_p: float
    max_tokens: int
    episode_tokens: int | None = None
    """The most tokens of an episode, over all its turns; None: no limit."""


@dataclass(frozen=True)
class Force:
    """OpenAI's tool_choice `required`, or a named tool. The gateway writes the beginning of the call."""

    tool: str | None = None
    """The tool to call; None leaves the choice to the model."""


@dataclass(frozen=True)
class FieldNames:
    """The protocol's names of the request's fields, for error messages about a turn."""

    conversation: str = "messages"
    limit: str = "max_tokens"
    schema: str = "response_format"
    stops: Mapping[str, str] = field(default_factory=dict)
    """Stop string -> the field of the request that contains it."""


@dataclass(frozen=True)
class Ask:
    """An agent's request for one turn, in the same form for all protocols."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    may_call: bool = True
    """False for OpenAI's tool_choice `none`. The prompt shows the tools even then: hiding them would change
    the conversation from its first token on. If the model makes a call anyway, the call is kept as text."""
    max_tokens: int | None = None
    """The agent's own limit on tokens of the answer. The job's limit applies as well."""
    force: Force | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the turn. The answer omits the string that ended it."""
    temperature: float | None = None
    """The agent's own temperature. It is not applied: the job's temperature is."""
    top_p: float | None = None
    """The agent's own top_p. It is not applied: the job's top_p is."""
    logprobs: bool = False
    """Whether the agent wants each token with its log-probability."""
    instructed: bool = False
    """Whether the first message belongs to this turn alone, as `instructions` of Responses. A request that
    continues this answer does not inherit that message."""
    schema: str | None = None
    """JSON schema of the answer. The sampler masks tokens that would break the schema, so none of this turn's
    tokens are trained."""
    effort: str | None = None
    """How much the model should think: one of `trajectory/efforts.py:EFFORTS`. None: the template decides."""
    effort_at: str = "reasoning_effort"
    """The field of the request that sets `effort`."""
    must_think: bool = True
    """What happens if the chat template does not know the effort. True: the turn is refused. False: the turn
    is sampled without the effort, and the field is counted as ignored."""
    names: FieldNames = field(default_factory=FieldNames, compare=False, repr=False)
    text: str | tuple[int, ...] | None = None
    """A prompt that is not a conversation, as text or as token ids. `messages` then only shows that prompt
    to people."""

    @cached_property
    def size(self) -> int:
        """Approximate bytes of UTF-8 in the conversation and its tools."""
        return size(self.messages, self.tools)

    def overruled(self, sampling: Sampling) -> list[str]:
        """The names of the agent's own sampling parameters that differ from the job's."""
        pairs = {
            "temperature": (self.temperature, sampling.temperature),
            "top_p": (self.top_p, sampling.top_p),
        }
        return [name for name, (own, jobs) in pairs.items() if own is not None and own != jobs]


@dataclass
class Session:
    """The gateway's state of one episode."""

    episode_id: str
    seed: int
    """The episode's seed. Each turn's own seed is derived from it."""
    sampling: Sampling
    graph: Graph = field(default_factory=Graph)
    turns: list[Turn] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    """The graph node of each sampled turn. If the token ids are unknown, consecutive numbers instead."""
    begun: int = 0
    """Number of turns that the agent requested, including the running ones."""
    forks: int = 0
    """Number of turns whose history differs from what was sampled. Each begins a training row of its own."""
    drifts: dict[ForkReason, Drift] = field(default_factory=dict)
    """Reason -> how many turns forked for it, and details of the first such turn."""
    unseen: set[int] = field(default_factory=set)
    """Sampled nodes of the graph that never reached the agent, so the reward does not depend on them."""
    delivering: set[int] = field(default_factory=set)
    """Nodes of `unseen` whose answers are on their way to a client that waits."""
    guided: set[int] = field(default_factory=set)
    """Nodes of the graph sampled with a schema. They are not trained: the learner does not know which tokens
    the sampler masked."""
    recorded_turns: list[RecordedTurn] = field(default_factory=list)
    """The recorded turns whose prompt is a conversation, in the order of their answers."""
    texts: list[Continued] = field(default_factory=list)
    """The recorded turns whose prompt is a plain text or token ids."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Fields of requests that were not applied, and how many requests had them."""
    answered_at: list[float] = field(default_factory=list)
    """When each turn was recorded, in monotonic seconds."""
    whole: WholeAllowance = field(default_factory=WholeAllowance)
    """The limit on tokens of all prompts and answers together."""
    spending: Spending = field(default=UNBOUNDED)
    """Reserves money for requests to an endpoint."""
    clock: EpisodeClock = field(default_factory=EpisodeClock)
    """Records what the episode waits for, and for how long."""
    allowance: TokenAllowance = field(init=False)
    """The limit on tokens that the episode may sample."""

    def __post_init__(self) -> None:
        self.allowance = TokenAllowance(self.sampling.episode_tokens)

    def ignore(self, names: Iterable[str]) -> None:
        """Count the fields of one request that were not applied, each once.

        Agents may send any field names, so the length and the number of names are bounded.
        """
        counted: set[str] = set()
        for name in names:
            short = shortened(name, bounds.NAME)
            known = short in self.ignored or len(self.ignored) < MAX_IGNORED - 1
            key = short if known else OTHERS
            if key not in counted:
                counted.add(key)
                self.ignored[key] += 1

    @property
    def record(self) -> list[Turn]:
        """The turns for the episode's record. `delivered` says whether a turn reached the agent."""
        pairs = zip(self.turns, self.nodes, strict=True)
        return [turn.model_copy(update={"delivered": node not in self.unseen}) for turn, node in pairs]

    @property
    def lost(self) -> set[int]:
        """Sampled nodes that never reached the agent and never will, so no turn forks from them."""
        return self.unseen - self.delivering

    @property
    def untrained(self) -> set[int]:
        """Sampled nodes that are not trained: they are context in every training row."""
        return self.unseen | self.guided

    def read(self, turn: RecordedTurn | None) -> None:
        """Note that the client has read `turn`, because it continues it, and all turns before it."""
        while turn is not None:
            self.arrived(turn.node)
            turn = turn.before

    def seen(self, text: Continued | None) -> None:
        """Note that the client has read `text`, because it continues it, and all texts before it."""
        while text is not None:
            self.arrived(text.node)
            text = text.before

    def arrived(self, node: int) -> None:
        """Note that a turn's answer reached the agent."""
        self.unseen.discard(node)
        self.delivering.discard(node)

    def recorded(self, turn: Turn, node: int) -> None:
        """Record an answered turn. `node` is its sampled node in the graph."""
        self.turns.append(turn)
        self.nodes.append(node)
        self.answered_at.append(time.monotonic())
        if turn.guided:
            self.guided.add(node)

    def forks_at(self, prompt: Sequence[int], nodes: Iterable[int]) -> bool:
        """Whether a turn with these prompt tokens begins another training row than the sampled `nodes`."""
        lost = self.lost
        return any(node not in lost for node in nodes) and self.graph.forks_at(prompt, lost)

    def drifted(self, found: drift.ForkCause, turn: int, messages: Sequence[Message]) -> None:
        """Count a fork: a turn that begins a training row of its own, for the reason in `found`."""
        self.forks += 1
        self.drifts[found.reason] = drift.counted(self.drifts, found, turn, messages)

    @property
    def cut(self) -> str:
        """Why a turn ended with the finish reason `length` although its agent allowed more tokens."""
        reached = next((each for each in (self.allowance, self.whole) if each.reached), None)
        return "a turn reached its token limit" if reached is None else str(reached)

    @property
    def limited(self) -> bool:
        """Whether one of the episode's own limits cut or refused a turn."""
        return self.allowance.reached or self.whole.reached

    @property
    def taken(self) -> int:
        """Number of turns that reached the agent."""
        return len(self.turns) - len(self.unseen)


@dataclass(frozen=True)
class Scored:
    """One sampled token."""

    text: str
    logprob: float
    """The policy's log-probability, at the job's temperature and top_p."""


@dataclass(frozen=True)
class Completion:
    """The model's answer to one turn."""

    number: int
    """The turn's number in the episode, in the order of requests."""
    message: Message
    """The message in OpenAI's form. Its content keeps the text of tool calls that could not be parsed."""
    calls: list[Call]
    """Every attempted tool call, in order, including those that could not be parsed."""
    finish_reason: str
    """`stop`, `tool_calls` or `length`; an endpoint may also give `content_filter`."""
    turn: Turn
    """The turn's usage."""
    node: int
    """The turn's entry in `Session.nodes`."""
    stopped: str | None = None
    """The string of `Ask.stop` that ended the turn."""
    scored: tuple[Scored, ...] = ()
    """The sampled tokens, if `Ask.logprobs` wants them and the server provides them."""
    conversation: list[Message] | None = None
    """The prompt in a form that people can read, if it differs from `Ask.messages`."""


class Chat(Protocol):
    """Answers turns: a `Gateway` over the job's own servers, or an endpoint elsewhere."""

    async def chat(self, session: Session, ask: Ask) -> Completion:
        """Answer one turn, and record it in `session`.

        Raises:
            NoTokensLeftError: the context is full, or the episode has reached its limit of tokens.
            ForcedCallError: `ask.force` is impossible for this model.
            RenderError: the chat template does not accept this conversation.
            UnknownEffortError: the chat template does not know `ask.effort`.
            SchemaRefusedError: the servers do not accept `ask.schema`.
            GatewayError: a field of the request is refused.
            InfraError: the servers failed.
            CandidateError: the candidate of an evaluation cannot answer any more.
        """
