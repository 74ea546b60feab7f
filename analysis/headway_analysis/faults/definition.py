"""Defines a fault: what is wrong, what is seen, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

SOON = 30
"""Seconds within which most faults are reported."""
VARIES = "..."
"""Stands for the parts of a message that differ from job to job."""


class FaultKind(StrEnum):
    """The part of a job that has the fault. The value is the heading of its section in the page."""

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
    """The API server refuses the job."""
    SPEC = "spec"
    """The operator creates no object for the job."""
    PREFLIGHT = "preflight"
    """The preflight ends the job, before accelerators are requested."""
    RUN = "run"
    """The job waits for its pods, or runs."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, for one reason."""

    name: str
    """A short and stable name of lower-case words with hyphens."""
    kind: FaultKind
    stage: Stage
    wrong: str
    """What is wrong, as one sentence."""
    says: str
    """The message of the condition, the event or `kubectl apply`, with field, cause and fix. `...` stands for
    parts that differ from job to job."""
    advice: str = ""
    """What to do; empty if the part of the message after its last semicolon says all of it."""
    state: str = "Failed"
    """Column STATE of `kubectl get`; empty for a fault at apply."""
    reason: str = ""
    """Column REASON of `kubectl get`, and the condition's reason."""
    condition: str = "Failed"
    """Type of the condition that has the message."""
    event: str = "Failed"
    """Reason of the event that has the message."""
    seconds: int = SOON
    """Seconds from the cause until the fault is reported."""

    @property
    def fix(self) -> str:
        """What to do, as a sentence."""
        words = self.says.rpartition("; ")[2]
        return self.advice or f"{words[:1].upper()}{words[1:]}."

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds `says` in the message of a condition or an event."""
        parts = (re.escape(part) for part in self.says.split(VARIES))
        return re.compile(".*?".join(parts), re.DOTALL)


def at_apply(name: str, kind: FaultKind, wrong: str, says: str, advice: str = "") -> Fault:
    """A fault at which the API server refuses the job, so nothing is created."""
    return Fault(
        name, kind, Stage.APPLY, wrong, says, advice, state="", reason="", condition="", event="", seconds=1
    )


def in_spec(name: str, kind: FaultKind, wrong: str, says: str, advice: str = "") -> Fault:
    """A fault at which the operator refuses the job before it creates any object for it."""
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
    """A fault of the preflight that may pass, so the process is restarted up to
    spec.failurePolicy.maxRestarts times."""
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
