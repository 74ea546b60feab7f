"""Makes the example job's inputs (base model and rows), and its spec with a run's own settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import yaml

from headway_demo.settings import ROOT

EXAMPLE = ROOT / "examples" / "sop-quickstart"
PREFIX = "quickstart"
"""Folder in the bucket that the example's URIs name."""
REFERENCE = ("--current", "1", "--steps", "250")
"""Arguments of base_model.py for the reference endpoint's model, which is trained only on today's
procedure."""
Document = dict[str, Any]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    """`base` with `changes` merged into it. Nested mappings are merged too."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(cast(Document, old), value) if both else value
    return result


def job(image: str, *, name: str | None = None, changes: Mapping[str, Any] | None = None) -> Document:
    """The example's training job, with `image` as its environment image, another name, and `changes` in its
    spec."""
    document = cast(Document, yaml.safe_load((EXAMPLE / "job.yaml").read_text()))
    document["spec"] = merged(document["spec"], {"environment": {"image": image}})
    document["spec"] = merged(document["spec"], changes or {})
    if name:
        document["metadata"]["name"] = name
    return document


def evaluation(image: str, *, name: str | None = None, changes: Mapping[str, Any] | None = None) -> Document:
    """The example's evaluation, with `image` as its environment image, another name, and `changes` in its
    spec."""
    document = cast(Document, yaml.safe_load((EXAMPLE / "eval.yaml").read_text()))
    document["spec"] = merged(document["spec"], {"environment": {"image": image}})
    document["spec"] = merged(document["spec"], changes or {})
    if name:
        document["metadata"]["name"] = name
    return document


def budget() -> Document:
    """The example's budget for the namespace."""
    return cast(Document, yaml.safe_load((EXAMPLE / "budget.yaml").read_text()))


def inputs(cache: Path, seed: int, *, reference: bool = True) -> Path:
    """Folder with the base model and rows for `seed` and, if `reference`, the reference endpoint's model.

    Missing parts are made. It is safe to interrupt.
    """
    sources = [EXAMPLE / name for name in ("base_model.py", "environment.py", "generate.py")]
    key = sha256(b"".join(p.read_bytes() for p in sources) + str(seed).encode()).hexdigest()[:12]
    folder = cache / f"sop-quickstart-{key}"
    _once(folder, "rows", "generate.py", "--out", folder, "--seed", seed)
    _once(folder, "model", "base_model.py", "--out", folder / "model", "--seed", seed)
    if reference:
        _once(folder, "reference", "base_model.py", "--out", folder / "reference", "--seed", seed, *REFERENCE)
    return folder


def _once(folder: Path, made: str, script: str, *arguments: object) -> None:
    """Run a script, unless it has already completed."""
    done = folder / f".{made}"
    if not done.exists():
        _python(script, *arguments)
        done.touch()


def _python(script: str, *arguments: object) -> None:
    command = [sys.executable, str(EXAMPLE / script), *(str(a) for a in arguments)]
    subprocess.run(command, check=True, cwd=EXAMPLE, timeout=900)
