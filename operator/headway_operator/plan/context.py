"""The input of every planner, and the metadata that every object of a job carries."""

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
"""Roles that never run as the user's account. The broker's may create pods; a sandbox's has no rights."""


class Mode(StrEnum):
    """How the operator creates and maintains a wanted object."""

    APPLY = "apply"
    """Server-side apply: the object is always as planned."""
    PIN = "pin"
    """Created if absent; afterwards only `replicas` changes. So a running job keeps its images and settings
    when the operator is upgraded."""
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
        """Number of replicas of a Deployment."""
        return self.body["spec"].get("replicas") if self.body["kind"] == "Deployment" else None


@dataclass(frozen=True)
class Context:
    """One job and the platform it runs on."""

    job: Job
    platform: OperatorConfig
    warm_start: StartingWeights | None = None
    """The weights chosen for `spec.model.warmStart.job`."""
    candidates: tuple[ResolvedCandidate, ...] = ()
    """The resolved candidates of an RLEvalJob."""

    @property
    def kind(self) -> str:
        """Kind of the job."""
        return self.job.kind

    @property
    def stem(self) -> str:
        """Prefix of the names of the job's objects."""
        return names.stem(self.kind, self.name)

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the job and everything that belongs to it."""
        return self.job.metadata.namespace

    @property
    def uid(self) -> str:
        """Uid of the job."""
        return self.job.metadata.uid

    @property
    def cost_labels(self) -> dict[str, str] | None:
        """The job's labels that allocate costs; None if it has none.

        Cost labels are copied to pods. Headway's own labels are excluded: selectors and policies use them.
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
        """The pause that nobody has ended; None if there is none."""
        return pauses.current_pause(self.job)

    @property
    def exhausted(self) -> Budget | None:
        """The exhausted budget because of which the job has no pods; None if there is none."""
        return budgets.exhausted_budget(self.job)

    @property
    def suspended(self) -> bool:
        """Whether the job should have no pods: it is suspended or paused, or its budget is exhausted."""
        return self.spec.suspend or self.pause is not None or self.exhausted is not None

    @property
    def training(self) -> RLTrainingJob:
        """The job, as a training job."""
        assert isinstance(self.job, RLTrainingJob)
        return self.job

    @property
    def evaluation(self) -> RLEvalJob:
        """The job, as an evaluation."""
        assert isinstance(self.job, RLEvalJob)
        return self.job

    @property
    def suites(self) -> tuple[Suite, ...]:
        """Tasks of Inspect AI on which the job also measures its candidates."""
        return self.spec.suites if isinstance(self.spec, RLEvalJobSpec) else ()

    @property
    def serves_judges(self) -> bool:
        """Whether the job serves the model of a judge itself."""
        return any(judge.model is not None for judge in self.spec.judges)

    @property
    def opens_gateway(self) -> bool:
        """Whether agents outside the coordinator's process request turns from its gateway."""
        return bool(self.suites) or not self.spec.agent.is_builtin

    @property
    def hands_over_weights(self) -> bool:
        """Whether rollout servers read weights from the learner's memory."""
        spec = self.spec
        return isinstance(spec, RLTrainingJobSpec) and spec.learner.weights.direct(spec.model)

    @property
    def max_episodes(self) -> int:
        """Maximum episodes in flight."""
        spec = self.spec
        return spec.max_episodes if isinstance(spec, RLTrainingJobSpec) else spec.rollout.max_concurrency

    def labels(self, role: str | None = None) -> dict[str, str]:
        """Labels of an object of this job."""
        return names.job_labels(self.kind, self.name, self.uid, role)

    def selector(self, role: str) -> dict[str, str]:
        """Labels that select exactly the pods of one role of this job."""
        return {names.LABEL_JOB_UID: self.uid, names.LABEL_COMPONENT: role}

    def child(self, role: str) -> str:
        """Name of a role's objects."""
        return names.child(self.stem, role)

    def service_account(self, role: str) -> str:
        """The account of a role: the user's if one is named, except for broker and sandboxes."""
        if role in OWN_ACCOUNT:
            return self.child(role)
        return self.spec.service_account_name or self.child(role)

    def object(self, api_version: str, kind: str, name: str, role: str | None = None, **body: Any) -> Json:
        """An object that the job owns, so that it is deleted with the job."""
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
        """The owner reference to the job, which every object carries."""
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
