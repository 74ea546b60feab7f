"""`make try`: trains the quickstart's agent on this machine without a cluster, up to a checkpoint and a bill.

It runs the example's job with the same processes as a cluster, but without pods (`headway run --local`). A
second `make try` continues where the first one stopped. FRESH=1 starts over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from headway_cli import progress
from headway_cli.commands.common import INTERRUPTED, WRONG, ProgressPrinter
from headway_cli.local import engine, run
from headway_cli.local.machine import MachineBusyError
from headway_cli.local.manifest import ManifestError
from headway_demo import bill, quickstart, report
from headway_demo.console import Timings, fail
from headway_demo.settings import ROOT, Settings, SettingsError

FOLDER = Path(os.environ.get("OUTPUT") or ROOT / "build" / "try").resolve()
"""Folder of the job's files; the variable `OUTPUT` changes it."""
EPISODES = 48
"""Episodes of the preflight: half as many as in the demo."""


def document(inputs: Path, settings: Settings) -> dict[str, Any]:
    """The example's job, with its model and rows in `inputs` on this machine."""
    uris = {split: {"uri": f"file://{inputs}/{split}.jsonl"} for split in ("train", "validation")}
    spec: dict[str, Any] = {
        "model": {"base": f"file://{inputs}/model"},
        "data": uris,
        "seed": settings.seed,
        "preflight": {"episodes": EPISODES},
    }
    if settings.max_steps:
        spec["schedule"] = {"maxSteps": settings.max_steps}
    return quickstart.job("this-machine", changes=spec)


def tried(settings: Settings, *, fresh: bool) -> bool:
    """Run the job and print its report. Return whether the job is Complete.

    Raises:
        RunStoppedError: a person stopped the run.
    """
    timings = Timings()
    if settings.begun is not None:
        timings.took("Python environment", max(0.0, time.time() - settings.begun))
    with timings.step("base model and rows"):
        inputs = quickstart.inputs(settings.cache, settings.seed, reference=False)
    here = engine.platform(engine.has_accelerator())
    job_here = run.opened(document(inputs, settings), FOLDER, print, fresh=fresh)
    with job_here as stored, timings.step(report.JOB_STEP):
        job = run.followed(engine.Engine(stored, quickstart.EXAMPLE, here), ProgressPrinter().show)
    if not progress.is_true(job, "Complete"):
        fail("\n".join(["the job is not Complete:", *progress.conditions(job), f"its files: {FOLDER}"]))
        return False
    with timings.step("recount of the bill"):
        written = Path(job["status"]["artifacts"]["uri"].removeprefix("file://"))
        counted = bill.verified(job, written)
    threshold = float(job["spec"]["evaluation"].get("successThreshold", 1.0))
    print("\n" + report.text(job, written, timings.seconds, threshold, counted, {}))
    return True


def main() -> int:
    """Run `make try`, and return its exit code."""
    fresh = os.environ.get("FRESH", "") not in ("", "0")
    try:
        return 0 if tried(Settings.from_environ(os.environ), fresh=fresh) else 1
    except (SettingsError, ManifestError, MachineBusyError, bill.BillMismatchError) as error:
        fail(str(error))
        return WRONG
    except subprocess.CalledProcessError as error:
        fail(f"{error.cmd} exited {error.returncode}")
        return 1
    except (run.RunStoppedError, KeyboardInterrupt):
        fail("stopped; `make try` continues where it stopped")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
