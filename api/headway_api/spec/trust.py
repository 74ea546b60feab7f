"""What is measured besides the reward: evaluation, preflight, signals."""

from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import sampled_as_asked
from headway_api.preflight import CHECK_IDS, Policy
from headway_api.rules import Rule, cel_literal
from headway_api.signals import ACTED_ON, SignalName

RemedyName = Literal[
    "RollBack",
    "OnPolicy",
    "CispoToPpo",
    "LowerLearningRate",
    "SmallerGroups",
    "LargerBatch",
    "WiderAdapter",
    "ReferenceKl",
]
REMEDIES: Final[tuple[RemedyName, ...]] = get_args(RemedyName)
MAX_REMEDIES: Final = 3

PassK = Annotated[tuple[Annotated[int, Field(ge=1, le=32)], ...], Field(min_length=1, max_length=8)]


class EvaluationSampling(SpecModel):
    """How the next token is drawn in validation episodes."""

    temperature: Annotated[
        float, Field(ge=0, le=2), sampled_as_asked("spec.evaluation.sampling.temperature")
    ] = 0.0
    """Divides the logits before sampling; 0 always takes the likeliest token. Give 1 to see what training
    samples look like."""
    top_p: Annotated[
        float,
        Field(ge=0, le=1),
        Rule(
            "self > 0.0",
            "spec.evaluation.sampling.topP must be above 0; 1 draws from all tokens",
            lambda self: self > 0,
        ),
    ] = 1.0
    """Share of the probability mass to sample from."""
    max_tokens: Annotated[int, Field(ge=1, le=131072)] | None = None
    """Maximum tokens of one turn. Absent: spec.rollout.sampling.maxTokens."""


class MeasureSpec(SpecModel):
    """What is measured on each row, and what counts as success."""

    validations = (
        Rule(
            "self.passK.all(k, k <= self.groupSize)",
            "spec.evaluation.passK: no value may be above spec.evaluation.groupSize",
            lambda self: all(k <= self.group_size for k in self.pass_k),
            "passK",
        ),
        Rule(
            "self.groupSize == 1 || self.sampling.temperature > 0.0",
            "spec.evaluation.groupSize above 1 needs spec.evaluation.sampling.temperature above 0: at 0 "
            "every try gives the same answer",
            lambda self: self.group_size == 1 or self.sampling.temperature > 0,
            "groupSize",
        ),
    )

    group_size: Annotated[int, Field(ge=1, le=32)] = 1
    """Tries on each row."""
    sampling: EvaluationSampling = EvaluationSampling()
    """How tokens are drawn."""
    pass_k: PassK = (1,)
    """The k of pass_at_k (at least one of k tries succeeds) and pass_power_k (all k do), each at most
    groupSize. Metrics under val/reward count successes by the reward, and metrics under val/external_score by
    the external score."""
    success_threshold: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """A try succeeds if its external score is at least this. For metrics under val/reward, the reward decides
    instead."""
    max_rows: Annotated[int, Field(ge=1, le=1000000)] | None = None
    """Measure only on the first maxRows rows. Absent: all."""


class EvaluationSpec(MeasureSpec):
    """Validation during training, on the same rows each time, by reward and external score."""

    mutable = frozenset({"every_steps"})

    every_steps: Annotated[int, Field(ge=0, le=1000)] = 10
    """Training steps between validations. Another validation follows the last step. 0: none after a step;
    atStart still applies. May be changed while the job is suspended."""
    at_start: bool = True
    """true validates the weights that training starts from, for comparison."""
    servers: Literal["Shared", "Dedicated"] = "Shared"
    """Which servers sample held-out rows. Shared: the servers of training; with full weights, training waits
    meanwhile. Dedicated: one more server, with its own accelerators, while training continues. It samples
    rollout.maxConcurrency / replicas episodes at once, in addition to the training episodes."""


