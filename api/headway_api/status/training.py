"""The status of an RLTrainingJob."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.conditions import Condition
from headway_api.failures import Failures
from headway_api.grants import Grant
from headway_api.held import Accelerators
from headway_api.signals import SHOWN_MOST
from headway_api.spec.types import Decimal, Uri
from headway_api.status.common import Count, Generation, Role, State, Text, Tracking, Word, list_map
from headway_api.status.health import Pause, Remediation, RemedyOrder, Signal
from headway_api.status.preflight import Preflight
from headway_api.status.usage import Budget, Estimate, Usage


class Progress(StatusModel):
    """How far training has come."""

    step: Count = 0
    """Training steps completed and checkpointed."""
    max_steps: Count | None = None
    """Steps after which the job is done: the smaller of schedule.maxSteps and what the epochs hold."""
    epoch: Count = 0
    """Passes over the training rows completed."""
    episodes: Count = 0
    """Training episodes that were scored, however they ended; those of abandoned groups left out."""
    policy_version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$", max_length=32)] | None = None
    """INCARNATION.STEP of the weights the servers sample with."""
    updated_time: datetime | None = None
    """When anything last went forward: the coordinator started, an episode was scored, a group ended, a
    validation began or was completed, the learner reported a step or began a new incarnation."""
    evaluating: Count | None = None
    """Step whose validation runs now. Absent while none does."""
    stalled: Text | None = None
    """Why nothing has gone forward for a while, naming the part it waits for. Absent while it does."""
    finished: Word | None = None
    """Why no step follows: MaxSteps, MaxEpochs, or BudgetExhausted. Absent: one may."""


class Reward(StatusModel):
    """Rewards of the last trained batch."""

    mean: Decimal | None = None
    """Mean over its episodes."""
    valid: Decimal | None = None
    """Mean over the groups that were trained: those with an advantage other than 0."""


class BestValidation(StatusModel):
    """The best validation so far."""

    step: Count
    """Step it was measured at."""
    reward: Decimal | None = None
    """Mean reward."""
    external_score: Decimal | None = None
    """Mean external score."""


class TaskValidation(StatusModel):
    """What the rows of one task came to."""

    name: Word
    """The task; `other` for those with the fewest rows, where there are more than 32."""
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
    """Step it was measured at."""
    reward: Decimal | None = None
    """Mean reward."""
    external_score: Decimal | None = None
    """Mean of the environment's external score, which is not the reward and not trained on."""
    score: Word | None = None
    """The same and half the width of its 95 % interval: 0.83 ± 0.05. Absent where no try has an external
    score, and of a validation that was the last one again after a rollback."""
    baseline: Decimal | None = None
    """Mean reward at step 0, before training."""
    baseline_external_score: Decimal | None = None
    """Mean external score at step 0."""
    best: BestValidation | None = None
    """The best so far."""
    tasks: Annotated[list[TaskValidation], Field(max_length=33, default_factory=list)]
    """The last validation by task, where spec.data.validation.taskColumn names tasks."""


class Algorithm(StatusModel):
    """The objective as it runs: presets and defaults written out, and what remedies have changed in it."""

    loss: Word | None = None
    """Loss, as the spec names it: the ratio and the surrogate below."""
    advantage: Word | None = None
    """Advantage method."""
    normalize: Word | None = None
    """What advantages are divided by. Absent where the method does not ask."""
    gamma: Decimal | None = None
    """Discount of a turn's reward for each turn before it; of group_based_per_turn where
    turns have rewards. Absent where the method does not discount."""
    ratio: Word | None = None
    """What the ratio compares: tokens or sequences."""
    surrogate: Word | None = None
    """Surrogate loss of a token."""
    clip_low: Decimal | None = None
    """Lower bound of the ratio; 0 bounds nothing. Absent where the loss does not clip."""
    clip_high: Decimal | None = None
    """Upper bound of the ratio. Absent where the loss does not clip."""
    clip_dual: Decimal | None = None
    """Bound of the ratio where the advantage is negative. Absent: none."""
    correction: Word | None = None
    """Treatment of the gap between sampling and training probabilities."""
    correction_cap: Decimal | None = None
    """Its cap. Absent where it has none."""
    correction_floor: Decimal | None = None
    """Its floor. Absent where it has none."""
    reduction: Word | None = None
    """How token losses become one."""
    episode_tokens: Count | None = None
    """Tokens that an episode is planned to have, by which constant divides. Absent with other reductions."""
    denominator: Word | None = None
    """Groups that the reduction divides by: trained, or all."""
    kl_coefficient: Decimal | None = None
    """Weight of the divergence from the base model in the loss; 0 is none."""
    kl_estimator: Word | None = None
    """How it is estimated. Absent where it has no weight."""
    entropy_coefficient: Decimal | None = None
    """Weight of the entropy in the loss; 0 is none."""
    plugins: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Modules that the learner imported for functions of the user's own."""
    sampler: Word | None = None
    """Which finished group is trained next."""
    max_steps_off_policy: Count | None = None
    """Largest lag of a trained token, in steps."""
    batch_size: Count | None = None
    """Prompts of a training step."""
    group_size: Count | None = None
    """Episodes tried on each of them."""
    learning_rate: Decimal | None = None
    """Largest step size, reached after warm-up."""
    decay: Word | None = None
    """How the step size changes after that."""
    lora_rank: Count | None = None
    """Rank of the adapter. Absent where every weight is trained."""
    lora_alpha: Count | None = None
    """Its scale."""


class Checkpoint(StatusModel):
    """State of the learner in the artifact store. Only a learner reads it."""

    step: Count
    """Step it was taken after."""
    uri: Uri
    """Folder it lies in."""


