"""Strict reading of an endpoint's answer: what it says, why it ended, what it cost. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from headway_api import bounds
from headway_api.bounds import json_within
from headway_coordinator.endpoint.wire import REASONING
from headway_coordinator.trajectory.calls import Call, Parsed, called, malformed

MAX_BYTES = bounds.ANSWER
"""The most bytes of an answer, decompressed. A longer one is not read."""
MAX_DEPTH = 64
"""The deepest nesting of lists and objects in the answer and in a call's arguments."""
MAX_VALUES = bounds.ANSWER_VALUES
"""The most lists, objects and values in the answer and in a call's arguments."""
MAX_CALLS = 128
"""Tool calls of one turn that are carried out. The rest counts as one call that cannot be read."""
FINISH = {
    "stop": (
        "stop",
        "eos",
        "eos_token",
        "stop_sequence",
        "end_turn",
        "tool_calls",
        "tool_use",
        "function_call",
    ),
    "length": ("length", "max_tokens", "model_length", "max_output_tokens"),
    "content_filter": ("content_filter", "refusal", "safety"),
}
"""Why an answer ended -> the names that endpoints use for it."""
CUT = re.compile(r"abort|cancel|error|fail|interrupt|insufficient|time_?out", re.IGNORECASE)
"""An unknown reason that matches means that the answer is incomplete."""
OTHER_FINISH = (
    ("length", re.compile(r"length|max|limit|truncat|incomplete", re.IGNORECASE)),
    ("content_filter", re.compile(r"filter|safety|block|refus|prohibit|recitation|sensitive", re.IGNORECASE)),
)
"""Patterns for other reasons. A reason without a match is a `stop`: the endpoint ended a complete answer."""
MAX_TOKENS = 10**9
"""The most tokens of one turn. A larger count is ignored."""
_FINISH = {name: reason for reason, names in FINISH.items() for name in names}


class UnreadableReplyError(Exception):
    """The answer is not a chat completion, or not a complete one."""


class EndpointReplyError(Exception):
    """A success by its status, but an error by its content, as some proxies send."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Reply:
    """A chat completion."""

    parsed: Parsed
    finish_reason: str
    """`stop`, `length` or `content_filter`."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    counted: bool = True
    """Whether the endpoint reported the cost. If not, the tokens are 0."""
    reasoning: str | None = None
    """The name of the field with the reasoning."""


def read(data: bytes) -> Reply:
    """Check and read an answer's body.

    Raises:
        UnreadableReplyError: the answer is not a chat completion, or not a complete one.
        EndpointReplyError: the answer's content is an error.
    """
    body = _json(data)
    choices = body.get("choices")
    if not choices and body.get("error"):
        raise _failed(body["error"], data)
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise UnreadableReplyError("the answer has no choices")
    if choices[0].get("error"):
        raise _failed(choices[0]["error"], data)
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise UnreadableReplyError("the answer's first choice has no message")
    field = next((name for name in REASONING if isinstance(message.get(name), str) and message[name]), None)
    parsed = Parsed(
        content=_content(message),
        reasoning=(_text(message[field]) if field else None) or _reasoning(message),
        calls=_calls(message),
    )
    return Reply(
        parsed, _finish(choices[0].get("finish_reason")), **_usage(body.get("usage")), reasoning=field
    )


def document(data: bytes) -> Any:
    """JSON within the bounds of an answer, without numbers that JSON does not have.

    It may contain half of a surrogate pair, if a model's turn was cut there.

    Raises:
        OutOfBoundsError: the data is not such JSON.
    """
    return json_within(data, MAX_BYTES, depth=MAX_DEPTH, values=MAX_VALUES, halves=True)


def _json(data: bytes) -> dict[str, Any]:
    start = data[:64].lstrip()
    if start.startswith(b"<"):
        raise UnreadableReplyError("the answer is an HTML page")
    if start.startswith((b"data:", b"event:", b":")):
        raise UnreadableReplyError("the answer is a stream, though `stream` was false")
    try:
        found = document(data)
    except ValueError as error:
        raise UnreadableReplyError(f"the answer is not complete JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnreadableReplyError("the answer is not a JSON object")
    return found


def _failed(error: Any, data: bytes) -> EndpointReplyError:
    code = error.get("code") if isinstance(error, dict) else None
    known = isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600
    return EndpointReplyError(int(code or 0) if known else 500, data.decode(errors="replace"))


def _finish(reason: object) -> str:
    if not isinstance(reason, str) or not reason or CUT.search(reason):
        raise UnreadableReplyError(
            f"the answer's finish_reason is {str(reason)[:100]!r}: it may be cut short"
        )
    known = _FINISH.get(reason.lower())
    return known or next((means for means, words in OTHER_FINISH if words.search(reason)), "stop")


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or message.get("refusal") or ""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(str(part.get("text", "")) for part in parts)
    if not isinstance(content, str):
        raise UnreadableReplyError("the answer's content is neither text nor a list of parts")
    return _text(content)


def _reasoning(message: dict[str, Any]) -> str | None:
    """Reasoning in the parts of the content."""
    content = message.get("content")
    parts = [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []
    found = [part["thinking"] for part in parts if isinstance(part.get("thinking"), str)]
    return _text("".join(found)) or None


def _calls(message: dict[str, Any]) -> list[Call]:
    calls = message.get("tool_calls")
    if calls is None and isinstance(message.get("function_call"), dict):
        calls = [{"function": message["function_call"]}]
    if not isinstance(calls, list | None):
        raise UnreadableReplyError("the answer's tool_calls are not a list")
    found = [_call(call) for call in (calls or [])[:MAX_CALLS]]
    if calls and len(calls) > MAX_CALLS:
        found.append(malformed("", f"one turn has {len(calls)} calls; at most {MAX_CALLS} are carried out"))
    return found


def _call(call: Any) -> Call:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return malformed(_text(json.dumps(call)), "it names no function")
    name, arguments = function.get("name"), function.get("arguments")
    raw = _text(json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False))
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}  # a tool without parameters
    if isinstance(arguments, str):
        try:
            arguments = document(arguments.encode())
        except ValueError as error:
            return called(raw, name, None, f"arguments are not JSON: {error}")
    return called(raw, name, arguments)


def _usage(usage: Any) -> dict[str, Any]:
    found = usage if isinstance(usage, dict) else {}
    prompt, sampled = _count(found.get("prompt_tokens")), _count(found.get("completion_tokens"))
    total = _count(found.get("total_tokens"))
    if prompt is not None and sampled is not None and total is not None:
        # Some endpoints count the tokens of reasoning only in the total, and charge for them.
        sampled = max(sampled, total - prompt)
    details = found.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return {
        "prompt_tokens": prompt or 0,
        "cached_tokens": min(cached or 0, prompt or 0),
        "sampled_tokens": sampled or 0,
        "counted": prompt is not None and sampled is not None,
    }


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
        return value
    return None


def _text(text: str) -> str:
    """The text without half surrogate pairs, which JSON can spell but nothing can store."""
    return text.encode(errors="replace").decode()
