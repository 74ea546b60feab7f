"""Names of a conversation's participants: whether the chat template shows them. Pure.

A message may have a `name`, which tells participants of one role apart. Autogen's agents send it with every
user's message. Most chat templates have no place for it, so the model would never see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway_coordinator.trajectory.calls import Message
from headway_coordinator.trajectory.probe import ANSWER, ASKED
from headway_coordinator.trajectory.render import Renderer

_NAME: Final = "surveyor"
_LAST: Final[dict[str, list[Message]]] = {
    "system": ASKED[:1],
    "user": ASKED,
    "assistant": [*ASKED, ANSWER],
}
"""Role of a message -> a conversation that ends with such a message.

A tool's message is not here: its `name` repeats that of the call.
"""
_AFTER: Final[dict[str, list[Message]]] = {"system": ASKED[1:], "assistant": ASKED[1:]}
"""Role -> what follows, so that a turn can be sampled."""


class Participants:
    """Which names of messages the chat template of one model shows."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._known: dict[str, bool] = {}

    def unshown(self, messages: Sequence[Message]) -> list[str]:
        """The field that `ignored` lists, if the template does not show the name of some message."""
        roles = {str(message.get("role")) for message in messages if message.get("name")}
        return [] if all(map(self._shows, roles - {"tool"})) else ["messages.name"]

    def _shows(self, role: str) -> bool:
        if role not in self._known:
            *before, last = _LAST[role]
            conversation = [*before, {**last, "name": _NAME}, *_AFTER.get(role, [])]
            try:
                text = self._renderer.render_text(conversation, [], generate=True)
            except Exception:  # a template raises whatever its author chose
                text = ""
            self._known[role] = _NAME in text
        return self._known[role]
