"""The job as it is stored, at the API server or in a folder: this process writes its part of the status.

Parts are merged by owner. A field that this process does not send is not touched if another owns it, and is
removed if this process did. Calls block.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from headway_api import names
from headway_api.config import Identity
from headway_api.document import Json
from headway_api.job_folder import JobFolder

WRITE_SECONDS: Final = 15.0
"""Longest that one write takes."""


class StoredJob(Protocol):
    """One job."""

    def read_status(self) -> Json:
        """The whole status, as all have written it."""
        ...

    def write_status(self, status: Json) -> Json:
        """Put this in place of the coordinator's part; returns the whole job as it is then."""
        ...


class KubernetesJob:
    """At the API server, by server-side apply."""

    def __init__(self, job: Identity, api: Any) -> None:
        """`api` is a `kubernetes.client.CustomObjectsApi`."""
        self._job = job
        self._api = api

    @classmethod
    def in_cluster(cls, job: Identity) -> KubernetesJob:
        """With the service account that the pod runs as."""
        from kubernetes import client, config

        config.load_incluster_config()
        return cls(job, client.CustomObjectsApi())

    def read_status(self) -> Json:
        """By a patch that changes nothing, which is answered with the object: the coordinator may patch its
        job's status and read nothing else."""
        found = self._patch({"status": {}}, "application/merge-patch+json")
        status: Json = found.get("status", {})
        return status

    def write_status(self, status: Json) -> Json:
        """It names the uid: a coordinator left over cannot write into a new job of its name."""
        job = self._job
        body = {
            "apiVersion": names.API_VERSION,
            "kind": job.kind,
            "metadata": {"name": job.name, "namespace": job.namespace, "uid": job.uid},
            "status": status,
        }
        owner = {"field_manager": names.FIELD_MANAGER_COORDINATOR, "force": True}
        return self._patch(body, "application/apply-patch+yaml", **owner)

    def _patch(self, body: Json, content: str, **more: Any) -> Json:
        job = self._job
        answer: Json = self._api.patch_namespaced_custom_object_status(
            names.GROUP,
            names.VERSION,
            job.namespace,
            names.PLURALS[job.kind],
            job.name,
            body,
            **more,
            _content_type=content,
            _request_timeout=WRITE_SECONDS,
        )
        return answer


class FolderJob:
    """In a folder of this machine."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder

    def read_status(self) -> Json:
        """Of every manager."""
        status: Json = self._folder.whole()["status"]
        return status

    def write_status(self, status: Json) -> Json:
        """In a file of its own."""
        self._folder.write_status(names.FIELD_MANAGER_COORDINATOR, status)
        return self._folder.whole()
