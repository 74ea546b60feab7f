"""The keys of a job's processes, and which role holds which. No role holds more than it needs.

If a key is named after two roles, the first sends it as `Authorization: Bearer` and the second checks it.
Each other key belongs to one role. The operator creates every key at random, in a Secret that no pod mounts
whole (docs/adr/0032). Sandboxes hold none.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from headway_api import names
from headway_api.exits import JobError


class Key(StrEnum):
    """A key of a job: its name in the Secret, and the name of its file in a pod."""

    LEARNER_TO_COORDINATOR = "learner-to-coordinator"
    """For asking the coordinator for batches, and reporting steps."""
    COORDINATOR_TO_ROLLOUT = "coordinator-to-rollout"
    """For requesting that the weight agent loads weights."""
    COORDINATOR_TO_BROKER = "coordinator-to-broker"
    """For leasing sandboxes."""
    COORDINATOR_TO_JUDGE = "coordinator-to-judge"
    """For questions to judges whose models the job serves. The coordinator has this key in JUDGES_DIR, beside
    the tokens of other judges, and only if there is such a judge."""
    ROLLOUT_TO_LEARNER = "rollout-to-learner"
    """For taking weights from the learner's memory."""
    LEASES = "leases"
    """The broker derives the token of each lease from this key."""
    CHECKPOINTS = "checkpoints"
    """The learner signs the records of checkpoints with this key, and verifies them."""


Keys = Mapping[Key, str]
"""The keys that a process holds."""

HELD_BY: Final[Mapping[str, tuple[Key, ...]]] = {
    names.COORDINATOR: (Key.LEARNER_TO_COORDINATOR, Key.COORDINATOR_TO_ROLLOUT, Key.COORDINATOR_TO_BROKER),
    names.LEARNER: (Key.LEARNER_TO_COORDINATOR, Key.ROLLOUT_TO_LEARNER, Key.CHECKPOINTS),
    names.ROLLOUT: (Key.COORDINATOR_TO_ROLLOUT, Key.ROLLOUT_TO_LEARNER),
    names.JUDGE: (Key.COORDINATOR_TO_JUDGE,),
    names.BROKER: (Key.COORDINATOR_TO_BROKER, Key.LEASES),
    names.SANDBOX: (),
}
"""Role -> the keys that its pods mount."""


def load(environ: Mapping[str, str], role: str) -> Keys:
    """The keys of a process of `role`, from the folder that its pod mounts.

    A job from a version with one token for all keys keeps that token. This holds for processes that started
    before the operator's upgrade and after it.

    Raises:
        JobError: `ConfigUnreadable`: a key is not there, or is empty.
    """
    folder = Path(environ.get(names.ENV_KEYS, names.KEYS_DIR))
    former = folder / names.TOKEN_KEY
    shared = former.exists()
    return {key: _read(former if shared else folder / key) for key in HELD_BY[role]}


def _read(file: Path) -> str:
    try:
        found = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise _missing(file, f"cannot be read ({type(error).__name__})") from error
    # An empty key would accept every caller without one.
    if not found:
        raise _missing(file, "is empty")
    return found


def _missing(file: Path, wrong: str) -> JobError:
    text = f"the key in {file} {wrong}: delete the job and create it again; it then gets new keys"
    return JobError("ConfigUnreadable", text, permanent=False)
