"""Gets the first messages of a job's episode from its environment, in a process of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from headway_analysis.preflight.playing import NoReplyError
from headway_api.rows import Row
from headway_api.sandbox_api import ResetReply, ResetRequest
from headway_api.seeds import seed
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_sandbox.testing.sandbox import Sandboxes

PREFLIGHT: Final = "preflight"
"""Purpose in the random seed of a job's first sandbox, which the job's preflight starts."""
Note = Callable[[str], None]


def beginning(
    spec: RLTrainingJobSpec | RLEvalJobSpec, row: Row, modules: Path | None, note: Note
) -> ResetReply | None:
    """The reply of the environment's reset, which has the first messages of an episode.

    Args:
        spec: the job's spec.
        row: the first of the job's rows.
        modules: folder of the environment's modules; None to begin no episode.
        note: receives the reason if None is returned: the module is missing, or fails.
    """
    asked = spec.environment
    if modules is None:
        note("no episode was begun, so a prompt may have any length")
        return None
    module = modules.joinpath(*asked.entrypoint.partition(":")[0].split("."))
    if not (module.with_suffix(".py").is_file() or module.is_dir()):
        note(
            f"{modules} has no module of spec.environment.entrypoint ({asked.entrypoint}), so a prompt may "
            "have any length; write --environment FOLDER"
        )
        return None
    sandboxes = Sandboxes(
        asked.entrypoint,
        asked.config or {},
        [modules],
        timeout=float(spec.rollout.timeout_seconds),
        runs_code=asked.sandbox.runs_code,
    )
    try:
        with sandboxes.start() as sandbox:
            reply = sandbox.ask(ResetRequest(row=row, seed=seed(spec.seed, PREFLIGHT)))
    except NoReplyError as error:
        note(f"the environment fails on this machine, so a prompt may have any length: {error}")
        return None
    assert isinstance(reply, ResetReply)
    return reply
