"""What a turn is asked for and answered with, and what is known of its episode: the words of `core.py`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from headway_api.records import Drift, ForkReason, Turn
from headway_coordinator.budget.spending import UNBOUNDED, Spending
from headway_coordinator.episode_clock import EpisodeClock
from headway_coordinator.gateway import drift
from headway_coordinator.gateway.allowance import NoTokensLeft, TokenAllowance, WholeAllowance
from headway_coordinator.gateway.conversations import RecordedTurn
from headway_coordinator.gateway.texts import Continued
from headway_coordinator.trajectory.calls import Call, Message, Tool
from headway_coordinator.trajectory.graph import Graph

ANY_OBJECT: Final = '{"type": "object"}'
"""The schema of any JSON object."""


class ContextFull(NoTokensLeft):
    """The conversation leaves no room for another token."""


class CannotForce(Exception):
    """The model's family has no known way to begin a tool call on the model's behalf."""


class CannotRender(Exception):
    """The model's chat template takes no such conversation."""


class CannotThink(Exception):
    """Nor does it know how much the model is to think."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float
    top_p: float
    max_tokens: int
    episode_tokens: int | None = None
    """Most tokens of an episode, over all its turns; None: no limit."""


@dataclass(frozen=True)
class Force:
    """OpenAI's tool_choice `required`, or a named tool: the turn begins in the middle of a call."""

    tool: str | None = None
    """The tool to call; None leaves the choice to the model."""


@dataclass(frozen=True)
class Ask:
    """One chat completion, as an agent asks for it."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    may_call: bool = True
    """OpenAI's tool_choice `none` is False: the tools are shown all the same, since a conversation that hides
    them is another one from its first token on; a call that the model makes anyway is text."""
    max_tokens: int | None = None
    """A bound of the agent's own; the job's holds anyway."""
    force: Force | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the turn; the answer is told without the one that did."""
    logprobs: bool = False
    """Whether the answer is wanted token by token."""
    instructed: bool = False
    """The first message is of this turn alone: who goes on from its answer does not take it over."""
    schema: str | None = None
    """JSON schema that holds the answer: tokens that break it are hidden from the sampler, so none of this
    turn's are trained."""
    effort: str | None = None
    """How much the model is to think, one of `efforts.EFFORTS`; None leaves it to the chat template."""
    effort_at: str = "reasoning_effort"
    """The field that says it."""
    must_think: bool = True
    """Where the template knows no such effort: is the turn refused, or taken without it and counted?"""
    text: str | tuple[int, ...] | None = None
    """A prompt that is no conversation, as text or as token ids: `messages` say it for people alone."""


@dataclass
class Session:
    """What the gateway knows of one episode."""

    episode_id: str
    seed: int
    """Every turn's own seed is drawn from it."""
    sampling: Sampling
    graph: Graph = field(default_factory=Graph)
    turns: list[Turn] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    """What was sampled in each of them, in the graph; numbers of their own where no token ids are known."""
    begun: int = 0
    """Turns asked for, the running ones included."""
    forks: int = 0
    """Turns whose history left what was sampled: each begins a row of its own."""
    drifts: dict[ForkReason, Drift] = field(default_factory=dict)
    """Why they did."""
    unseen: set[int] = field(default_factory=set)
    """Sampled nodes of the graph that never reached the agent: they had no part in its reward."""
    guided: set[int] = field(default_factory=set)
    """Sampled nodes of the graph that a schema held: the learner does not know what was hidden from them."""
    said: list[RecordedTurn] = field(default_factory=list)
    """The recorded turns of conversations, in the order in which they were answered."""
    texts: list[Continued] = field(default_factory=list)
    """And those of texts."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Fields of requests that were not applied, and in how many."""
    answered_at: list[float] = field(default_factory=list)
    """When each turn was recorded, monotonic."""
    whole: WholeAllowance = field(default_factory=WholeAllowance)
    """Tokens that prompts and answers may still have together."""
    spending: Spending = field(default=UNBOUNDED)
    """Reserves what an endpoint may be asked."""
    clock: EpisodeClock = field(default_factory=EpisodeClock)
    """Notes what the episode waits for."""
    allowance: TokenAllowance = field(init=False)
    """Tokens that it may still sample."""

    def __post_init__(self) -> None:
        self.allowance = TokenAllowance(self.sampling.episode_tokens)

    @property
    def record(self) -> list[Turn]:
        """The turns, and which of them reached the agent."""
        pairs = zip(self.turns, self.nodes, strict=True)
        return [turn.model_copy(update={"delivered": node not in self.unseen}) for turn, node in pairs]

    @property
    def untrained(self) -> set[int]:
        """Sampled nodes that are context wherever they stand."""
        return self.unseen | self.guided

    def read(self, said: RecordedTurn | None) -> None:
        """A client goes on from a recorded turn: it has read that, and all that this goes on from."""
        while said is not None:
            self.unseen.discard(said.node)
            said = said.before

    def seen(self, text: Continued | None) -> None:
        """The same of a text."""
        while text is not None:
            self.unseen.discard(text.node)
            text = text.before

    def recorded(self, turn: Turn, node: int) -> None:
        """A turn was answered: `node` is what was sampled, in the graph."""
        self.turns.append(turn)
        self.nodes.append(node)
        self.answered_at.append(time.monotonic())
        if turn.guided:
            self.guided.add(node)

    def drifted(self, found: drift.Found, turn: int, messages: Sequence[Message]) -> None:
        """A turn begins a row of its own."""
        self.forks += 1
        self.drifts[found.reason] = drift.counted(self.drifts, found, turn, messages)

    @property
    def cut(self) -> str:
        """Why a turn that ended by `length` did, whose agent asked for more."""
        reached = next((each for each in (self.allowance, self.whole) if each.reached), None)
        return "a turn reached its most tokens" if reached is None else str(reached)

    @property
    def limited(self) -> bool:
        """Whether a limit of the episode's own cut or refused a turn."""
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
    """Of the policy, at the job's temperature and top_p."""


@dataclass(frozen=True)
class Completion:
    """The model's answer to one turn."""

    number: int
    """Which of the episode's turns it is, in the order in which they were asked for."""
    message: Message
    """OpenAI form; text of tool calls that could not be read is kept in its content."""
    calls: list[Call]
    """Every attempt at a tool call, in order, those that could not be read included."""
    finish_reason: str
    """`stop`, `tool_calls` or `length`; of an endpoint also `content_filter`."""
    turn: Turn
    """What it cost."""
    node: int
    """Its number in `Session.nodes`."""
    stopped: str | None = None
    """The string of `Ask.stop` that ended it."""
    scored: tuple[Scored, ...] = ()
    """Its sampled tokens, where `Ask.logprobs` wants them and the server says them."""
    conversation: list[Message] | None = None
    """The prompt as people read it, where it is not `Ask.messages`."""


class Chat(Protocol):
    """Whatever answers turns: a `Gateway` over the job's own servers, or an endpoint elsewhere."""

    async def chat(self, session: Session, ask: Ask) -> Completion:
        """Answer one turn, and record it in `session`.

        Raises:
            NoTokensLeft: no token fits the context, or the episode's limit, any more.
            CannotForce: `ask.force` is not possible with this model.
            CannotRender: nor is this conversation.
            CannotThink: nor is `ask.effort`.
            SchemaRefused: the servers take no such `ask.schema`.
            Refusal: nor a field of the request.
            InfraFault: the servers failed.
            CandidateFault: the candidate cannot go on.
        """
