"""The gateway: one chat completion, tokens in and tokens out, recorded into the episode's graph.

Every agent's turns pass here: the built-in agent's in process, the others' through `server.py`, which only
translates. Several turns of one episode may run at once (an agent with helpers): each is a branch of its
graph.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headway_api.bounds import shortened
from headway_api.records import Drift, ForkReason, Turn
from headway_coordinator.engines.vllm import Request, Sampled
from headway_coordinator.gateway import drift, stops
from headway_coordinator.gateway.conversations import Said, continued, meaning
from headway_coordinator.gateway.systems import Systems
from headway_coordinator.seeds import seed
from headway_coordinator.trajectory.calls import Call, Message, Parsed, Tool, kinds
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.lengths import content, extent, size
from headway_coordinator.trajectory.render import Renderer

INLINE_CHARACTERS = 16 * 1024
"""Bytes that are rendered at once, in some 20 ms: more of them would keep all other episodes waiting."""
BYTES_A_TOKEN = 4
"""Of a conversation that fills its context: one that has more is counted before it is rendered."""


class Engine(Protocol):
    """Whatever samples tokens: the fleet of rollout servers."""

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled: ...


class ContextFull(Exception):
    """The conversation leaves no room for another token: the episode is truncated, not failed."""


class CannotForce(Exception):
    """The model's family has no known way to begin a tool call on the model's behalf."""


class CannotRender(Exception):
    """The model's chat template takes no such conversation."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float
    top_p: float
    max_tokens: int


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
    said: list[Said] = field(default_factory=list)
    """The recorded turns, in the order in which they were answered."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Fields of requests that were not applied, and in how many."""
    answered_at: list[float] = field(default_factory=list)
    """When each turn was recorded, monotonic."""

    @property
    def record(self) -> list[Turn]:
        """The turns, and which of them reached the agent."""
        pairs = zip(self.turns, self.nodes, strict=True)
        return [turn.model_copy(update={"delivered": node not in self.unseen}) for turn, node in pairs]

    def read(self, said: Said | None) -> None:
        """A client goes on from a recorded turn: it has read that, and all that this goes on from."""
        while said is not None:
            self.unseen.discard(said.node)
            said = said.before

    def drifted(self, found: drift.Found, turn: int, messages: Sequence[Message]) -> None:
        """A turn begins a row of its own."""
        self.forks += 1
        self.drifts[found.reason] = drift.counted(self.drifts, found, turn, messages)

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


class Chat(Protocol):
    """Whatever answers turns: a `Gateway` over the job's own servers, or an endpoint elsewhere."""

    async def chat(self, session: Session, ask: Ask) -> Completion:
        """Answer one turn, and record it in `session`.

        Raises:
            ContextFull: no token fits any more.
            CannotForce: `ask.force` is not possible with this model.
            CannotRender: nor is this conversation.
            InfraFault: the servers failed.
            CandidateFault: the candidate cannot go on.
        """


