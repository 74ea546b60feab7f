"""The HTTP session that kopf uses for its watches. It shows kopf only the identity of a job.

kopf parses whatever the API server sends, without bounds, and reads some annotations as JSON. So the session
requests only metadata, and reduces answers to identities before kopf sees them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from aiohttp.tracing import TraceRequestStartParams
from yarl import URL

from headway_api import logs, names
from headway_api.bounds import OutOfBoundsError
from headway_operator import wire
from headway_operator.kube import METADATA_ONLY

log = logging.getLogger(__name__)

GONE: Final = 410
"""The error code of a watch at which kopf lists again. At any other code, kopf ends the operator."""


class BoundedResponse(aiohttp.ClientResponse):
    """A response that shows kopf only the identities of jobs."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the headers. The lines of a watch of jobs are reduced as they arrive."""
        await super().start(connection)
        if self.status == 200 and _is_watch(self.url):
            self.content = _Lines(self.content)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        """The document; for a list of jobs, only their identities."""
        if self.status != 200 or not _is_of_jobs(self.url):
            return await super().json(**options)
        items, metadata = wire.page(await self._page(), identity=True)
        return {"metadata": metadata, "items": list(items)}

    async def _page(self) -> bytes:
        found = bytearray()
        async for chunk in self.content.iter_chunked(2**16):
            found += chunk
            if len(found) > wire.PAGE_BYTES:
                self.close()
                raise aiohttp.ClientPayloadError(f"a page of more than {wire.PAGE_BYTES} bytes")
        return bytes(found)


class _Lines:
    """A stream of lines, each replaced by the identity of its object, or omitted."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """The reduced lines, one at a time. `size` is the number of bytes to read at once."""
        rest, beyond = bytearray(), False
        async for chunk in self._stream.iter_chunked(size):
            rest += chunk
            if b"\n" in chunk:
                *lines, last = bytes(rest).split(b"\n")
                for line in lines[beyond:]:
                    if identity := _identity(line):
                        yield identity
                rest, beyond = bytearray(last), False
            if len(rest) > wire.OBJECT_BYTES:
                rest, beyond = bytearray(), True


def _identity(line: bytes) -> bytes:
    """The event in a line, reduced to the object's identity; empty if no identity can be read."""
    if not line.strip():
        return b""
    try:
        event = wire.event(line, identity=True)
    except OutOfBoundsError as error:
        logs.event(log, "event-unread", logging.WARNING, error=str(error))
        return b""
    if event["type"] == "ERROR":
        event["object"]["code"] = GONE
    return json.dumps(event).encode() + b"\n"


def _is_of_jobs(url: URL) -> bool:
    return url.path.startswith(f"/apis/{names.API_VERSION}/") and url.name in names.CUSTOM.values()


def _is_watch(url: URL) -> bool:
    return _is_of_jobs(url) and url.query.get("watch") == "true"


async def _ask_for_metadata(
    session: aiohttp.ClientSession, context: SimpleNamespace, request: TraceRequestStartParams
) -> None:
    if _is_of_jobs(request.url):
        kind = "" if _is_watch(request.url) else "List"
        request.headers["Accept"] = METADATA_ONLY.format(kind)


def session(
    connector: aiohttp.BaseConnector, headers: dict[str, str], *, trust_env: bool = False
) -> aiohttp.ClientSession:
    """An HTTP session for kopf that shows only the identities of jobs."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(_ask_for_metadata)
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        trust_env=trust_env,
        trace_configs=[tracing],
        response_class=BoundedResponse,
    )
