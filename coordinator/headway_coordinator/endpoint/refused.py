"""The meaning of an endpoint's error: wait, try again, omit a parameter, or a person must act. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_coordinator.endpoint.pace import asked_for

SHOWN = 400
"""The most characters that a message quotes from an endpoint."""
READ = 4096
"""The most characters of an error that are searched for its meaning. The time of a search grows with the
square of their number."""
BUSY = frozenset({429, 503, 529})
UNREACHABLE = frozenset({502, 504})
"""Statuses of a proxy that cannot reach its model."""
AGAIN = frozenset({408, 409, 425})
NO_QUOTA = re.compile(
    r"insufficient[ _](quota|balance|credits?|funds)|billing_\w+|credit balance|exceeded your current quota",
    re.IGNORECASE,
)
SOON = re.compile(
    r"(try again|retry) in\b|retry.?delay|rate_limit_exceeded|per.?(second|minute)", re.IGNORECASE
)
"""Words of a limit that passes by itself. Errors of such limits may also name the service's billing page."""
FULL = re.compile(
    r"context[ _](length|window|size)|maximum (input|prompt|number of tokens)"
    r"|(prompt|input|request) is too (long|large)|too many tokens|reduce the length"
    r"|(input|prompt) (length|tokens)\b.*(exceed|longer)|token limit",
    re.IGNORECASE,
)
FILTERED = re.compile(r"content_filter|content management policy|ResponsibleAIPolicy", re.IGNORECASE)
FLAGGED = re.compile(r"\bflagged\b|\bmoderation\b", re.IGNORECASE)
NO_TOOL = re.compile(r"\b(function|tool)\b.{0,100}\bnot (exist|found)", re.IGNORECASE | re.DOTALL)
"""Words of an error because the model called a tool that does not exist."""
NO_MODEL = re.compile(
    r"model_not_found|model\b.{0,300}\b(not found|not exist|does not exist|not a valid)"
    r"|(unknown|invalid|no such) model|not a valid model",
    re.IGNORECASE | re.DOTALL,
)


class RefusalKind(StrEnum):
    """What to do about an error."""

    BUSY = "busy"
    """Wait, as long as the job's patience lasts."""
    BROKEN = "broken"
    """Try again a few times."""
    UNREADABLE = "unreadable"
    """Try again a few times. Then the address is not a chat endpoint, unless it has answered before."""
    DROP = "drop"
    """Leave the parameter `name` out."""
    FULL = "full"
    """The conversation, alone or with its answer, is too long for the context."""
    FILTERED = "filtered"
    """The endpoint filters every answer to this conversation."""
    REFUSED = "refused"
    """This request can never succeed."""
    FAULT = "fault"
    """No request can succeed before a person changes the field `name`."""


@dataclass(frozen=True)
class Verdict:
    """One error with its meaning."""

    kind: RefusalKind
    message: str
    """For a person: the HTTP status, and the endpoint's own words."""
    name: str = ""
    """The dropped parameter, or the faulty field below spec.candidates[NAME].endpoint."""
    reason: str = ""
    """The reason of the candidate's condition, for a fault or an error that lasts too long."""
    wait: float | None = None
    """Seconds that the endpoint asked to wait."""


def judge(status: int, headers: Mapping[str, str], text: str, sent: Sequence[str]) -> Verdict:
    """The meaning of an answer outside 2xx. `sent` names the parameters that the request could omit."""
    words, code, param = _words(text)
    message = shortened(f"{status} {words}", SHOWN)
    everything = f"{code} {words}"[:READ]
    if status == 403 and FLAGGED.search(everything):
        return Verdict(RefusalKind.FILTERED, message)
    if status in (401, 402, 403) or (status == 429 and _is_used_up(headers, everything)):
        return Verdict(RefusalKind.FAULT, message, "secretRef", "EndpointDenied")
    if status in BUSY:
        return Verdict(RefusalKind.BUSY, message, reason="EndpointBusy", wait=asked_for(headers))
    if status in UNREACHABLE:
        return Verdict(RefusalKind.BUSY, message, reason="EndpointUnreachable", wait=asked_for(headers))
    if status >= 500 or status in AGAIN:
        return Verdict(RefusalKind.BROKEN, message, reason="EndpointFailing", wait=asked_for(headers))
    if status < 400:
        return Verdict(RefusalKind.FAULT, f"{status}, a redirect", "url", "EndpointNotFound")
    if status in (404, 405, 410):
        missing = param == "model" or _names_no_model(everything)
        return Verdict(RefusalKind.FAULT, message, "model" if missing else "url", "EndpointNotFound")
    return _bad_request(status, message, everything, param, sent)


def _is_used_up(headers: Mapping[str, str], everything: str) -> bool:
    """Whether a quota is used up until a person pays. Errors of other limits say when to try again."""
    if "insufficient_quota" in everything:
        return True
    passes = asked_for(headers) is not None or SOON.search(everything) is not None
    return not passes and NO_QUOTA.search(everything) is not None


def _names_no_model(everything: str) -> bool:
    if "model_not_found" in everything:
        return True
    return NO_MODEL.search(everything) is not None and NO_TOOL.search(everything) is None


def _bad_request(status: int, message: str, everything: str, param: str, sent: Sequence[str]) -> Verdict:
    if FILTERED.search(everything):
        return Verdict(RefusalKind.FILTERED, message)
    if status == 413 or FULL.search(everything):
        return Verdict(RefusalKind.FULL, message)
    if param == "model" or _names_no_model(everything):
        return Verdict(RefusalKind.FAULT, message, "model", "EndpointNotFound")
    if (name := _named(everything, param, sent)) is not None:
        return Verdict(RefusalKind.DROP, message, name)
    return Verdict(RefusalKind.REFUSED, message, "url", "EndpointRefused")


def _named(everything: str, param: str, sent: Sequence[str]) -> str | None:
    """The parameter that an error is about: the one in `param`, or else the first one in its text."""
    last = re.split(r"[.\]/]", param)[-1]
    if last in sent:
        return last
    found = [(at.start(), name) for name in sent if (at := re.search(rf"\b{name}\b", everything))]
    return min(found)[1] if found else None


def _words(text: str) -> tuple[str, str, str]:
    """Message, code and parameter of an error, in any of the usual forms."""
    try:
        body = json_within(text, bounds.ANSWER)
    except OutOfBoundsError:
        page = text.lstrip().startswith("<")
        return ("an HTML page" if page else " ".join(text.split())), "", ""
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return str(error), "", ""
    if "detail" in error and "message" not in error:
        return _details(error["detail"])
    inner = error.get("innererror")
    codes = (error.get("code"), error.get("type"), inner.get("code") if isinstance(inner, dict) else None)
    code = " ".join(str(part) for part in codes if part)
    return str(error.get("message") or error), code, str(error.get("param") or "")


def _details(detail: Any) -> tuple[str, str, str]:
    """Message, code and parameter of an error in FastAPI's form: a list of places and messages.

    FastAPI also repeats the request there; that part is left out.
    """
    if not isinstance(detail, list):
        return str(detail), "", ""
    places = [part for part in detail if isinstance(part, dict)]
    pairs = [(_place(part.get("loc")), str(part.get("msg", ""))) for part in places]
    return "; ".join(f"{place}: {text}" for place, text in pairs), "", pairs[0][0] if pairs else ""


def _place(loc: Any) -> str:
    return ".".join(map(str, loc)) if isinstance(loc, list) else str(loc or "")
