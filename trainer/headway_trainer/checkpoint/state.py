"""What a learner needs to continue bit for bit: weights, optimizer and random state of every rank.

DeepSpeed writes one file a rank (and one for the weights they share). Each rank's random state lies beside
them. Training waits while a snapshot is taken on a local disk. Afterwards one process a node uploads it, and
lists its files in a part of the manifest. Rank 0 joins the parts. All lie in a folder that no other start of
the learner writes to.
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
"""Longest that another node's upload may take after this one's."""
LOOK_SECONDS: Final = 0.5


class Part(Record):
    """What one node has uploaded."""

    place: str
    """The part's own URI, so that a part of another checkpoint cannot replace it."""
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
    """Upload this node's files into `uri`, then record that. Not collective: one process a node calls it."""
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
    """The manifest, once all `uploaders` (ranks) are done; None if it is `withdrawn`.

    It is withdrawn if one of them will never be done.

    Raises:
        JobError: `CheckpointNotUploaded`: one of them was not done in time, or a part is not signed by this
            job.
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

    They are converted if they were written by another number of processes than `world` (0: any number may
    load them). One process a node calls it.

    Raises:
        IncompleteCheckpointError: a file is missing or damaged.
        JobError: `CheckpointUnusable`: they cannot be converted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        download_folder(store, uri, folder / TAG, manifest.files)
    except (ObjectNotFoundError, CorruptFileError) as error:
        raise IncompleteCheckpointError(uri, f"it is not whole: {error}") from error
    if world not in (0, manifest.world_size):
        resize.to_universal(folder / TAG, folder / resize.TAG)


def load(engine: Engine, manifest: CheckpointManifest, folder: Path, ranks: Ranks) -> None:
    """Load what `fetch` left into an engine that has not stepped; collective.

    With as many processes as wrote it, training continues bit for bit. With another number it continues from
    the same weights and optimizer state, as exactly as sums over ranks allow, with fresh random numbers.
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
