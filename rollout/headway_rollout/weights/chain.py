"""From a manifest of full weights, or of a delta, to a whole model on this server's disk."""

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
    """A whole version on this disk."""

    version: PolicyVersion
    folder: Path


def after(current: PolicyVersion | None, links: Sequence[WeightsLink]) -> Sequence[WeightsLink] | None:
    """The deltas to apply to the version held, in order; None if the last link is not built on it."""
    for at, link in enumerate(links[:-1]):
        if link.version == current:
            return links[at + 1 :]
    return None


def fetch(store: Store, manifest: WeightsManifest, folder: Path, current: VersionOnDisk | None) -> None:
    """Fill `folder` with the whole model of `manifest`; the held version is read and remains unchanged.

    A delta is applied to the version held if its chain leads there, else to the full version at the chain's
    start. If it does not fit the version held, that may be damaged, so the full version is used instead.
    Deltas are fetched first: if one is missing, all weights need not be fetched to find out.

    Raises:
        CorruptFileError: a file or a tensor differs from its digest, and no other way leads to this version.
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
    """Apply `deltas`, which lie in `folder`, one after the other to the model in `start`."""
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
