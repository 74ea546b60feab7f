"""Combines a job's spec with the settings in force, and computes the largest rank of its adapter. Pure.

The coordinator decides on a change and the learner makes it, both with the same function, so they cannot
disagree. The operator starts rollout servers with room for the largest adapter that a remedy may make.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from headway_api.in_force import AdapterSize, InForce
from headway_api.mistake_words import message
from headway_api.spec.model import Lora, ModelSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.trust import CollapseSpec

WIDENED: Final = 2
"""Factor by which the remedy WiderAdapter multiplies rank and alpha."""
WATCH: Final = 25
"""Steps for which a remedy is watched. The practice guide gives a change 25 to 50 steps before it is
judged."""


class NotApplicableError(ValueError):
    """The settings to be in force do not fit the spec; the message says why."""


def applied(spec: RLTrainingJobSpec, in_force: InForce) -> RLTrainingJobSpec:
    """`spec` with the settings in force instead of its own, checked against every rule of a spec.

    Raises:
        NotApplicableError: the result is not a valid spec.
    """
    if not in_force.changed:
        return spec
    if in_force.adapter is not None and spec.model.effective_lora is None:
        raise NotApplicableError("every weight of the model is trained: there is no adapter to change")
    content = spec.as_object()
    content.pop("collapse")  # its rules are about the choice of remedies, not about their result
    content["algorithm"] = _algorithm(content["algorithm"], in_force)
    if in_force.learning_rate is not None:
        content["optimizer"]["learningRate"] = in_force.learning_rate
    if in_force.adapter is not None:
        content["model"]["lora"] = content["model"].get("lora", {}) | in_force.adapter.model_dump()
    try:
        found = RLTrainingJobSpec.model_validate(content)
    except ValidationError as invalid:
        raise NotApplicableError("; ".join(message(error) for error in invalid.errors())) from invalid
    return found.model_copy(update={"collapse": spec.collapse})


def _algorithm(algorithm: dict[str, Any], in_force: InForce) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "loss": in_force.loss,
        "clip": in_force.clip and in_force.clip.as_object(),
        "kl": in_force.kl and in_force.kl.as_object(),
        "groupSize": in_force.group_size,
        "batchSize": in_force.batch_size,
        "maxStepsOffPolicy": in_force.max_steps_off_policy,
    }
    # Bounds belong to a loss: another loss does not inherit them.
    kept = {name: value for name, value in algorithm.items() if in_force.loss is None or name != "clip"}
    return kept | {name: value for name, value in changes.items() if value is not None}


def wider(adapter: Lora | AdapterSize) -> AdapterSize | None:
    """The size that the remedy WiderAdapter gives an adapter: twice the rank, with the same alpha / rank.
    None if spec.model.lora does not allow it."""
    try:
        return AdapterSize(rank=WIDENED * adapter.rank, alpha=WIDENED * adapter.alpha)
    except ValidationError:
        return None


def largest_rank(model: ModelSpec, collapse: CollapseSpec) -> int | None:
    """The largest rank that a published adapter of a job may have; None if every weight is trained.

    Rollout servers reserve memory for adapters only once, at their start, and need room for this rank. So
    the remedy WiderAdapter does not apply beyond it.
    """
    lora = model.effective_lora
    if lora is None:
        return None
    acts = collapse.policy == "Remediate" and collapse.max_remedies > 0
    widened = wider(lora) if acts and "WiderAdapter" in collapse.remedies else None
    return lora.rank if widened is None else widened.rank
