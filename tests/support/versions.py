"""Versions of a model's weights in a store: full versions, and deltas as the learner makes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from headway_api.records import Canary, PolicyVersion, WeightsManifest
from headway_api.store import digest
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, MODEL_FILE
from headway_trainer.publish import codec

CANARY = Canary(tokens=[5, 6, 7], logprobs=[-1.0, -2.0], tolerance=0.01)


def version(step: int, incarnation: int = 0) -> PolicyVersion:
    return PolicyVersion(incarnation=incarnation, step=step)


def tensors(step: int) -> dict[str, Any]:
    """Return a model's tensors at a step. A few elements change in each step; one tensor never changes."""
    values = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    values[: 10 * step] += step
    return {"w": values.reshape(50, 20), "norm": np.ones(7, np.float32)}


def whole(store: Path, step: int, content: dict[str, Any] | None = None) -> WeightsManifest:
    """Publish a full version."""
    folder = store / f"{step:06d}"
    folder.mkdir(parents=True)
    save_file(content or tensors(step), folder / MODEL_FILE)
    (folder / DIGESTS_FILE).write_text(codec.tensor_digests(folder / MODEL_FILE).model_dump_json())
    return described(folder, step, "full")


def chained(store: Path, first: int, last: int) -> list[WeightsManifest]:
    """Publish `first` in full, and each later step as a delta on the step before."""
    found = [whole(store, first)]
    for step in range(first + 1, last + 1):
        found.append(delta(store, step, found[-1]))
    return found


def delta(
    store: Path, step: int, before: WeightsManifest, content: dict[str, Any] | None = None
) -> WeightsManifest:
    """Publish a version as a delta on `before`, which must hold the tensors of its own step."""
    folder, scratch = store / f"{step:06d}", store / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir(exist_ok=True)
    save_file(tensors(before.version.step), scratch / "before.safetensors")
    save_file(content or tensors(step), scratch / "after.safetensors")
    codec.write_delta(scratch / "before.safetensors", scratch / "after.safetensors", folder / DELTA_FILE)
    digests = codec.tensor_digests(scratch / "after.safetensors")
    (folder / DIGESTS_FILE).write_text(digests.model_dump_json())
    shutil.rmtree(scratch)
    return described(folder, step, "delta", chain=[*before.chain, before.link])


def described(folder: Path, step: int, kind: str, **more: Any) -> WeightsManifest:
    content = {
        "version": version(step),
        "kind": kind,
        "uri": f"file://{folder}",
        "files": [digest(path) for path in sorted(folder.iterdir())],
        "canary": CANARY,
    }
    return WeightsManifest.model_validate(content | more)


def path(manifest: WeightsManifest, name: str) -> Path:
    """Return the path of a published file."""
    return Path(manifest.uri.removeprefix("file://")) / name


def signed_again(manifest: WeightsManifest) -> WeightsManifest:
    """Return the manifest with new digests of its files: a publisher's error, not a store's."""
    folder = Path(manifest.uri.removeprefix("file://"))
    return manifest.model_copy(update={"files": [digest(file) for file in sorted(folder.iterdir())]})
