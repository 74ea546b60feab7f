"""Finds the weights that sample baseline episodes: those that the job starts from, or the base model's."""

from __future__ import annotations

from typing import Final

from headway_api.exits import JobError
from headway_api.records import PolicyVersion, StepReport, WeightsManifest
from headway_api.spec.model import ModelSpec
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError
from headway_api.stored import read
from headway_api.warm_start import OF_A_JOB

BEFORE_TRAINING: Final = PolicyVersion(incarnation=10**9, step=0)
"""The policy version of weights that no learner has published. Learners never use this version, so a server
that holds such weights loads the learner's first weights later."""
NOT_THE_START: Final = "sampled by the base model, not by the weights of spec.model.warmStart"


def manifest(model: ModelSpec, store: Store) -> tuple[WeightsManifest, str | None]:
    """The weights that the server must hold, and a remark if the job does not start from them. Blocking.

    Weights of another job can be verified, because that job's learner published a proof. If the weights have
    no proof, or are an adapter that is still to be merged, the base model is sampled instead.
    """
    base = WeightsManifest(version=BEFORE_TRAINING, kind="base", uri=model.base, files=[])
    if model.warm_start is None:
        return base, None
    uri = (model.warm_start.uri or "").rstrip("/")
    found = OF_A_JOB.fullmatch(uri)
    published = None if found is None else _published(store, found["root"], int(found["step"]))
    kind = "full" if model.effective_lora is None else "lora"
    if published is None or published.kind != kind or published.uri.rstrip("/") != uri:
        return base, NOT_THE_START
    return published.model_copy(update={"version": BEFORE_TRAINING, "direct": None}), None


def _published(store: Store, root: str, step: int) -> WeightsManifest | None:
    try:
        return read(store, f"{root}/steps/{step:06d}.json", StepReport).weights
    except (ObjectNotFoundError, StoreDeniedError, JobError):
        return None
