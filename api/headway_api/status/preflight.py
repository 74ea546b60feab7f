"""What the checks found before training."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.field_types import Count, Word
from headway_api.preflight import Verdict
from headway_api.status.common import Text


class Check(StatusModel):
    """One check of the preflight."""

    name: Word
    """Name of the check."""
    passed: bool
    """Whether it passed."""
    warning: bool = False
    """Whether it passed with a message that a person should read."""
    message: Text = ""
    """The numbers and, if it failed, what to change."""
    field: Annotated[str, Field(max_length=256)] | None = None
    """Field of the spec to change."""


class PreflightFinding(StatusModel):
    """Result of a check of baseline episodes."""

    check: Word
    """Name of the check; docs/preflight.md explains each."""
    verdict: Verdict
    """Unknown: too few episodes to tell, or something that the check needs is missing."""
    value: Word | None = None
    """The number that is judged, with its 95 % interval if it has one."""
    threshold: Word | None = None
    """What the number is compared with."""
    message: Text = ""
    """What was observed and, if necessary, what to change."""
    field: Annotated[str, Field(max_length=256)] | None = None
    """Field of the spec to change."""


class Preflight(StatusModel):
    """The checks before the first gradient."""

    state: Literal["Pending", "Running", "Sampling", "Passed", "Warned", "Failed", "Skipped"] = "Pending"
    """State of the checks. Sampling: the untrained model samples episodes on one rollout server. Warned: a
    check with the policy Warn failed."""
    checks: Annotated[list[Check], Field(max_length=32, default_factory=list)]
    """Result of each check that needs no episodes."""
    episodes: Count | None = None
    """Baseline episodes that have ended."""
    wanted_episodes: Count | None = None
    """Baseline episodes that the checks need, or fewer if a failure was certain earlier."""
    findings: Annotated[list[PreflightFinding], Field(max_length=16, default_factory=list)]
    """Results of the checks of baseline episodes: failures first, then warnings, then unknown ones."""
    summary: Word | None = None
    """How many checks of baseline episodes failed, warned, are unknown and passed, and whether the result is
    from an earlier run."""
    waits_for: Check | None = None
    """The check that cannot run yet because a sandbox or an agent is missing, and why."""
