"""Faults of the environment's own code."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, FaultKind, Stage, in_preflight

ENTRYPOINT = "spec.environment.entrypoint: "

FAULTS: tuple[Fault, ...] = (
    in_preflight(
        "no-module",
        FaultKind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "The image has no module of the entrypoint's name.",
        ENTRYPOINT + "no_such_module:Desk cannot be imported: ModuleNotFoundError: No module named "
        "'no_such_module'",
        "Correct the name, or put the file into `/environment` of the image.",
    ),
    in_preflight(
        "no-class",
        FaultKind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "The module has no class of the entrypoint's name.",
        ENTRYPOINT
        + "environment:ReturnDesk cannot be imported: AttributeError: ...; write environment:RefundDesk",
    ),
    in_preflight(
        "no-environment",
        FaultKind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "The entrypoint does not name an environment class.",
        ENTRYPOINT
        + "environment:case_ids is not a subclass of headway_sandbox.environment.Environment; write "
        "environment:RefundDesk",
    ),
    in_preflight(
        "unknown-settings",
        FaultKind.ENVIRONMENT,
        "EnvironmentNotImportable",
        "The environment does not accept these settings.",
        "environment:RefundDesk refused spec.environment.config: ValueError: spec.environment.config: remove "
        "['shop'], the desk has no settings",
        "Correct `spec.environment.config`: the environment's own message says what it accepts.",
    ),
    in_preflight(
        "reward-out-of-range",
        FaultKind.ENVIRONMENT,
        "RewardOutOfRange",
        "The environment's reward is outside the range of the job.",
        "spec.reward.range: the environment's reward is ..., outside spec.reward.range ...; correct the "
        "environment's reward, or the range",
    ),
    in_preflight(
        "reward-no-number",
        FaultKind.ENVIRONMENT,
        "RewardNotFinite",
        "The environment's reward is not a finite number.",
        ENTRYPOINT + "reward is nan; return a finite number",
        "Find the division by zero, or the logarithm of zero, in the reward.",
    ),
    in_preflight(
        "program-not-in-image",
        FaultKind.AGENT,
        "AgentNotStarted",
        "The agent's program is not in the environment's image.",
        "spec.agent.sandboxed.command: desk-agent cannot be started in the environment's image: No such "
        "file or directory",
        "Copy the program into the image, or write its full path.",
    ),
    Fault(
        "no-agent-there",
        FaultKind.AGENT,
        Stage.PREFLIGHT,
        "Nothing answers at the agent's address.",
        "spec.agent.http.service: ... does not answer; deploy the agent, or correct its address",
        "Deploy the agent, or correct its address. The job waits `spec.pendingDeadlineSeconds` for it.",
        state="Pending",
        reason="AgentUnreachable",
        condition="Progressing",
        event="AgentUnreachable",
    ),
    in_preflight(
        "reset-raises",
        FaultKind.ENVIRONMENT,
        "ResetFailed",
        "The environment cannot begin an episode.",
        ENTRYPOINT + "reset raised KeyError: 'shop' (...",
        "Correct the line that the message names; a row may lack a column that the environment reads.",
    ),
    in_preflight(
        "reward-raises",
        FaultKind.ENVIRONMENT,
        "RewardFailed",
        "The environment cannot judge an episode without an answer.",
        ENTRYPOINT + "reward raised ZeroDivisionError: no fields to judge (...",
        "Correct the line that the message names; an episode may end without an answer.",
    ),
)
