"""Describes faults of an environment by their place: method or tool, file and line of its own code."""

from __future__ import annotations

import os
import sys

from headway_sandbox.bounds import InvalidReturnError, shortened
from headway_sandbox.http import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType

ENTRYPOINT_FIELD = "spec.environment.entrypoint"
OWN = os.path.dirname(__file__) + os.sep
LIBRARY = os.path.dirname(os.__file__) + os.sep


def fault(reason: str, where: str, error: BaseException, method: object = None) -> HttpError:
    """The error for a bug of the environment. The traceback goes to the log, and its last line to the client.

    `method`: the method that was called, for an error that no line of the environment raised.
    """
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, InvalidReturnError):
        at = home(method)
        what = f"returned {error}" + (f" ({at})" if at else "")
    else:
        what = f"raised {described(error, method)}"
    return HttpError(500, reason, f"{where} {what}", field=ENTRYPOINT_FIELD)


def unusable(reason: str, message: str, method: object) -> HttpError:
    """The error for a judgement with unusable numbers: a retry would not help."""
    at = home(method)
    message += f" ({at})" if at else ""
    return HttpError(500, reason, message, field=ENTRYPOINT_FIELD, permanent=True)


def described(error: BaseException, method: object = None) -> str:
    """An exception in one line, with the line of the environment that it came from."""
    try:
        text = shortened(str(error))
    except Exception:  # the environment's own exception class may raise
        text = "(its text cannot be read)"
    at = place(frames(error.__traceback__)) or home(method)
    return f"{type(error).__name__}: {text}" + (f" ({at})" if at else "")


def home(method: object) -> str:
    """Place of a method's code, or of a callable object's `__call__`; empty if unknown."""
    code = getattr(method, "__code__", None)
    if code is None and callable(method):
        code = getattr(type(method).__call__, "__code__", None)
    return "" if code is None else place([(code, code.co_firstlineno)])


def frames(traceback: TracebackType | None) -> list[tuple[CodeType, int]]:
    """Code and line of each level, the innermost last."""
    found = []
    while traceback is not None:
        found.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def stack(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """Code and line of each level of a running thread, the innermost last."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found[::-1]


def place(levels: list[tuple[CodeType, int]]) -> str:
    """`FILE:LINE in NAME` of the innermost level of the environment's own code; empty if there is none."""
    for code, line in reversed(levels):
        own = code.co_filename.startswith((OWN, LIBRARY, "<"))  # "<string>" is not a file
        if not own or "site-packages" in code.co_filename:
            return f"{code.co_filename}:{line} in {code.co_name}"
    return ""
