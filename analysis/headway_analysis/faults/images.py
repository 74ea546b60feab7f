"""Faults of container images."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, FaultKind, Stage, in_preflight

IMAGE = "spec.environment.image: "

FAULTS: tuple[Fault, ...] = (
    in_preflight(
        "no-image-name",
        FaultKind.IMAGE,
        "ImagePullFailed",
        "The image's name is not valid.",
        IMAGE + "pod ... has no image Headway/Environment:1: InvalidImageName...; write it as "
        "REGISTRY/NAME:TAG, the name in lower case",
    ),
    Fault(
        "no-registry",
        FaultKind.IMAGE,
        Stage.PREFLIGHT,
        "The image's registry is not known, or does not answer.",
        IMAGE
        + "pod ... has no image headway.invalid/no-such-environment:1: ...; correct the registry's name, "
        "or let the nodes reach it; the pull is retried",
        "Correct the registry's name, or let the nodes reach it.",
        state="Pending",
        reason="ImagePullFailed",
        condition="Progressing",
        event="ImagePullFailed",
    ),
    Fault(
        "image-not-loaded",
        FaultKind.IMAGE,
        Stage.PREFLIGHT,
        "The image is not on the node, and the pull policy forbids a pull.",
        IMAGE + "pod ... has no image localhost/headway/absent:dev: ErrImageNeverPull: ...; load it onto the "
        "node, or have it pulled: imagePullPolicy IfNotPresent",
        "Load the image onto the node, or write `spec.environment.imagePullPolicy: IfNotPresent`.",
        state="Pending",
        reason="ImagePullFailed",
        condition="Progressing",
        event="ImagePullFailed",
    ),
    Fault(
        "image-without-server",
        FaultKind.IMAGE,
        Stage.PREFLIGHT,
        "The environment's image is not made from Headway's sandbox image.",
        IMAGE + "5 sandboxes in a row ended before any answered; the last: ...; build it on Headway's "
        "sandbox image, with python3 and what the environment imports",
        reason="SandboxEnded",
    ),
)
