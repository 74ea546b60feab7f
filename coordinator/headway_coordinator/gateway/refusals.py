"""The gateway's errors: typed, naming the field and what to change, in the forms that clients read.

OpenAI's clients read `{"error": {...}}`, and Anthropic's the same with `"type": "error"`. SageMaker's RFT SDK
reads the reason phrase of the status line. If that says "not in valid status", the SDK assumes that the call
had succeeded before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from pydantic import ValidationError

from headway_coordinator.gateway.neutral import shown

NOT_IN_VALID_STATUS = "Trajectory not in valid status"
"""Reason phrase of the answer to a call that the trajectory's status does not allow."""

UNSUPPORTED = "unsupported_parameter"
"""Error code for a field that is known but not applied."""
PART_FIELDS: Final = (
    *("id", "name", "input", "tool_use_id", "is_error", "thinking", "reasoning", "refusal"),
)
"""Fields of a message's parts besides `text`. An error in one does not mean that the content is no text."""


class GatewayError(Exception):
    """An error answer of the gateway, with its HTTP status, error code and message."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        reason: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.reason = reason
        """The reason phrase of the status line, for clients that read it; None: the usual phrase."""
        self.retry_after = retry_after
        """Seconds after which another request may succeed."""

    @property
    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"type": "error", "error": error, "message": str(self)}


def bad(param: str, message: str, code: str = "invalid_value") -> GatewayError:
    """The error for a wrong field of the request, with status 400."""
    return GatewayError(400, code, f"{param}: {message}", param=param)


def not_in_valid_status(message: str) -> GatewayError:
    """The error for a call for which it is too late or too early in the trajectory's life."""
    return GatewayError(409, "trajectory_status", message, reason=NOT_IN_VALID_STATUS)


def refuse(error: ValidationError, start: int = 0) -> NoReturn:
    """Raise the `GatewayError` that names the field that the client must change.

    If a slice of the request's list was checked, `start` is where that slice begins in the list.
    """
    # For a union, pydantic reports an error for each alternative. The deepest path explains the fault best.
    furthest = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    parts = [part for part in furthest["loc"] if not _is_tag(part)]
    if len(parts) > 1 and isinstance(parts[1], int):
        parts[1] += start
    path = ".".join(map(str, parts))
    if ".content." in path and path.rpartition(".")[2] not in PART_FIELDS:
        raise bad(
            path, "this gateway accepts only text; send content of type text", "unsupported_content"
        ) from error
    fix = _fix(parts, furthest["input"]) if furthest["type"] == "literal_error" else ""
    raise bad(path or "body", f"{furthest['msg']} (got {shown(furthest['input'])}){fix}") from error


def _fix(parts: Sequence[object], given: object) -> str:
    """What to write instead of a kind of tool, or of an item of Responses, that the gateway does not know."""
    if parts[-1] != "type" or parts[0] not in ("tools", "input"):
        return ""
    if parts[0] == "tools":
        return "; no tool runs in the gateway: write a function of your own, and answer its calls"
    if given == "item_reference":
        return "; send the item itself, or previous_response_id"
    return "; leave the item out, or write what it says as a message"


def _is_tag(part: str | int) -> bool:
    """Whether a part of an error's path names an alternative of a union instead of a field."""
    if not isinstance(part, str):
        return False
    return part in ("str", "bool") or not part.isidentifier() or part[0] == "_" or part[0].isupper()
