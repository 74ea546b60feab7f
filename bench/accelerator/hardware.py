"""Describes the accelerator, and the versions of packages that ran there beside the pinned versions."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata

import torch

from bench.support import machine

REHEARSED = "REHEARSE"
"""Environment variable that makes everything run in a small size, on any device."""
PACKAGES = ("torch", "deepspeed", "transformers", "peft", "numpy", "safetensors", "tokenizers")
GIBIBYTE = 1 << 30


def rehearsing() -> bool:
    """Whether this run is a rehearsal, whose numbers have no meaning."""
    return bool(os.environ.get(REHEARSED))


def kind() -> str:
    """The kind of device that runs the learner on this machine: `cuda` or `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def described() -> str:
    """The machine and its accelerator, as text."""
    if kind() == "cpu":
        return machine.described() + ": a rehearsal"
    found = torch.cuda.get_device_properties(0)
    memory = found.total_memory / GIBIBYTE
    accelerator = f"one {found.name} ({memory:.0f} GiB), driver {_driver()}, CUDA {torch.version.cuda}"
    return machine.described(accelerator) + (": a rehearsal" if rehearsing() else "")


def versions() -> list[dict[str, str]]:
    """A row for each package: the version that ran, and the version in the learner's image."""
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", _pins(), re.MULTILINE))
    rows = [{"package": "Python", "here": platform.python_version(), "pinned": "3.11"}]
    for name in PACKAGES:
        rows.append({"package": name, "here": metadata.version(name), "pinned": pins[name]})
    return rows


def bridged() -> str:
    """A sentence about the change that `older/sitecustomize.py` made to torch; empty if it changed
    nothing."""
    from torch.nn.attention.varlen import varlen_attn

    if hasattr(varlen_attn, "__wrapped__"):
        return "Variable-length attention of this torch has no `enable_gqa`, and was called without it."
    return ""


def _pins() -> str:
    return (machine.ROOT / "requirements" / "trainer.txt").read_text()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
