"""How episodes become gradients: the axes of the policy-gradient objective, and the staleness it allows."""

from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule, cel_literal

LOSSES: Final = ("importance_sampling", "ppo", "cispo", "gspo")
ADVANTAGES: Final = (
    "group_based",
    "group_based_per_turn",
    "rloo",
    "grpo_passk",
    "opo",
    "gpg",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "monte_carlo",
)
RATIOS: Final = ("token", "sequence")
REDUCTIONS: Final = ("token_mean", "sequence_mean", "constant", "prompt_mean")
CORRECTIONS: Final = ("none", "tis", "sequence_mask", "bypass", "decoupled", "icepop", "sequence_tis")
DISCOUNTING: Final = ("group_based_per_turn", "reinforce_pp", "monte_carlo")
"""Advantage methods that discount by gamma."""
BY_REWARDS: Final = ("group_based", "grpo_passk", "gpg", "opo", "rloo")
"""Methods that train nothing on a group whose episodes all earned the same reward."""
NORMALIZING: Final = ("group_based", "group_based_per_turn", "grpo_passk")
"""Advantage methods that use normalize."""
CAPPED: Final = ("tis", "sequence_mask", "icepop", "sequence_tis")
"""Corrections that have a cap."""
FLOORED: Final = ("icepop",)
"""Corrections that also have a floor."""

Method = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""Name of a built-in function, or of one that a plugin registers."""
Module = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=128)]
"""Import name of a Python module."""


def _listed(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(cel_literal, names))}]"


def _built_in_or_plugin(path: str, names: tuple[str, ...]) -> Rule:
    """The field must name a built-in function, unless plugins may register others."""
    first, _, second = path.partition(".")

    def holds(algorithm: "AlgorithmSpec") -> bool:
        block = getattr(algorithm, first)
        value = getattr(block, second) if second else block
        return bool(algorithm.plugins) or value is None or value in names

    given = f"!has(self.{path}) || " if path == "ratio" else ""
    return Rule(
        f"{given}self.{path} in {_listed(names)} || (has(self.plugins) && size(self.plugins) > 0)",
        f"spec.algorithm.{path} must be one of {', '.join(names)}; a name of your own needs the module that "
        "registers it in spec.algorithm.plugins",
        holds,
        first,
    )


class Clip(SpecModel):
    """Bounds of the ratio between the trained and the old policy's probability of a token. If ratio is
    sequence, as in gspo, they bound the geometric mean of these ratios over a training row."""

    validations = (
        Rule(
            "!has(self.low) || self.low < self.high",
            "spec.algorithm.clip: low must be below high",
            lambda self: self.low is None or self.low < self.high,
            "low",
        ),
    )

    low: Annotated[float, Field(ge=0, le=1)] | None = None
    """Lower bound of the ratio itself, not a distance from 1. ppo and gspo need it. cispo has no lower bound:
    leave low out, or write 1, which has no effect there."""
    high: Annotated[float, Field(ge=1, le=100)]
    """Upper bound of the ratio itself, not a distance from 1."""
    dual: Annotated[
        Annotated[float, Field(ge=1, le=100)] | None,
        Rule(
            "self > 1.0",
            "spec.algorithm.clip.dual must be above 1; 3 is usual",
            lambda value: value is None or value > 1,
        ),
    ] = None
    """Bound of the ratio when the advantage is negative (dual clip, with ppo and gspo). A token beyond this
    bound has no gradient. Absent: no bound; 3 is usual."""


class Bounds(NamedTuple):
    """The bounds that the loss applies."""

    low: float
    """Lower bound of the ratio. 0 means no bound, because no ratio is negative."""
    high: float


DEFAULT_BOUNDS: Final = {
    "ppo": Bounds(0.8, 1.2),
    "gspo": Bounds(0.8, 1.2),
    "cispo": Bounds(0.0, 6.0),
}
DEFAULT_CAP: Final = 2.0
CAPS: Final = {"icepop": 5.0}
"""Caps of corrections whose papers use another value than `DEFAULT_CAP`."""
DEFAULT_FLOOR: Final = 0.5


class Advantage(SpecModel):
    """How good an episode was, compared with the others of its group."""

    method: Method = "group_based"
    """group_based: the reward minus the mean reward of its group (GRPO). group_based_per_turn: the same for
    each turn, from turn rewards. rloo: the reward minus the mean reward of the group's other episodes. opo:
    the reward minus the group's mean reward weighted by length of episodes. grpo_passk: only the best episode
    has an advantage, its distance to the second best. gpg: group_based without std, scaled up to make up for
    groups without an advantage. reinforce_pp: returns, whitened over the batch. reinforce_pp_baseline: the
    reward minus the mean of its group, whitened. monte_carlo: returns, without a baseline. Or a name that a
    plugin registers."""
    normalize: Literal["std", "none"] = "std"
    """std divides by the standard deviation of the group's rewards; none does not (Dr. GRPO). It applies to
    group_based, group_based_per_turn and grpo_passk."""
    gamma: Annotated[float, Field(ge=0, le=1)] | None = None
    """Discount of a turn's reward for each turn before it, with group_based_per_turn, reinforce_pp and
    monte_carlo. Absent: 1. group_based_per_turn discounts only in groups whose turns have rewards of their
    own. In other groups it equals group_based."""


class Kl(SpecModel):
    """Penalty on moving away from the base model."""

    validations = (
        Rule(
            "self.coefficient > 0.0 || self.estimator == 'k3'",
            "spec.algorithm.kl.estimator has no effect without a coefficient; give one, 0.001 is usual, or "
            "remove it",
            lambda self: self.coefficient > 0 or self.estimator == "k3",
            "estimator",
        ),
    )

    coefficient: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the penalty; 0 switches it off."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated at a token. d is the log-probability under the trained model minus that
    under the base model. k1 is d, k2 is d^2 / 2, k3 is exp(-d) + d - 1."""


