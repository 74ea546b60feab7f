"""The state from which a learner continues bit for bit: weights, optimizer and random state of every rank.

DeepSpeed writes one file for each rank, and one for the weights that the ranks share. Each rank's random
state lies beside these files. Training waits while the ranks write a snapshot to a local disk. Afterwards one
process of each node uploads the node's files, and lists them in a part of the manifest. Rank 0 joins the
parts. No other start of the learner writes to this folder.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from headway_api.exits import JobError
from headway_api.record import Record
from headway_api.records import FileDigest
from headway_api.store import CorruptFileError, ObjectNotFoundError, Store, download_folder, upload_folder
from headway_trainer.checkpoint import resize
from headway_trainer.checkpoint.manifest import CheckpointManifest, IncompleteCheckpointError
from headway_trainer.checkpoint.signer import Signer
from headway_trainer.engine import TAG, Engine
from headway_trainer.ranks import Ranks

PARTS: Final = "parts"
PART_SECONDS: Final = 1800.0
"""Maximum seconds that rank 0 waits for the other nodes' uploads after its own."""
LOOK_SECONDS: Final = 0.5


class Part(Record):
    """The list of files that one node has uploaded."""

    place: str
    """The part's own URI, so that a signed part of another checkpoint cannot replace this one."""
    files: list[FileDigest]


@dataclass(frozen=True)
class Snapshot:
    """A learner's state on the local disk of its nodes."""

    files: Path
    """Folder with this node's files."""
    start: int
    """The number of the start of the learner whose state it is."""
    world: int
    updates: int


def snapshot(engine: Engine, start: int, folder: Path, ranks: Ranks) -> Snapshot:
    """Copy the learner's state to `folder`, which all ranks of a node share; collective."""
    if ranks.local_rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    ranks.barrier()
    files = engine.save(folder)
    torch.save(_random_state(), files / _random_file(ranks))
    ranks.barrier()
    return Snapshot(files, start, ranks.world, engine.updates)


def upload(taken: Snapshot, store: Store, uri: str, rank: int, signer: Signer) -> None:
    """Upload this node's files into `uri`, then their list. Not collective: one process of each node calls
    it."""
    digests, part = upload_folder(store, taken.files, uri), _part(uri, rank)
    store.put(part, signer.signed(Part(place=part, files=digests).model_dump(mode="json")))


def complete(
    taken: Snapshot,
    store: Store,
    uri: str,
    uploaders: Sequence[int],
    withdrawn: threading.Event,
    signer: Signer,
) -> CheckpointManifest | None:
    """Wait until all `uploaders` (ranks) have uploaded, and return the manifest.

    `withdrawn` is set if a node has given up its upload. Then the function returns None.

    Raises:
        JobError: `CheckpointNotUploaded`: a node did not upload in time, or a part is not signed by this job.
    """
    deadline = time.monotonic() + PART_SECONDS
    digests = []
    for rank in uploaders:
        while (found := _uploaded(store, _part(uri, rank), signer)) is None:
            if withdrawn.wait(LOOK_SECONDS):
                return None
            if time.monotonic() > deadline:
                raise JobError(
                    "CheckpointNotUploaded",
                    f"the node of rank {rank} has not uploaded its part of {uri} in {PART_SECONDS:.0f} s",
                    permanent=False,
                )
        digests += found
    return CheckpointManifest(start=taken.start, files=digests, world_size=taken.world, updates=taken.updates)


def fetch(store: Store, uri: str, manifest: CheckpointManifest, folder: Path, world: int) -> None:
    """Download the files of `manifest` from `uri` into `folder`, and convert them if necessary.

    A conversion is necessary if another number of processes than `world` wrote them. With `world` 0, any
    number of processes can load them. One process of each node calls it.

    Raises:
        IncompleteCheckpointError: a file is missing or damaged.
        JobError: `CheckpointUnusable`: the files cannot be converted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        download_folder(store, uri, folder / TAG, manifest.files)
    except (ObjectNotFoundError, CorruptFileError) as error:
        raise IncompleteCheckpointError(uri, f"it is not whole: {error}") from error
    if world not in (0, manifest.world_size):
        resize.to_universal(folder / TAG, folder / resize.TAG)


def load(engine: Engine, manifest: CheckpointManifest, folder: Path, ranks: Ranks) -> None:
    """Load the files that `fetch` downloaded into an engine that has taken no step; collective.

    With the number of processes that wrote them, training continues bit for bit. With another number it
    continues from the same weights and optimizer state, with fresh random numbers. Results then agree as
    exactly as sums over ranks allow.
    """
    if manifest.world_size == ranks.world:
        engine.load(folder)
        _set_random_state(torch.load(folder / TAG / _random_file(ranks), weights_only=True))
    elif engine.replicated:
        engine.load(folder)
    else:
        engine.load_universal(folder, resize.TAG, manifest.updates)
    ranks.barrier()
    if ranks.local_rank == 0:
        shutil.rmtree(folder)


def _part(uri: str, rank: int) -> str:
    return f"{uri}/{PARTS}/{rank:05d}.json"


def _uploaded(store: Store, uri: str, signer: Signer) -> list[FileDigest] | None:
    try:
        part = Part.model_validate(signer.opened(uri, store.get(uri)))
        if part.place == uri:
            return part.files
        forged: Exception = IncompleteCheckpointError(uri, f"it was written for {part.place}")
    except ObjectNotFoundError:
        return None
    except (IncompleteCheckpointError, ValueError, JobError) as error:
        forged = error
    raise JobError(
        "CheckpointNotUploaded",
        f"{forged}; let only this job's pods write below spec.output.uri",
        permanent=False,
    ) from forged


def _random_file(ranks: Ranks) -> str:
    return f"random_{ranks.rank:05d}.pt"


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
