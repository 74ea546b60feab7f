"""What a learner needs to go on bit for bit: weights, optimizer, random numbers, on every rank.

DeepSpeed writes one file a rank (and one for the weights they share); beside them lie each rank's random
state and `manifest.json`, which says what must be there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import torch

from headway_api.exits import JobError
from headway_api.records import FileDigest, Record
from headway_api.store import Corrupt, NotFound, Store, download_folder, upload_folder
from headway_trainer.engine import TAG, Engine
from headway_trainer.ranks import Ranks

MANIFEST: Final = "manifest.json"


class CheckpointManifest(Record):
    """The files of one checkpoint, and the shape of the learner that wrote them."""

    files: list[FileDigest]
    world_size: int
    updates: int
    """Optimizer steps taken."""


def save(engine: Engine, store: Store, uri: str, folder: Path, ranks: Ranks) -> None:
    """Write the learner's state below `uri`; collective. `folder` is scratch, one for all ranks of a node."""
    if ranks.local_rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    ranks.barrier()
    files = engine.save(folder)
    torch.save(_random_state(), files / _random_file(ranks))
    ranks.barrier()
    uploaded = upload_folder(store, files, uri) if ranks.local_rank == 0 else []
    digests = [digest for part in ranks.gather(uploaded) for digest in part]
    if ranks.first:
        manifest = CheckpointManifest(files=digests, world_size=ranks.world, updates=engine.updates)
        store.put(f"{uri}/{MANIFEST}", manifest.model_dump_json().encode())


def restore(engine: Engine, store: Store, uri: str, folder: Path, ranks: Ranks) -> None:
    """Make the learner what it was when it wrote `uri`; collective.

    Raises:
        JobError: `CheckpointUnusable`, when a file is missing or damaged, or the learner has another shape.
    """
    try:
        manifest = CheckpointManifest.model_validate_json(store.get(f"{uri}/{MANIFEST}"))
        if ranks.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            download_folder(store, uri, folder / TAG, manifest.files)
    except (NotFound, Corrupt) as error:
        raise JobError(
            "CheckpointUnusable",
            f"the checkpoint at {uri} is not whole ({error}); if it stays so, set latest.json in the job's "
            "folder to an older step, one whose checkpoint holds report.json",
            permanent=False,
        ) from error
    if manifest.world_size != ranks.world:
        raise JobError(
            "CheckpointUnusable",
            f"the checkpoint was written by {manifest.world_size} processes and cannot be resumed by "
            f"{ranks.world}; keep nodes x processesPerNode as they were",
            field="spec.learner",
        )
    ranks.barrier()
    engine.load(folder)
    _set_random_state(torch.load(folder / TAG / _random_file(ranks), weights_only=True))


def _random_file(ranks: Ranks) -> str:
    return f"random_{ranks.rank:05d}.pt"


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