class Entropy(SpecModel):
    """Bonus for the policy's entropy."""

    coefficient: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the bonus; 0 switches it off."""


class AlgorithmSpec(SpecModel):
    """The objective, the size of a batch, and the staleness that is allowed."""

    validations = (
        Rule(
            "self.loss != 'importance_sampling' || !has(self.clip)",
            "spec.algorithm.clip has no effect with importance_sampling; remove it, or use ppo",
            lambda self: self.loss != "importance_sampling" or self.clip is None,
            "clip",
        ),
        Rule(
            "self.loss != 'cispo' || !has(self.clip) || !has(self.clip.low) || self.clip.low == 1.0",
            "spec.algorithm.clip.low has no effect with cispo, which bounds the ratio from above only; "
            "remove it, or use ppo",
            lambda self: self.loss != "cispo" or self.clip is None or self.clip.low in (None, 1),
            "clip",
        ),
        Rule(
            "!(self.loss in ['ppo', 'gspo']) || !has(self.clip) || has(self.clip.low)",
            "spec.algorithm.clip.low is needed beside high, except with cispo; 0.8 is usual",
            lambda self: self.loss not in ("ppo", "gspo") or self.clip is None or self.clip.low is not None,
            "clip",
        ),
        Rule(
            "self.loss != 'cispo' || !has(self.clip) || !has(self.clip.dual)",
            "spec.algorithm.clip.dual has no effect with cispo; remove it, or use ppo or gspo",
            lambda self: self.loss != "cispo" or self.clip is None or self.clip.dual is None,
            "clip",
        ),
        _built_in_or_plugin("loss", LOSSES),
        _built_in_or_plugin("advantage.method", ADVANTAGES),
        _built_in_or_plugin("ratio", RATIOS),
        _built_in_or_plugin("reduction", REDUCTIONS),
        _built_in_or_plugin("correction", CORRECTIONS),
        Rule(
            "self.loss != 'gspo' || !has(self.ratio) || self.ratio == 'sequence'",
            "spec.algorithm.ratio: gspo is ppo with the ratio of sequences; remove ratio, or use ppo",
            lambda self: self.loss != "gspo" or self.ratio in (None, "sequence"),
            "ratio",
        ),
        Rule(
            "!has(self.advantage.gamma) || self.advantage.method in "
            f"{_listed(DISCOUNTING)} || !(self.advantage.method in {_listed(ADVANTAGES)})",
            f"spec.algorithm.advantage.gamma applies to {', '.join(DISCOUNTING)} only; remove it",
            lambda self: (
                self.advantage.gamma is None
                or self.advantage.method in DISCOUNTING
                or self.advantage.method not in ADVANTAGES
            ),
            "advantage",
        ),
        Rule(
            f"self.advantage.normalize == 'std' || self.advantage.method in {_listed(NORMALIZING)} || "
            f"!(self.advantage.method in {_listed(ADVANTAGES)})",
            f"spec.algorithm.advantage.normalize applies to {', '.join(NORMALIZING)} only; remove it",
            lambda self: (
                self.advantage.normalize == "std"
                or self.advantage.method in NORMALIZING
                or self.advantage.method not in ADVANTAGES
            ),
            "advantage",
        ),
        Rule(
            "self.correction != 'sequence_mask' || !has(self.correctionCap) || self.correctionCap > 1.0",
            "spec.algorithm.correctionCap: 1 keeps no training row with sequence_mask; 2 is usual",
            lambda self: (
                self.correction != "sequence_mask" or self.correction_cap is None or self.correction_cap > 1
            ),
            "correctionCap",
        ),
        Rule(
            f"!has(self.correctionCap) || self.correction in {_listed(CAPPED)} || "
            f"!(self.correction in {_listed(CORRECTIONS)})",
            f"spec.algorithm.correctionCap applies to {', '.join(CAPPED)} only; remove it",
            lambda self: (
                self.correction_cap is None or self.correction in CAPPED or self.correction not in CORRECTIONS
            ),
            "correctionCap",
        ),
        Rule(
            f"!has(self.correctionFloor) || self.correction in {_listed(FLOORED)} || "
            f"!(self.correction in {_listed(CORRECTIONS)})",
            f"spec.algorithm.correctionFloor applies to {' and '.join(FLOORED)} only; remove it",
            lambda self: (
                self.correction_floor is None
                or self.correction in FLOORED
                or self.correction not in CORRECTIONS
            ),
            "correctionFloor",
        ),
        Rule(
            "self.updatesPerBatch <= self.batchSize",
            "spec.algorithm.updatesPerBatch must not be above batchSize",
            lambda self: self.updates_per_batch <= self.batch_size,
            "updatesPerBatch",
        ),
    )

    loss: Method = "ppo"
    """The surrogate loss. Start with ppo. cispo keeps the gradient of clipped tokens and tends to collapse
    after 40 to 80 steps. importance_sampling does not clip. gspo is ppo with the ratio of whole sequences. Or
    a name that a plugin registers."""
    ratio: Method | None = None
    """Which ratio the loss uses. token: the ratio of a token's probabilities under the trained and the old
    policy. sequence: the geometric mean of these ratios over a training row. Absent: sequence with gspo,
    otherwise token."""
    clip: Clip | None = None
    """Bounds of the ratio. Absent: 0.8 and 1.2 for ppo and gspo, and an upper bound of 6 for cispo. With gspo
    the ratio is a mean over a training row, which moves far less than the ratio of a token. Write 0.9997 and
    1.0004 there, as in gspo's paper."""
    advantage: Advantage = Advantage()
    """How rewards become advantages."""
    reduction: Method = "token_mean"
    """How the losses of tokens become one number. token_mean gives every action token of the optimizer step
    the same weight. sequence_mean gives every episode the same weight, which its tokens share. prompt_mean
    does so for every prompt. constant divides by the episodes times the most tokens that an episode may
    sample, so that length has no effect. Or a name that a plugin registers."""
    correction: Method = "bypass"
    """How the learner treats the gap between the sampling servers' probabilities and its own. bypass uses the
    servers' probabilities as the old policy's, which saves a forward pass. The others compute the old
    policy's probabilities with the learner, before the batch's first optimizer step. none ignores the gap.
    tis weighs each token by the learner's probability over the servers', at most correctionCap. decoupled
    does the same without a bound. sequence_mask drops training rows whose mean gap is beyond correctionCap.
    icepop weighs tokens as decoupled does, and drops tokens whose weight is beyond correctionFloor or
    correctionCap. sequence_tis weighs each training row by the product over its tokens, at most
    correctionCap. Or a name that a plugin registers."""
    correction_cap: Annotated[float, Field(ge=1, le=100)] | None = None
    """With tis and icepop, the largest weight of a token; with sequence_tis, that of a training row. With
    sequence_mask, the largest geometric mean of a training row's weights; the inverse of the cap is the
    smallest. Absent: 5 with icepop, otherwise 2."""
    correction_floor: Annotated[float, Field(ge=0, le=1)] | None = None
    """With icepop, the smallest weight of a token that is trained. Absent: 0.5."""
    denominator: Literal["trained", "all"] | None = None
    """Which groups count in the denominator of the reduction. trained: groups that have an advantage. all:
    also groups without an advantage, as in the papers of Dr. GRPO and GPG. A batch with little to learn from
    then takes a smaller step. Absent: all with gpg, whose advantages are already scaled up for such groups,
    otherwise trained."""
    plugins: Annotated[tuple[Module, ...], Field(max_length=16)] = ()
    """Python modules that the learner imports before it starts. They register functions of your own, which
    loss, ratio, advantage.method, reduction and correction may then name. docs/algorithms.md shows how to put
    the modules on the learner's path."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 128
    """Prompts in a training step. The job samples groupSize episodes on each."""
    group_size: Annotated[int, Field(ge=2, le=32)] = 8
    """Episodes on the same prompt. An advantage compares an episode with the others of its group. If whole
    groups score alike, lower groupSize and raise batchSize."""
    updates_per_batch: Annotated[int, Field(ge=1, le=32)] = 1
    """Optimizer steps that a batch is split into. With more steps, the model learns faster from the same
    episodes, and moves further from the policy that sampled them."""
    max_steps_off_policy: Annotated[int, Field(ge=0, le=10)] = 3
    """Largest staleness of a trained token, in steps. 0 is synchronous training: no training episode runs
    while the learner trains. Set 0 while you look into a collapse."""
    sampler: Literal["in_order", "windowed", "ready_first"] = "windowed"
    """Which finished group is trained next. No group is ever older than maxStepsOffPolicy allows. windowed:
    the oldest finished group among the oldest batchSize * (1 + maxStepsOffPolicy / 2). A slow prompt then
    does not hold up the rest. in_order: the group of the earliest row, whichever finished first, so that two
    runs have the same batches. ready_first: the group that finished first; slow prompts are trained late."""
    kl: Kl = Kl()
    """Penalty on moving away from the base model."""
    entropy: Entropy = Entropy()
    """Bonus for the policy's entropy."""

    @property
    def effective_clip(self) -> Bounds | None:
        """The bounds that the spec gives, or those of the loss; None if the loss does not clip."""
        if self.clip is None:
            return DEFAULT_BOUNDS.get(self.loss)
        low = 0.0 if self.loss == "cispo" or self.clip.low is None else self.clip.low
        return Bounds(low, self.clip.high)

    @property
    def counts_all(self) -> bool:
        """Whether the denominators of the reduction count groups without an advantage."""
        return (self.denominator or ("all" if self.advantage.method == "gpg" else "trained")) == "all"

    @property
    def episodes_per_step(self) -> int:
        return self.batch_size * self.group_size
