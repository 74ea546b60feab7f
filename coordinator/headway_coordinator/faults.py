"""The reasons for which an episode fails, as exceptions. Only `episode.py` turns them into outcomes.

Only a `CandidateError` belongs to no episode: it passes through `episode.py` and `group.py` to the code
that runs the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """The part of the job that failed: its environment or its agent."""

    reason: str
    """One word, such as ToolFailed."""
    message: str
    """What failed, if the part said it: method or tool, exception, file and line."""
    field: str | None
    """Field of the spec that names the part."""


class InfraError(Exception):
    """The episode proves nothing about the model: it is retried and never scored.

    `cause`: the part of the job that failed; None if a part of the platform failed.
    """

    def __init__(self, message: str = "", cause: Cause | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class AgentError(Exception):
    """The agent itself failed; the environment scores the episode as unfinished, if the model took a turn."""


class CandidateError(Exception):
    """A candidate of an evaluation cannot go on; the other candidates can. A person must change `field`."""

    def __init__(self, reason: str, message: str, field: str) -> None:
        super().__init__(message)
        self.reason = reason
        """One word for a condition, such as EndpointDenied."""
        self.field = field
        """Field of the spec, such as spec.candidates[NAME].endpoint.url."""

    @property
    def sentence(self) -> str:
        """The fault as a status shows it."""
        return f"{self.field}: {self}"


class InvalidAnswerError(InfraError):
    """A part of the platform gave an invalid answer.

    Usually the environment's own code caused it.
    """


class PermanentInfraError(InfraError):
    """The failing part says that another call cannot help. It gave `reason` and `field` itself."""

    def __init__(self, message: str, reason: str, field: str | None) -> None:
        super().__init__(message, None if field is None else Cause(reason, message, field))
        self.reason = reason
        self.field = field
