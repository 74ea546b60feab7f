"""The configuration that every process of a job gets: the job's identity, and the spec as stored by the API
server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from headway_api import names
from headway_api.remedies import largest_rank
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.lifecycle import OutputSpec
from headway_api.spec.rollout import ServersSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import ResolvedCandidate

if TYPE_CHECKING:
    from collections.abc import Mapping


class ServedModel(BaseModel):
    """The model that a rollout server loads, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: str
    """Address of the model, hf:// or s3://."""
    revision: str | None
    dtype: Literal["bfloat16", "float16", "float32"]
    context_length: int | None
    """Maximum tokens of one episode; None: the model's own limit."""
    lora_rank: int | None
    """Largest rank of the adapters that the server loads. None: it loads no adapters, because all weights are
    trained or none are."""
    adapters: int
    """Slots that hold an adapter at the same time. Slots with the base model are not counted."""
    updates: bool
    """Whether a training job replaces the weights in the policy's slot, version after version."""
    field: str
    """Field of the spec that names the model, for errors."""
    seed: int
    rollout: ServersSpec
    output: OutputSpec


class Identity(BaseModel):
    """A job's identity, and where its processes find each other."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    namespace: str
    uid: str
    kind: str
    labels: dict[str, str] | None = None
    """The job's own labels for cost allocation. Absent: it has none."""

    @property
    def stem(self) -> str:
        """Prefix of the names of the job's objects."""
        return names.stem(self.kind, self.name)

    @property
    def coordinator_url(self) -> str:
        """Base URL of the learner API."""
        host = names.service_host(self.stem, names.COORDINATOR, self.namespace)
        return f"http://{host}:{names.PORT_COORDINATOR}"

    @property
    def broker_url(self) -> str:
        """Base URL of the sandbox broker."""
        return f"http://{names.service_host(self.stem, names.BROKER, self.namespace)}:{names.PORT_BROKER}"


class JobConfig(Identity):
    """Content of `job.json` of an RLTrainingJob. Everything else that a process needs follows from it."""

    kind: Literal["RLTrainingJob"] = "RLTrainingJob"
    spec: RLTrainingJobSpec

    @property
    def rollout_host(self) -> str:
        """Headless service whose addresses are the rollout servers that sample for training."""
        return names.service_host(self.stem, names.ROLLOUT, self.namespace)

    @property
    def validation_host(self) -> str:
        """Headless service whose address is the server for held-out rows, if there is one."""
        return f"{names.server_set(self.stem, names.VALIDATION_SET)}.{self.namespace}.svc"

    @property
    def validates_beside(self) -> bool:
        """Whether training continues while held-out rows are sampled: with LoRA, or with a separate
        server."""
        return self.spec.has_validation_server or self._shares_slots

    @property
    def _shares_slots(self) -> bool:
        """Whether the servers hold a second adapter, for validation or the test."""
        data = self.spec.data
        held_out = data.validation is not None or data.test is not None
        return self.spec.model.effective_lora is not None and held_out and not self.spec.has_validation_server

    @property
    def max_episodes(self) -> int:
        """Maximum episodes in flight."""
        return self.spec.max_episodes

    def served(self) -> ServedModel:
        """What every rollout server loads; a server for held-out rows loads the same."""
        model = self.spec.model
        return ServedModel(
            base=model.base,
            revision=model.revision,
            dtype=model.dtype,
            context_length=model.context_length,
            lora_rank=largest_rank(model, self.spec.collapse),
            adapters=2 if self._shares_slots else 1,
            updates=True,
            field="spec.model.base",
            seed=self.spec.seed,
            rollout=self.spec.rollout,
            output=self.spec.output,
        )


class EvalConfig(Identity):
    """Content of `job.json` of an RLEvalJob."""

    kind: Literal["RLEvalJob"] = "RLEvalJob"
    spec: RLEvalJobSpec
    candidates: tuple[ResolvedCandidate, ...]
    """The models that the spec's candidates refer to, without those that could not be resolved."""
    unresolved: dict[str, str] = {}
    """Candidates that do not exist: name -> why, with the field and the fix."""

    @property
    def max_episodes(self) -> int:
        """Maximum episodes in flight."""
        return self.spec.rollout.max_concurrency

    @property
    def model(self) -> str:
        """The base model that all candidates share, whose prices apply; empty if they have several."""
        found = {each.base_model for each in self.candidates if each.base_model is not None}
        return found.pop() if len(found) == 1 else ""

    @property
    def server_sets(self) -> dict[int, tuple[ResolvedCandidate, ...]]:
        """Number of each set of rollout servers -> the candidates that it samples for."""
        found: dict[int, tuple[ResolvedCandidate, ...]] = {}
        for candidate in self.candidates:
            if candidate.server_set is not None:
                found[candidate.server_set] = (*found.get(candidate.server_set, ()), candidate)
        return found

    def priced_as(self, candidate: ResolvedCandidate) -> str | None:
        """The model whose prices apply to the tokens of a candidate that servers sample for, as in
        `GroupRecord.model`. None: the job's own model."""
        return None if candidate.base_model == self.model else candidate.base_model

    def suite_broker_url(self, suite: str) -> str:
        """Base URL of the sandbox broker of a suite."""
        number = 1 + [each.name for each in self.spec.suites].index(suite)
        return f"http://{names.suite_broker(self.stem, number)}.{self.namespace}.svc:{names.PORT_BROKER}"

    def rollout_host(self, server_set: int) -> str:
        """Headless service whose addresses are the servers of a set."""
        return f"{names.server_set(self.stem, server_set)}.{self.namespace}.svc"

    def served(self, server_set: int) -> ServedModel:
        """What the servers of a set load."""
        candidates = self.server_sets[server_set]
        first, ranks = candidates[0], [c.lora_rank for c in candidates if c.lora_rank is not None]
        assert first.base is not None
        assert first.dtype is not None
        below = "model.base" if first.kind == "Model" else "checkpoint"
        return ServedModel(
            base=first.base,
            revision=first.revision,
            dtype=first.dtype,
            context_length=first.context_length,
            lora_rank=max(ranks, default=None),
            adapters=max(1, len(ranks)),
            updates=False,
            field=f"spec.candidates[{first.name}].{below}",
            seed=self.spec.seed,
            rollout=self.spec.rollout,
            output=self.spec.output,
        )


def load_any(environ: Mapping[str, str]) -> JobConfig | EvalConfig:
    """Read the mounted configuration; `HEADWAY_CONFIG` may name another path."""
    text = Path(environ.get(names.ENV_CONFIG, names.CONFIG_FILE)).read_text()
    kind = json.loads(text).get("kind", names.TRAINING_KIND)
    return (EvalConfig if kind == names.EVAL_KIND else JobConfig).model_validate_json(text)


def load(environ: Mapping[str, str]) -> JobConfig:
    """Read the configuration of an RLTrainingJob, from the same file as `load_any`."""
    found = load_any(environ)
    assert isinstance(found, JobConfig), f"{found.kind} has no process of this role"
    return found
