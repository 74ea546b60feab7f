"""Checks whether a step's weights are those that the run published for it, and how they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors import safe_open

from headway_api.records import FileDigest
from headway_api.replay import TensorDifference
from headway_api.store import CorruptFileError, ObjectNotFoundError, Store, download_folder
from headway_api.weights_format import DIGESTS_FILE, MODEL_FILE
from headway_trainer.publish.lora import WEIGHTS

VOUCHING: Final = (DIGESTS_FILE, MODEL_FILE, WEIGHTS)
"""Names of files whose digest covers every tensor of published weights.

The comparison uses the first name that both versions have. A delta has only `DIGESTS_FILE`.
"""
TENSORS: Final = (MODEL_FILE, WEIGHTS)
HEADER: Final = "header"
"""Used instead of a file name if weights were sent from memory: the header has a digest of each tensor."""


@dataclass(frozen=True)
class DigestComparison:
    """The digests of one file in two versions."""

    file: str
    now: str
    recorded: str | None
    """The run's digest; None if the run recorded none."""

    @property
    def same(self) -> bool | None:
        """Whether the two digests are equal; None if the run recorded none."""
        return None if self.recorded is None else self.now == self.recorded


def digests(now: Sequence[FileDigest], recorded: Sequence[FileDigest]) -> DigestComparison:
    """The digests to compare.

    Args:
        now: files of the replay's full weights or adapter.
        recorded: files that the run recorded for the same step.
    """
    new = {each.name: each.sha256 for each in now}
    old = {each.name: each.sha256 for each in recorded}
    both = next((name for name in VOUCHING if name in new and name in old), None)
    file = both or next(name for name in VOUCHING if name in new)
    return DigestComparison(file, new[file], old.get(file))


def recorded_tensors(store: Store, uri: str, files: Sequence[FileDigest], folder: Path) -> Path | None:
    """The file of tensors that a run published, fetched into `folder`; None if it is gone or replaced.

    Args:
        uri: folder of the weights.
        files: the files that the run recorded for them.
    """
    found = next((each for each in files if each.name in TENSORS), None)
    if found is None:
        return None
    try:
        return download_folder(store, uri, folder, [found]) / found.name
    except (ObjectNotFoundError, CorruptFileError):
        return None


def tensor_difference(recorded: Path, now: Path) -> TensorDifference:
    """How the tensors of two safetensors files differ. A tensor also counts as differing if only one file has
    it, or if its shapes differ."""
    differing, max_abs, max_at = [], 0.0, None
    with safe_open(recorded, "pt") as old, safe_open(now, "pt") as new:
        before, after = set(old.keys()), set(new.keys())
        for name in sorted(before | after):
            if name not in before or name not in after:
                differing.append(name)
                continue
            one, other = old.get_tensor(name).double(), new.get_tensor(name).double()
            if one.shape != other.shape:
                differing.append(name)
            elif not one.equal(other):
                differing.append(name)
                distance = float((one - other).abs().max())
                if not distance <= max_abs:  # also if it is NaN
                    max_abs, max_at = (distance if math.isfinite(distance) else max_abs), name
    return TensorDifference(
        differing=len(differing),
        total=len(before | after),
        max_abs=max_abs,
        max_at=max_at,
        first=differing[0] if differing else None,
    )
