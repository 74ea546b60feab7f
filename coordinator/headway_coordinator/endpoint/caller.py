"""One HTTP call to an endpoint: bounded in size, and without redirects. No message holds the token."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
from yarl import URL

from headway_api.bounds import shortened
from headway_coordinator.endpoint.refused import RefusalKind, Verdict, judge
from headway_coordinator.endpoint.reply import (
    MAX_BYTES,
    EndpointReplyError,
    Reply,
    UnreadableReplyError,
    document,
    read,
)
from headway_coordinator.endpoint.wire import sent
from headway_wire.contents import BodyTooLargeError, content

CONNECT_SECONDS = 10.0
QUOTED_BYTES = 64 * 1024
"""The most bytes of an error's content that are read to find its meaning."""
CHARACTERS = 400
"""The most characters that a message quotes from another service."""
HEADERS = ("Retry-After", "retry-after-ms", "Date", "Location")


@dataclass(frozen=True)
class _EndpointResponse:
    status: int
    headers: dict[str, str]
    data: bytes


class ModelEndpoint(Protocol):
    """An address where a model is served: for a candidate or for a judge."""

    @property
    def url(self) -> str: ...

    @property
    def model(self) -> str: ...


@dataclass(frozen=True)
class Caller:
    """Sends requests to one endpoint."""

    http: aiohttp.ClientSession
    spec: ModelEndpoint
    token: str | None

    async def complete(self, body: dict[str, Any]) -> Reply | Verdict:
        """Request a chat completion once. The caller sets the deadline."""
        try:
            answer = await self._call("POST", "chat/completions", body)
            if not 200 <= answer.status < 300:
                return self._judged(answer, body)
            return read(answer.data)
        except EndpointReplyError as error:
            return self._judged(
                _EndpointResponse(error.status, {}, str(error).encode(errors="replace")), body
            )
        except UnreadableReplyError as error:
            return Verdict(RefusalKind.UNREADABLE, str(error), reason="EndpointUnreadable")
        except aiohttp.ClientPayloadError:
            message = "the answer is cut off"
            return Verdict(RefusalKind.UNREADABLE, message, reason="EndpointUnreadable")
        except (aiohttp.ClientSSLError, ValueError) as error:  # the certificate or the URL is not valid
            return Verdict(RefusalKind.FAULT, self._words(error), "url", "EndpointUnreachable")
        except aiohttp.ClientConnectorError as error:
            return Verdict(RefusalKind.BUSY, self._words(error), reason="EndpointUnreachable")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Verdict(RefusalKind.BROKEN, self._words(error), reason="EndpointUnreachable")

    async def listed(self) -> bool:
        """Whether the endpoint lists the model. A refused or unreadable list proves nothing."""
        try:
            answer = await self._call("GET", "models", None)
            found = document(answer.data)["data"] if answer.status == 200 else []
            return any(model["id"] == self.spec.model for model in found)
        except (aiohttp.ClientError, OSError, UnreadableReplyError, ValueError, TypeError, KeyError):
            return False

    @property
    def shown(self) -> str:
        """The endpoint's URL as messages show it, without secrets."""
        return _shown(self.spec.url)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> _EndpointResponse:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        url = _below(self.spec.url, path)
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
            url = url.with_user(None)  # the Secret's token replaces credentials in the URL
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        # A redirect would carry the token to another host.
        asked = self.http.request(
            method, url, json=body, headers=headers, timeout=limit, allow_redirects=False
        )
        async with asked as response:
            found = {name: response.headers[name] for name in HEADERS if name in response.headers}
            return _EndpointResponse(response.status, found, await _content(response))

    def _judged(self, answer: _EndpointResponse, body: dict[str, Any]) -> Verdict:
        text = self._hide(answer.data[:QUOTED_BYTES].decode(errors="replace"))
        verdict = judge(answer.status, answer.headers, text, sent(body))
        if answer.status < 400 and "Location" in answer.headers:
            place = self._hide(_shown(answer.headers["Location"]))
            verdict = replace(
                verdict, message=f"{answer.status}, a redirect to {place}, which is not followed"
            )
        return verdict

    def _words(self, error: Exception) -> str:
        # aiohttp's own words on a bad answer contain the URL, and so the secrets in its query.
        message = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
        return shortened(self._hide(f"{type(error).__name__}: {message}"), CHARACTERS)

    def _hide(self, text: str) -> str:
        """Another service's words, without the token: services quote what they received."""
        for secret in _forms(self.token) if self.token else ():
            text = text.replace(secret, "...")
        return text


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """An answer's content, decompressed.

    Raises:
        UnreadableReplyError: the content has more than `MAX_BYTES` bytes.
    """
    try:
        return await content(response, MAX_BYTES)
    except BodyTooLargeError as error:
        raise UnreadableReplyError(f"the answer is longer than {MAX_BYTES} bytes") from error


def _forms(token: str) -> list[str]:
    """The forms in which a token may be quoted, the longest first."""
    return sorted({token, json.dumps(token)[1:-1], quote(token, safe="")}, key=len, reverse=True)


def _below(url: str, path: str) -> URL:
    """A resource of the endpoint. A query in its URL stays, such as Azure's api-version."""
    base = URL(url)
    return base.with_path(f"{base.raw_path.rstrip('/')}/{path}", encoded=True, keep_query=True)


def _shown(url: str) -> str:
    """A URL without user, password and query."""
    try:
        found = URL(url)
        if not found.absolute:
            return found.path
        return str(found.with_user(None).with_query(None).with_fragment(None))
    except ValueError:
        return "an address that cannot be read"