class Weights(StatusModel):
    """Trained weights in the artifact store, ready to load and to serve."""

    step: Count
    """Step they are of."""
    uri: Uri
    """Folder in Hugging Face layout: a LoRA adapter, or the whole model where all of it was trained."""


class StartingWeights(StatusModel):
    """The weights of another job that this one starts from."""

    job: Word
    """The job that spec.model.warmStart named."""
    step: Count
    """Step of that job that they are of."""
    uri: Uri
    """Folder they lie in."""


class Checkpoints(StatusModel):
    """What there is to resume from and to serve."""

    latest: Checkpoint | None = None
    """The one a restart resumes from."""
    best: Weights | None = None
    """The weights that validated best, by external score, of those whose folder holds all of them: of full
    weights, a step that was to be the last may have none. Kept, as those of every validated step are. They
    are there to load and to serve; training resumes from latest only. Where the learner was
    rolled back they may have been trained anew after the validation that chose them."""
    adapter: Weights | None = None
    """The newest weights whose folder holds all of them; those of the last step when the job has ended."""


class Artifacts(StatusModel):
    """Where the results lie."""

    uri: Uri | None = None
    """The job's folder."""
    trajectories: Uri | None = None
    """Every episode, token by token."""
    ledger: Uri | None = None
    """Every usage event."""
    report: Uri | None = None
    """The report of the run."""
    page: Uri | None = None
    """The same as one HTML file, with curves and episodes; absent where it could not be written."""


class TestResult(StatusModel):
    """What one set of weights reached on the test split."""

    reward: Word | None = None
    """Mean reward with its 95 % interval."""
    external_score: Word | None = None
    """Mean external score."""
    success: Word | None = None
    """Share of tries that succeed."""


class Test(StatusModel):
    """The judgement on spec.data.test, made once after training."""

    step: Count
    """Step whose weights were judged: the best validated one, or the last without validation."""
    rows: Count
    """Rows of the test split."""
    tuned: TestResult
    """What they reached."""
    base: TestResult | None = None
    """What the weights from before training reached. Absent where those are not kept."""
    reward_difference: Word | None = None
    """How far the reward is ahead of the base's, row by row, with the 95 % interval and p."""
    external_score_difference: Word | None = None
    """How far the external score is."""


class RLTrainingJobStatus(StatusModel):
    """What has become of a training job."""

    observed_generation: Generation | None = None
    """metadata.generation of the spec this status is true of; -1 until the operator has seen the job."""
    state: State | None = None
    """The conditions in one word, for the printer column; judge by the conditions. Queued: somebody else,
    such as Kueue, has suspended one of its Jobs."""
    reason: Word | None = None
    """Reason of the condition that state comes from."""
    conditions: Annotated[
        list[Condition], Field(max_length=32, default_factory=list, json_schema_extra=list_map("type"))
    ]
    """What is so of the job."""
    start_time: datetime | None = None
    """When the operator first took the job up."""
    completion_time: datetime | None = None
    """When the job ended, well or badly."""
    suspended_seconds: Count | None = None
    """Seconds it was suspended, over all past suspensions; deadlines leave them out."""
    warm_start: StartingWeights | None = None
    """What spec.model.warmStart.job stood for when the job was taken up. It is not chosen again."""
    warnings: Annotated[list[Text], Field(max_length=24, default_factory=list)]
    """What seems unwise in the spec, and what to write instead. The job runs all the same."""
    progress: Progress | None = None
    """How far training has come."""
    reward: Reward | None = None
    """Rewards of the last trained batch."""
    validation: Validation | None = None
    """The last validation."""
    test: Test | None = None
    """The judgement on the test split, once it was made."""
    usage: Usage | None = None
    """What has been used, and its cost."""
    estimate: Estimate | None = None
    """What the whole job will use and cost."""
    budget: Budget | None = None
    """How far the job's budget is used up. Absent: it has none."""
    grant: Grant | None = None
    """What the RLBudget of the namespace lets the job use. Absent: there is none."""
    algorithm: Algorithm | None = None
    """The objective as it runs."""
    checkpoints: Checkpoints | None = None
    """What there is to resume from and to serve."""
    preflight: Preflight | None = None
    """The checks before the first gradient."""
    signals: Annotated[
        list[Signal],
        Field(max_length=SHOWN_MOST, default_factory=list, json_schema_extra=list_map("name")),
    ]
    """Signs that training goes wrong, the worst 16: those that are raised, then suspect ones, clear ones, and
    those of which too little is known; within each state in the order of docs/signals.md, the gravest first.
    The condition Healthy names every raised one, also those that find no room here."""
    pause: Pause | None = None
    """The last pause, where spec.collapse.policy is Pause. It is over once resumedPause is its time."""
    resumed_pause: datetime | None = None
    """Time of the last pause that a person has ended, by the annotation headway.dev/resume."""
    remediations: Annotated[list[Remediation], Field(max_length=8, default_factory=list)]
    """Changes made to the running job, the last eight."""
    remedy_order: RemedyOrder | None = None
    """What became of a person's order to change the job. Absent: there is none."""
    roles: Annotated[
        list[Role], Field(max_length=8, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """The job's pods, by role."""
    failures: Failures | None = None
    """What spec.failurePolicy.rules have decided. Absent: nothing yet."""
    accelerators: Accelerators | None = None
    """Accelerators that its pods hold and have held. Absent: none has yet."""
    rollout_replicas: Count | None = None
    """Rollout servers there are, for the scale subresource."""
    rollout_selector: Text | None = None
    """Label selector of the rollout servers, for the scale subresource."""
    artifacts: Artifacts | None = None
    """Where the results lie."""
    tracking: Tracking | None = None
    """Where metrics are tracked."""
