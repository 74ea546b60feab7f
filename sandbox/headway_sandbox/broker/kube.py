"""The four calls of the Kubernetes API that the broker needs, over aiohttp.

Not the `kubernetes` client: importing it costs 1.5 s and 60 MB in a pod that lives beside every job, it is
synchronous, and building its models from JSON costs more CPU for each watch event than everything else the
broker does with it. Four calls on plain JSON are less code than the adapter around it would be.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_SECONDS = 30.0
WATCH_SECONDS = 240
TOKEN_SECONDS = 60.0
"""A projected token is rotated in place; it is read again after so long."""

Json = dict[str, Any]


class ApiError(Exception):
    """The API server refused; `reason` and the message are its own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Gone(Exception):
    """The resource version is too old to watch from: list again."""


class Credentials:
    """Bearer token from a file that is rotated, or none."""

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
        """With the service account that the pod runs as."""
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        return cls(http, server, namespace, tls, Credentials(ACCOUNT / "token"))

    async def create(self, pod: Json) -> Json:
        """Create a pod; the API server's view of it.

        Raises:
            ApiError: refused, for instance by a quota.
        """
        made: Json = await self._call("POST", self._url, pod)
        return made

    async def delete(self, name: str, uid: str | None, grace_seconds: int) -> None:
        """Delete a pod, where `uid` is known exactly that one; one that is gone already is no error."""
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
        return answer["items"], answer["metadata"]["resourceVersion"]

    async def watch(self, selector: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        """Events after `version`, until the server ends the watch; bookmarks are passed on.

        Raises:
            Gone: `version` is too old.
            ApiError: refused.
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
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"])
                    yield event["type"], event["object"]

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
            return await response.json()


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status >= 300:
        text = await response.text()
        try:
            document = json.loads(text)
        except ValueError:
            document = {"message": text[:500]}
        raise _error({"code": response.status, **document})


def _error(status: Json) -> Exception:
    if status.get("code") == 410:
        return Gone(status.get("message", ""))
    return ApiError(status.get("code", 500), status.get("reason", "Unknown"), status.get("message", ""))
