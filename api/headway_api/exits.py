"""How a process of a job reports why it ends, so that the operator can repeat it in a condition.

A process that cannot continue writes a `Termination` to the file that Kubernetes reads as the container's
termination message. It exits with `PERMANENT` (the user must change something), `RETRIABLE`, or `RESTART`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from headway_api import names
from headway_api.bounds import OutOfBoundsError, json_within, shortened

PERMANENT: Final = 42
"""Exit code: a restart without a change cannot help."""
RETRIABLE: Final = 43
"""Exit code: the cause is outside the process and may go away."""
RESTART: Final = 44
"""Exit code: nothing failed, and a fresh start is needed. The restart is not counted."""

CONDITION_REASON: Final = r"^[A-Z][A-Za-z0-9]*$"
"""Form of a condition's reason."""
TERMINATION_FILE: Final = Path("/dev/termination-log")
MAX_BYTES: Final = 4096
"""Kubernetes cuts a termination message at this length."""
MESSAGE_CHARACTERS: Final = 2000
FIELD_CHARACTERS: Final = 256
DEFAULT_REASON: Final = "ProcessFailed"
"""Reason that replaces a missing or an invalid reason."""
REASON: Final = re.compile(r"(?=.{1,64}\Z)" + CONDITION_REASON)
FIELD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.\[\]=, -]*")


class Termination(BaseModel):
    """Why a process ended: a condition's reason and message, and the field of the spec to change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str
    """CamelCase and stable; it becomes the condition's reason."""
    field: str | None = None
    """Path in the CR, such as `spec.data.train.uri`."""
    message: str
    """What is wrong and what to write instead."""

    @property
    def sentence(self) -> str:
        """The text of a condition's message."""
        return f"{self.field}: {self.message}" if self.field else self.message


class JobError(Exception):
    """Raised by a process for a fault it can explain."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        permanent: bool = True,
        counted: bool = True,
    ) -> None:
        """`counted`: whether the restart counts against maxRestarts, if the error is not permanent."""
        super().__init__(message)
        self.termination = Termination(reason=reason, field=field, message=message)
        self.permanent = permanent
        self.counted = counted

    @property
    def code(self) -> int:
        """The process's exit code."""
        return PERMANENT if self.permanent else RETRIABLE if self.counted else RESTART


def job_error(error: BaseException | None) -> JobError | None:
    """`error` if it is a JobError, or the first JobError in it if it is a group."""
    if not isinstance(error, BaseExceptionGroup):
        return error if isinstance(error, JobError) else None
    return next((found for found in map(job_error, error.exceptions) if found is not None), None)


@contextmanager
def not_final(done_before: bool = True) -> Iterator[None]:
    """Context for work that another process of the job has already done. It succeeded then, so its error now
    may be temporary: with `done_before`, a JobError is not permanent."""
    try:
        yield
    except JobError as error:
        error.permanent &= not done_before
        raise


def parse(message: str | None) -> Termination | None:
    """Read a container's termination message; None if it is not a `Termination`.

    Any program in the pod may write it, so it is checked against bounds. An invalid reason becomes
    `DEFAULT_REASON`, an invalid path is dropped, and the message is shortened and made printable.
    """
    if not message:
        return None
    try:
        found = Termination.model_validate(json_within(message, 2 * MAX_BYTES, depth=2, values=16))
    except (OutOfBoundsError, ValidationError):
        return None
    path = found.field if found.field and len(found.field) <= FIELD_CHARACTERS else None
    return Termination(
        reason=found.reason if REASON.fullmatch(found.reason) else DEFAULT_REASON,
        field=path if path and FIELD.fullmatch(path) else None,
        message=shortened(found.message, MESSAGE_CHARACTERS),
    )


def leave(error: JobError, file: Path | None = None) -> NoReturn:
    """End this process because of `error`: write its message to the termination file and standard error, then
    exit."""
    file = file or Path(os.environ.get(names.ENV_TERMINATION_FILE, TERMINATION_FILE))
    print(f"{error.termination.reason}: {error.termination.sentence}", file=sys.stderr, flush=True)
    if file.exists():
        file.write_text(_within_bytes(error.termination))
    sys.exit(error.code)


def _within_bytes(found: Termination) -> str:
    """The termination as JSON, short enough that Kubernetes does not cut it: a part of it could not be
    parsed."""
    short = found.model_copy(update={"field": found.field[:FIELD_CHARACTERS] if found.field else None})
    for limit in (MESSAGE_CHARACTERS, MESSAGE_CHARACTERS // 2, MESSAGE_CHARACTERS // 8):
        text = short.model_copy(update={"message": found.message[:limit]}).model_dump_json()
        if len(text.encode()) <= MAX_BYTES:
            break
    return text
