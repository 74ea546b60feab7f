"""Why vLLM ended, read from its exit code and its last lines: pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headway_api.exits import JobError

ERROR: Final = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)): ?(.+)$")
CONSEQUENCES: Final = (
    "Engine core initialization failed",
    "Engine process failed to start",
    "EngineDeadError",
)
"""Errors of the front process that only say that the engine behind it failed."""

PASSING: Final = (
    "Address already in use",
    "out of memory",
    "Available memory on node",
    "Free memory on device",
    "No available memory for the cache blocks",
    "CUDA error",
    "NCCL error",
)
"""Failures to start that another node, or a moment later, may not have."""


def last_error(lines: Sequence[str]) -> str | None:
    """The last exception in vLLM's output that is a cause and not a consequence."""
    found = [match.group(1, 2) for line in lines if (match := ERROR.search(line.rstrip()))]
    causes = [f"{name}: {text}" for name, text in found if not _is_consequence(name, text)]
    return causes[-1] if causes else None


def _is_consequence(name: str, text: str) -> bool:
    return any(mark in name or mark in text for mark in CONSEQUENCES)


def before_ready(code: int, lines: Sequence[str]) -> JobError:
    """vLLM ended before it ever answered."""
    error = last_error(lines)
    if code >= 128:
        return JobError(
            "EngineKilled",
            f"vLLM was killed by signal {code - 128} while it loaded the model; where that is 9, raise "
            "the memory limit in spec.rollout.resources",
            permanent=False,
        )
    if error is not None and any(mark in error for mark in PASSING):
        return JobError("EngineNotStarted", error, permanent=False)
    return JobError(
        "ModelNotLoadable",
        error or f"vLLM ended with exit code {code} and no error message; its log has the rest",
        field="spec.model.base",
    )


def after_ready(code: int, lines: Sequence[str]) -> JobError:
    """vLLM ended while it served."""
    how = f"killed by signal {code - 128}" if code >= 128 else f"exit code {code}"
    return JobError(
        "EngineDied", f"vLLM ended ({how}): {last_error(lines) or 'no error message'}", permanent=False
    )