class Gateway:
    """Chat completions over an engine that speaks token ids."""

    def __init__(self, renderer: Renderer, engine: Engine, context_length: int, timeout: float) -> None:
        self._renderer = renderer
        self._systems = Systems(renderer)
        self._engine = engine
        self._context_length = context_length
        self._timeout = timeout
        self._longest_token = renderer.longest_token
        self._large = asyncio.Lock()
        """Held by the one conversation that is counted or rendered beyond `BYTES_A_TOKEN`."""

    async def chat(self, session: Session, ask: Ask) -> Completion:
        """Sample the next assistant message.

        Raises:
            ContextFull: no token fits any more.
            CannotForce: `ask.force` is not possible with this model.
            CannotRender: nor is this conversation.
            InfraFault: the engine failed.
        """
        ask = replace(ask, messages=self._systems.told(ask.messages))
        await self._require_room(ask)
        meanings = [meaning(message) for message in ask.messages]
        before = continued(session.said, ask.messages, meanings, ask.tools, session.unseen)
        session.read(before)
        forced = self._forced(ask.force)
        number, session.begun = session.begun, session.begun + 1
        prompt = await self._prompt(session, ask, meanings, before, number) + forced
        room = self._context_length - len(prompt)
        if room < 1:
            raise ContextFull(f"{len(prompt)} tokens fill the context of {self._context_length}")
        request = Request(
            prompt=prompt,
            max_tokens=min(room, session.sampling.max_tokens, ask.max_tokens or room),
            temperature=session.sampling.temperature,
            top_p=session.sampling.top_p,
            seed=seed(session.seed, number),
            stop_token_ids=self._renderer.stop_token_ids,
            stop=ask.stop,
        )
        sampled = await self._engine.generate(session.episode_id, request, self._timeout)
        return self._record(session, ask, meanings, before, number, prompt, forced, sampled)

    async def count(self, session: Session, ask: Ask) -> int:
        """How many tokens the prompt of a turn has. Nothing is sampled or recorded.

        Raises:
            ContextFull, CannotForce, CannotRender: as `chat` does.
        """
        ask = replace(ask, messages=self._systems.told(ask.messages))
        await self._require_room(ask)
        meanings = [meaning(message) for message in ask.messages]
        before = continued(session.said, ask.messages, meanings, ask.tools, session.unseen)
        return len(await self._tokens(ask, before)) + len(self._forced(ask.force))

    def _forced(self, force: Force | None) -> list[int]:
        if force is None:
            return []
        tokens = self._renderer.force(force.tool)
        if tokens is None:
            raise CannotForce(f"{self._renderer.name} knows no way to begin a tool call for the model")
        return tokens

    def _is_large(self, ask: Ask) -> bool:
        return size(ask.messages, ask.tools) > BYTES_A_TOKEN * self._context_length

    async def _require_room(self, ask: Ask) -> None:
        """Refuse what cannot fit before it is rendered: megabytes take long, and many times their memory.

        Users' and tools' words are what every template says in full: of those a glance may do. Whatever else
        is long is counted by the template's text, up to the context and no further.
        """
        if not self._is_large(ask):
            self._require_words(ask.messages)
            return
        async with self._large:
            await asyncio.to_thread(self._require_words, ask.messages)
            most = self._context_length
            if await asyncio.to_thread(self._renderer.exceeds, ask.messages, ask.tools, most):
                raise ContextFull(f"more than {most} tokens fill the context of {most}")

    def _require_words(self, messages: Sequence[Message]) -> None:
        if self._longest_token is None:
            return
        said = extent(content(message) for message in messages if message.get("role") in ("user", "tool"))
        if (least := said.tokens(self._longest_token)) > self._context_length:
            raise ContextFull(f"at least {least} tokens fill the context of {self._context_length}")

    async def _prompt(
        self, session: Session, ask: Ask, meanings: Sequence[object], before: Said | None, number: int
    ) -> list[int]:
        """What the engine is asked; a history that goes on from nothing that was sampled is counted, with
        the reason.

        Meanwhile another turn may be recorded: all that is there already stays as it is.
        """
        recorded = list(session.said)
        prompt = await self._tokens(ask, before)
        if recorded and session.graph.forks_at(prompt, session.unseen):
            session.drifted(_drift(session, recorded, ask, meanings, before, prompt), number, ask.messages)
        return prompt

    async def _tokens(self, ask: Ask, before: Said | None) -> list[int]:
        try:
            if size(ask.messages, ask.tools) > INLINE_CHARACTERS:
                async with self._large if self._is_large(ask) else nullcontext():
                    return await asyncio.to_thread(self._rendered, ask, before)
            return self._rendered(ask, before)
        except Exception as error:  # a template raises whatever its author chose
            said = shortened(str(error), 500)
            raise CannotRender(f"the chat template takes no such conversation: {said}") from error

    def _rendered(self, ask: Ask, before: Said | None) -> list[int]:
        """Ids that extend the recorded conversation that `ask` continues, else its own."""
        if before is not None:
            new, sampled = ask.messages[before.length :], before.sampled
            if before.stopped is not None:
                closed = stops.closer(self._renderer, before.messages, ask.tools)
                sampled += [] if closed is None else [closed]
            extended = self._renderer.extend(before.prompt, sampled, before.messages, new, ask.tools)
            if extended is not None:
                return extended
        return self._renderer.render(ask.messages, ask.tools)

    def _record(
        self,
        session: Session,
        ask: Ask,
        meanings: list[object],
        before: Said | None,
        number: int,
        prompt: list[int],
        forced: list[int],
        sampled: Sampled,
    ) -> Completion:
        """Place a turn in the graph, and read it."""
        sampled, stopped = stops.ended(self._renderer.text, sampled, ask.stop, self._renderer.stop_token_ids)
        parsed = self._renderer.parse(
            [*forced, *sampled.tokens], prompt[: len(prompt) - len(forced)], ask.tools
        )
        message = stops.without(assistant(parsed, number, ask.may_call), stopped)
        turn = Turn(
            index=len(session.turns),
            prompt_tokens=len(prompt),
            cached_tokens=min(sampled.cached_tokens, len(prompt)),
            sampled_tokens=len(sampled.tokens),
            finish_reason=sampled.finish_reason,
            malformed_tool_calls=sum(call.problem is not None for call in parsed.calls),
            malformed_kinds=kinds(parsed.calls),
            policy_version=min(span.version for span in sampled.versions),
        )
        end = session.graph.place(prompt)
        node = session.graph.add_sampled(end, sampled.tokens, sampled.logprobs, sampled.versions)
        known = before.length if before else 0
        new, said = [*ask.messages[known:], message], [*meanings[known:], meaning(message)]
        session.said.append(Said(session.graph, node, before, new, said, ask.tools, stopped))
        session.turns.append(turn)
        session.answered_at.append(time.monotonic())
        session.nodes.append(node)
        called = "tool_calls" in message and sampled.finish_reason == "stop"
        finish = "tool_calls" if called else sampled.finish_reason
        scored = self._scored(sampled) if ask.logprobs else ()
        return Completion(number, message, parsed.calls, finish, turn, node, stopped, scored)

    def _scored(self, sampled: Sampled) -> tuple[Scored, ...]:
        pairs = zip(sampled.tokens, sampled.logprobs, strict=True)
        return tuple(Scored(self._renderer.text([token]), logprob) for token, logprob in pairs)


