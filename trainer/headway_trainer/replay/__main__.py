"""Trains a step again: `python -m headway_trainer.replay FOLDER`, with a request in the folder.

It makes its plan before it imports torch, which takes seconds. So it reports at once if a replay is
impossible.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Final

from headway_api.artifacts import GROUPS, by_number, written
from headway_api.exits import JobError, leave
from headway_api.replay import PLAN, ReplayRequest
from headway_api.run_files import RunFiles
from headway_api.store_unavailable import store_explained
from headway_trainer.checkpoint.journal import is_report
from headway_trainer.launch import LOOPBACK, NodePlace, several, tell_alone
from headway_trainer.logs import log
from headway_trainer.replay.context import ReplayContext
from headway_trainer.replay.plan import ReplayPlan, plan_replay, require_groups
from headway_trainer.termination import exit_on_sigterm, live

GRACE_SECONDS: Final = 20
RANK: Final = ("-u", "-m", "headway_trainer.replay.rank")
"""Python arguments that start one of several ranks."""


def main() -> None:
    """Entry point."""
    # As in a learner: sums depend on the number of threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    exit_on_sigterm()
    live(partial(_explained, Path(sys.argv[1]).resolve()))


def _explained(folder: Path) -> int:
    try:
        with store_explained():
            context = ReplayContext(folder, ReplayRequest.read(folder))
            plan = prepare(context)
            log("plan", start=plan.start, steps=[report.step for report in plan.reports])
            return _start(folder, plan.processes)
    except JobError as error:
        leave(error)


def prepare(context: ReplayContext) -> ReplayPlan:
    """Choose the steps, check that the run has all files for them, and write the plan into the folder.

    Raises:
        JobError: `NoCheckpoint`, or an error of `plan_replay` or `require_groups`.
    """
    request, layout, store = context.request, context.layout, context.store
    journal = context.journal()
    kept = set() if request.from_start else journal.usable_checkpoints()
    _require_signed(context, {step for step in kept if step < request.step})
    reports = RunFiles(store, layout).steps()
    plan = plan_replay(reports, kept, request.step, request.config.spec.learner.world_size)
    if plan.start is not None:
        world = journal.find(plan.start, request.step).state.world_size
        plan = plan.model_copy(update={"processes": world})
        store.put(layout.latest, json.dumps({"step": plan.start}).encode())
    folder = layout.train_groups
    uris = written(store.list(folder), folder, GROUPS)
    require_groups(plan, {uri.removeprefix(f"{folder}/").removesuffix(".json.gz") for uri in uris})
    # Copy the run's start numbers, so that the replay's start gets the next one. The real starts are hidden,
    # so a later start of the run does not supersede the replay.
    starts = f"{request.run.uri.rstrip('/')}{layout.learners.removeprefix(layout.root)}"
    for number in range(len(context.run_store.list(starts))):
        store.put(layout.learner(number), b"")
    (context.folder / PLAN).write_text(plan.model_dump_json())
    return plan


def _require_signed(context: ReplayContext, usable: set[int]) -> None:
    """Raise `NoCheckpoint` if the run has earlier checkpoints but none can be opened.

    Otherwise the replay would silently train from the beginning.
    """
    request, folder = context.request, context.layout.checkpoints
    sealed = by_number(filter(is_report, context.store.list(folder)), folder)
    before = sorted(step for step in sealed if step < request.step)
    if not before or usable or request.from_start:
        return
    why = "no key was given" if request.key is None else "their signatures are not from the given key"
    raise JobError(
        "NoCheckpoint",
        f"the checkpoint of step {before[-1]} cannot be opened ({why}, or they are not whole). Write --key "
        "FILE with the key `checkpoints` of the job's Secret, or --from-start to train all steps again",
    )


def _start(folder: Path, processes: int) -> int:
    place = NodePlace(1, 0, processes, LOOPBACK, _free_port(), GRACE_SECONDS)
    if place.alone:
        tell_alone(place, os.environ)
        from headway_trainer.replay import rank

        rank.run(folder)
        return 0
    _require_accelerators(processes)
    return several(place, None, (*RANK, str(folder)))


def _require_accelerators(processes: int) -> None:
    """Raise `TooFewAccelerators` if there are fewer GPUs than `processes`: NCCL needs one GPU per rank.

    Without any GPU, gloo runs any number of ranks on the CPU.
    """
    import torch

    there = torch.cuda.device_count()
    if 0 < there < processes:
        raise JobError(
            "TooFewAccelerators",
            f"{processes} processes trained the step, a GPU each, and this machine has {there}. Replay it on "
            f"a machine with {processes}, or hide its GPUs (CUDA_VISIBLE_DEVICES=) to train on the CPU",
        )


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind((LOOPBACK, 0))
        return int(tried.getsockname()[1])


if __name__ == "__main__":
    main()
