"""What the checks found before training."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.preflight import Verdict
from headway_api.status.common import Count, Text, Word


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
