"""The status of an RLTrainingJob."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from headway_api.accelerators import Accelerators
from headway_api.base import StatusModel
from headway_api.conditions import Condition
from headway_api.failures import Failures
from headway_api.field_types import Count, Decimal, Uri, Word
from headway_api.grants import Grant
from headway_api.signals import MAX_SHOWN_SIGNALS
from headway_api.status.common import Generation, Role, State, Text, Tracking, list_map
from headway_api.status.health import Pause, Remediation, RemedyOrder, Signal
from headway_api.status.preflight import Preflight
from headway_api.status.usage import Budget, Estimate, Usage


class TrainingProgress(StatusModel):
    """Progress of training."""

    step: Count = 0
    """Training steps that are completed and checkpointed."""
    max_steps: Count | None = None
    """Steps after which the job is done: the smaller of schedule.maxSteps and the steps that the epochs
    give."""
    epoch: Count = 0
    """Completed epochs of the training rows."""
    episodes: Count = 0
    """Training episodes that were scored, whatever their outcome, without those of abandoned groups."""
    policy_version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$", max_length=32)] | None = None
    """INCARNATION.STEP of the weights that the servers sample with."""
    updated_time: datetime | None = None
    """Time of the last progress: the coordinator started, an episode was scored, or a group ended. A
    validation that began or completed, a step, and a new incarnation of the learner count too."""
    evaluating: Count | None = None
    """Step whose validation runs now. Absent if none runs."""
    stalled: Text | None = None
    """Why nothing has progressed for a while, with the part that the job waits for. Absent while the job
    progresses."""
    finished: Word | None = None
    """Why no step follows: MaxSteps, MaxEpochs, or BudgetExhausted. Absent: a step may follow."""


class Reward(StatusModel):
    """Rewards of the last trained batch."""

    mean: Decimal | None = None
    """Mean reward of the batch's episodes."""
    valid: Decimal | None = None
    """Mean over the trained groups, which have an advantage other than 0."""


class BestValidation(StatusModel):
    """The best validation so far."""

    step: Count
    """Step whose weights were validated."""
    reward: Decimal | None = None
    """Mean reward."""
    external_score: Decimal | None = None
    """Mean external score."""


class TaskValidation(StatusModel):
    """Validation results of one task."""

    name: Word
    """The task. If there are more than 32 tasks, `other` has those with the fewest rows."""
    rows: Count
    """Held-out rows of the task."""
    reward: Decimal
    """Mean reward."""
    external_score: Decimal
    """Mean external score."""
    success: Decimal
    """Share of scored episodes that succeed."""


class Validation(StatusModel):
    """The last validation."""

    step: Count
    """Step whose weights were validated."""
    reward: Decimal | None = None
    """Mean reward."""
    external_score: Decimal | None = None
    """Mean of the environment's external score. It is not the reward, and nothing is trained on it."""
    score: Word | None = None
    """The external score, and half the width of its 95 % interval: 0.83 ± 0.05. Absent if no try has an
    external score, or if a rollback made an earlier validation the last one again."""
    baseline: Decimal | None = None
    """Mean reward at step 0, before training."""
    baseline_external_score: Decimal | None = None
    """Mean external score at step 0."""
    best: BestValidation | None = None
    """The best validation so far."""
    tasks: Annotated[list[TaskValidation], Field(max_length=33, default_factory=list)]
    """The last validation by task, if spec.data.validation.taskColumn names tasks."""


