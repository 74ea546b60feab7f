"""Defines a fault: what is wrong, what is seen, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

SOON = 30
"""Seconds within which most faults are reported."""
VARIES = "..."
"""In a message: what differs from job to job."""


class FaultKind(StrEnum):
    """The part of a job that has the fault. The value is its heading."""

    MANIFEST = "The manifest"
    DATA = "Data"
    IMAGE = "Images"
    ENVIRONMENT = "The environment"
    AGENT = "The agent"
    MODEL = "The model"
    STORE = "The object store"
    NETWORK = "The network"
    QUOTA = "Quotas and limits"
    NODE = "Nodes"
    CREDENTIALS = "Credentials and accounts"
    WEIGHTS = "Weights and checkpoints"


class Stage(StrEnum):
    """How far a job comes before the fault is seen."""

    APPLY = "apply"
    """The API server refuses it."""
    SPEC = "spec"
    """The operator creates no object for it."""
    PREFLIGHT = "preflight"
    """Its checks end it, before accelerators are asked for."""
    RUN = "run"
    """It waits for its pods, or runs."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, for one reason."""

    name: str
    """Short and stable, of lower-case words with hyphens."""
    kind: FaultKind
    stage: Stage
    wrong: str
    """What is wrong, as one sentence."""
    says: str
    """What the condition, the event or `kubectl apply` says, with field, cause and fix. `...` stands for what
    differs."""
    advice: str = ""
    """What to do, if the end of the message does not say all of it; else empty."""
    state: str = "Failed"
    """Column STATE. A fault at apply has none."""
    reason: str = ""
    """Column REASON, and the reason of the condition."""
    condition: str = "Failed"
    """Type of the condition that says it."""
    event: str = "Failed"
    """Reason of the event."""
    seconds: int = SOON
    """From the cause until it is reported."""

    @property
    def fix(self) -> str:
        """What to do, as a sentence."""
        words = self.says.rpartition("; ")[2]
        return self.advice or f"{words[:1].upper()}{words[1:]}."

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds what is said in a condition's or event's message."""
        parts = (re.escape(part) for part in self.says.split(VARIES))
        return re.compile(".*?".join(parts), re.DOTALL)


def at_apply(name: str, kind: FaultKind, wrong: str, says: str, advice: str = "") -> Fault:
    """A fault that the API server refuses: nothing is created."""
    return Fault(
        name, kind, Stage.APPLY, wrong, says, advice, state="", reason="", condition="", event="", seconds=1
    )


def in_spec(name: str, kind: FaultKind, wrong: str, says: str, advice: str = "") -> Fault:
    """A fault that the operator refuses, before it makes anything of the job."""
    return Fault(
        name,
        kind,
        Stage.SPEC,
        wrong,
        says,
        advice,
        state="Stalled",
        reason="InvalidSpec",
        condition="Accepted",
        event="InvalidSpec",
    )


def in_preflight(name: str, kind: FaultKind, reason: str, wrong: str, says: str, advice: str = "") -> Fault:
    """A fault that ends the job in its preflight."""
    return Fault(name, kind, Stage.PREFLIGHT, wrong, says, advice, reason=reason)


def retried(
    name: str, kind: FaultKind, reason: str, wrong: str, says: str, advice: str = "", seconds: int = SOON
) -> Fault:
    """A fault of the preflight that may pass, so a process is started again spec.failurePolicy.maxRestarts
    times."""
    return Fault(
        name,
        kind,
        Stage.PREFLIGHT,
        wrong,
        says,
        advice,
        state="Pending",
        reason=reason,
        condition="Progressing",
        event=reason,
        seconds=seconds,
    )
