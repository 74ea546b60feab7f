"""Messages beside each other: how they are sent if the chat template refuses their order. Pure.

Agents describe the model's surroundings, or a change of them, in a later system message. Claude Code does so
after the user's first message. Templates such as Qwen3.5's refuse it. The words then become the user's. They
join the message before, if that is a user's or another system message, or else the user's message after.

Templates such as Mistral Nemo's refuse a user's message after another one, or after a tool's result. Its
words then join the message before. Anthropic's clients send results of tools and words in one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.lengths import content
from headway_coordinator.trajectory.probe import ASKED, KEY, SIMPLE, call, calling
from headway_coordinator.trajectory.render import Renderer

_WORD: Final = "surroundings"
_ID: Final = "a1b2c3d4e"
"""In the form of Mistral's, which its templates require."""
_BEFORE: Final[dict[str, list[Message]]] = {
    "user": ASKED,
    "tool": [
        *ASKED,
        calling({**call(KEY), "id": _ID}),
        {"role": "tool", "tool_call_id": _ID, "name": "look_up", "content": "gold"},
    ],
}
"""Role of a message -> a conversation that ends with such a message."""


class Adjacent:
    """What the template of one model accepts."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._known: dict[tuple[str, str], bool] = {}

    def accepted(self, messages: list[Message]) -> list[Message]:
        """A request's messages, in a form that the template accepts."""
        later = any(message.get("role") == "system" for message in messages[1:])
        if later and not self._takes("user", "system"):
            messages = folded(messages)
        pairs = set(pairwise(str(message.get("role")) for message in messages))
        refused = {pair for pair in pairs if pair[1] in ("user", "system") and not self._takes(*pair)}
        return joined(messages, refused) if refused else messages

    def _takes(self, before: str, after: str) -> bool:
        """Whether a message may follow one of the role `before`.

        True for roles that nothing can be joined to: the template itself then refuses the conversation.
        """
        if before not in _BEFORE:
            return True
        if (before, after) not in self._known:
            conversation: list[Message] = [*_BEFORE[before], {"role": after, "content": _WORD}]
            tools = SIMPLE if before == "tool" else []
            self._known[before, after] = self._shows(_BEFORE[before], tools) is None or bool(
                self._shows(conversation, tools)
            )
        return self._known[before, after]

    def _shows(self, conversation: Sequence[Message], tools: Sequence[Tool]) -> bool | None:
        """Whether the template shows the word; None if it refuses the conversation."""
        try:
            return _WORD in self._renderer.render_text(conversation, tools, generate=True)
        except Exception:  # a template raises whatever its author chose
            return None


def folded(messages: Sequence[Message]) -> list[Message]:
    """A conversation whose only system message is its first.

    The result up to each assistant message stays the same whatever follows, so training rows go on.
    """
    parts: list[tuple[str, list[Message]]] = []
    joins = False
    """Whether a user's message joins the one before, which contains a system message."""
    for message in messages:
        role = str(message.get("role"))
        system, beside = role == "system", parts[-1][0] if parts else ""
        if (system and beside in ("system", "user")) or (role == "user" and joins):
            parts[-1][1].append(message)
        else:
            parts.append(("user" if system and parts else role, [message]))
        joins = system and parts[-1][0] == "user"
    return [_one(role, parts) for role, parts in parts]


def joined(messages: Sequence[Message], refused: set[tuple[str, str]]) -> list[Message]:
    """A conversation without the pairs of adjacent roles in `refused`: the second joins the first.

    The result up to each assistant message stays the same whatever follows, as for `folded`.
    """
    parts: list[tuple[str, list[Message]]] = []
    for message in messages:
        role = str(message.get("role"))
        if parts and (parts[-1][0], role) in refused:
            parts[-1][1].append(message)
        else:
            parts.append((role, [message]))
    return [_one(role, parts) for role, parts in parts]


def _one(role: str, parts: Sequence[Message]) -> Message:
    if len(parts) == 1 and parts[0].get("role") == role:
        return parts[0]
    return {**parts[0], "role": role, "content": "\n\n".join(map(content, parts))}
