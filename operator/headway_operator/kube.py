"""The Kubernetes API as the operator uses it: plain JSON objects over the official client's connection.

Typed clients drop fields that they do not know, and need a model per kind. The operator sends and compares
documents, so it uses plain JSON. Every request has a deadline, and `wire` limits what is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from headway_api import names
from headway_api.bounds import KIB, OutOfBoundsError, json_within
from headway_api.document import Json
from headway_operator import wire

REQUEST_SECONDS: Final = 15.0
WATCH_SECONDS: Final = 290
"""The server ends a watch after this long."""
SILENCE_SECONDS: Final = 150
"""A connection that is silent for this long is dead: the server sends a bookmark about every minute."""
PAGE: Final = 100
EVENTS: Final = 1000
"""Maximum events that are read from a list. A job has far fewer, but others may create any number of events
about it."""
REFUSAL_BYTES: Final = 64 * KIB
"""Maximum bytes that are read from an error response of the API server."""
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class ResourceKind:
    """A resource the operator reads or writes."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """URL path of the collection, or of one object."""
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{where}/{self.plural}" + (f"/{name}" if name else "")


JOBS: Final = tuple(ResourceKind(names.API_VERSION, kind, plural) for kind, plural in names.PLURALS.items())
"""The custom resources that are jobs."""
BUDGETS: Final = ResourceKind(names.API_VERSION, names.BUDGET_KIND, names.CUSTOM[names.BUDGET_KIND])
CUSTOM: Final = (*JOBS, BUDGETS)
"""All custom resources."""
EVENT: Final = ResourceKind("v1", "Event", "events")
NAMESPACE: Final = ResourceKind("v1", "Namespace", "namespaces")
KINDS: Final = {
    kind.kind: kind
    for kind in (
        ResourceKind("v1", "ServiceAccount", "serviceaccounts"),
        ResourceKind("rbac.authorization.k8s.io/v1", "Role", "roles"),
        ResourceKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
        ResourceKind("v1", "ConfigMap", "configmaps"),
        ResourceKind("v1", "Secret", "secrets"),
        ResourceKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
        ResourceKind("v1", "Service", "services"),
        ResourceKind("batch/v1", "Job", "jobs"),
        ResourceKind("apps/v1", "Deployment", "deployments"),
        ResourceKind("apps/v1", "ReplicaSet", "replicasets"),
        ResourceKind("v1", "Pod", "pods"),
        *CUSTOM,
    )
}


class ApiError(Exception):
    """The API server refused a request; `status` is the HTTP code, and the text is the server's message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @classmethod
    def of(cls, status: int, body: bytes) -> ApiError:
        """The error from a `Status` document, or from whatever a proxy sent instead."""
        try:
            document = json_within(body, REFUSAL_BYTES)
            return cls(status, str(document.get("reason", "")), str(document.get("message", "")))
        except (OutOfBoundsError, AttributeError):
            return cls(status, "", body.decode(errors="replace")[:500])


