"""Builds a whole model on this server's disk, from a manifest of full weights or of a delta."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway_api.logs import event
from headway_api.records import PolicyVersion, WeightsLink, WeightsManifest
from headway_api.store import CorruptFileError, Store, download_folder
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, MODEL_FILE
from headway_rollout.weights import delta

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VersionOnDisk:
    """A policy version whose whole model is in a folder on this disk."""

    version: PolicyVersion
    folder: Path


def after(current: PolicyVersion | None, links: Sequence[WeightsLink]) -> Sequence[WeightsLink] | None:
    """The deltas that lead from version `current` to the last link, in order.

    Returns None if `current` is no earlier link, so that these deltas cannot start from it.
    """
    for at, link in enumerate(links[:-1]):
        if link.version == current:
            return links[at + 1 :]
    return None


def fetch(store: Store, manifest: WeightsManifest, folder: Path, current: VersionOnDisk | None) -> None:
    """Write the whole model of `manifest` into `folder`. The files of `current` are read and not changed.

    Deltas are applied to `current` if the manifest's chain contains its version. Otherwise they are applied
    to the full version at the chain's start. If a result differs from its digest, the copy of `current` may
    be damaged, so the full version is fetched instead. Deltas are downloaded before the full version: a
    missing delta is then found without downloading all weights.

    Raises:
        CorruptFileError: a file or a tensor differs from its digest, also from the full version.
        ObjectNotFoundError: a link of the chain is missing.
    """
    if not manifest.chain:
        download_folder(store, manifest.uri, folder, manifest.files)
        return
    links = [*manifest.chain, manifest.link]
    deltas = after(current.version, links) if current else None
    if current and deltas:
        _download(store, deltas, folder)
        try:
            _apply(current.folder, deltas, folder)
            return
        except CorruptFileError as error:
            why = f"{current.version}, as stored here, cannot be continued: {error}"
            event(log, "full weights fetched again", logging.WARNING, why=why)
            shutil.rmtree(folder)
    _download(store, links[1:], folder)
    whole = folder / "whole"
    download_folder(store, links[0].uri, whole, links[0].files)
    _apply(whole, links[1:], folder)
    shutil.rmtree(whole)


def _download(store: Store, deltas: Sequence[WeightsLink], folder: Path) -> None:
    for link in deltas:
        download_folder(store, link.uri, folder / str(link.version), link.files)


def _apply(start: Path, deltas: Sequence[WeightsLink], folder: Path) -> None:
    """Apply `deltas`, which are in `folder`, one after the other to the model in `start`.

    The resulting model and its digests are in `folder` afterwards.
    """
    current = start
    for link in deltas:
        here = folder / str(link.version)
        delta.apply(current / MODEL_FILE, here / DELTA_FILE, here / DIGESTS_FILE, here / MODEL_FILE)
        if current != start:
            shutil.rmtree(current)
        current = here
    for name in (MODEL_FILE, DIGESTS_FILE):
        (current / name).rename(folder / name)
    shutil.rmtree(current)
