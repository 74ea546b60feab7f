"""How the learner runs and takes steps: processes, DeepSpeed, the optimizer, how long it trains, what is
kept."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import PodTemplate, Resources, at_most
from headway_api.rules import Rule
from headway_api.spec.weights import WeightsSpec

Beta = Annotated[float, Field(ge=0), at_most("spec.optimizer.betas", 0.99999)]


class DeepSpeed(SpecModel):
    """How DeepSpeed spreads the training state over the processes."""

    validations = (
        Rule(
            "self.offload == 'none' || self.zeroStage >= 1",
            "spec.learner.deepspeed.offload: cpu needs zeroStage 1, 2 or 3; raise it, or use offload: none",
            lambda self: self.offload == "none" or self.zero_stage >= 1,
            "offload",
        ),
    )

    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    """ZeRO stage. 0 spreads nothing (float32 only), 1 spreads optimizer state, 2 also gradients, 3 also
    weights. The stage cannot change when a job resumes."""
    offload: Literal["none", "cpu"] = "none"
    """Where the optimizer state is kept and its step is computed: none on the accelerator, cpu on the CPU."""


class LearnerSpec(SpecModel):
    """The processes that train."""

    mutable = frozenset({"nodes", "processes_per_node", "termination_grace_period_seconds"})

    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Learner pods. May be changed while the job is suspended; it resumes from its checkpoint."""
    processes_per_node: Annotated[int, Field(ge=1, le=16)] = 1
    """Training processes in each pod, one for each accelerator. May be changed while the job is suspended."""
    deepspeed: DeepSpeed = DeepSpeed()
    """DeepSpeed's settings."""
    micro_batch_tokens: Annotated[int, Field(ge=16, le=1048576)] | None = None
    """Tokens that go through the model at once; a longer row goes alone. More tokens need more memory, and
    the result is the same up to rounding. Absent: 16384 on an accelerator, 4096 without."""
    activation_checkpointing: bool | None = None
    """true computes activations again in the backward pass instead of keeping them: a third more work, and
    memory hardly grows with tokens. Absent: true on an accelerator, false without."""
    weights: WeightsSpec = WeightsSpec()
    """How new weights reach the rollout servers."""
    resources: Resources | None = None
    """Resources of one learner pod. Absent: the operator's default and, if the cluster has GPUs, one GPU for
    each process."""
    termination_grace_period_seconds: Annotated[int, Field(ge=30, le=7200)] = 300
    """Seconds that a learner pod has, after the signal to stop, to end its step and make it durable. A pod
    with nothing to save ends at once. Allow for a step and two uploads of a checkpoint: an earlier upload may
    still be running. May be changed while the job is suspended."""
    pod_template: PodTemplate | None = None
    """Fragment of a PodTemplateSpec (nodeSelector, tolerations, ...), merged over the platform's template.
    Containers, volumes and variables merge by name; tolerations are added."""

    @property
    def world_size(self) -> int:
        """Number of training processes, over all pods."""
        return self.nodes * self.processes_per_node

    def recomputes_activations(self, *, accelerated: bool) -> bool:
        """Whether the learner computes activations again in the backward pass."""
        return accelerated if self.activation_checkpointing is None else self.activation_checkpointing


class RateSchedule(SpecModel):
    """How the step size changes after warm-up, in optimizer steps."""

    validations = (
        Rule(
            "self.decay != 'constant' || (!has(self.decaySteps) && !has(self.finalShare))",
            "spec.optimizer.schedule: decaySteps and finalShare have no effect with decay: constant; remove "
            "them, or use linear or cosine",
            lambda self: self.decay != "constant" or (self.decay_steps is None and self.final_share is None),
            "decay",
        ),
    )

    decay: Literal["constant", "linear", "cosine"] = "constant"
    """constant keeps learningRate. linear lowers it along a line, and cosine along half a cosine, to
    finalShare of learningRate."""
    decay_steps: Annotated[int, Field(ge=1, le=1000000)] | None = None
    """Optimizer steps, warm-up included, after which the step size stays at finalShare. Absent:
    spec.schedule.maxSteps x spec.algorithm.updatesPerBatch; this default changes when maxSteps is raised."""
    final_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of learningRate that is left at the end. Absent: 0."""


class OptimizerSpec(SpecModel):
    """Settings of AdamW."""

    validations = (
        Rule(
            "!has(self.schedule.decaySteps) || self.schedule.decaySteps > self.warmupSteps",
            "spec.optimizer.schedule.decaySteps must be above warmupSteps, which it includes; raise it, or "
            "lower warmupSteps",
            lambda self: self.schedule.decay_steps is None or self.schedule.decay_steps > self.warmup_steps,
            "schedule",
        ),
    )

    learning_rate: Annotated[
        float,
        Field(ge=0),
        at_most("spec.optimizer.learningRate", 0.01),
        Rule("self > 0.0", "spec.optimizer.learningRate must be above 0", lambda value: value > 0),
    ] = 4e-5
    """Largest step size, reached after warm-up; at most 0.01. Some models need less (1e-5). Full weights need
    a tenth of what LoRA needs."""
    warmup_steps: Annotated[int, Field(ge=0, le=1000)] = 5
    """Optimizer steps over which the step size grows from 0."""
    schedule: RateSchedule = RateSchedule()
    """How the step size changes after warm-up."""
    betas: Annotated[tuple[Beta, ...], Field(min_length=2, max_length=2)] = (0.9, 0.95)
    """Decay of the running mean and of the running square of the gradient, each at most 0.99999."""
    eps: Annotated[float, Field(ge=1e-12), at_most("spec.optimizer.eps", 0.001)] = 1e-8
    """Number that AdamW adds to its denominator; at most 0.001."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Decoupled weight decay."""
    gradient_clip: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Largest norm of the gradient; a larger gradient is scaled down to it. 0: no clipping."""


class ScheduleSpec(SpecModel):
    """When the job is done: at the first limit that it reaches."""

    mutable = frozenset({"max_steps"})
    validations = (
        Rule(
            "self.maxSteps >= oldSelf.maxSteps",
            "spec.schedule.maxSteps may only grow; suspend the job to stop it earlier",
            lambda self: True,
            "maxSteps",
        ),
    )

    max_steps: Annotated[int, Field(ge=1, le=100000)] = 50
    """Training steps. May be raised while the job is suspended. Give a change 25 to 50 steps before you judge
    it."""
    max_epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """Maximum epochs of the training rows."""


class CheckpointsSpec(SpecModel):
    """What is kept under spec.output.uri to resume from and to serve."""

    mutable = frozenset({"every_steps", "keep_last", "keep_best"})

    every_steps: Annotated[int, Field(ge=1, le=1000)] = 1
    """Steps between resumable checkpoints. After a crash, the learner repeats the steps since the last
    checkpoint, from the same episodes. The learner also makes a checkpoint before it stops on request, and at
    the last step. It publishes weights at every step. With the weights backends delta and nccl, each
    checkpointed step also gets a whole Hugging Face model, unless everySteps is 1. May be changed while the
    job is suspended."""
    keep_last: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of latest resumable checkpoints to keep; older ones are deleted. May be changed while the job is
    suspended."""
    keep_best: Annotated[int, Field(ge=0, le=10)] = 1
    """Number of checkpoints of the best validated steps, by external score, to keep besides the latest. May
    be changed while the job is suspended."""
