"""Reads and follows the logs of a job's pods on a cluster."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from headway_api import names
from headway_cli.cluster import CALL_SECONDS, Cluster
from headway_cli.log_lines import Line, Wanted

LOOK_SECONDS: Final = 3.0
"""Seconds between two searches for new pods of a job that is followed."""
MAX_WAITING: Final = 10_000
"""Maximum lines that are buffered for a slow reader."""


class Container(NamedTuple):
    """A container that has started, so that it may have a log."""

    pod: str
    name: str
    restarts: int
    alone: bool
    """Whether this is the only container of its pod."""

    @property
    def writer(self) -> str:
        """The name that each line of the container shows: POD, or POD/CONTAINER if the pod has several."""
        return self.pod if self.alone else f"{self.pod}/{self.name}"


class PodLogs(Cluster):
    """Logs of jobs in one namespace."""

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        """Read the kubeconfig. Arguments and errors are those of `Cluster`."""
        super().__init__(context, namespace)
        self._core = client.CoreV1Api(self._api.api_client)

    def containers(self, uid: str, wanted: Wanted) -> list[Container]:
        """The wanted containers of a job that have started, in the order in which their pods were created."""
        with self._explained("Pod"):
            found = self._core.list_namespaced_pod(
                self.namespace, label_selector=f"{names.LABEL_JOB_UID}={uid}", _request_timeout=CALL_SECONDS
            )
        pods = sorted(found.items, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        return [each for pod in pods for each in _begun(pod, wanted)]

    def read(self, of: Container, wanted: Wanted, *, follow: bool = False) -> Iterator[Line]:
        """Log lines of a container; none if its pod is gone. With `follow`, until the container ends."""
        asked: dict[str, Any] = {"container": of.name, "follow": follow, "_preload_content": False}
        if wanted.tail is not None:
            asked["tail_lines"] = wanted.tail
        if not follow:  # a container that is followed may be silent for hours
            asked["_request_timeout"] = CALL_SECONDS
        with self._explained("Pod"):
            try:
                answer = self._core.read_namespaced_pod_log(of.pod, self.namespace, **asked)
            except ApiException as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return
                raise
            with closing(answer):
                for text in _lines(answer):
                    yield Line(of.writer, text)

    def followed(self, kind: str, name: str, uid: str, wanted: Wanted) -> Iterator[Line]:
        """Log lines of all wanted containers as they are written, until the job and its pods have ended."""
        entries: queue.Queue[Line | Exception | None] = queue.Queue(MAX_WAITING)
        known: set[Container] = set()
        running = 0
        while True:
            fresh = [each for each in self.containers(uid, wanted) if each not in known]
            for each in fresh:
                first = not any(each[:2] == other[:2] for other in known)
                known.add(each)
                running += 1
                lines = wanted if first else Wanted(wanted.role)
                threading.Thread(target=self._forward, args=(each, lines, entries), daemon=True).start()
            if not running and not fresh and self._has_ended(kind, name):
                return
            look = time.monotonic() + LOOK_SECONDS
            while (left := look - time.monotonic()) > 0:
                try:
                    found = entries.get(timeout=left)
                except queue.Empty:
                    break
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    running -= 1
                else:
                    yield found

    def _forward(self, of: Container, wanted: Wanted, entries: queue.Queue[Line | Exception | None]) -> None:
        try:
            for line in self.read(of, wanted, follow=True):
                entries.put(line)
        except Exception as error:  # the thread that calls `followed` raises it
            entries.put(error)
        else:
            entries.put(None)

    def _has_ended(self, kind: str, name: str) -> bool:
        conditions = self.job(kind, name).get("status", {}).get("conditions", [])
        return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _begun(pod: Any, wanted: Wanted) -> Iterator[Container]:
    """The wanted containers of a pod that have started."""
    role = (pod.metadata.labels or {}).get(names.LABEL_COMPONENT)
    role = names.BROKER if role == names.SUITE_BROKER else role
    for status in pod.status.container_statuses or ():
        state = status.state
        if state.running is None and state.terminated is None and not status.restart_count:
            continue
        if wanted.takes(role, status.name):
            yield Container(
                pod.metadata.name, status.name, status.restart_count, len(pod.spec.containers) == 1
            )


def _lines(answer: urllib3.HTTPResponse) -> Iterator[str]:
    begun = b""
    for part in answer.stream(amt=None, decode_content=True):
        *ended, begun = (begun + part).split(b"\n")
        yield from (line.decode(errors="replace") for line in ended)
    if begun:
        yield begun.decode(errors="replace")
