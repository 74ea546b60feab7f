"""The remedies: what each changes, when it applies, and which signals it is meant for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_api.in_force import InForce
from headway_api.remedies import NotApplicableError, applied, largest_rank, wider
from headway_api.signals import SignalName as S
from headway_api.spec.algorithm import Kl
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.trust import RemedyName

SLOWER: Final = 1 / 3
"""About half an order of magnitude: the usual step of a search for a learning rate. The default 4e-5 becomes
1.3e-5, near the 1e-5 that some models need."""
PENALTY: Final = 0.001
"""The coefficient that the error message of spec.algorithm.kl calls usual."""
LEAST_GROUP: Final = 2
"""The smallest group: an episode must have another to be compared with."""
LARGEST_BATCH: Final = 4096


class RemedyNotApplicableError(ValueError):
    """A remedy does not apply now. The message says why."""


@dataclass(frozen=True)
class Circumstances:
    """What decides whether and how a remedy applies."""

    spec: RLTrainingJobSpec
    """The job's own spec."""
    now: RLTrainingJobSpec
    """The spec with the settings in force."""
    back: Sequence[int]
    """Steps to which the remedy may go back, the best one first."""
    groups_left: int
    """Training groups that the data can still yield."""
    least_batches: int
    """Batches for which `groups_left` must still suffice."""


Change = Callable[[Circumstances], Mapping[str, Any]]
"""The settings that a remedy puts in force, as fields of InForce. Raises RemedyNotApplicableError."""


def roll_back(found: Circumstances) -> Mapping[str, Any]:
    """Go back to the weights and the optimizer of a validated step; no setting changes."""
    if not found.back:
        raise RemedyNotApplicableError("no validated step is better than the job is now")
    return {}


def on_policy(found: Circumstances) -> Mapping[str, Any]:
    """Set maxStepsOffPolicy to 0."""
    if found.now.algorithm.max_steps_off_policy == 0:
        raise RemedyNotApplicableError("maxStepsOffPolicy is 0 already")
    return {"max_steps_off_policy": 0}


def cispo_to_ppo(found: Circumstances) -> Mapping[str, Any]:
    """Change the loss to ppo, with its default bounds 0.8 and 1.2."""
    if found.now.algorithm.loss != "cispo":
        raise RemedyNotApplicableError(f"the loss is {found.now.algorithm.loss} and not cispo")
    return {"loss": "ppo", "clip": None}


def lower_learning_rate(found: Circumstances) -> Mapping[str, Any]:
    """Reduce the learning rate to a third, rounded to two digits."""
    return {"learning_rate": float(f"{SLOWER * found.now.optimizer.learning_rate:.2g}")}