def _drift(
    session: Session,
    recorded: Sequence[Said],
    ask: Ask,
    meanings: Sequence[object],
    before: Said | None,
    prompt: Sequence[int],
) -> drift.Found:
    """Why a prompt that goes on from nothing that was sampled does not."""
    if before is not None:
        sampled = [*before.prompt, *before.sampled]
        if list(prompt[: len(sampled)]) != sampled:
            turn = session.turns[session.nodes.index(before.node)]
            return drift.rendered(before, turn.finish_reason == "length" or before.stopped is not None)
    return drift.reason(recorded, meanings, ask.tools, session.unseen)


def call_id(turn: int, index: int) -> str:
    """Id of a turn's tool call: the same at every replay."""
    return f"call-{turn}-{index}"


def assistant(parsed: Parsed, turn: int, may_call: bool) -> Message:
    """A sampled turn in OpenAI's form."""
    good = [(i, call) for i, call in enumerate(parsed.calls) if may_call and call.problem is None]
    content = parsed.content
    for call in parsed.calls:
        if not may_call or call.problem is not None:
            content = f"{content}\n{call.written}".strip()
    message: Message = {"role": "assistant", "content": content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if good:
        message["tool_calls"] = [_openai(call, call_id(turn, i)) for i, call in good]
    return message


def _openai(call: Call, identity: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": call.name, "arguments": arguments}}
