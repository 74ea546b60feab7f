"""Writes a promotion of a training job's best weights into deploy/. You commit it, and the gate judges it.

    kubectl get rltj refunds -n team -o json | python3 propose.py deploy

The evaluation's name in gate/eval.yaml contains the step and a six-digit hash of the weights' address. So
each promotion gets its own RLEvalJob. Python's standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GATE, SERVING = Path("gate/eval.yaml"), Path("serving/refunds.yaml")
MAX_NAME = 40
"""Maximum characters that the API accepts in an RLEvalJob's name."""


class NotProposableError(Exception):
    """The weights cannot be proposed; the message says why, and what to do."""


@dataclass(frozen=True)
class Proposal:
    """Weights that are proposed for serving."""

    job: str
    """Name of the training job that made the weights."""
    step: int
    uri: str
    """Folder of the weights."""

    @property
    def name(self) -> str:
        """Name of the evaluation that judges the weights."""
        digest = hashlib.sha256(self.uri.encode()).hexdigest()[:6]
        return f"{self.job}-{self.step:06d}-{digest}"


def proposal(job: dict[str, Any]) -> Proposal:
    """The weights of a training job with the best validation. `job` is the RLTrainingJob as the API returns
    it.

    Raises:
        NotProposableError: the job has no validated weights, or the evaluation's name would be too long.
    """
    best = job.get("status", {}).get("checkpoints", {}).get("best")
    name: str = job["metadata"]["name"]
    if best is None:
        raise NotProposableError(
            f"status.checkpoints.best of {name} is empty: wait until the job has validated"
        )
    wanted = Proposal(name, best["step"], best["uri"])
    if (over := len(wanted.name) - MAX_NAME) > 0:
        raise NotProposableError(
            f"metadata.name of the gate would be {wanted.name}: {MAX_NAME + over} characters, and the API "
            f"takes {MAX_NAME}. Train under a name of at most {len(name) - over} characters. Or write the "
            "promotion by hand, under a shorter metadata.name"
        )
    return wanted


def gate(text: str, wanted: Proposal) -> str:
    """The evaluation's file, changed to judge the wanted weights.

    Raises:
        NotProposableError: the file does not look as expected.
    """
    job = re.escape(wanted.job)
    text = _once(rf"^  name: {job}-\d{{6}}-\S+", f"  name: {wanted.name}", text, GATE)
    # Change only the candidate `proposed`: the candidate in production may have a checkpoint too.
    weights = rf"(?<=- name: proposed\n    checkpoint: ){{job: {job}, step: \d+, uri: \S+}}"
    return _once(weights, f"{{job: {wanted.job}, step: {wanted.step}, uri: {wanted.uri}}}", text, GATE)


def serving(text: str, wanted: Proposal) -> str:
    """The serving manifest, changed to the address of the wanted weights.

    Raises:
        NotProposableError: the file does not look as expected.
    """
    return _once(r"(?<=- name: WEIGHTS\n          value: )\S+", wanted.uri, text, SERVING)


def _once(pattern: str, by: str, text: str, file: Path) -> str:
    changed, count = re.subn(pattern, lambda _: by, text, flags=re.MULTILINE)
    if count != 1:
        raise NotProposableError(
            f"{file} has {count} places like {pattern!r}, not one: write the promotion by hand"
        )
    return changed


def write(folder: Path, wanted: Proposal) -> None:
    """Change both files, or neither."""
    changed = {
        folder / GATE: gate((folder / GATE).read_text(), wanted),
        folder / SERVING: serving((folder / SERVING).read_text(), wanted),
    }
    for path, text in changed.items():
        path.write_text(text)


if __name__ == "__main__":
    try:
        found = proposal(json.load(sys.stdin))
        write(Path(sys.argv[1]), found)
    except NotProposableError as unclear:
        sys.exit(f"propose.py: {unclear}")
    print(f"proposed {found.name}: {found.uri}; commit it, and let the gate judge")
