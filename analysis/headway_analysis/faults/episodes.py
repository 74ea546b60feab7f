"""Faults of the environment's own code."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, Kind, in_preflight

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
        "reward-out-of-range",
        Kind.ENVIRONMENT,
        "RewardOutOfRange",
        "The environment's reward lies outside the range that the job gives.",
        "spec.reward.range: the environment's reward is ..., outside spec.reward.range ...; correct the "
        "environment's reward, or the range",
    ),
)
