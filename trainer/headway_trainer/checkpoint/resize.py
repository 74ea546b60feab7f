"""Converts a checkpoint for another number of processes, to DeepSpeed's universal format.

The conversion reads the files of every rank, so all must be available. It writes each parameter unsharded.
The converter is DeepSpeed's own script. It runs in a separate process, so it leaves nothing behind in this
one. There, too, reading a file creates only data and runs no code (`engine.data_alone`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from headway_api.exits import JobError

TAG: Final = "universal"
SECONDS: Final = 6600
"""Maximum seconds of a conversion. The other ranks wait for it (`ranks.CONTROL_TIMEOUT`)."""
LAST_LINES: Final = 2000
"""Maximum characters of the conversion's output that an error quotes."""


def to_universal(files: Path, folder: Path) -> None:
    """Convert the checkpoint in `files` into `folder`.

    Raises:
        JobError: `CheckpointUnusable`, with the end of the conversion's output.
    """
    command = [sys.executable, "-m", "headway_trainer.checkpoint.universal"]
    command += ["--input_folder", str(files), "--output_folder", str(folder)]
    # A universal checkpoint also records shared layers and the padding of the vocabulary. Our models have
    # neither, and an ordinary checkpoint lacks these fields, so the converter must add empty ones.
    command += ["--inject_missing_state", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        raise _unusable(f"it did not finish within {SECONDS} s") from late
    if done.returncode != 0:
        raise _unusable((done.stdout + done.stderr)[-LAST_LINES:])


def _unusable(why: str) -> JobError:
    return JobError(
        "CheckpointUnusable",
        "the checkpoint cannot be converted for another number of processes; set nodes x processesPerNode "
        f"to the former number ({why})",
        field="spec.learner",
        permanent=False,
    )
