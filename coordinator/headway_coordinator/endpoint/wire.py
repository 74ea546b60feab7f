"""A turn as an endpoint is asked for it, without what this endpoint does not take. Pure but for `learn`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headway_api.seeds import seed
from headway_coordinator.gateway.asks import ANY_OBJECT, Ask, Force, Session
from headway_coordinator.trajectory.calls import Message

LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
"""OpenAI's two names for the most tokens of an answer: newer models take the second alone."""
REASONING = ("reasoning_content", "reasoning")
"""Where endpoints put a model's reasoning, apart from its answer."""
DROPPABLE = (
    *("seed", "temperature", "top_p", LIMIT, NEW_LIMIT, "tool_choice", "stop", "response_format"),
    "reasoning_effort",
    *REASONING,
)
"""What is left out once an endpoint has refused it. The measure then says so."""
TOO_LARGE = re.compile(r"too (large|high|big)|at most|less than or equal|exceed", re.IGNORECASE)


@dataclass
class Dialect:
    """What one endpoint takes. It learns by being refused, and forgets nothing."""

    dropped: dict[str, str] = field(default_factory=dict)
    """Parameter that was refused -> the one that is sent instead, or an empty string."""
    reasoning: str | None = None
    """Under which name the endpoint says a model's reasoning; it is given back under the same."""

    def body(self, model: str, session: Session, ask: Ask, number: int, *, bounded: bool) -> dict[str, Any]:
        """The request's JSON. `bounded` says whether it carries the most tokens of the answer."""
        tokens = min(session.sampling.max_tokens, ask.max_tokens or session.sampling.max_tokens)
        wanted: dict[str, Any] = {
            "model": model,
            "messages": conversation(ask.messages, self._spoken),
            "stream": False,
            "temperature": session.sampling.temperature,
            "top_p": session.sampling.top_p,
            "seed": seed(session.seed, number),
        }
        if ask.tools:
            wanted |= {"tools": ask.tools} | _choice(ask)
        if ask.stop:
            wanted["stop"] = list(ask.stop)
        if ask.schema is not None:
            wanted["response_format"] = _format(ask.schema)
        if ask.effort not in (None, "on"):
            wanted["reasoning_effort"] = ask.effort
        if bounded:
            wanted[LIMIT if LIMIT not in self.dropped else NEW_LIMIT] = tokens
        return {name: value for name, value in wanted.items() if name not in self.dropped}

    def learn(self, name: str, said: str) -> bool:
        """Leave a parameter out from now on; whether that is new.

        `max_tokens` has another name to be tried, unless what was refused is its value.
        """
        if name in self.dropped:
            return False
        other = name == LIMIT and NEW_LIMIT not in self.dropped and not TOO_LARGE.search(said)
        self.dropped[name] = NEW_LIMIT if other else ""
        if name == LIMIT and not other:
            self.dropped.setdefault(NEW_LIMIT, "")
        elif name == NEW_LIMIT and LIMIT in self.dropped:
            self.dropped[LIMIT] = ""
        return True

    @property
    def _spoken(self) -> str | None:
        return None if self.reasoning in self.dropped else self.reasoning


def _format(schema: str) -> dict[str, Any]:
    if schema == ANY_OBJECT:
        return {"type": "json_object"}
    named = {"name": "answer", "schema": json.loads(schema)}
    return {"type": "json_schema", "json_schema": named}


def _choice(ask: Ask) -> dict[str, Any]:
    if not ask.may_call:
        return {"tool_choice": "none"}
    return {} if ask.force is None else {"tool_choice": _forced(ask.force)}


def _forced(force: Force) -> Any:
    if force.tool is None:
        return "required"
    return {"type": "function", "function": {"name": force.tool}}


def sent(body: dict[str, Any]) -> list[str]:
    """Which of the parameters that can be left out a request carries."""
    found = [name for name in DROPPABLE if name in body]
    return found + [name for name in REASONING if any(name in said for said in body["messages"])]


def conversation(messages: Sequence[Message], reasoning: str | None = None) -> list[Message]:
    """Messages as every OpenAI-compatible endpoint takes them.

    A tool's answer must follow the call that it answers. An answer to a call that could not be read has none,
    for such a call stays in the model's text: it is said by the user, after the answers that have one.
    """
    found: list[Message] = []
    orphans: list[Message] = []
    known: set[Any] = set()
    for message in messages:
        if message.get("role") == "tool" and message.get("tool_call_id") not in known:
            orphans.append({"role": "user", "content": message.get("content") or ""})
            continue
        if message.get("role") != "tool":
            found, orphans = [*found, *orphans], []
            known = {call.get("id") for call in message.get("tool_calls") or []}
        found.append(_message(message, reasoning))
    return [*found, *orphans]


def _message(message: Message, reasoning: str | None) -> Message:
    role, content = message.get("role"), message.get("content") or ""
    if role == "tool":
        return {"role": role, "tool_call_id": message.get("tool_call_id"), "content": content}
    found: Message = {"role": role, "content": content}
    if message.get("name") and role != "assistant":
        found["name"] = message["name"]
    if calls := message.get("tool_calls"):
        found |= {"tool_calls": calls, "content": content or None}
    if reasoning and (thought := message.get("reasoning_content")):
        found[reasoning] = thought
    return found
