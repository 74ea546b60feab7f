"""The conversations of an episode: each recorded turn holds what it added to the turn that it continues.

Agents send the whole conversation with every turn. If each turn stored all of it, memory would grow with the
square of the turns. So turns form a chain, and each stores only its new messages.
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
    """The recorded turn that this one continues; None if it begins a conversation."""
    new: list[Message]
    """The messages after those of `before`. The model's answer is the last."""
    meanings: list[object]
    """The meaning of each new message."""
    tools: list[Tool]
    stopped: str | None = None
    """The string that ended the model's answer. The answer omits it."""
    tail: str = ""
    """The text that follows `stopped` in the last sampled token."""
    behind: str = ""
    """The text that the client appended to the answer of `before`, in the request for this turn."""
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
        """The tokens that the engine sampled."""
        return list(self.graph.nodes[self.node].tokens)

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        parts, turn = [self.new], self
        while turn.before is not None:
            turn = turn.before
            parts.append(turn.new)
        return [message for part in reversed(parts) for message in part]

    def written_behind(self, sent: Message) -> str | None:
        """The text that a client appended to this turn's answer; None if `sent` is another answer.

        A client may send the answer back with the string that ended it, and with more text. For example,
        smolagents adds the code that it ran.
        """
        if (meant := meaning(sent)) == self.meanings[-1]:
            return ""
        own, text = content(self.new[-1]), content(sent).lstrip()
        if self.stopped is None or meaning({**sent, "content": own}) != self.meanings[-1]:
            return None
        for again in (own + self.stopped, own.rstrip() + self.stopped):
            if meaning({**sent, "content": again}) == meant:
                return ""
            begun = again.lstrip() + self.tail
            if text.startswith(begun) and not sent.get("tool_calls"):
                return text[len(begun) :]
        return None


def continued(
    recorded: Sequence[RecordedTurn],
    messages: Sequence[Message],
    meanings: Sequence[object],
    tools: Sequence[Tool],
    unseen: Collection[int] = (),
) -> RecordedTurn | None:
    """The longest recorded conversation that a request continues with further messages.

    Several samples of one request may have the same meaning. Samples that reached the agent are preferred:
    those whose node is not in `unseen`. Next comes the sample with the most answers whose call ids and
    reasoning match the client's, and then the newest.
    """
    best = (0, False)
    found: list[RecordedTurn] = []
    reached = [turn for turn in recorded if turn.before is None and turn.tools == tools]
    while reached:
        turn = reached.pop()
        start, last = turn.length - len(turn.new), turn.length - 1
        if turn.length >= len(meanings) or turn.meanings[:-1] != meanings[start:last]:
            continue
        same = turn.meanings[-1] == meanings[last]
        behind = "" if same else turn.written_behind(messages[last])
        if behind is None:
            continue
        mark = (turn.length, turn.node not in unseen)
        if mark > best:
            best, found = mark, []
        if mark == best:
            found.append(turn)
        reached += [next_one for next_one in turn.after if next_one.behind == behind]
    if len(found) > 1:
        return max(found, key=lambda turn: (_alike_in(turn, messages), turn.node))
    return found[0] if found else None


def _alike_in(turn: RecordedTurn, messages: Sequence[Message]) -> int:
    """How many messages of a recorded conversation have the same call ids and reasoning in a request."""
    return sum(map(_alike, turn.messages, messages))


def _alike(recorded: Message, sent: Message) -> bool:
    """Whether two messages with the same meaning also have the same call ids and reasoning.

    A client may leave the reasoning out.
    """
    reasoning = sent.get("reasoning_content")
    return _ids(recorded) == _ids(sent) and reasoning in (None, "", recorded.get("reasoning_content"))


def _ids(message: Message) -> list[str | None]:
    return [call.get("id") for call in message.get("tool_calls") or []]


def meaning(message: Message) -> object:
    """A message in a form that is equal for all usual ways in which clients send the same message back.

    Clients drop reasoning, write null for empty content, and strip white space around the model's text.
    """
    text = content(message)
    if message.get("role") == "assistant":
        text = text.strip()
    calls = [
        (call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    return (message.get("role"), text, calls, message.get("tool_call_id"))


def _arguments(arguments: Any) -> str:
    """Arguments as canonical JSON text, which takes less memory than the parsed values.

    The text is the same if a client changes the order of keys, or writes 1.0 as 1.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number
