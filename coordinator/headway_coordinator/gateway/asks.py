"""The request and the answer of a turn, and the state of its episode: the types of `core.py`."""

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
"""Stands for the names of fields beyond the most that an episode's record may have."""


class ContextFullError(NoTokensLeftError):
    """The conversation leaves no room for another token."""


class ForcedCallError(Exception):
    """The model's family has no known way to begin a tool call on the model's behalf."""


class RenderError(Exception):
    """The model's chat template does not take this conversation."""


class UnknownEffortError(Exception):
    """The model's chat template does not know the requested effort."""


@dataclass(frozen=True)
class Sampling:
    """The parameters of sampling."""

    temperature: float
    top_p: float
    max_tokens: int
    episode_tokens: int | None = None
    """The most tokens of an episode, over all its turns; None: no limit."""


@dataclass(frozen=True)
class Force:
    """OpenAI's tool_choice `required`, or a named tool: the turn begins inside a call."""

    tool: str | None = None
    """The tool to call; None leaves the choice to the model."""


@dataclass(frozen=True)
class FieldNames:
    """What a protocol calls the fields that errors of a turn name."""

    conversation: str = "messages"
    limit: str = "max_tokens"
    schema: str = "response_format"
    stops: Mapping[str, str] = field(default_factory=dict)
    """Stop string -> the field that has it."""


@dataclass(frozen=True)
class Ask:
    """One chat completion, as an agent asks for it."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    may_call: bool = True
    """False for OpenAI's tool_choice `none`. The tools are shown even then: hiding them would change the
    conversation from its first token on. If the model makes a call anyway, it is text."""
    max_tokens: int | None = None
    """The agent's own bound. The job's bound applies as well."""
    force: Force | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the turn. The answer omits the one that did."""
    temperature: float | None = None
    """The agent's own, which is not applied: the job's is."""
    top_p: float | None = None
    """The agent's own, which is not applied: the job's is."""
    logprobs: bool = False
    """Whether the agent wants each token with its log-probability."""
    instructed: bool = False
    """Whether the first message belongs to this turn alone. A request that continues this answer does not
    inherit it."""
    schema: str | None = None
    """JSON schema of the answer. Tokens that break it are hidden from the sampler, so none of this turn's are
    trained."""
    effort: str | None = None
    """How much the model should think, one of `efforts.EFFORTS`; None leaves it to the chat template."""
    effort_at: str = "reasoning_effort"
    """The request's field that asks for the effort."""
    must_think: bool = True
    """What happens if the template does not know the effort. True: the turn is refused. False: it is sampled
    without the effort, and counted."""
    names: FieldNames = field(default_factory=FieldNames, compare=False, repr=False)
    text: str | tuple[int, ...] | None = None
    """A prompt that is not a conversation, as text or as token ids. `messages` then only shows it to
    people."""

    @cached_property
    def size(self) -> int:
        """Approximate bytes of UTF-8 in the conversation and its tools."""
        return size(self.messages, self.tools)

    def overruled(self, sampling: Sampling) -> list[str]:
        """The agent's own parameters of sampling that differ from the job's, by name."""
        pairs = {
            "temperature": (self.temperature, sampling.temperature),
            "top_p": (self.top_p, sampling.top_p),
        }
        return [name for name, (own, jobs) in pairs.items() if own is not None and own != jobs]


