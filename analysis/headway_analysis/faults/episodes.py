"""Faults of what runs: environment, agent, and the processes of a job."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, Kind, Stage, in_preflight

ENTRYPOINT = "spec.environment.entrypoint: "

FAULTS: tuple[Fault, ...] = (
    in_preflight(
        "no-module",
        Kind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "The image has no module of the entrypoint's name.",
        ENTRYPOINT + "no_such_module:Desk cannot be imported: ModuleNotFoundError: No module named "
        "'no_such_module'",
        "Correct the name, or see that the file lies in `/environment` of the image.",
    ),
    in_preflight(
        "no-class",
        Kind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "The module has no class of the entrypoint's name.",
        ENTRYPOINT
        + "environment:ReturnDesk cannot be imported: AttributeError: ...; write environment:RefundDesk",
    ),
    in_preflight(
        "no-environment",
        Kind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "What the entrypoint names is no environment.",
        ENTRYPOINT
        + "environment:case_ids is not a subclass of headway_sandbox.environment.Environment; write "
        "environment:RefundDesk",
    ),
    in_preflight(
        "unknown-settings",
        Kind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "The environment takes no such settings.",
        "environment:RefundDesk refused spec.environment.config: ValueError: spec.environment.config: remove "
        "['shop'], the desk has no settings",
        "The environment's own words say what it takes.",
    ),
    in_preflight(
        "reward-out-of-range",
        Kind.ENVIRONMENT,
        "RewardOutOfRange",
        "The environment's reward lies outside the range that the job gives.",
        "spec.reward.range: the environment's reward is ..., outside spec.reward.range ...; correct the "
        "environment's reward, or the range",
    ),
    in_preflight(
        "reward-no-number",
        Kind.ENVIRONMENT,
        "RewardNotFinite",
        "The environment's reward is no number.",
        ENTRYPOINT + "reward is nan; return a finite number",
        "Find the division by zero, or the logarithm of zero, in the reward.",
    ),
    in_preflight(
        "program-not-in-image",
        Kind.AGENT,
        "AgentNotStarted",
        "The agent's program is not in the environment's image.",
        "spec.agent.sandboxed.command: desk-agent cannot be started in the environment's image: No such "
        "file or "
        "directory",
        "Copy the program into the image, or write its whole path.",
    ),
    Fault(
        "no-agent-there",
        Kind.AGENT,
        Stage.PREFLIGHT,
        "Nobody answers at the agent's address.",
        "spec.agent.http.service: ... does not answer; deploy the agent, or correct its address",
        "The job waits for it for `spec.pendingDeadlineSeconds`, as long as the agent may take to come up.",
        state="Pending",
        reason="AgentUnreachable",
        condition="Progressing",
        event="AgentUnreachable",
    ),
    Fault(
        "learner-out-of-memory",
        Kind.NODE,
        Stage.RUN,
        "The learner needs more memory than its limit.",
        "spec.learner.resources: container learner of pod ... was OOMKilled at its limit of ...; raise its "
        "memory (limits.memory)",
        state="Starting",
        reason="OutOfMemory",
        condition="LearnerReady",
        event="OutOfMemory",
        seconds=60,
    ),
    Fault(
        "server-out-of-memory",
        Kind.NODE,
        Stage.RUN,
        "A rollout server needs more memory than its limit.",
        "spec.rollout.resources: container rollout of pod ... was OOMKilled at its limit of ...; raise its "
        "memory (limits.memory)",
        state="Starting",
        reason="OutOfMemory",
        condition="RolloutReady",
        event="OutOfMemory",
        seconds=60,
    ),
    Fault(
        "out-of-time",
        Kind.MANIFEST,
        Stage.RUN,
        "The job has run for as long as it may.",
        "spec.activeDeadlineSeconds: the job has run for ... s; raise it in a new job, or lower "
        "spec.schedule.maxSteps",
        reason="ActiveDeadlineExceeded",
    ),
    Fault(
        "nothing-to-train",
        Kind.ENVIRONMENT,
        Stage.RUN,
        "Every episode of a group has the same reward, so nothing is learnt.",
        "0 of 2 groups had an advantage in 3 batches",
        "[NothingToTrain](signals.md#nothingtotrain) says what to change first.",
        state="Training",
        reason="NothingToTrain",
        condition="Healthy",
        event="SignalRaised",
        seconds=180,
    ),
)
