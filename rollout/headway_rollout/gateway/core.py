"""The gateway: one chat completion, tokens in and tokens out, recorded into the episode's graph.

Every agent's turns pass here, in process for the built-in agent. An HTTP endpoint is a translation of its
request into `Gateway.chat` and of its result into an answer; nothing else would be in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway_api.records import Turn
from headway_rollout.engines.vllm import Request, Sampled
from headway_rollout.seeds import seed
from headway_rollout.trajectory.calls import Call, Message, Tool
from headway_rollout.trajectory.graph import Graph
from headway_rollout.trajectory.render import Renderer


class Engine(Protocol):
    """Whatever samples tokens: the fleet of rollout servers."""

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled: ...


class ContextFull(Exception):
    """The conversation leaves no room for another token: the episode is truncated, not failed."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True)
class _Said:
    """One recorded turn: the conversation up to and with the model's answer, and its exact tokens."""

    messages: list[Message]
    tools: list[Tool]
    prompt: list[int]
    sampled: list[int]


@dataclass
class Session:
    """What the gateway knows of one episode."""

    episode_id: str
    seed: int
    """Every turn's own seed is drawn from it."""
    sampling: Sampling
    graph: Graph = field(default_factory=Graph)
    turns: list[Turn] = field(default_factory=list)
    forks: int = 0
    """Turns whose history did not extend what was sampled."""
    said: list[_Said] = field(default_factory=list)


@dataclass(frozen=True)
class Completion:
    """The model's answer to one turn."""

    message: Message
    """OpenAI form; text of tool calls that could not be read is kept in its content."""
    calls: list[Call]
    """Every attempt at a tool call, in order, those that could not be read included."""
    finish_reason: str
    """`stop`, `tool_calls` or `length`."""


class Gateway:
    """Chat completions over an engine that speaks token ids."""

    def __init__(self, renderer: Renderer, engine: Engine, context_length: int, timeout: float) -> None:
        self._renderer = renderer
        self._engine = engine
        self._context_length = context_length
        self._timeout = timeout

    async def chat(self, session: Session, messages: Sequence[Message], tools: Sequence[Tool]) -> Completion:
        """Sample the next assistant message.

        Raises:
            ContextFull: no token fits any more.
            InfraFault: the engine failed.
        """
        prompt = self._prompt(session, messages, tools)
        room = self._context_length - len(prompt)
        if room < 1:
            raise ContextFull(f"{len(prompt)} tokens fill the context of {self._context_length}")
        request = Request(
            prompt=prompt,
            max_tokens=min(room, session.sampling.max_tokens),
            temperature=session.sampling.temperature,
            top_p=session.sampling.top_p,
            seed=seed(session.seed, len(session.turns)),
            stop_token_ids=self._renderer.stop_token_ids,
        )
        sampled = await self._engine.generate(session.episode_id, request, self._timeout)
        completion = self._read(session, prompt, sampled, tools)
        self._record(session, messages, tools, prompt, sampled, completion)
        return completion

    def _prompt(self, session: Session, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Extend the longest recorded conversation that `messages` continues, else render from scratch."""
        known = [s for s in session.said if s.tools == list(tools) and _continues(messages, s.messages)]
        if known:
            last = max(known, key=lambda s: len(s.messages))
            new = messages[len(last.messages) :]
            extended = self._renderer.extend(last.prompt, last.sampled, last.messages, new, tools)
            if extended is not None:
                return extended
        session.forks += bool(session.said)
        return self._renderer.render(messages, tools)

    def _read(
        self, session: Session, prompt: list[int], sampled: Sampled, tools: Sequence[Tool]
    ) -> Completion:
        parsed = self._renderer.parse(sampled.tokens, prompt, tools)
        turn = len(session.turns)
        content = parsed.content
        for call in parsed.calls:
            if call.problem is not None:
                content = f"{content}\n<tool_call>{call.raw}</tool_call>".strip()
        message: Message = {"role": "assistant", "content": content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if good := [(i, call) for i, call in enumerate(parsed.calls) if call.problem is None]:
            message["tool_calls"] = [_openai(call, call_id(turn, i)) for i, call in good]
        finish = "tool_calls" if good and sampled.finish_reason == "stop" else sampled.finish_reason
        return Completion(message=message, calls=parsed.calls, finish_reason=finish)

    def _record(
        self,
        session: Session,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        prompt: list[int],
        sampled: Sampled,
        completion: Completion,
    ) -> None:
        node = session.graph.place(prompt)
        session.graph.add_sampled(node, sampled.tokens, sampled.logprobs, sampled.versions)
        session.said.append(_Said([*messages, completion.message], list(tools), prompt, sampled.tokens))
        session.turns.append(
            Turn(
                index=len(session.turns),
                prompt_tokens=len(prompt),
                cached_tokens=min(sampled.cached_tokens, len(prompt)),
                sampled_tokens=len(sampled.tokens),
                finish_reason=sampled.finish_reason,
                malformed_tool_calls=sum(call.problem is not None for call in completion.calls),
                policy_version=min(span.version for span in sampled.versions),
            )
        )


def call_id(turn: int, index: int) -> str:
    """Id of a turn's tool call: the same at every replay."""
    return f"call-{turn}-{index}"


def _openai(call: Call, identity: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _continues(messages: Sequence[Message], recorded: Sequence[Message]) -> bool:
    """Whether `messages` begins with a recorded conversation and goes on after it."""
    if len(messages) <= len(recorded):
        return False
    return all(_canonical(a) == _canonical(b) for a, b in zip(messages, recorded, strict=False))


def _canonical(message: Message) -> tuple[object, ...]:
    """What a message says, whichever of the usual ways a client writes it."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = [
        (call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    return (message.get("role"), content, calls, message.get("tool_call_id"))


def _arguments(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments
