"""Why an episode did not go through, as exceptions: they become outcomes in `episode.py` and nowhere else."""

from __future__ import annotations


class InfraFault(Exception):
    """A part of the platform failed; the episode is tried again and never scored."""


class AgentFault(Exception):
    """The agent itself failed; the environment scores the episode as unfinished, if the model took a turn."""


class PermanentFault(InfraFault):
    """The failing part says that asking again cannot help; `reason` and `field` are in its own words."""

    def __init__(self, message: str, reason: str, field: str | None) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field


class CandidateFault(Exception):
    """A candidate of an evaluation cannot be measured, and asking again cannot help.

    The other candidates go on. `field` and the message name what to change.
    """

    def __init__(self, reason: str, message: str, field: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field

    @property
    def sentence(self) -> str:
        """As a status shows it."""
        return f"{self.field}: {self}"