class PreflightSpec(SpecModel):
    """Checks before the first gradient: of bucket, data, model files, environment, reward, context, and of
    episodes that the untrained model samples on one rollout server."""

    policy: Policy = "Enforce"
    """Enforce fails the job when a check fails. Warn reports it in the PreflightPassed condition and
    continues. Off leaves out the checks of environment, reward and context, and samples nothing. Every policy
    reads data and model files, and a fault in them fails the job: it cannot run without them."""
    episodes: Annotated[
        int,
        Field(ge=0, le=10000),
        Rule(
            "self == 0 || self >= 8",
            "spec.preflight.episodes must be 0, which samples none, or at least 8",
            lambda value: value == 0 or value >= 8,
        ),
    ] = 100
    """Number of baseline episodes, rounded up to whole groups of algorithm.groupSize. At least 12 rows, or
    all rows if there are fewer, have a group each. Baseline episodes are sampled like training episodes,
    billed as evaluation, kept in spec.output and never trained on. Sampling stops as soon as a failure is
    certain. 0: only the checks that need no episodes."""
    checks: Annotated[
        dict[str, Policy],
        Field(max_length=len(CHECK_IDS), default_factory=dict),
        Rule(
            f"self.all(check, check in [{', '.join(map(cel_literal, CHECK_IDS))}])",
            f"spec.preflight.checks names an unknown check; use some of {', '.join(CHECK_IDS)}",
            lambda value: all(check in CHECK_IDS for check in value),
        ),
    ]
    """Another policy for single checks of baseline episodes, by the check's name, as in {foothold: Warn}.
    docs/preflight.md lists these checks. No effect if policy is Off."""


class CollapseSpec(SpecModel):
    """What happens when signals are raised."""

    validations = (
        Rule(
            "self.policy != 'Alert' || !has(self.signals)",
            "spec.collapse.signals has no effect with policy: Alert; remove it, or choose Pause or Remediate",
            lambda self: self.policy != "Alert" or self.signals is None,
            "signals",
        ),
        Rule(
            f"self.policy == 'Remediate' || (self.remedies == [{', '.join(map(cel_literal, REMEDIES))}] && "
            f"self.maxRemedies == {MAX_REMEDIES})",
            "spec.collapse: remedies and maxRemedies have no effect unless policy is Remediate; remove them",
            lambda self: (
                self.policy == "Remediate" or (self.remedies, self.max_remedies) == (REMEDIES, MAX_REMEDIES)
            ),
            "remedies",
        ),
    )

    policy: Literal["Alert", "Pause", "Remediate"] = "Alert"
    """Alert only reports, in status.signals, the condition Healthy and the metrics. Pause stops every pod, as
    suspend does, when one of `signals` is raised. The learner makes a checkpoint first. A person resumes the
    job with the command in status.pause.resume. Remediate makes one change at a time, watches 25 steps, and
    keeps or undoes the change (docs/remedies.md)."""
    signals: (
        Annotated[
            tuple[SignalName, ...],
            Field(min_length=1, max_length=len(SignalName)),
            Rule(
                "self.all(s, self.exists_one(t, t == s))",
                "spec.collapse.signals names a signal twice",
                lambda value: len(set(value)) == len(value),
            ),
        ]
        | None
    ) = None
    """With Pause: the signals at which the job stops. With Remediate: the signals at which the job is
    changed. Absent: RewardCollapsed, NothingToTrain, ValidationDiverged, ScoreDiverged, EntropyRising,
    PolicyMismatch and TooFewEffectiveSamples."""
    remedies: Annotated[
        tuple[RemedyName, ...],
        Field(max_length=len(REMEDIES)),
        Rule(
            "self.all(remedy, self.exists_one(other, other == remedy))",
            "spec.collapse.remedies lists a remedy twice; remove one, because each is tried once",
            lambda value: len(set(value)) == len(value),
        ),
    ] = REMEDIES
    """With Remediate: the changes that may be made, in this order. RollBack goes back to the best validated
    checkpoint. OnPolicy sets maxStepsOffPolicy to 0. CispoToPpo trains with ppo and the bounds 0.8 and 1.2.
    LowerLearningRate lowers learningRate. SmallerGroups and LargerBatch change groupSize and batchSize.
    WiderAdapter doubles rank and alpha of the adapter, and its output stays the same. Rollout servers reserve
    memory for the wider adapter from the start. ReferenceKl penalizes distance to the base model. With full
    weights, ReferenceKl needs memory for a copy of the base model in each learner process."""
    max_remedies: Annotated[int, Field(ge=0, le=8)] = MAX_REMEDIES
    """With Remediate: maximum number of changes. After the last one the job only continues."""

    @property
    def acted_on(self) -> tuple[SignalName, ...]:
        """The signals at which the job stops or is changed, if its policy acts."""
        return ACTED_ON if self.signals is None else self.signals