def smaller_groups(found: Circumstances) -> Mapping[str, Any]:
    """Halve groupSize."""
    size = found.now.algorithm.group_size
    if size <= LEAST_GROUP:
        raise RemedyNotApplicableError(
            f"groupSize is {size}: an episode must have another to be compared with"
        )
    return {"group_size": max(LEAST_GROUP, size // 2)}


def larger_batch(found: Circumstances) -> Mapping[str, Any]:
    """Double batchSize."""
    size = 2 * found.now.algorithm.batch_size
    if size > LARGEST_BATCH:
        raise RemedyNotApplicableError(f"batchSize cannot be above {LARGEST_BATCH}")
    if found.groups_left < size * found.least_batches:
        raise RemedyNotApplicableError(
            f"{found.groups_left} groups are left in the data: fewer than {found.least_batches} batches of "
            f"{size}"
        )
    return {"batch_size": size}


def wider_adapter(found: Circumstances) -> Mapping[str, Any]:
    """Double rank and alpha of the adapter."""
    lora, limit = found.now.model.effective_lora, largest_rank(found.spec.model, found.spec.collapse)
    if lora is None or limit is None:
        raise RemedyNotApplicableError("every weight of the model is trained: there is no adapter")
    grown = wider(lora)
    if grown is None:
        raise RemedyNotApplicableError(
            f"an adapter of rank {lora.rank} and alpha {lora.alpha} cannot be twice as wide"
        )
    if grown.rank > limit:
        raise RemedyNotApplicableError(
            f"rollout servers were started with room for adapters of rank {limit}. They have room for one "
            "twice as wide as spec.model.lora if spec.collapse.policy is Remediate and its remedies name "
            "WiderAdapter"
        )
    return {"adapter": grown}


def reference_kl(found: Circumstances) -> Mapping[str, Any]:
    """Add a penalty on the distance from the base model."""
    if found.now.algorithm.kl.coefficient > 0:
        raise RemedyNotApplicableError(
            f"the penalty has a coefficient already, {found.now.algorithm.kl.coefficient:g}"
        )
    return {"kl": Kl(coefficient=PENALTY)}


CHANGES: Final[Mapping[RemedyName, Change]] = {
    "RollBack": roll_back,
    "OnPolicy": on_policy,
    "CispoToPpo": cispo_to_ppo,
    "LowerLearningRate": lower_learning_rate,
    "SmallerGroups": smaller_groups,
    "LargerBatch": larger_batch,
    "WiderAdapter": wider_adapter,
    "ReferenceKl": reference_kl,
}

_DRIFT: Final[tuple[RemedyName, ...]] = ("OnPolicy",)
_BROKEN: Final[tuple[RemedyName, ...]] = ("RollBack", "LowerLearningRate")

FITS: Final[Mapping[S, tuple[RemedyName, ...]]] = {
    # The practice guide's table: a drop to zero, and groups that score alike.
    S.REWARD_COLLAPSED: ("RollBack", "OnPolicy", "CispoToPpo"),
    S.GROUPS_UNIFORM: ("SmallerGroups", "LargerBatch"),
    S.NOTHING_TO_TRAIN: ("RollBack", "SmallerGroups", "LargerBatch"),
    # Held-out rows got worse: go back to the step where they were best, and stay near the base model.
    S.VALIDATION_DIVERGED: ("RollBack", "ReferenceKl"),
    S.SCORE_DIVERGED: ("RollBack", "ReferenceKl"),
    S.ENTROPY_FALLING: ("ReferenceKl", "LowerLearningRate"),
    S.ENTROPY_RISING: _BROKEN,
    S.GRADIENT_SPIKING: ("LowerLearningRate",),
    # Tokens come from another policy than the trained one: fresher tokens differ less.
    S.POLICY_MISMATCH: _DRIFT,
    S.MISMATCH_TAIL: _DRIFT,
    S.TOO_FEW_EFFECTIVE_SAMPLES: _DRIFT,
    S.TOKENS_MASKED: _DRIFT,
    S.STALENESS_AT_BOUND: _DRIFT,
    S.RATIOS_CLIPPED: ("OnPolicy", "LowerLearningRate"),
    # The policy writes text unlike anything it wrote before.
    S.LENGTH_EXPLODING: _BROKEN,
    S.TOOL_CALLS_MALFORMED: _BROKEN,
    S.REPETITION: _BROKEN,
    S.TOOL_CALLS_INFLATING: ("ReferenceKl",),
    S.TASKS_DIVERGING: ("LargerBatch",),
}
"""Signal -> remedies that are tried first when it is raised. The job's other remedies follow."""

BEYOND: Final[frozenset[S]] = frozenset(
    {
        S.REWARD_FLAT,
        S.REWARD_ONE_SIDED,
        S.PERMANENT_FAILURES,
        S.TURNS_TRUNCATED,
        S.CONTEXT_FULL,
        S.EPISODES_TIMED_OUT,
        S.TURNS_EXHAUSTED,
    }
)
"""Signals without a remedy. Their causes are in the reward, the environment or a limit of the spec, which a
person must change."""


def ordered(signal: S, listed: Sequence[RemedyName]) -> list[RemedyName]:
    """The remedies of a job in the order in which they are tried when a signal is raised.

    The remedies that suit the signal come first. Otherwise the order of the spec applies.
    """
    if signal in BEYOND:
        return []
    fits = FITS.get(signal, ())
    return sorted(listed, key=lambda name: name not in fits)


def changed(name: RemedyName, found: Circumstances, in_force: InForce, number: int) -> InForce:
    """The settings in force after the remedy `name`, which is the change with this `number`.

    Raises:
        RemedyNotApplicableError: the remedy does not apply, or the spec with it would be invalid.
    """
    after = in_force.model_copy(update={**CHANGES[name](found), "number": number})
    try:
        applied(found.spec, after)
    except NotApplicableError as wrong:
        raise RemedyNotApplicableError(str(wrong)) from wrong
    return after


def reverted(now: InForce, was: InForce, became: InForce, number: int) -> InForce:
    """The settings after a change is taken back.

    The settings that the change made get their old values again. All other settings stay.

    Args:
        now: the settings in force now.
        was: the settings in force before the change.
        became: the settings in force after the change.
        number: the number of the decision that takes the change back.
    """
    undone = {name: getattr(was, name) for name in became.set_apart(was)}
    return now.model_copy(update={**undone, "number": number})


def changed_settings(before: RLTrainingJobSpec, after: RLTrainingJobSpec) -> str:
    """The settings that differ, with the names of the spec; empty if none differs."""
    return ", ".join(_differences(before, after))


def _differences(before: RLTrainingJobSpec, after: RLTrainingJobSpec) -> Iterator[str]:
    old, new = before.algorithm, after.algorithm
    if old.loss != new.loss:
        clip = new.effective_clip
        bounds = "" if clip is None else f", its bounds {clip.low:g} and {clip.high:g}"
        yield f"loss {old.loss} -> {new.loss}{bounds}"
    pairs = {
        "maxStepsOffPolicy": (old.max_steps_off_policy, new.max_steps_off_policy),
        "learningRate": (before.optimizer.learning_rate, after.optimizer.learning_rate),
        "groupSize": (old.group_size, new.group_size),
        "batchSize": (old.batch_size, new.batch_size),
        "kl.coefficient": (old.kl.coefficient, new.kl.coefficient),
    }
    lora, grown = before.model.effective_lora, after.model.effective_lora
    if lora is not None and grown is not None:
        pairs |= {"lora.rank": (lora.rank, grown.rank), "lora.alpha": (lora.alpha, grown.alpha)}
    yield from (f"{name} {was:g} -> {now:g}" for name, (was, now) in pairs.items() if was != now)