class Api:
    """One API server."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._client = client.ApiClient(configuration)
        self._configuration = configuration
        self._pool = self._client.rest_client.pool_manager

    def get(
        self, kind: ResourceKind, namespace: str | None, name: str, *, metadata_only: bool = False
    ) -> Json | None:
        """An object, or None if there is none. A custom resource lacks what `wire.job` cannot read."""
        accept = _accept("", metadata_only)
        try:
            return self._object(kind, "GET", kind.path(namespace, name), accept=accept)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> tuple[list[Json], str]:
        """All objects of a kind, and the resource version to watch from.

        Of the kind Event, it returns only about the first `EVENTS` objects.

        Custom resources contain only their identity (`wire.identity_of`). An object that exceeds a limit of
        `wire` also has only its identity, with the reason under `wire.UNREAD`.
        """
        items: list[Json] = []
        query = {"limit": str(PAGE), "labelSelector": selector, "fieldSelector": fields}
        custom = kind.kind in names.CUSTOM
        accept = _accept("List", metadata_only or custom)
        while True:
            found, metadata = wire.page(self._page(kind.path(namespace), query, accept), identity=custom)
            # Items of a list have no apiVersion and no kind.
            items += [wire.slim(item | {"apiVersion": kind.api_version, "kind": kind.kind}) for item in found]
            following = metadata.get("continue")
            if not following or (kind == EVENT and len(items) >= EVENTS):
                return items, str(metadata["resourceVersion"])
            query["continue"] = following

    def _page(self, path: str, query: dict[str, str], accept: str) -> bytes:
        """One page of a list. A page that is too large is requested again with fewer objects."""
        while True:
            try:
                return self._read("GET", path, query=query, accept=accept, max_bytes=wire.PAGE_BYTES)
            except OutOfBoundsError:
                if query["limit"] == "1":
                    raise
                query["limit"] = str(max(1, int(query["limit"]) // 8))

    def watch(
        self,
        kind: ResourceKind,
        namespace: str | None,
        version: str,
        *,
        selector: str = "",
        metadata_only: bool = False,
    ) -> Iterator[Json]:
        """Events after `version`, bookmarks included, until the server ends the watch.

        Events that cannot be read are omitted.

        Raises:
            ApiError: 410 if `version` is too old, or any other refusal.
            urllib3.exceptions.HTTPError: the connection broke.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "labelSelector": selector,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = urllib3.Timeout(connect=5, read=SILENCE_SECONDS)
        response = self._send(
            "GET",
            kind.path(namespace),
            query=query,
            accept=_accept("", metadata_only),
            timeout=timeout,
        )
        try:
            for line in _lines(response):
                try:
                    event = wire.event(line)
                except OutOfBoundsError:
                    continue
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(
                        int(status.get("code", 500)), status.get("reason", ""), status.get("message", "")
                    )
                yield event
        finally:
            response.close()
            response.release_conn()

    def create(self, kind: ResourceKind, namespace: str, body: Json) -> Json:
        """Create an object; ApiError 409 if it exists."""
        query = {"fieldManager": names.FIELD_MANAGER_OPERATOR}
        return self._object(kind, "POST", kind.path(namespace), body=body, query=query)

    def apply(self, body: Json, *, subresource: str = "") -> Json:
        """Server-side apply with the operator's field manager. It takes over fields that others changed."""
        kind = KINDS[body["kind"]]
        path = kind.path(body["metadata"]["namespace"], body["metadata"]["name"]) + subresource
        query = {"fieldManager": names.FIELD_MANAGER_OPERATOR, "force": "true"}
        content = "application/apply-patch+yaml"
        return self._object(kind, "PATCH", path, body=body, query=query, content=content)

    def merge(
        self, kind: ResourceKind, namespace: str, name: str, body: Json, *, subresource: str = ""
    ) -> Json:
        """Change an object by a JSON merge patch; returns the changed object."""
        path = kind.path(namespace, name) + subresource
        query = {"fieldManager": names.FIELD_MANAGER_OPERATOR}
        content = "application/merge-patch+json"
        return self._object(kind, "PATCH", path, body=body, query=query, content=content)

    def delete(self, kind: ResourceKind, namespace: str, name: str, uid: str | None = None) -> Json | None:
        """Delete an object and, in the background, what it owns; None if it is gone already.

        With `uid`, only the object with that uid is deleted, and no later object of the same name.
        """
        body: Json = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            return self._object(kind, "DELETE", kind.path(namespace, name), body=body)
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise

    def _object(self, kind: ResourceKind, method: str, path: str, **request: Any) -> Json:
        """Send a request; returns the object in the response."""
        raw = self._read(method, path, max_bytes=wire.OBJECT_BYTES, **request)
        try:
            return wire.job(raw) if kind.kind in names.CUSTOM else wire.document(raw)
        except OutOfBoundsError as error:
            raise ApiError(0, "OutOfBounds", f"{kind.kind} {path.rpartition('/')[2]}: {error}") from error

    def _read(self, method: str, path: str, *, max_bytes: int, **request: Any) -> bytes:
        """Send a request; returns the body of the response.

        Raises:
            OutOfBoundsError: the body has more than `max_bytes` bytes.
        """
        timeout = urllib3.Timeout(total=REQUEST_SECONDS)
        response = self._send(method, path, timeout=timeout, **request)
        try:
            return _within(response, max_bytes)
        finally:
            response.release_conn()

    def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: urllib3.Timeout,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        content: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "headway-operator"}
        if body is not None:
            headers["Content-Type"] = content
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        pairs = {key: value for key, value in (query or {}).items() if value}
        url = self._configuration.host + path + ("?" + urlencode(pairs) if pairs else "")
        response: urllib3.BaseHTTPResponse = self._pool.request(
            method,
            url,
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
            timeout=timeout,
            retries=False,
            preload_content=False,
        )
        if response.status >= 400:
            try:
                refusal = _within(response, REFUSAL_BYTES)
            except OutOfBoundsError as error:
                refusal = str(error).encode()
            finally:
                response.release_conn()
            raise ApiError.of(response.status, refusal)
        return response


def _accept(suffix: str, metadata_only: bool) -> str:
    return METADATA_ONLY.format(suffix) if metadata_only else "application/json"


def _within(response: urllib3.BaseHTTPResponse, max_bytes: int) -> bytes:
    """The whole body of a response. If it has more than `max_bytes` bytes, the connection is closed."""
    found = bytearray()
    while chunk := response.read(max_bytes + 1 - len(found), decode_content=True):
        found += chunk
        if len(found) > max_bytes:
            response.close()
            raise OutOfBoundsError(f"more than {max_bytes} bytes")
    return bytes(found)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """The lines of a watch. A line with more than `wire.OBJECT_BYTES` bytes is returned empty."""
    rest, beyond = bytearray(), False
    for chunk in response.stream(None, decode_content=True):
        rest += chunk
        if b"\n" in chunk:
            *lines, last = bytes(rest).split(b"\n")
            yield from (b"" if beyond and not n else line for n, line in enumerate(lines) if line)
            rest, beyond = bytearray(last), False
        if len(rest) > wire.OBJECT_BYTES:
            rest, beyond = bytearray(b" "), True


def connect() -> Api:
    """Connect to the API server of the pod's own cluster, or else to the one that KUBECONFIG names."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)
    configuration.connection_pool_maxsize = 64
    client.Configuration.set_default(configuration)
    return Api(configuration)
