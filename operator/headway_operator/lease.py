"""Elects one leader among the replicas, by the official client's leader election over a Lease."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from typing import Any, Final

from kubernetes import client
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from headway_api import logs

log = logging.getLogger(__name__)

DURATION_SECONDS: Final = 15
RENEW_SECONDS: Final = 10
RETRY_SECONDS: Final = 2
REQUEST_SECONDS: Final = 4


class _Client(client.ApiClient):  # type: ignore[misc]
    """Gives every request a deadline, so that a hanging API server cannot outlast the lease."""

    def call_api(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["_request_timeout"] = kwargs.get("_request_timeout") or REQUEST_SECONDS
        return super().call_api(*args, **kwargs)


class _Lock(LeaseLock):  # type: ignore[misc]
    """A Lease that can be released."""

    def __init__(self, name: str, namespace: str, identity: str) -> None:
        super().__init__(name, namespace, identity)
        self.api_instance = client.CoordinationV1Api(_Client())
        self._guard = threading.Lock()
        self._released = False

    def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        with self._guard:
            return not self._released and bool(super().update(name, namespace, updated_record))

    def release(self) -> None:
        """Let the next replica lead at once."""
        with self._guard:
            self._released = True
            try:
                lease = self.api_instance.read_namespaced_lease(self.name, self.namespace)
                if lease.spec.holder_identity != self.identity:
                    return
                version = lease.metadata.resource_version
                body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}}
                self.api_instance.patch_namespaced_lease(self.name, self.namespace, body)
            except client.ApiException as error:
                logs.event(log, "lease-kept", logging.WARNING, error=error.reason)


class Leadership:
    """This replica's leadership, held from `wait` until `release`. Losing it ends the process."""

    def __init__(self, name: str, namespace: str) -> None:
        logging.getLogger("leaderelection").setLevel(logging.WARNING)
        self.identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self._lock = _Lock(name, namespace, self.identity)
        self._leading = threading.Event()

    def wait(self) -> None:
        """Return when this replica leads."""
        logs.event(log, "lease-awaited", identity=self.identity)
        election = LeaderElection(
            Config(self._lock, DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS, self._leading.set, self._lost)
        )
        threading.Thread(target=election.run, name="election", daemon=True).start()
        self._leading.wait()
        logs.event(log, "leads", identity=self.identity)

    def release(self) -> None:
        """Stop leading. Call it after the last write."""
        self._leading.clear()
        self._lock.release()

    def _lost(self) -> None:
        if self._leading.is_set():
            # Another replica may lead already, so this process must not send another request.
            logs.event(log, "lease-lost", logging.ERROR, identity=self.identity)
            os._exit(1)
