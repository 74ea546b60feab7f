"""What the platform answers: the `status` of both kinds.

Two writers share it, each with a field manager of its own and neither touching the other's fields
(`names.FIELD_MANAGER_OPERATOR`, `names.FIELD_MANAGER_COORDINATOR`). Nothing here is a source: numbers
are projections of the ledger and the step reports. Fractions are strings, as everywhere in Kubernetes.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field

from headway_api.base import StatusModel
from headway_api.conditions import Condition
from headway_api.failures import Failures
from headway_api.grants import Grant
from headway_api.held import Accelerators
from headway_api.preflight import Verdict
from headway_api.signals import SHOWN_MOST, SignalState
from headway_api.spec.types import Decimal, Money, Uri

State = Literal[
    "Pending",
    "Queued",
    "Starting",
    "Preflight",
    "Training",
    "Evaluating",
    "Suspending",
    "Suspended",
    "Restarting",
    "Stalled",
    "Complete",
    "Failed",
]
Count = Annotated[int, Field(ge=0)]
Generation = Annotated[int, Field(ge=-1)]
Text = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=128)]


def list_map(key: str) -> dict[str, Any]:
    """A list that two writers may each own entries of, told apart by `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def decimal(value: float, digits: int = 4) -> str:
    """A finite float as status shows it: fixed point, no trailing zeros."""
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


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
    baseline: Decimal | None = None
    """Mean reward at step 0, before training."""
    baseline_external_score: Decimal | None = None
    """Mean external score at step 0."""
    best: BestValidation | None = None
    """The best so far."""
    tasks: Annotated[list[TaskValidation], Field(max_length=33, default_factory=list)]
    """The last validation by task, where spec.data.validation.taskColumn names tasks."""


class Usage(StatusModel):
    """What the job has used and what that costs; the ledger in spec.output is the source."""

    prefill_tokens: Count = 0
    """Prompt tokens the servers computed."""
    cached_prefill_tokens: Count = 0
    """Prompt tokens the servers found in their cache."""
    sample_tokens: Count = 0
    """Tokens sampled."""
    train_tokens: Count = 0
    """Tokens of trained rows, context and action."""
    discarded_tokens: Count = 0
    """Tokens of episodes that were retried, or whose group was abandoned; uniform groups are billed."""
    evaluation_tokens: Count = 0
    """Tokens of validation episodes: of prompts, with what the servers had cached, and sampled."""
    endpoint_tokens: Count = 0
    """Tokens of prompts and answers at endpoints outside the job, as those count them."""
    judge_tokens: Count = 0
    """Tokens of questions to judges and of their answers, as their endpoints count them."""
    sandbox_seconds: Decimal | None = None
    """Seconds sandboxes were in use."""
    accelerator_seconds: Decimal | None = None
    """Seconds accelerators were held, one for each of them, until the coordinator ended; accelerators has
    those of pods that ended after it too. Absent: none were."""
    cost: Money | None = None
    """Cost so far by the price book, without the classes in unpriced."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that were used and have no price in the price book: what they cost is not known. Of
    judges, endpoints and candidates of other models, CLASS:MODEL."""
    currency: Literal["USD"] = "USD"
    """Currency of cost."""
    price_book: Word | None = None
    """Price book used, with the date it is of: NAME@DATE."""
    price_book_hash: Word | None = None
    """The first 12 digits of the SHA-256 of all that the price book says."""
    price_corrections: Count = 0
    """Times that a changed price book changed what had been used before. Each stands under prices/ of
    status.artifacts.uri, with the cost before and after."""
    price_book_problem: Text | None = None
    """Why what the ConfigMap holds now is not in force. Absent: it is, or there is none."""

    @computed_field(description="Prefill, sample and train tokens together, and no others.")  # type: ignore[prop-decorator]
    @property
    def total_tokens(self) -> Count:
        return self.prefill_tokens + self.sample_tokens + self.train_tokens


class Estimate(StatusModel):
    """What the whole job will use and cost, what is spent included. docs/estimate.md explains it."""

    basis: Literal["Data", "Preflight", "Running"]
    """What it is made from. Data: rows, prompts and limits. Preflight: the preflight's episodes, of a
    training job. Running: what is spent, and the episodes played so far. In training recent ones weigh
    more."""
    time: datetime
    """When this basis began; while the job runs, the figures go on with it."""
    low: Money | None = None
    """US dollars that it costs at least, under the assumptions of docs/estimate.md. Absent where nothing can
    be told; message says why."""
    likely: Money | None = None
    """What it is likely to cost."""
    high: Money | None = None
    """What it costs at most."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that are not in the cost: they have no price, or nobody knows how much of them."""
    price_book: Word | None = None
    """Price book used, with the date it is of: NAME@DATE."""
    prefill_tokens: Count = 0
    """Likely prompt tokens that the servers compute. This and the next are as in usage."""
    cached_prefill_tokens: Count = 0
    """Prompt tokens that the servers find in their cache."""
    sample_tokens: Count = 0
    """Tokens sampled."""
    train_tokens: Count = 0
    """Tokens of trained rows."""
    discarded_tokens: Count = 0
    """Tokens of episodes that are retried, or whose group is abandoned."""
    evaluation_tokens: Count = 0
    """Tokens of validation, test, preflight and evaluation episodes."""
    endpoint_tokens: Count = 0
    """Tokens at endpoints outside the job."""
    judge_tokens: Count = 0
    """Tokens of questions to judges and of their answers."""
    sandbox_seconds: Decimal | None = None
    """Seconds sandboxes are in use."""
    accelerator_seconds: Decimal | None = None
    """Seconds accelerators are held, of those that the spec asks for by name."""
    seconds: Count | None = None
    """Likely seconds from the first episode to the end. Absent before any was played."""
    episodes: Count = 0
    """Episodes that were measured for it."""
    message: Text | None = None
    """Why it says nothing, or no more than it does."""


class BudgetLimit(StatusModel):
    """One limit of spec.budget, or of what the namespace's RLBudget grants: US dollars, or tokens of a
    class."""

    name: Word
    """`usd`, or `tokens.` and the class; of a grant with `namespace.` before it."""
    limit: Word
    """The most that may be used."""
    spent: Word
    """What the ledger says was used."""
    reserved: Word
    """What runs may use beyond that, at worst."""
    left: Word
    """What neither is spent nor reserved."""
    needed: Word | None = None
    """The least limit with which the job goes on. Absent: this limit does not stop it."""
    wished: Word | None = None
    """Of a grant: what the job would use if it had it. Absent: it has enough."""


class Budget(StatusModel):
    """How far the limits of spec.budget, and what the namespace grants, are used up. docs/budget.md explains
    it."""

    limits: Annotated[
        list[BudgetLimit], Field(max_length=24, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """Each limit of spec.budget, and of the grant."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that usd does not bound, since they have no price in the price book."""
    exhausted_time: datetime | None = None
    """When it was found that nothing runs and nothing more fits. Absent: the job goes on."""
    closed: bool | None = None
    """Whether its coordinator has ended in order, so that nothing is used beyond what is said here. Absent:
    one runs, or may have ended without a word."""


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


class Check(StatusModel):
    """One check of the preflight."""

    name: Word
    """Which check."""
    passed: bool
    """Whether it passed."""
    warning: bool = False
    """It passed, and its message says what a person should look at all the same."""
    message: Text = ""
    """The numbers, and what to change where it failed."""
    field: Annotated[str, Field(max_length=256)] | None = None
    """Field of the spec to change."""


class PreflightFinding(StatusModel):
    """What a check of baseline episodes came to."""

    check: Word
    """Which check; docs/preflight.md explains each."""
    verdict: Verdict
    """Unknown: too few episodes to tell, or what it needs was not given."""
    value: Word | None = None
    """The number that is judged, with its 95 % interval where it has one."""
    threshold: Word | None = None
    """What it is held against."""
    message: Text = ""
    """What was seen, and what to change where something is wrong."""
    field: Annotated[str, Field(max_length=256)] | None = None
    """Field of the spec to change."""


class Preflight(StatusModel):
    """The checks before the first gradient."""

    state: Literal["Pending", "Running", "Sampling", "Passed", "Warned", "Failed", "Skipped"] = "Pending"
    """Where they stand. Sampling: the untrained model samples episodes on one rollout server. Warned: a check
    failed that the spec has only warn."""
    checks: Annotated[list[Check], Field(max_length=32, default_factory=list)]
    """Result of each check that needs no episodes."""
    episodes: Count | None = None
    """Baseline episodes that have ended."""
    wanted_episodes: Count | None = None
    """Baseline episodes that the checks are to judge. Fewer where a failure was certain before."""
    findings: Annotated[list[PreflightFinding], Field(max_length=16, default_factory=list)]
    """What the checks of baseline episodes came to: what failed first, then warnings, then what is not
    known."""
    summary: Word | None = None
    """How many of them failed, warned, are not known and passed, and whether an earlier run found it."""
    waits_for: Check | None = None
    """The check that cannot be made yet, for want of a sandbox or an agent, and why."""


class Role(StatusModel):
    """The pods of one role."""

    name: Word
    """learner, rollout, coordinator, broker or judge."""
    desired: Count = 0
    """Pods wanted."""
    ready: Count = 0
    """Pods ready."""
    restarts: Count = 0
    """Restarts after failures; disruptions do not count."""
    message: Text | None = None
    """What keeps it from being ready, in the API's own words."""


class Signal(StatusModel):
    """A sign that training goes wrong."""

    name: Word
    """Which one; docs/signals.md explains each."""
    state: SignalState
    """Suspect: over its threshold, not yet for long. Raised: for long enough. Unknown: too few steps say
    anything."""
    since: Count = 0
    """Step since which it is in this state."""
    value: Word | None = None
    """The figure that is judged, with its 95 % interval where it has one."""
    threshold: Word | None = None
    """What it is held against."""
    message: Text = ""
    """What was seen, and the first thing to change."""


class Pause(StatusModel):
    """Training was stopped at a sign of collapse, and waits for a person."""

    signal: Word
    """The sign it was stopped for, the gravest one."""
    signals: Annotated[list[Word], Field(max_length=32, default_factory=list)]
    """Signs of spec.collapse.signals that were raised then, or before the pods were gone. The job does not
    stop for them again unless they are cleared and raised anew."""
    step: Count
    """The newest step that was taken."""
    time: datetime
    """When it was stopped. Names the pause: a step may come a second time."""
    message: Text = ""
    """What was seen, with the numbers, and the first thing to change."""
    resume: Text = ""
    """The command that has the job go on."""


RemedyState = Literal["Watching", "Kept", "Undone", "Replaced", "Refused"]
"""What became of a remedy; `Remediation.state` explains each."""


class RemedyFigures(StatusModel):
    """How a job did at a moment."""

    reward: Word | None = None
    """Mean training reward of the last steps, at most ten, with its 95 % interval."""
    steps: Count | None = None
    """How many steps."""
    validated_step: Count | None = None
    """Step of the newest validation. Of the figures after a remedy: of those made since."""
    external_score: Decimal | None = None
    """Its external score."""


class Remediation(StatusModel):
    """A change that was made to the running job: against a sign of collapse, or since a person ordered it."""

    number: Count
    """Which change of the job; those that the learner refused count too."""
    step: Count
    """The step it was made as: nothing was trained in it."""
    remedy: Word
    """Which remedy; docs/remedies.md explains each."""
    signal: Word | None = None
    """Sign of collapse that it is meant against. Absent where a person ordered it."""
    order: Word | None = None
    """The annotation by which a person ordered it."""
    action: Text
    """What was changed, in words of the spec."""
    state: RemedyState
    """Watching: for 25 steps. Kept: it stays. Undone: it was taken back. Replaced: another one was taken
    before its watch was over; what it changed stays. Refused: the learner could not do it."""
    restored_step: Count | None = None
    """The step whose weights the job went back to."""
    watched_until: Count | None = None
    """The last step of the watch. Absent while it is watched."""
    before: RemedyFigures | None = None
    """How the job did when it was decided."""
    after: RemedyFigures | None = None
    """How it did when the watch ended."""
    message: Text = ""
    """What was seen when it was decided; then why it was kept, taken back, replaced or refused."""


class RemedyOrder(StatusModel):
    """What became of the newest order of a person's, the annotation headway.dev/remedy."""

    order: Word
    """Its text. The same text is carried out once; NAME@2 repeats it."""
    state: Literal["Waiting", "Taken", "Refused"]
    """Waiting: the learner is in the middle of a step, or a validation holds it up. Taken: it is in
    remediations. Refused: it does not apply, or the learner could not do it."""
    step: Count | None = None
    """The step it was made as, or after which it was refused."""
    message: Text | None = None
    """Why it was refused."""


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


class MlflowRun(StatusModel):
    """The run in MLflow."""

    experiment_id: Word
    """Id of the experiment."""
    run_id: Word
    """Id of the run."""
    url: Text | None = None
    """Address of the run's page in MLflow's user interface."""


class Tracking(StatusModel):
    """Where metrics are tracked."""

    mlflow: MlflowRun | None = None
    """The run in MLflow."""


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


class ResolvedCandidate(StatusModel):
    """What a candidate of the spec stands for. Chosen once, when the job is taken up, and kept."""

    name: Word
    """Name of the candidate in the results."""
    kind: Literal["Model", "Adapter", "Weights", "Endpoint", "Rescore"]
    """Model: a model as it comes. Adapter: a LoRA adapter on its base model. Weights: every weight of a
    trained model. Endpoint: a model served elsewhere. Rescore: stored episodes."""
    base: Uri | None = None
    """Model that the servers load. Absent for Endpoint and Rescore."""
    revision: Word | None = None
    """Revision of it."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Number format of its weights."""
    context_length: Count | None = None
    """Most tokens of one episode. Absent: the model's own limit."""
    lora_rank: Count | None = None
    """Rank of the adapter."""
    job: Word | None = None
    """The training job that made the weights."""
    step: Count | None = None
    """Step of that job that they are of."""
    uri: Uri | None = None
    """Folder they lie in."""
    server_set: Count | None = None
    """Set of rollout servers that samples for it."""
    lost_reason: Word | None = None
    """Why its servers were given up, in one word. Absent: they were not."""
    lost_message: Text | None = None
    """Why its servers were given up, in the API's own words."""


class Interval(StatusModel):
    """A figure with its 95 % confidence interval."""

    value: Decimal
    """The figure."""
    low: Decimal | None = None
    """Lower bound. Absent where there are too few rows to tell."""
    high: Decimal | None = None
    """Upper bound."""


class Difference(StatusModel):
    """The difference to the baseline candidate, pair by pair."""

    baseline: Word
    """The candidate compared with."""
    value: Decimal | None = None
    """Mean paired difference of the external score. Absent where there are too few pairs to tell."""
    low: Decimal | None = None
    """Lower bound of its 95 % confidence interval."""
    high: Decimal | None = None
    """Upper bound."""
    p: Decimal | None = None
    """p-value of the sign-flip permutation test, corrected for the number of candidates (Holm)."""


class SuiteResult(StatusModel):
    """What a candidate reached in a suite."""

    name: Word
    """The suite."""
    score: Word
    """External score and half the width of its interval: 0.83 ± 0.05."""


class CandidateResult(StatusModel):
    """What a candidate reached."""

    name: Word
    """The candidate."""
    state: Literal["Pending", "Running", "Complete", "Failed"] = "Pending"
    """Where it stands."""
    reason: Word | None = None
    """Why it failed, in one word."""
    message: Text | None = None
    """Why it failed: the field and the fix. Then what an endpoint refused or did not count, and what has no
    price."""
    rows: Count = 0
    """Rows of spec.data measured. The figures below but cost are of these, and of no suite."""
    tries: Count = 0
    """Tries that were scored."""
    infra_errors: Count = 0
    """Tries that a part of the platform failed for good. They are in no mean."""
    reward: Interval | None = None
    """Mean reward."""
    external_score: Interval | None = None
    """Mean external score."""
    success: Interval | None = None
    """Share of tries that succeeded by the external score."""
    difference: Difference | None = None
    """Against the baseline candidate. Absent for the baseline itself."""
    cost: Money | None = None
    """Cost of its tokens and sandboxes by the price book. Absent where part of it is not known; message says
    why."""
    score: Word | None = None
    """External score and half the width of its interval, for the printer column: 0.83 ± 0.05."""
    suites: Annotated[
        list[SuiteResult], Field(max_length=4, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """What it reached in the suites."""


class GateResult(StatusModel):
    """How the gate was decided."""

    result: Literal["Pending", "Passed", "Refused", "TooFewRows", "Error"] = "Pending"
    """Whether it lets through. TooFewRows, Refused and Error do not. Error: it names what has no results."""
    message: Text = ""
    """The numbers compared."""


class EvalProgress(StatusModel):
    """How far an evaluation has come."""

    groups: Count = 0
    """Rows done, over all candidates; a suite's sample is a row too."""
    of_groups: Count | None = None
    """Rows to do, over all candidates that can be measured."""
    server_sets: Annotated[list[Count], Field(max_length=8, default_factory=list)]
    """Sets of rollout servers that are needed now; the others are released."""
    updated_time: datetime | None = None
    """When anything last went forward."""
    stalled: Text | None = None
    """Why nothing has gone forward for a while, naming the part it waits for. Absent while it does."""


class Headline(StatusModel):
    """The result in a line, for the printer columns."""

    candidate: Word | None = None
    """The gate's candidate; without a gate the one with the best external score."""
    score: Word | None = None
    """Its external score and half the width of the interval."""


class EvalArtifacts(StatusModel):
    """Where the results lie."""

    uri: Uri | None = None
    """The job's folder."""
    trajectories: Uri | None = None
    """Every episode, token by token."""
    ledger: Uri | None = None
    """Every usage event."""
    results: Uri | None = None
    """The table of candidate x row x try."""
    report: Uri | None = None
    """The report as JSON; report.md beside it is for people."""
    page: Uri | None = None
    """The same as one HTML file, with episodes; absent where it could not be written."""
    logs: Uri | None = None
    """Folder of the Inspect logs, one of each candidate."""


class RLEvalJobStatus(StatusModel):
    """What has become of an evaluation job."""

    observed_generation: Generation | None = None
    """metadata.generation of the spec this status is true of; -1 until the operator has seen the job."""
    state: State | None = None
    """The conditions in one word, for the printer column."""
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
    candidates: Annotated[
        list[ResolvedCandidate],
        Field(max_length=16, default_factory=list, json_schema_extra=list_map("name")),
    ]
    """What each candidate of the spec stands for. It is not chosen again."""
    progress: EvalProgress | None = None
    """How far the evaluation has come."""
    results: Annotated[
        list[CandidateResult], Field(max_length=16, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """What each candidate reached."""
    gate: GateResult | None = None
    """How the gate was decided."""
    headline: Headline | None = None
    """The result in a line."""
    usage: Usage | None = None
    """What has been used, and its cost."""
    estimate: Estimate | None = None
    """What the whole evaluation will use and cost."""
    budget: Budget | None = None
    """How far the job's budget is used up. Absent: it has none."""
    grant: Grant | None = None
    """What the RLBudget of the namespace lets the job use. Absent: there is none."""
    preflight: Preflight | None = None
    """The checks before the first episode."""
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
    artifacts: EvalArtifacts | None = None
    """Where the results lie."""
    tracking: Tracking | None = None
    """Where metrics are tracked."""
