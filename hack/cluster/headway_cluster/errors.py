"""The error that this tool raises on purpose. It says what went wrong, and what to do."""

from __future__ import annotations


class ClusterError(Exception):
    """A failure that the user can fix."""

    def __init__(self, cause: str, *, fix: str) -> None:
        super().__init__(f"{cause}\n  fix: {fix}")
        self.cause = cause
        self.fix = fix
