"""Describes where numbers were measured: the machine and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def described(accelerator: str = "no accelerator used") -> str:
    """Cores, memory and processor type as text, without anything that identifies the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), "")
    vectors = "AVX512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({platform.machine()}, {vectors}), {memory:.0f} GiB of memory, {accelerator}"


def load() -> float:
    """Mean number of processes that ran or waited for a core in the last minute; 0 on an idle machine."""
    return os.getloadavg()[0]


def commit() -> str:
    """The measured commit, with `+` if the checkout had changes.

    In a copy without git history, it is the value of the variable COMMIT.
    """
    if not (ROOT / ".git").exists():
        return os.environ["COMMIT"]
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
