"""Finds out why vLLM ended, from its exit code and its last lines of output: pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from headway_api.base_model import FIELD
from headway_api.exits import JobError
from headway_rollout import deaths

ERROR: Final = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)): ?(.+)$")
SUMMARY: Final = re.compile(r"\d+ validation errors? for \w+$")
"""First line of a pydantic error. The next line says what was wrong."""
PREFIX: Final = re.compile(r"^\(\w+ pid=\d+\) ?(?:ERROR [-\d]+ [:\d]+ \[[^\]]*\] ?)?")
"""Prefix that vLLM adds to each line of output: the process, its pid, level and time."""

CONSEQUENCES: Final = (
    "Engine core initialization failed",
    "Engine process failed to start",
    "EngineDeadError",
)
"""Errors of vLLM's front process which only say that EngineCore failed, and not why."""

LOADABLE: Final = (
    "give a complete Hugging Face folder (config.json, safetensors weights) of a model that this vLLM loads"
)
SEE_LOG: Final = "see the rollout server's log"
TRANSIENT: Final = (
    "Address already in use",
    "failed to be inspected",
    "out of memory",
    "Available memory on node",
    "Free memory on device",
    "No available memory for the cache blocks",
    "CUDA error",
    "NCCL error",
)
"""Parts of startup errors that a retry may not meet, on another node or a moment later."""


def last_error(lines: Sequence[str]) -> str | None:
    """The last exception in vLLM's output that is not one of `CONSEQUENCES`; None if there is none."""
    texts = [PREFIX.sub("", line).strip() for line in lines]
    causes = []
    for at, text in enumerate(texts):
        match = ERROR.search(text)
        if match and not _is_consequence(*match.group(1, 2)):
            detail = texts[at + 1 : at + 2] if SUMMARY.search(match.group(2)) else []
            causes.append(" ".join([f"{match.group(1)}: {match.group(2)}", *detail]))
    return causes[-1] if causes else None


def _is_consequence(name: str, text: str) -> bool:
    return any(mark in name or mark in text for mark in CONSEQUENCES)


def died(code: int, lines: Sequence[str]) -> str | None:
    """Which signal killed a process of vLLM, with vLLM's last error; None if no signal killed one.

    Args:
        code: vLLM's exit code, or 128 + the signal that killed its front process.
        lines: vLLM's last lines of output, oldest first.
    """
    death = deaths.find(code, lines)
    if death is None:
        return None
    error = last_error(lines)
    return f"{death.sentence}; its last error: {error}" if error else death.sentence


def before_ready(code: int, lines: Sequence[str], field: str = FIELD) -> JobError:
    """The error of a vLLM that ended before it was ready. `field` is the field that names the model."""
    if death := died(code, lines):
        return JobError("EngineKilled", f"while it loaded the model, {death}", permanent=False)
    error = last_error(lines)
    if error is not None and any(mark in error for mark in TRANSIENT):
        return JobError("EngineNotStarted", error, permanent=False)
    message = error.rstrip(". ") if error else f"vLLM ended with exit code {code} and no error message"
    return JobError("ModelNotLoadable", f"{message}; {LOADABLE if error else SEE_LOG}", field=field)


def after_ready(code: int, lines: Sequence[str]) -> JobError:
    """The error of a vLLM that ended while it served requests."""
    how = died(code, lines) or f"vLLM ended (exit code {code}): {last_error(lines) or 'no error message'}"
    return JobError("EngineDied", how, permanent=False)
