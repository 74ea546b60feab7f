"""How episodes become gradients: the axes of the policy-gradient objective, and how far it may lag."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule, not_yet

Loss = Literal["importance_sampling", "ppo", "cispo", "gspo"]
AdvantageMethod = Literal[
    "group_based",
    "group_based_per_turn",
    "rloo",
    "grpo_passk",
    "opo",
    "gpg",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "monte_carlo",
]


class Clip(SpecModel):
    """Bounds of the ratio between the trained and the sampling policy's probability of a token."""

    validations = (
        Rule(
            "!has(self.low) || self.low < self.high",
            "spec.algorithm.clip: low must be below high",
            lambda self: self.low is None or self.low < self.high,
            "low",
        ),
    )

    low: Annotated[float, Field(ge=0, le=1)] | None = None
    """Lower bound of the ratio itself, not a distance from 1. Needed with ppo. cispo has none: leave it
    out, or write 1, which stands for none there."""
    high: Annotated[float, Field(ge=1, le=100)]
    """Upper bound of the ratio itself, not a distance from 1."""


class Bounds(NamedTuple):
    """The bounds as they act."""

    low: float
    """0 bounds nothing: no ratio is below it."""
    high: float


DEFAULT_BOUNDS = {
    "ppo": Bounds(0.8, 1.2),
    "gspo": Bounds(0.8, 1.2),
    "cispo": Bounds(0.0, 6.0),
}


class Advantage(SpecModel):
    """How good an episode was, compared with the others of its group."""

    method: Annotated[
        AdvantageMethod,
        not_yet(
            "spec.algorithm.advantage.method: only group_based is run by this version",
            values=(
                "group_based_per_turn",
                "rloo",
                "grpo_passk",
                "opo",
                "gpg",
                "reinforce_pp",
                "reinforce_pp_baseline",
                "monte_carlo",
            ),
        ),
    ] = "group_based"
    """group_based: the reward less the mean reward of its group (GRPO)."""
    normalize: Literal["std", "none"] = "std"
    """std divides by the standard deviation of the group's rewards; none does not (Dr. GRPO)."""
    gamma: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        not_yet("spec.algorithm.advantage.gamma is not used by this version; remove it"),
    ] = None
    """Discount of a turn's reward for each later turn. Not used yet."""


class Kl(SpecModel):
    """Penalty on moving away from the base model."""

    coefficient: Annotated[
        float,
        Field(ge=0, le=10),
        not_yet("spec.algorithm.kl.coefficient is not run by this version; leave it at 0", unless=0.0),
    ] = 0.0
    """Weight of the penalty; 0 is none."""


class Entropy(SpecModel):
    """Bonus for staying undecided."""

    coefficient: Annotated[
        float,
        Field(ge=0, le=10),
        not_yet("spec.algorithm.entropy.coefficient is not run by this version; leave it at 0", unless=0.0),
    ] = 0.0
    """Weight of the bonus; 0 is none."""


class AlgorithmSpec(SpecModel):
    """The objective, the size of a step, and the staleness allowed."""

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
            "self.loss in ['cispo', 'importance_sampling'] || !has(self.clip) || has(self.clip.low)",
            "spec.algorithm.clip.low is needed beside high, except with cispo; 0.8 is usual",
            lambda self: (
                self.loss in ("cispo", "importance_sampling")
                or self.clip is None
                or self.clip.low is not None
            ),
            "clip",
        ),
        Rule(
            "self.updatesPerBatch <= self.batchSize",
            "spec.algorithm.updatesPerBatch must not be above batchSize",
            lambda self: self.updates_per_batch <= self.batch_size,
            "updatesPerBatch",
        ),
    )

    loss: Annotated[
        Loss, not_yet("spec.algorithm.loss: gspo is not run by this version; use ppo", values=("gspo",))
    ] = "ppo"
    """The surrogate loss. ppo is the one to start with; cispo keeps the gradient of clipped tokens and
    tends to collapse after 40 to 80 steps; importance_sampling does not clip."""
    clip: Clip | None = None
    """Bounds of the ratio. Absent: 0.8 and 1.2 for ppo, 6 from above for cispo."""
    advantage: Advantage = Advantage()
    """How rewards become advantages."""
    reduction: Annotated[
        Literal["token_mean", "sequence_mean", "constant", "prompt_mean"],
        not_yet(
            "spec.algorithm.reduction: only token_mean is run by this version",
            values=("sequence_mean", "constant", "prompt_mean"),
        ),
    ] = "token_mean"
    """How the losses of tokens become one: token_mean gives every action token of the optimizer step the
    same weight."""
    correction: Annotated[
        Literal["none", "tis", "sequence_mask", "bypass", "decoupled"],
        not_yet(
            "spec.algorithm.correction: only bypass is run by this version",
            values=("none", "tis", "sequence_mask", "decoupled"),
        ),
    ] = "bypass"
    """How the gap between the sampling servers' and the learner's probabilities is treated. bypass takes
    the servers' as those of the old policy, which saves a forward pass."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 128
    """Prompts of a training step; each is tried groupSize times."""
    group_size: Annotated[int, Field(ge=2, le=32)] = 8
    """Episodes tried on the same prompt. An episode is judged against its group, so one is not enough;
    lower it, with a larger batchSize, when whole groups score alike."""
    updates_per_batch: Annotated[int, Field(ge=1, le=32)] = 1
    """Optimizer steps a batch is cut into. More learn faster from the same episodes and drift further
    from the policy that sampled them."""
    max_steps_off_policy: Annotated[int, Field(ge=0, le=10)] = 3
    """How many steps older than the learner the oldest token of a trained group may be. 0 is synchronous
    training: no rollout runs while the learner works. Set 0 while looking into a collapse."""
    sampler: Literal["in_order", "windowed", "ready_first"] = "windowed"
    """Which finished group is trained next; none is ever older than maxStepsOffPolicy allows. windowed: the
    oldest finished one out of the oldest batchSize * (1 + maxStepsOffPolicy / 2), so that a slow prompt does
    not hold up the rest. in_order: that of the earliest row, whichever finished first, so that two runs have
    the same batches. ready_first: whichever finished first; prompts that take long are trained late."""
    kl: Kl = Kl()
    """Penalty on moving away from the base model."""
    entropy: Entropy = Entropy()
    """Bonus for staying undecided."""

    @property
    def effective_clip(self) -> Bounds | None:
        """The bounds given, else those of the loss; None where the loss does not clip."""
        default = DEFAULT_BOUNDS.get(self.loss)
        if default is None or self.clip is None:
            return default
        low = default.low if self.loss == "cispo" or self.clip.low is None else self.clip.low
        return Bounds(low, self.clip.high)

    @property
    def episodes_per_step(self) -> int:
        return self.batch_size * self.group_size
