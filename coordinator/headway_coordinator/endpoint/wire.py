"""Makes a turn's request to an endpoint, without parameters that it refuses. Pure except for `learn`."""

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
"""OpenAI's two names for the most tokens of an answer: newer models take only the second."""
REASONING = ("reasoning_content", "reasoning")
"""The fields in which endpoints put a model's reasoning."""
DROPPABLE = (
    *("seed", "temperature", "top_p", LIMIT, NEW_LIMIT, "tool_choice", "stop", "response_format"),
    "reasoning_effort",
    *REASONING,
)
"""Parameters that are omitted once an endpoint has refused them. Candidates' results then name them."""
TOO_LARGE = re.compile(r"too (large|high|big)|at most|less than or equal|exceed", re.IGNORECASE)


@dataclass
class Dialect:
    """The parameters that one endpoint takes. It learns from refusals, and forgets nothing."""

    dropped: dict[str, str] = field(default_factory=dict)
    """Refused parameter -> its replacement, or an empty string."""
    reasoning: str | None = None
    """The name of the endpoint's reasoning field. The reasoning is sent back under the same name."""

    def body(self, model: str, session: Session, ask: Ask, number: int, *, bounded: bool) -> dict[str, Any]:
        """The request's JSON. `bounded`: whether it limits the tokens of the answer."""
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

    def learn(self, name: str, message: str) -> bool:
        """Omit a parameter from now on. Returns whether that is new.

        After a refusal of `max_tokens`, the other name of this limit is tried, unless its value was refused.
        """
        if name in self.dropped:
            return False
        other = name == LIMIT and NEW_LIMIT not in self.dropped and not TOO_LARGE.search(message)
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
    """The omittable parameters in a request."""
    found = [name for name in DROPPABLE if name in body]
    return found + [name for name in REASONING if any(name in message for message in body["messages"])]


def conversation(messages: Sequence[Message], reasoning: str | None = None) -> list[Message]:
    """Messages in the form that every OpenAI-compatible endpoint takes.

    A tool's answer must follow its call. A call that could not be read stays in the model's text, so its
    answer has no call to follow. That answer becomes a user's message, after the answers to calls.
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
    if reasoning and (text := message.get("reasoning_content")):
        found[reasoning] = text
    return found
