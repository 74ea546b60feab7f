"""Writes a promotion into deploy/: a training job's best weights, for a commit that the gate then judges.

    kubectl get rltj refunds -n team -o json | python3 propose.py deploy

The job's name in gate/eval.yaml has the step and six digits of the weights' address in it. So each promotion
is a job of its own. Python's standard library only.
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
"""Maximum characters that the API takes in an RLEvalJob's name."""


class NotProposableError(Exception):
    """What cannot be proposed, and what to do about it."""


@dataclass(frozen=True)
class Proposal:
    """Weights that are to serve."""

    job: str
    """The training job that made them."""
    step: int
    uri: str
    """Folder of the weights."""

    @property
    def name(self) -> str:
        """Name of the evaluation that judges the weights."""
        digest = hashlib.sha256(self.uri.encode()).hexdigest()[:6]
        return f"{self.job}-{self.step:06d}-{digest}"


def proposal(job: dict[str, Any]) -> Proposal:
    """The weights of an RLTrainingJob, as the API shows it, that validated best.

    Raises:
        NotProposableError: the job has no validated weights, or its name is too long for an evaluation's.
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
    """The evaluation's file with the weights that it judges.

    Raises:
        NotProposableError: the file does not look as expected.
    """
    job = re.escape(wanted.job)
    text = _once(rf"^  name: {job}-\d{{6}}-\S+", f"  name: {wanted.name}", text, GATE)
    # Only of the candidate that is proposed: production may have a checkpoint too.
    weights = rf"(?<=- name: proposed\n    checkpoint: ){{job: {job}, step: \d+, uri: \S+}}"
    return _once(weights, f"{{job: {wanted.job}, step: {wanted.step}, uri: {wanted.uri}}}", text, GATE)


def serving(text: str, wanted: Proposal) -> str:
    """The file of what serves, with the address of the weights.

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
