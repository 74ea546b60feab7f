"""Reads and changes jobs on the cluster that kubectl uses, and explains the cluster's errors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import urllib3
import yaml
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from headway_api import names
from headway_api.bounds import shortened
from headway_api.document import Json
from headway_cli import near_names, newer_fields

MANAGER: Final = "headway-cli"
CALL_SECONDS: Final = 30
UNREACHABLE_SECONDS: Final = 300.0
"""Maximum seconds that a cluster may be unreachable while a job is followed, after it has answered once."""
RETRY_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 240
"""Seconds after which a watch is started again. A dead connection is noticed then at the latest."""
INSTALL: Final = "helm install headway charts/headway -n headway-system --create-namespace"
OLDER: Final = (
    "this command knows the field, so the cluster may have an older Headway: `helm list -n headway-system` "
    "shows its version, and `helm upgrade headway charts/headway -n headway-system` upgrades it"
)


class ClusterError(Exception):
    """The cluster refuses a call, or no cluster is configured; the message says what to do."""


class JobNotFoundError(ClusterError):
    """There is no job of the given name."""


class ClusterUnreachableError(ClusterError):
    """The cluster does not answer."""


class JobDeletedError(Exception):
    """The job was deleted while it was watched."""


class Cluster:
    """The jobs in one namespace of a cluster."""

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        """Read the kubeconfig.

        Args:
            context: context of the kubeconfig; default: the current context.
            namespace: default: the context's namespace.

        Raises:
            ClusterError: the kubeconfig cannot be read, or has no such context.
        """
        try:
            contexts, current = config.list_kube_config_contexts()
            chosen = current if context is None else _named(contexts, context)
            self._api = client.CustomObjectsApi(config.new_client_from_config(context=chosen["name"]))
        except (yaml.YAMLError, OSError, AttributeError, UnicodeDecodeError, TypeError, KeyError) as error:
            raise ClusterError(
                f"the kubeconfig ({_kubeconfig()}) cannot be read: {shortened(str(error), 200)}; correct it, "
                "or name another in KUBECONFIG"
            ) from error
        except ConfigException as error:
            raise ClusterError(
                f"no cluster is configured ({error}): set KUBECONFIG, choose a context with `kubectl "
                "config use-context`, or run the job here with `headway run --local`"
            ) from error
        self.context = str(chosen["name"])
        self.namespace = namespace or str(chosen["context"].get("namespace", "default"))

    def submit(self, job: Json) -> tuple[str, str, str]:
        """Apply a job. Return its kind, namespace and name."""
        metadata = job["metadata"]
        namespace = metadata.get("namespace") or self.namespace
        body = {**job, "metadata": {**metadata, "namespace": namespace}}
        with self._explained(job["kind"]):
            self._api.patch_namespaced_custom_object(  # the client drops the answer if the job is new (201)
                *_place(job["kind"], namespace),
                metadata["name"],
                body,
                field_manager=MANAGER,
                field_validation="Strict",
                force=True,
                _content_type="application/apply-patch+yaml",
                _request_timeout=CALL_SECONDS,
            )
        return job["kind"], namespace, metadata["name"]

    def job(self, kind: str, name: str) -> Json:
        """The job of this kind and name.

        Raises:
            ClusterError: no job has that name; the message suggests similar names.
        """
        with self._explained(kind, name):
            answer: Json = self._api.get_namespaced_custom_object(
                *_place(kind, self.namespace), name, _request_timeout=CALL_SECONDS
            )
        return answer

    def jobs(self, kind: str) -> list[Json]:
        """All jobs of a kind in the namespace."""
        with self._explained(kind):
            return self._listed(kind)

    def change(self, kind: str, name: str, patch: Json) -> Json:
        """Apply a merge patch to a job, and return the changed job."""
        with self._explained(kind, name):
            answer: Json = self._api.patch_namespaced_custom_object(
                *_place(kind, self.namespace),
                name,
                patch,
                field_manager=MANAGER,
                _content_type="application/merge-patch+json",
                _request_timeout=CALL_SECONDS,
            )
        return answer

    def follow(self, kind: str, name: str) -> Iterator[Json]:
        """Yield the job now, and again after each change, without end.

        Raises:
            JobDeletedError: the job was deleted.
            JobNotFoundError: there was no such job from the start.
            ClusterUnreachableError: the cluster has been unreachable for too long.
        """
        seen, since = False, time.monotonic()
        while True:
            try:
                found = self.job(kind, name)
                seen, since = True, time.monotonic()
                yield found
                version = found["metadata"]["resourceVersion"]
                with self._explained(kind, name, gone_is_old=True):
                    yield from self._changes(kind, name, version)
            except JobNotFoundError as error:
                if seen:
                    raise JobDeletedError(f"{kind} {name} was deleted") from error
                raise
            except ClusterUnreachableError:
                if not seen or time.monotonic() - since > UNREACHABLE_SECONDS:
                    raise
                time.sleep(RETRY_SECONDS)

    def _changes(self, kind: str, name: str, version: str) -> Iterator[Json]:
        stream = watch.Watch().stream(
            self._api.list_namespaced_custom_object,
            *_place(kind, self.namespace),
            field_selector=f"metadata.name={name}",
            resource_version=version,
            timeout_seconds=WATCH_SECONDS,
            _request_timeout=WATCH_SECONDS + CALL_SECONDS,
        )
        for event in stream:
            if event["type"] == "DELETED":
                raise JobDeletedError(f"{kind} {name} was deleted")
            yield event["object"]

    def _listed(self, kind: str) -> list[Json]:
        found = self._api.list_namespaced_custom_object(
            *_place(kind, self.namespace), _request_timeout=CALL_SECONDS
        )
        return [*found["items"]]

    @contextmanager
    def _explained(self, kind: str, name: str = "", *, gone_is_old: bool = False) -> Iterator[None]:
        """Turn the Kubernetes client's errors into a ClusterError.

        With `gone_is_old`, status 410 (the watched resource version is too old) ends the block silently.
        """
        try:
            yield
        except ApiException as error:
            if error.status == 410 and gone_is_old:
                return
            message = self._words(error, kind, name)
            raise (JobNotFoundError if _is_absent(error) else ClusterError)(message) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            host = self._api.api_client.configuration.host
            raise ClusterUnreachableError(
                f"the cluster at {host} (context {self.context}) does not answer: {_cause(error)}; start it, "
                "or choose another with --context"
            ) from error

    def _words(self, error: ApiException, kind: str, name: str) -> str:
        message, _ = _refusal(error)
        if error.status == 404 and not _is_absent(error):
            definition = f"{names.PLURALS.get(kind, kind)}.{names.GROUP}"
            return (
                f"the cluster of context {self.context} has no {kind} ({names.API_VERSION}): Headway is "
                f"not installed there ({INSTALL}), or another version of it: "
                f"`kubectl get crd {definition} -o jsonpath={{.spec.versions[*].name}}` shows which"
            )
        if _is_absent(error) and name:
            there = (each["metadata"]["name"] for each in _quiet(lambda: self._listed(kind)))
            hint = near_names.question(name, there) or "write -n for another namespace"
            return f"namespace {self.namespace} has no {kind} {name}; {hint}"
        if kind in names.PLURALS and newer_fields.newer(kind, message):
            return f"{message}; {OLDER}"
        if error.status == 403:
            return f"{message}; ask for the role `edit` in namespace {self.namespace}"
        if error.status == 401:
            return f"the cluster of context {self.context} does not accept your credentials: log in again"
        return message


def _kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _named(contexts: list[Json], name: str) -> Json:
    known = {each["name"]: each for each in contexts}
    if name not in known:
        there_are = ", ".join(sorted(known)) or "none"
        raise ClusterError(f"--context {name}: the kubeconfig has no such context; it has {there_are}")
    return known[name]


def _place(kind: str, namespace: str) -> tuple[str, str, str, str]:
    return names.GROUP, names.VERSION, namespace, names.PLURALS[kind]


def _refusal(error: ApiException) -> tuple[str, str]:
    """Message and reason in the API server's error response."""
    try:
        body = json.loads(error.body or "")
        return str(body["message"]), str(body.get("reason", ""))
    except (ValueError, KeyError, TypeError):
        return f"the API server answers {error.status} {error.reason}", ""


def _is_absent(error: ApiException) -> bool:
    """Whether the API server says that the job is absent. A 404 for an unknown kind has another reason."""
    return bool(error.status == 404 and _refusal(error)[1] == "NotFound")


def _cause(error: BaseException) -> str:
    """The innermost of nested client errors, as one line of text."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _cause(reason)
    return str(error).rpartition(": ")[2] or type(error).__name__


def _quiet(ask: Callable[[], list[Json]]) -> list[Json]:
    try:
        return ask()
    except (ApiException, urllib3.exceptions.HTTPError):  # the names are only a hint, so do without them
        return []