@dataclass
class Session:
    """What the gateway knows of one episode."""

    episode_id: str
    seed: int
    """Each turn's own seed is drawn from it."""
    sampling: Sampling
    graph: Graph = field(default_factory=Graph)
    turns: list[Turn] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    """The graph node of each sampled turn. Without known token ids, plain numbers."""
    begun: int = 0
    """Turns that were asked for, including the running ones."""
    forks: int = 0
    """Turns whose history differs from what was sampled. Each begins a training row of its own."""
    drifts: dict[ForkReason, Drift] = field(default_factory=dict)
    """By reason: how many turns forked, and the first of them."""
    unseen: set[int] = field(default_factory=set)
    """Sampled nodes of the graph that never reached the agent, so the reward does not depend on them."""
    guided: set[int] = field(default_factory=set)
    """Nodes of the graph sampled with a schema. The learner does not know which tokens were masked."""
    recorded_turns: list[RecordedTurn] = field(default_factory=list)
    """The recorded turns of conversations, in the order of their answers."""
    texts: list[Continued] = field(default_factory=list)
    """The recorded turns of texts."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Fields of requests that were not applied, and how many requests had them."""
    answered_at: list[float] = field(default_factory=list)
    """When each turn was recorded, in monotonic seconds."""
    whole: WholeAllowance = field(default_factory=WholeAllowance)
    """Tokens that prompts and answers may still have together."""
    spending: Spending = field(default=UNBOUNDED)
    """Reserves what questions to an endpoint may cost."""
    clock: EpisodeClock = field(default_factory=EpisodeClock)
    """Notes what the episode waits for."""
    allowance: TokenAllowance = field(init=False)
    """Tokens that the episode may still sample."""

    def __post_init__(self) -> None:
        self.allowance = TokenAllowance(self.sampling.episode_tokens)

    def ignore(self, names: Iterable[str]) -> None:
        """Count the fields of one request that were not applied, each once.

        Agents choose some of the names. So their length and number are bounded.
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
        """The turns, and which of them reached the agent."""
        pairs = zip(self.turns, self.nodes, strict=True)
        return [turn.model_copy(update={"delivered": node not in self.unseen}) for turn, node in pairs]

    @property
    def untrained(self) -> set[int]:
        """Sampled nodes that are context in every row."""
        return self.unseen | self.guided

    def read(self, turn: RecordedTurn | None) -> None:
        """Note that the client has read `turn`, which it continues, and all turns before it."""
        while turn is not None:
            self.unseen.discard(turn.node)
            turn = turn.before

    def seen(self, text: Continued | None) -> None:
        """Note that the client has read `text`, which it continues, and all texts before it."""
        while text is not None:
            self.unseen.discard(text.node)
            text = text.before

    def recorded(self, turn: Turn, node: int) -> None:
        """Record an answered turn. `node` is its sampled node in the graph."""
        self.turns.append(turn)
        self.nodes.append(node)
        self.answered_at.append(time.monotonic())
        if turn.guided:
            self.guided.add(node)

    def drifted(self, found: drift.ForkCause, turn: int, messages: Sequence[Message]) -> None:
        """Count a turn that begins a training row of its own, with the reason in `found`."""
        self.forks += 1
        self.drifts[found.reason] = drift.counted(self.drifts, found, turn, messages)

    @property
    def cut(self) -> str:
        """Why a turn ended by `length` although its agent asked for more."""
        reached = next((each for each in (self.allowance, self.whole) if each.reached), None)
        return "a turn reached its token limit" if reached is None else str(reached)

    @property
    def limited(self) -> bool:
        """Whether one of the episode's own limits cut or refused a turn."""
        return self.allowance.reached or self.whole.reached

    @property
    def taken(self) -> int:
        """Turns that reached the agent."""
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
    """The message in OpenAI's form. Its content keeps the text of tool calls that could not be read."""
    calls: list[Call]
    """Every attempted tool call, in order, including those that could not be read."""
    finish_reason: str
    """`stop`, `tool_calls` or `length`; an endpoint may also give `content_filter`."""
    turn: Turn
    """The turn's usage."""
    node: int
    """The turn's number in `Session.nodes`."""
    stopped: str | None = None
    """The string of `Ask.stop` that ended the turn."""
    scored: tuple[Scored, ...] = ()
    """The sampled tokens, if `Ask.logprobs` wants them and the server provides them."""
    conversation: list[Message] | None = None
    """The prompt as people read it, if it differs from `Ask.messages`."""


class Chat(Protocol):
    """Answers turns: a `Gateway` over the job's own servers, or an endpoint elsewhere."""

    async def chat(self, session: Session, ask: Ask) -> Completion:
        """Answer one turn, and record it in `session`.

        Raises:
            NoTokensLeftError: no token fits the context, or the episode's limit, any more.
            ForcedCallError: this model cannot do `ask.force`.
            RenderError: the chat template does not take this conversation.
            UnknownEffortError: the chat template does not know `ask.effort`.
            SchemaRefusedError: the servers do not take `ask.schema`.
            GatewayError: a field of the request is refused.
            InfraError: the servers failed.
            CandidateError: the candidate cannot go on.
        """
