"""Messages beside each other: how they are sent if the chat template refuses or loses them. Pure.

Agents describe the model's surroundings, or a change of them, in a later system message. Claude Code does so
after the user's first message. Templates such as Qwen3.5's refuse it, others move it to the front or drop the
first. The words then become the user's. They join the message before, if that is a user's or another system
message, or else the user's message after.

Templates such as Mistral Nemo's refuse a user's message after another one, or after a tool's result. Its
words then join the message before. Anthropic's clients send results of tools and words in one message.
Gemma 4's loses a result that comes after a user's words. Results then come first.

What is done depends on the template alone, so a conversation keeps its form from turn to turn.
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
"""In the form of Mistral's, which its templates require."""
_CALLED: Final[list[Message]] = [*ASKED, calling({**call(KEY), "id": _ID})]
_RESULT: Final[Message] = {"role": "tool", "tool_call_id": _ID, "name": "look_up", "content": "gold"}
_BEFORE: Final[dict[str, list[Message]]] = {
    "system": ASKED[:1],
    "user": ASKED,
    "assistant": [*ASKED, ANSWER],
    "tool": [*_CALLED, _RESULT],
}
"""Role of a message -> a conversation that ends with such a message."""
_SYSTEM_PAIRS: Final = tuple((before, "system") for before in _BEFORE)
_USER_PAIRS: Final = frozenset({("user", "user"), ("tool", "user")})
"""Pairs of roles whose second message can join the first."""


class Adjacent:
    """What the template of one model accepts."""

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
        """Whether a system message may stand anywhere, and continues the row where a user's does."""
        if not all(self._takes(*pair) for pair in _SYSTEM_PAIRS):
            return False
        return self._ends("user") <= self._ends("system")

    @cached_property
    def _takes_late_results(self) -> bool:
        """Whether the chat template shows a tool's result after a user's message."""
        late = [*_CALLED, ASKED_AGAIN, {**_RESULT, "content": _WORD}]
        return self._shows([*_CALLED, _RESULT], SIMPLE) is None or bool(self._shows(late, SIMPLE))

    def _takes(self, before: str, after: str) -> bool:
        """Whether a message may follow one of the role `before`, with tools and without.

        True for a conversation that the template refuses anyway.
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
        """The stop tokens of an answer after which a message extends the tokens that were sampled.

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
        """Whether the template shows all words, and `_WORD` after what the user or a tool said before it.

        None: it refuses the conversation.
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
    """The roles of all messages beside each other."""
    return set(pairwise(str(message.get("role")) for message in messages))


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


def results_first(messages: Sequence[Message]) -> list[Message]:
    """A conversation in which the results of a turn come before the words that were sent among them."""
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
