"""The conversations of an episode: each recorded turn holds what it added to the turn that it continues.

Agents send the whole conversation with every turn. Storing all of it each time would grow with the square of
the turns. Chained, the memory grows with the new messages only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.graph import Graph
from headway_coordinator.trajectory.lengths import content


@dataclass(eq=False)
class RecordedTurn:
    """One recorded turn: the conversation up to and including the model's answer, and its exact tokens."""

    graph: Graph = field(repr=False)
    node: int
    """The sampled node in the graph."""
    before: RecordedTurn | None = field(repr=False)
    """The recorded conversation that this one continues."""
    new: list[Message]
    """The messages since then. The model's answer is the last."""
    meanings: list[object]
    """The meaning of each new message."""
    tools: list[Tool]
    stopped: str | None = None
    """The string that ended the model's answer. The answer omits it."""
    effort: str | None = None
    """How much the model should think; see `Ask.effort`."""
    after: list[RecordedTurn] = field(default_factory=list, repr=False)
    """The turns that continue this one."""
    length: int = 0
    """Number of messages in the whole conversation."""

    def __post_init__(self) -> None:
        self.length = len(self.new)
        if self.before is not None:
            self.length += self.before.length
            self.tools = self.before.tools  # equal lists, stored once
            self.before.after.append(self)

    @property
    def prompt(self) -> list[int]:
        """The tokens that the engine was asked to continue."""
        return self.graph.tokens(self.graph.nodes[self.node].parent)

    @property
    def sampled(self) -> list[int]:
        """The tokens that it sampled."""
        return list(self.graph.nodes[self.node].tokens)

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        parts, said = [self.new], self
        while said.before is not None:
            said = said.before
            parts.append(said.new)
        return [message for part in reversed(parts) for message in part]

    def means(self, sent: Sequence[object]) -> bool:
        """Whether messages of a request mean the same as those that this turn added.

        A client may append the string that ended the answer again (smolagents does).
        """
        if self.meanings == sent:
            return True
        if self.stopped is None or self.meanings[:-1] != sent[:-1]:
            return False
        said = content(self.new[-1])
        again = (said + self.stopped, said.rstrip() + self.stopped)
        return any(meaning({**self.new[-1], "content": text}) == sent[-1] for text in again)


def continued(
    recorded: Sequence[RecordedTurn],
    messages: Sequence[Message],
    meanings: Sequence[object],
    tools: Sequence[Tool],
    unseen: Collection[int] = (),
) -> RecordedTurn | None:
    """The longest recorded conversation that a request continues with further messages.

    Several samples of one request may mean the same. First come those that reached the agent (whose node is
    not in `unseen`). Then comes the one whose calls and reasoning match the client's, then the newest.
    """
    best: tuple[int, bool, int, int] = (0, False, 0, 0)
    found: RecordedTurn | None = None
    reached = [(said, 0) for said in recorded if said.before is None and said.tools == tools]
    while reached:
        said, alike = reached.pop()
        start = said.length - len(said.new)
        if said.length >= len(meanings) or not said.means(meanings[start : said.length]):
            continue
        alike += sum(map(_alike, said.new, messages[start : said.length]))
        mark = (said.length, said.node not in unseen, alike, said.node)
        if mark > best:
            best, found = mark, said
        reached += [(next_one, alike) for next_one in said.after]
    return found


def _alike(recorded: Message, sent: Message) -> bool:
    """Whether two messages of one meaning are the same answer, as far as the client says."""
    reasoning = sent.get("reasoning_content")
    return _ids(recorded) == _ids(sent) and reasoning in (None, "", recorded.get("reasoning_content"))


def _ids(message: Message) -> list[str | None]:
    return [call.get("id") for call in message.get("tool_calls") or []]


def meaning(message: Message) -> object:
    """The meaning of a message: the same for all the usual ways in which clients write it.

    Clients drop reasoning, write null for empty content, and strip what the model wrote around its text.
    """
    said = content(message)
    if message.get("role") == "assistant":
        said = said.strip()
    calls = [
        (call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    return (message.get("role"), said, calls, message.get("tool_call_id"))


def _arguments(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments
