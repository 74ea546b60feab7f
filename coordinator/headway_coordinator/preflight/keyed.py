"""Stores a preflight's result under a key: the hash of everything that the result depends on.

A restarted coordinator reads the result back, and so does an equal job.

Two environment images count as equal only if their names have digests, because a tag may mean another image
tomorrow. A preflight with a tagged image, an agent that is a service, or judges is not shared: another job
runs its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ConfigDict, Field

from headway_analysis.estimate.measured import Measured
from headway_analysis.preflight.definition import Finding
from headway_api.artifacts import Layout, shared_preflight
from headway_api.base_model import WEIGHTS
from headway_api.baseline_endpoint import BaselineEndpoint
from headway_api.document import Json
from headway_api.exits import JobError
from headway_api.record import Record
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read
from headway_coordinator.dataset import Data, digest
from headway_coordinator.preflight import tensors

VERSION: Final = 3
"""The version of the checks. Raise it with a change after which a check judges equal episodes differently."""
PINNED: Final = "@sha256:"


class Kept(Record):
    """A preflight's result."""

    model_config = ConfigDict(serialize_by_alias=True)

    key: str = Field(max_length=64)
    job: str = Field(max_length=512)
    """The job that ran the preflight, as NAMESPACE/NAME/UID."""
    episodes: int = Field(ge=0)
    wanted: int = Field(ge=0)
    note: str | None = Field(default=None, max_length=1024)
    """A further remark: which weights were sampled, if the job does not start from them."""
    cut: bool = False
    """Whether sampling ended early because a failure was certain. If so, another job only uses the result if
    that failure ends it too."""
    findings: list[Finding]
    document: Json = Field(default_factory=dict)
    """The whole report."""
    measured: Measured | None = None
    """The usage of the baseline episodes, for an estimate of the whole job."""
    seconds_each: float | None = Field(default=None, ge=0)
    """Seconds of sampling on the rollout server, divided by the number of scored episodes."""


def key_of(
    spec: RLTrainingJobSpec,
    data: Data,
    model: Path,
    uid: str,
    store: Store,
    endpoint: BaselineEndpoint | None = None,
) -> str:
    """The SHA-256, in hex, of everything that a preflight depends on. Blocking: run it in a thread.

    Args:
        spec: the job's spec.
        data: the job's rows.
        model: folder with the base model's configuration and tokenizer.
        uid: the job's uid. It is part of the key if the result is not shared (`is_alone`).
        store: has the model's weights, unless they are on the hub.
        endpoint: the endpoint that samples the baseline instead of the job's model, if any.

    Raises:
        JobError: `ModelUnavailable`: reading the weights is not allowed.
    """
    fields = spec.as_object()
    environment = fields["environment"]
    parts = {
        "version": VERSION,
        "model": {name: fields["model"].get(name) for name in ("base", "revision", "dtype", "contextLength")},
        "start": fields["model"].get("warmStart"),
        "adapter": fields["model"].get("lora") if spec.model.warm_start else None,
        "files": _files(model),
        "weights": tensors.weights(spec.model, model, store),
        "data": fields["data"],
        "rows": [digest(rows) for rows in (data.train, data.validation, data.test)],
        "environment": {
            name: environment.get(name) for name in ("image", "entrypoint", "config", "contract", "sandbox")
        },
        "agent": fields["agent"],
        "reward": fields["reward"],
        "judges": fields.get("judges"),
        "sampling": fields["rollout"]["sampling"],
        "engine": spec.rollout.engine.extra_args,
        "timeout": spec.rollout.timeout_seconds,
        "training": [spec.algorithm.group_size, spec.algorithm.batch_size, spec.schedule.max_steps],
        "success": spec.evaluation.success_threshold,
        "episodes": spec.preflight.episodes,
        "off": sorted(name for name, policy in spec.preflight.checks.items() if policy == "Off"),
        "seed": spec.seed,
        "alone": uid if is_alone(spec) else None,
    }
    if endpoint is not None:
        parts["endpoint"] = endpoint.spec.as_object()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_alone(spec: RLTrainingJobSpec) -> bool:
    """Whether no other job may use this job's result: it depends on a service or on an image's tag."""
    services = spec.agent.http is not None or bool(spec.judges)
    return services or PINNED not in spec.environment.image


def _files(model: Path) -> dict[str, str]:
    """The digest of each file of the model except its weights."""
    found = [path for path in sorted(model.rglob("*")) if path.is_file()]
    small = [path for path in found if not path.match(WEIGHTS)]
    return {str(path.relative_to(model)): hashlib.sha256(path.read_bytes()).hexdigest() for path in small}


def read_back(store: Store, layout: Layout, key: str, *, begun: bool) -> Kept | None:
    """The stored result of this job or of an equal one; None if there is none.

    Blocking: run it in a thread.

    Args:
        store: the artifact store.
        layout: the job's folder.
        key: the job's key, from `key_of`.
        begun: whether the job trains already. If so, its own result is valid even if its key has changed.
    """
    own = _kept(store, layout.preflight)
    if own is not None and (begun or own.key == key):
        return own
    shared = _kept(store, shared_preflight(layout, key))
    return shared if shared is not None and shared.key == key else None


def keep(store: Store, layout: Layout, kept: Kept, markdown: str) -> None:
    """Store the result for this job and for equal ones, and as Markdown for people.

    Blocking: run it in a thread.
    """
    data = kept.model_dump_json().encode()
    store.put(layout.preflight_for_people, markdown.encode())
    store.put(layout.preflight, data)
    store.put(shared_preflight(layout, kept.key), data)


def _kept(store: Store, uri: str) -> Kept | None:
    """A stored result; None if there is none, or if another version of this program wrote it."""
    try:
        return read(store, uri, Kept)
    except (ObjectNotFoundError, JobError):
        return None


def storable(findings: Sequence[Finding]) -> list[Finding]:
    """The findings without numbers that are not finite, because JSON cannot have them."""

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return [
        replace(
            found,
            value=finite(found.value),
            threshold=finite(found.threshold),
            low=finite(found.low),
            high=finite(found.high),
            numbers=tuple((name, float(value)) for name, value in found.numbers if math.isfinite(value)),
        )
        for found in findings
    ]
