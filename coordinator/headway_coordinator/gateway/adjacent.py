"""Rewrites sequences of messages that the chat template refuses or drops, such as two user messages. Pure.

A later system message: agents describe the model's surroundings, or a change of them, in one. Claude Code
sends one after the user's first message. Templates such as Qwen3.5's refuse a later system message. Others
move it to the front, or drop the first one. In these cases the text becomes part of a user message. It joins
the preceding message if that is a user or system message, and otherwise the user message that follows.

Two user messages, or a user message after a tool's result: templates such as Mistral Nemo's refuse these.
The text of the user message then joins the preceding message.

A tool's result after a user's text: Anthropic's clients send tool results and text in one message. Gemma 4's
template drops a result that comes after the text. Results are then moved before the text.

The rewriting depends on the template alone, so a conversation keeps its form from turn to turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final

from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.lengths import content
from headway_coordinator.trajectory.probe import ANSWER, ASKED, ASKED_AGAIN, KEY, SIMPLE, call, calling
from headway_coordinator.trajectory.render import Renderer

_WORD: Final = "surroundings"
_ID: Final = "a1b2c3d4e"
"""A tool call id of nine letters and digits, as Mistral's templates require."""
_CALLED: Final[list[Message]] = [*ASKED, calling({**call(KEY), "id": _ID})]
_RESULT: Final[Message] = {"role": "tool", "tool_call_id": _ID, "name": "look_up", "content": "gold"}
_BEFORE: Final[dict[str, list[Message]]] = {
    "system": ASKED[:1],
    "user": ASKED,
    "assistant": [*ASKED, ANSWER],
    "tool": [*_CALLED, _RESULT],
}
"""Role of a message -> a conversation that ends with a message of that role."""
_SYSTEM_PAIRS: Final = tuple((before, "system") for before in _BEFORE)
_USER_PAIRS: Final = frozenset({("user", "user"), ("tool", "user")})
"""Pairs of adjacent roles. The text of the second message can join the first."""


class Adjacent:
    """Which adjacent messages the chat template of one model accepts, found by rendering short examples."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._known: dict[tuple[str, str], bool] = {}

    def accepted(self, messages: list[Message]) -> list[Message]:
        """A request's messages, in a form that the template accepts and shows in full."""
        if any(after == "system" for _, after in _pairs(messages)) and not self._takes_systems:
            messages = folded(messages)
        if ("user", "tool") in _pairs(messages) and not self._takes_late_results:
            messages = results_first(messages)
        refused = {pair for pair in _pairs(messages) & _USER_PAIRS if not self._takes(*pair)}
        return joined(messages, refused) if refused else messages

    @cached_property
    def _takes_systems(self) -> bool:
        """Whether the template accepts a system message after any role.

        It must also continue the training row after every stop token after which a user message does.
        """
        if not all(self._takes(*pair) for pair in _SYSTEM_PAIRS):
            return False
        return self._ends("user") <= self._ends("system")

    @cached_property
    def _takes_late_results(self) -> bool:
        """Whether the chat template shows a tool's result after a user's message."""
        late = [*_CALLED, ASKED_AGAIN, {**_RESULT, "content": _WORD}]
        return self._shows([*_CALLED, _RESULT], SIMPLE) is None or bool(self._shows(late, SIMPLE))

    def _takes(self, before: str, after: str) -> bool:
        """Whether a message of the role `after` may follow one of the role `before`, with tools and without.

        Also true if the template refuses the conversation even without the message `after`.
        """
        if (before, after) not in self._known:
            start = _BEFORE[before]
            end: list[Message] = [ASKED_AGAIN] if before == "system" else []
            found = True
            for tools in [SIMPLE] if before == "tool" else [SIMPLE, []]:
                alone = self._shows([*start, *end], tools)
                beside = self._shows([*start, {"role": after, "content": _WORD}, *end], tools)
                found = found and (alone is None or bool(beside))
            self._known[before, after] = found
        return self._known[before, after]

    def _ends(self, role: str) -> set[int]:
        """The stop tokens after which a message of this role extends the sampled tokens.

        GLM's models end an answer with the token that begins a user's message, or a tool's result.
        """
        renderer, history, new = self._renderer, [*ASKED, ANSWER], [{"role": role, "content": _WORD}]
        try:
            prompt, answer = renderer.render(ASKED, []), renderer.encode(content(ANSWER), whole=False)
            return {
                stop
                for stop in renderer.stop_token_ids
                if renderer.extend(prompt, [*answer, stop], history, new, []) is not None
            }
        except Exception:  # a template raises whatever its author chose
            return set()

    def _shows(self, conversation: Sequence[Message], tools: Sequence[Tool]) -> bool | None:
        """Whether the rendered prompt has the text of every message, and has `_WORD` in its place.

        The place of `_WORD` is after all earlier text of users, tools and the assistant. None if the template
        refuses the conversation.
        """
        try:
            text = self._renderer.render_text(conversation, tools, generate=True)
        except Exception:  # a template raises whatever its author chose
            return None
        before = -1
        for message in conversation:
            words = content(message)
            if words not in text or (words == _WORD and text.rindex(words) < before):
                return False
            if words and message.get("role") != "system":
                before = text.rindex(words)
        return True


def _pairs(messages: Sequence[Message]) -> set[tuple[str, str]]:
    """The pairs of roles of adjacent messages."""
    return set(pairwise(str(message.get("role")) for message in messages))


def folded(messages: Sequence[Message]) -> list[Message]:
    """A conversation whose only system message is its first: later ones join user messages.

    Later messages never change the result up to an assistant message. So a training row can continue.
    """
    parts: list[tuple[str, list[Message]]] = []
    joins = False
    """Whether the next user message joins the last part, because that part ends with a system message."""
    for message in messages:
        role = str(message.get("role"))
        system, beside = role == "system", parts[-1][0] if parts else ""
        if (system and beside in ("system", "user")) or (role == "user" and joins):
            parts[-1][1].append(message)
        else:
            parts.append(("user" if system and parts else role, [message]))
        joins = system and parts[-1][0] == "user"
    return [_one(role, parts) for role, parts in parts]


def results_first(messages: Sequence[Message]) -> list[Message]:
    """A conversation in which a turn's tool results come before other messages that were sent among them."""
    found: list[Message] = []
    words: list[Message] = []
    for message in messages:
        if message.get("role") == "assistant":
            found += [*words, message]
            words = []
        elif message.get("role") == "tool":
            found.append(message)
        else:
            words.append(message)
    return found + words


def joined(messages: Sequence[Message], refused: set[tuple[str, str]]) -> list[Message]:
    """A conversation without the adjacent roles in `refused`: the second message's text joins the first.

    Later messages never change the result up to an assistant message, as for `folded`.
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
