"""The four calls of the Kubernetes API that the broker needs, over aiohttp.

The broker does not use the `kubernetes` client. Importing that costs 1.5 s and 60 MB in a pod that every job
has, and it is synchronous. Building its models from JSON costs more CPU for each watch event than all other
work of the broker on that event. Four calls on plain JSON are less code than an adapter around that client.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from headway_api.bounds import KIB, MIB, OutOfBoundsError, json_within, shortened
from headway_api.document import Json

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_SECONDS = 30.0
WATCH_SECONDS = 240
DEPTH = 64
"""Maximum levels of nesting in an object of the API; pods have about 20."""
OBJECT = 4 * MIB
"""Maximum bytes of one object. The API server stores none above 3 MiB."""
LIST = 256 * MIB
"""Maximum bytes of a list: 4096 sandboxes with 64 KiB each."""
LIST_VALUES = 10_000_000
REFUSAL = 64 * KIB
WORDS = 1_000
"""Maximum characters of a refusal's message that an error repeats."""
TOKEN_SECONDS = 60.0
"""Seconds after which the token file is read again, since a projected token is rotated in place."""


class ApiError(Exception):
    """The API server refused a request; `reason` and the message come from it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ResourceVersionExpiredError(Exception):
    """The resource version is too old to watch from: list again."""


class PodApi(Protocol):
    """Creates and lists sandboxes: the API server, or one process of this machine for each (`processes`)."""

    async def create(self, pod: Json) -> Json: ...

    async def delete(self, name: str, uid: str | None, grace_seconds: int) -> None: ...

    async def list(self, selector: str) -> tuple[list[Json], str]: ...

    def watch(self, selector: str, version: str) -> AsyncIterator[tuple[str, Json]]: ...


class Credentials:
    """Bearer token from a rotated file, or none."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._token = ""
        self._read_at = float("-inf")

    def headers(self) -> dict[str, str]:
        """Authorization header."""
        if self._file is None:
            return {}
        if time.monotonic() - self._read_at > TOKEN_SECONDS:
            self._token = self._file.read_text().strip()
            self._read_at = time.monotonic()
        return {"Authorization": f"Bearer {self._token}"}


class Pods:
    """Pods of one namespace."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        server: str,
        namespace: str,
        tls: ssl.SSLContext,
        credentials: Credentials,
    ) -> None:
        self._http = http
        self._url = f"{server.rstrip('/')}/api/v1/namespaces/{namespace}/pods"
        self._tls = tls
        self._credentials = credentials

    @classmethod
    def in_cluster(
        cls, http: aiohttp.ClientSession, namespace: str, environ: Mapping[str, str] = os.environ
    ) -> Pods:
        """A client with the service account of this pod."""
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        return cls(http, server, namespace, tls, Credentials(ACCOUNT / "token"))

    async def create(self, pod: Json) -> Json:
        """Create a pod; returns it as the API server stored it.

        Raises:
            ApiError: the API server refused, for instance because of a quota.
        """
        made: Json = await self._call("POST", self._url, pod)
        return made

    async def delete(self, name: str, uid: str | None, grace_seconds: int) -> None:
        """Delete a pod; with `uid`, only that one. A pod that is gone already is not an error."""
        body: Json = {"gracePeriodSeconds": grace_seconds}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", f"{self._url}/{name}", body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def list(self, selector: str) -> tuple[list[Json], str]:
        """Pods with these labels, and the resource version to watch from."""
        answer = await self._call("GET", self._url, params={"labelSelector": selector})
        try:
            return [dict(item) for item in answer["items"]], str(answer["metadata"]["resourceVersion"])
        except (KeyError, TypeError, ValueError) as error:
            raise ApiError(502, "OutOfBounds", "the API server's answer is not a list of pods") from error

    async def watch(self, selector: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        """Events after `version`, bookmarks included, until the server ends the watch.

        Raises:
            ResourceVersionExpiredError: `version` is too old.
            ApiError: the API server refused.
        """
        params = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        limit = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_connect=10)
        async with self._http.get(
            self._url, params=params, ssl=self._tls, headers=self._credentials.headers(), timeout=limit
        ) as response:
            await _check(response)
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    yield _event(line)
                if len(buffer) > OBJECT:
                    raise ApiError(502, "OutOfBounds", f"the API server sent an object above {OBJECT} bytes")

    async def _call(
        self, method: str, url: str, body: Json | None = None, params: Mapping[str, str] | None = None
    ) -> Any:
        limit = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=10)
        async with self._http.request(
            method,
            url,
            json=body,
            params=params,
            ssl=self._tls,
            headers=self._credentials.headers(),
            timeout=limit,
        ) as response:
            await _check(response)
            return _object(await _read(response, LIST), LIST, LIST_VALUES)


def _event(line: bytes) -> tuple[str, Json]:
    """Kind and object of one line of a watch; raises ResourceVersionExpiredError, ApiError."""
    event = _object(line, OBJECT)
    kind, item = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(item, dict):
        raise ApiError(502, "OutOfBounds", "the API server sent an event without a type or an object")
    if kind == "ERROR":
        raise _error(item)
    return kind, item


def _object(text: bytes, maximum: int, values: int = LIST_VALUES) -> Json:
    try:
        document = json_within(text, maximum, depth=DEPTH, values=values)
    except OutOfBoundsError as error:
        raise ApiError(502, "OutOfBounds", f"the API server's answer: {error}") from error
    if not isinstance(document, dict):
        raise ApiError(502, "OutOfBounds", "the API server's answer is not an object")
    return document


async def _read(response: aiohttp.ClientResponse, maximum: int) -> bytes:
    """The body, or enough of it to show that it is larger than `maximum`."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > maximum:
            break
    return bytes(content)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 300:
        return
    text = await _read(response, REFUSAL)
    try:
        document = _object(text, REFUSAL)
    except ApiError:
        document = {"message": text.decode(errors="replace")}
    raise _error({**document, "code": response.status})


def _error(status: Json) -> Exception:
    message = shortened(str(status.get("message", "")), WORDS)
    code = status.get("code")
    if code == 410:
        return ResourceVersionExpiredError(message)
    reason = shortened(str(status.get("reason") or "Unknown"), WORDS)
    return ApiError(code if isinstance(code, int) else 500, reason, message)
