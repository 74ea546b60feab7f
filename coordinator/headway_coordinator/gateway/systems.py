"""System messages after the first: how they are sent if the chat template takes none. Pure.

Agents describe the model's surroundings, or a change of them, in a later system message. Claude Code does so
after the user's first message. Templates such as Qwen3.5's refuse it. The words then become the user's. They
join the message before, if that is a user's or another system message, or else the user's message after.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from headway_coordinator.trajectory.calls import Message
from headway_coordinator.trajectory.lengths import content
from headway_coordinator.trajectory.render import Renderer

_WORD = "surroundings"
_PROBE: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "system", "content": _WORD},
]


class Systems:
    """What the template of one model accepts."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @cached_property
    def _taken(self) -> bool:
        try:
            return _WORD in self._renderer.render_text(_PROBE, [], generate=True)
        except Exception:  # a template raises whatever its author chose
            return False

    def accepted(self, messages: list[Message]) -> list[Message]:
        """A request's messages, in a form that the template accepts."""
        later = any(message.get("role") == "system" for message in messages[1:])
        return folded(messages) if later and not self._taken else messages


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


def _one(role: str, parts: Sequence[Message]) -> Message:
    if len(parts) == 1 and parts[0].get("role") == role:
        return parts[0]
    return {**parts[0], "role": role, "content": "\n\n".join(map(content, parts))}
