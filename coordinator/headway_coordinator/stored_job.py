"""The stored job, at the API server or in a folder. This process writes its own part of the job's status.

Parts are merged by owner. A field that this process does not send stays if another process owns it. It is
removed if this process owned it. Calls block.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from headway_api import names
from headway_api.config import Identity
from headway_api.document import Json
from headway_api.job_folder import JobFolder

WRITE_SECONDS: Final = 15.0
"""The longest that one write takes."""


class StoredJob(Protocol):
    """One stored job, whose status this process reads and writes."""

    def read_status(self) -> Json:
        """The whole status, from all writers."""
        ...

    def write_status(self, status: Json) -> Json:
        """Replace the coordinator's part of the status. Returns the whole job after that."""
        ...


class KubernetesJob:
    """A job at the API server. Its status is written by server-side apply."""

    def __init__(self, job: Identity, api: Any) -> None:
        """`api` is a `kubernetes.client.CustomObjectsApi`."""
        self._job = job
        self._api = api

    @classmethod
    def in_cluster(cls, job: Identity) -> KubernetesJob:
        """A job at the API server, with the service account of the pod."""
        from kubernetes import client, config

        config.load_incluster_config()
        return cls(job, client.CustomObjectsApi())

    def read_status(self) -> Json:
        """Read the status by an empty patch, because the answer to a patch is the object.

        The coordinator may patch its job's status and read nothing else.
        """
        found = self._patch({"status": {}}, "application/merge-patch+json")
        status: Json = found.get("status", {})
        return status

    def write_status(self, status: Json) -> Json:
        """Apply the coordinator's part of the status.

        The patch names the uid, so a leftover coordinator cannot write into a new job of the same name.
        """
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
    """A job in a folder of this machine."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder

    def read_status(self) -> Json:
        """The whole status, from the files of all writers."""
        status: Json = self._folder.whole()["status"]
        return status

    def write_status(self, status: Json) -> Json:
        """Write the status into the coordinator's own file."""
        self._folder.write_status(names.FIELD_MANAGER_COORDINATOR, status)
        return self._folder.whole()