class Algorithm(StatusModel):
    """The objective in use, with all defaults and the changes that remedies made."""

    loss: Word | None = None
    """Loss, as the spec names it. It sets the ratio and the surrogate below."""
    advantage: Word | None = None
    """Advantage method."""
    normalize: Word | None = None
    """What advantages are divided by. Absent if the method does not use it."""
    gamma: Decimal | None = None
    """Discount of a turn's reward for each turn before it. With group_based_per_turn it applies if turns have
    rewards. Absent if the method does not discount."""
    ratio: Word | None = None
    """Whether the ratio compares tokens or sequences."""
    surrogate: Word | None = None
    """Surrogate loss of a token."""
    clip_low: Decimal | None = None
    """Lower bound of the ratio; 0 is no bound. Absent if the loss does not clip."""
    clip_high: Decimal | None = None
    """Upper bound of the ratio. Absent if the loss does not clip."""
    clip_dual: Decimal | None = None
    """Bound of the ratio when the advantage is negative. Absent: none."""
    correction: Word | None = None
    """How the gap between sampling and training probabilities is treated."""
    correction_cap: Decimal | None = None
    """Cap of the correction. Absent if it has none."""
    correction_floor: Decimal | None = None
    """Floor of the correction. Absent if it has none."""
    reduction: Word | None = None
    """How the losses of tokens become one number."""
    episode_tokens: Count | None = None
    """Planned tokens of an episode, by which the reduction constant divides. Absent with other reductions."""
    denominator: Word | None = None
    """Groups that the reduction divides by: trained, or all."""
    kl_coefficient: Decimal | None = None
    """Weight of the divergence from the base model in the loss."""
    kl_estimator: Word | None = None
    """How the divergence is estimated. Absent if its weight is 0."""
    entropy_coefficient: Decimal | None = None
    """Weight of the entropy in the loss."""
    plugins: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Modules that the learner imported for functions of the user's own."""
    sampler: Word | None = None
    """Which finished group is trained next."""
    max_steps_off_policy: Count | None = None
    """Largest staleness of a trained token, in steps."""
    batch_size: Count | None = None
    """Prompts in a training step."""
    group_size: Count | None = None
    """Episodes on each prompt."""
    learning_rate: Decimal | None = None
    """Largest step size, reached after warm-up."""
    decay: Word | None = None
    """How the step size changes after warm-up."""
    lora_rank: Count | None = None
    """Rank of the adapter. Absent if every weight is trained."""
    lora_alpha: Count | None = None
    """Scale of the adapter."""


class Checkpoint(StatusModel):
    """State of the learner in the artifact store. Only a learner reads it."""

    step: Count
    """Step after which the learner made it."""
    uri: Uri
    """Folder of the checkpoint."""


class Weights(StatusModel):
    """Trained weights in the artifact store, ready to load and serve."""

    step: Count
    """Step that made them."""
    uri: Uri
    """Folder in Hugging Face layout: a LoRA adapter, or the whole model if every weight was trained."""


class StartingWeights(StatusModel):
    """The weights of another job that this one starts from."""

    job: Word
    """The job that spec.model.warmStart named."""
    step: Count
    """Step of that job that made the weights."""
    uri: Uri
    """Folder of the weights."""


class Checkpoints(StatusModel):
    """Checkpoints to resume from, and weights to serve."""

    latest: Checkpoint | None = None
    """The checkpoint from which a restart resumes."""
    best: Weights | None = None
    """The weights that validated best by external score, among steps whose folder holds all weights. With
    full weights, a step that was meant to be the last may lack them. The weights of every validated step are
    kept. Training resumes only from latest. After a rollback, the step may have been trained again since that
    validation."""
    adapter: Weights | None = None
    """The newest weights whose folder is complete. When the job has ended, these are the last step's
    weights."""


class Artifacts(StatusModel):
    """Addresses of the results."""

    uri: Uri | None = None
    """The job's folder."""
    trajectories: Uri | None = None
    """Folder of all episodes, token by token."""
    ledger: Uri | None = None
    """Folder of all usage events."""
    report: Uri | None = None
    """The report of the run."""
    page: Uri | None = None
    """The report as one HTML file, with curves and episodes. Absent if it could not be written."""


class TestResult(StatusModel):
    """Result of one set of weights on the test split."""

    reward: Word | None = None
    """Mean reward with its 95 % interval."""
    external_score: Word | None = None
    """Mean external score."""
    success: Word | None = None
    """Share of tries that succeed."""


