"""What every planner is given, and the metadata that every object of a job carries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from headway_api import names
from headway_api.document import Json
from headway_api.spec.evaluation import RLEvalJob, RLEvalJobSpec
from headway_api.spec.suite import Suite
from headway_api.spec.training import RLTrainingJob, RLTrainingJobSpec
from headway_api.status import (
    Budget,
    Pause,
    ResolvedCandidate,
    RLEvalJobStatus,
    RLTrainingJobStatus,
    StartingWeights,
)
from headway_operator.config import OperatorConfig
from headway_operator.plan import budget as budgets
from headway_operator.plan import pause as pauses

Job = RLTrainingJob | RLEvalJob
JobSpec = RLTrainingJobSpec | RLEvalJobSpec
JobStatus = RLTrainingJobStatus | RLEvalJobStatus

OWN_ACCOUNT: Final = frozenset({names.BROKER, names.SANDBOX})
"""Roles that never run as the user's account: the broker's makes pods, the sandboxes' has nothing."""


class Mode(StrEnum):
    """How a wanted object is brought about."""

    APPLY = "apply"
    """Server-side apply: the object is always as planned."""
    PIN = "pin"
    """Created if absent, then left alone but for `replicas`: a running job keeps the images and settings it
    started with when the operator is upgraded under it."""
    SECRET = "secret"
    """Created if absent, with fresh keys, and never read."""


@dataclass(frozen=True)
class Wanted:
    """An object that must exist."""

    body: Json
    mode: Mode = Mode.APPLY

    @property
    def ref(self) -> tuple[str, str, str]:
        """Kind, namespace, name."""
        metadata = self.body["metadata"]
        return self.body["kind"], metadata["namespace"], metadata["name"]

    @property
    def replicas(self) -> int | None:
        """Of a Deployment."""
        return self.body["spec"].get("replicas") if self.body["kind"] == "Deployment" else None


@dataclass(frozen=True)
class Context:
    """One job and the platform it runs on."""

    job: Job
    platform: OperatorConfig
    warm_start: StartingWeights | None = None
    """The weights that stand for `spec.model.warmStart.job`."""
    candidates: tuple[ResolvedCandidate, ...] = ()
    """What the candidates of an RLEvalJob stand for."""

    @property
    def kind(self) -> str:
        """Of the job."""
        return self.job.kind

    @property
    def stem(self) -> str:
        """What the names of the job's objects begin with."""
        return names.stem(self.kind, self.name)

    @property
    def name(self) -> str:
        """Of the job."""
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        """Of the job and everything that belongs to it."""
        return self.job.metadata.namespace

    @property
    def uid(self) -> str:
        """Of the job."""
        return self.job.metadata.uid

    @property
    def cost_labels(self) -> dict[str, str] | None:
        """The job's labels by which costs are allocated; None where it has none.

        Headway's own never are: its selectors and policies go by them, and they would get onto pods.
        """
        asked = {*self.platform.cost_labels}
        labels = sorted(self.job.metadata.labels.items())
        found = {key: value for key, value in labels if asked & {key, key.rpartition("/")[2]}}
        return {key: value for key, value in found.items() if not _is_own(key)} or None

    @property
    def spec(self) -> JobSpec:
        """What the user asked for."""
        return self.job.spec

    @property
    def pause(self) -> Pause | None:
        """The pause that nobody has ended."""
        return pauses.standing(self.job)

    @property
    def exhausted(self) -> Budget | None:
        """The budget that nothing more of the job fits."""
        return budgets.standing(self.job)

    @property
    def held(self) -> bool:
        """Whether the job is to have no pods: its spec says so, it is paused, or its budget is exhausted."""
        return self.spec.suspend or self.pause is not None or self.exhausted is not None

    @property
    def training(self) -> RLTrainingJob:
        """The job, which trains."""
        assert isinstance(self.job, RLTrainingJob)
        return self.job

    @property
    def evaluation(self) -> RLEvalJob:
        """The job, which evaluates."""
        assert isinstance(self.job, RLEvalJob)
        return self.job

    @property
    def suites(self) -> tuple[Suite, ...]:
        """Tasks of Inspect AI that the job's candidates are measured on too."""
        return self.spec.suites if isinstance(self.spec, RLEvalJobSpec) else ()

    @property
    def serves_judges(self) -> bool:
        """Whether a judge's model is the job's own to serve."""
        return any(judge.model is not None for judge in self.spec.judges)

    @property
    def opens_gateway(self) -> bool:
        """Whether agents outside the coordinator's process ask it for their turns."""
        return bool(self.suites) or not self.spec.agent.is_builtin

    @property
    def hands_over_weights(self) -> bool:
        """Whether rollout servers take weights out of the learner's memory."""
        spec = self.spec
        return isinstance(spec, RLTrainingJobSpec) and spec.learner.weights.direct(spec.model)

    @property
    def most_episodes(self) -> int:
        """Most episodes in flight."""
        spec = self.spec
        return spec.most_episodes if isinstance(spec, RLTrainingJobSpec) else spec.rollout.max_concurrency

    def labels(self, role: str | None = None) -> dict[str, str]:
        """Labels of an object of this job."""
        return names.job_labels(self.kind, self.name, self.uid, role)

    def selector(self, role: str) -> dict[str, str]:
        """Labels that pick exactly the pods of a role of this very job."""
        return {names.LABEL_JOB_UID: self.uid, names.LABEL_COMPONENT: role}

    def child(self, role: str) -> str:
        """Name of a role's objects."""
        return names.child(self.stem, role)

    def service_account(self, role: str) -> str:
        """The account a role runs as: the user's where one is named, except for broker and sandboxes."""
        if role in OWN_ACCOUNT:
            return self.child(role)
        return self.spec.service_account_name or self.child(role)

    def object(self, api_version: str, kind: str, name: str, role: str | None = None, **body: Any) -> Json:
        """An object owned by the job: it is gone when the job is gone."""
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self.labels(role),
                "ownerReferences": [self.owner()],
            },
            **body,
        }

    def owner(self) -> Json:
        """The owner reference every object carries."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def _is_own(key: str) -> bool:
    """Whether a label's prefix is Headway's."""
    prefix = key.rpartition("/")[0]
    return prefix == names.GROUP or prefix.endswith(f".{names.GROUP}")
