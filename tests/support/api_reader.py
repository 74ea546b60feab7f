"""Reads a cluster's API over one kept connection, so that a request takes milliseconds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kubernetes import config

from headway_api.document import Json

REQUEST_S = 60

KINDS: Mapping[str, tuple[str, str]] = {
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "Service": ("api/v1", "services"),
    "Job": ("apis/batch/v1", "jobs"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "Pod": ("api/v1", "pods"),
}
"""Kinds of objects that the operator creates for a job: kind -> group with version, and plural."""


class ApiRefusedError(Exception):
    """The API server's answer is not an object."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiReader:
    """One namespace, with the rights of a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._api: Any = config.new_client_from_config(str(kubeconfig))
        self._namespace = namespace

    def one(self, group: str, plural: str, name: str) -> Json:
        """An object as the server has it.

        Raises:
            ApiRefusedError: with status 404 if there is no such object.
        """
        return self._get(f"/{group}/namespaces/{self._namespace}/{plural}/{name}")

    def changes(self, group: str, plural: str, name: str, deadline_s: float) -> Iterator[Json]:
        """An object as it is now, and again after each change, until the deadline or its deletion."""
        ends = time.monotonic() + deadline_s
        while (left := ends - time.monotonic()) > 0:
            found = self.one(group, plural, name)
            yield found
            asked = {
                "watch": "1",
                "fieldSelector": f"metadata.name={name}",
                "resourceVersion": found["metadata"]["resourceVersion"],
                "timeoutSeconds": f"{math.ceil(left)}",
            }
            for event in self._events(f"/{group}/namespaces/{self._namespace}/{plural}", asked):
                if event["type"] == "DELETED":
                    return
                if event["type"] == "ERROR":  # the resource version is too old: list again
                    break
                yield event["object"]

    def until(
        self, group: str, plural: str, name: str, ready: Callable[[Json], bool], deadline_s: float
    ) -> Json:
        """The object, once it is ready.

        Raises:
            TimeoutError: it was not ready in time. The message has the object's status.
        """
        for found in self.changes(group, plural, name, deadline_s):
            if ready(found):
                return found
        status = json.dumps(self.one(group, plural, name).get("status"), indent=1)
        raise TimeoutError(f"waited {deadline_s:.0f} s for {plural}/{name}, whose status is {status}")

    def _events(self, path: str, query: Mapping[str, str]) -> Iterator[Json]:
        """The events of a watch, until the server ends it."""
        host, limit = self._api.configuration.host, int(query["timeoutSeconds"]) + REQUEST_S
        answer = self._api.call_api("GET", f"{host}{path}?{urlencode(query)}", _request_timeout=limit)
        try:
            if answer.status != 200:
                raise ApiRefusedError(answer.status, f"GET {path}: {answer.status}: {answer.read().decode()}")
            for line in answer.response:
                yield json.loads(line)
        finally:
            answer.response.close()

    def exists(self, group: str, plural: str, name: str) -> bool:
        """Whether there is an object of this name."""
        try:
            self.one(group, plural, name)
        except ApiRefusedError as error:
            if error.status == 404:
                return False
            raise
        return True

    def labelled(self, selector: str, kinds: Iterable[str] = KINDS) -> dict[str, Json]:
        """Every object of `kinds` with these labels, as Kind/name; each with its own `kind`."""
        found = {}
        for kind in kinds:
            group, plural = KINDS[kind]
            path = f"/{group}/namespaces/{self._namespace}/{plural}"
            for item in self._get(path, selector)["items"]:
                found[f"{kind}/{item['metadata']['name']}"] = {"kind": kind} | item
        return found

    def close(self) -> None:
        """Close the connection."""
        self._api.close()

    def _get(self, path: str, selector: str = "") -> Json:
        query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
        answer = self._api.call_api(
            "GET", f"{self._api.configuration.host}{path}{query}", _request_timeout=REQUEST_S
        )
        body = answer.read()
        if answer.status != 200:
            raise ApiRefusedError(answer.status, f"GET {path}{query}: {answer.status}: {body.decode()}")
        found: Json = json.loads(body)
        return found