class Test(StatusModel):
    """Result on spec.data.test, measured once after training."""

    step: Count
    """Step whose weights were measured: the best validated one or, without validation, the last."""
    rows: Count
    """Rows of the test split."""
    tuned: TestResult
    """Result of these weights."""
    base: TestResult | None = None
    """Result of the weights that training started from. Absent if they are not kept."""
    reward_difference: Word | None = None
    """Mean of tuned - base over paired rewards, with 95 % interval and p."""
    external_score_difference: Word | None = None
    """Mean of tuned - base over paired external scores, with 95 % interval and p."""


class RLTrainingJobStatus(StatusModel):
    """Observed state of a training job."""

    observed_generation: Generation | None = None
    """metadata.generation of the spec that this status describes; -1 until the operator has seen the job."""
    state: State | None = None
    """The conditions in one word, for the printer column; rely on the conditions. Queued: another controller,
    such as Kueue, has suspended one of its Jobs."""
    reason: Word | None = None
    """Reason of the condition that decides state."""
    conditions: Annotated[
        list[Condition], Field(max_length=32, default_factory=list, json_schema_extra=list_map("type"))
    ]
    """Conditions of the job."""
    start_time: datetime | None = None
    """When the operator first acted on the job."""
    completion_time: datetime | None = None
    """When the job succeeded or failed."""
    suspended_seconds: Count | None = None
    """Seconds that the job was suspended, over all past suspensions; deadlines leave them out."""
    warm_start: StartingWeights | None = None
    """The weights of spec.model.warmStart.job, chosen once, when the operator accepted the job."""
    warnings: Annotated[list[Text], Field(max_length=24, default_factory=list)]
    """What seems unwise in the spec, and what to write instead. The job still runs."""
    progress: TrainingProgress | None = None
    """Progress of training."""
    reward: Reward | None = None
    """Rewards of the last trained batch."""
    validation: Validation | None = None
    """The last validation."""
    test: Test | None = None
    """Result on the test split, after it was measured."""
    usage: Usage | None = None
    """What the job has used, and its cost."""
    estimate: Estimate | None = None
    """What the whole job will use and cost."""
    budget: Budget | None = None
    """How much of the job's budget is used. Absent: the job has none."""
    grant: Grant | None = None
    """What the RLBudget of the namespace lets the job use. Absent: the namespace has none."""
    algorithm: Algorithm | None = None
    """The objective in use."""
    checkpoints: Checkpoints | None = None
    """Checkpoints to resume from, and weights to serve."""
    preflight: Preflight | None = None
    """The checks before the first gradient."""
    signals: Annotated[
        list[Signal],
        Field(max_length=MAX_SHOWN_SIGNALS, default_factory=list, json_schema_extra=list_map("name")),
    ]
    """The 16 worst signals that training goes wrong: first raised, then suspect, clear and unknown signals.
    Within each state they have the order of docs/signals.md, the most severe first. The condition Healthy
    names every raised signal, also signals that do not fit here."""
    pause: Pause | None = None
    """The last pause, if spec.collapse.policy is Pause. The pause has ended once resumedPause equals its
    time."""
    resumed_pause: datetime | None = None
    """Time of the last pause that a person has ended with the annotation headway.dev/resume."""
    remediations: Annotated[list[Remediation], Field(max_length=8, default_factory=list)]
    """The last eight changes made to the running job."""
    remedy_order: RemedyOrder | None = None
    """State of a person's order to change the job. Absent: there is none."""
    roles: Annotated[
        list[Role], Field(max_length=8, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """The job's pods, by role."""
    failures: Failures | None = None
    """What spec.failurePolicy.rules have decided. Absent: nothing yet."""
    accelerators: Accelerators | None = None
    """Accelerators that the job's pods hold and have held. Absent: no pod has held one yet."""
    rollout_replicas: Count | None = None
    """Rollout servers that exist, for the scale subresource."""
    rollout_selector: Text | None = None
    """Label selector of the rollout servers, for the scale subresource."""
    artifacts: Artifacts | None = None
    """Addresses of the results."""
    tracking: Tracking | None = None
    """Where metrics are tracked."""
