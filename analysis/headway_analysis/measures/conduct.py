"""What an agent did in an episode: tool calls, limits it ran into, whether it gave an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headway_api.records import EpisodeRecord, Outcome

TOOL_ERROR = "error:"
"""How the answer to a tool call begins that failed: a ToolError, bad arguments or an unknown tool."""
COMPLETION = "completion"
"""Name under which an environment says by itself whether an answer was emitted."""

Message = dict[str, Any]


class ToolCall(NamedTuple):
    """One tool call that could be read."""

    name: str
    failed: bool
    """Its answer is an error (`TOOL_ERROR`). A call that got no answer has not failed."""


def tool_calls(episode: EpisodeRecord) -> list[ToolCall]:
    """The model's tool calls in the episode's conversation, in order.

    Calls that could not be read are not among them: `Turn.malformed_tool_calls` counts those. Of an agent
    with several conversations an episode keeps one, so the others' calls are not seen.
    """
    found: list[ToolCall] = []
    waiting: list[tuple[str | None, int]] = []
    for message in _played(episode):
        if message.get("role") == "assistant":
            waiting = [(call.get("id"), len(found) + i) for i, call in enumerate(_calls(message))]
            found += [ToolCall(_name(call), failed=False) for call in _calls(message)]
        elif message.get("role") == "tool":
            for pair in [pair for pair in waiting if pair[0] == message.get("tool_call_id")][:1]:
                waiting.remove(pair)
                found[pair[1]] = found[pair[1]]._replace(failed=text(message).startswith(TOOL_ERROR))
    return found


def _played(episode: EpisodeRecord) -> list[Message]:
    """The conversation from the model's first turn on: examples that an environment shows are not its own."""
    said = [i for i, message in enumerate(episode.messages) if message.get("role") == "assistant"]
    turns = sum(turn.delivered for turn in episode.turns)
    own = said[-turns:] if turns else []
    return episode.messages[own[0] :] if own else []


def _calls(message: Message) -> Sequence[Message]:
    return message.get("tool_calls") or []


def _name(call: Message) -> str:
    return str((call.get("function") or {}).get("name") or "")


def text(message: Message) -> str:
    """A message's text, be it a string, blocks or nothing."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(_texts(content))


def _texts(blocks: Sequence[Any]) -> Iterator[str]:
    for block in blocks:
        yield str(block.get("text") or "") if isinstance(block, dict) else str(block)


def malformed_calls(episode: EpisodeRecord) -> int:
    """Tool calls that could not be read."""
    return sum(turn.malformed_tool_calls for turn in episode.turns)


def completion(episode: EpisodeRecord) -> float:
    """Whether an answer was emitted, right or wrong: from 0 to 1.

    The environment's own word where it reports a metric `completion`. Otherwise 1 for an episode that ended
    Completed with an answer: text in the model's last message, or a tool call that ended the episode.
    """
    told = episode.metrics.get(COMPLETION)
    if told is not None:
        return min(1.0, max(0.0, told))
    if episode.outcome is not Outcome.COMPLETED or not episode.messages:
        return 0.0
    last = episode.messages[-1]
    return float(last.get("role") == "tool" or (last.get("role") == "assistant" and bool(text(last).strip())))


def hit_token_limit(episode: EpisodeRecord) -> bool:
    """Whether a turn was cut at the most tokens it may have."""
    return any(turn.finish_reason == "length" for turn in episode.turns)


def hit_turn_limit(episode: EpisodeRecord, max_turns: int) -> bool:
    """Whether the episode was cut after its last permitted turn."""
    return episode.outcome is Outcome.TRUNCATED and len(episode.turns) >= max_turns
