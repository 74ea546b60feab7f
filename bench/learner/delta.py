"""Measures bytes and seconds of publishing new weights: full weights, a delta, and an adapter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.support.model import SMALL, write_model
from bench.support.report import Row, Section, Table, prose
from bench.support.stats import shown
from headway_api.records import Canary, PolicyVersion
from headway_api.spec.model import ModelSpec
from headway_api.store import FileStore
from headway_api.weights_format import DELTA_FILE, MODEL_FILE
from headway_rollout.weights import chain
from headway_rollout.weights.chain import VersionOnDisk
from headway_trainer import model as models
from headway_trainer.publish.backends import (
    DeltaPublisher,
    FilePublisher,
    LoraPublisher,
    Published,
    WeightPublisher,
)
from headway_trainer.publish.lora import WEIGHTS as ADAPTER_FILE

RATES = (4e-6, 4e-5)
LORA_RATE = 4e-5
STEPS = 5
BEFORE = 5
"""Number of steps before the first measured step. Adam's first steps change the weights more."""
TOKENS = 4 * 256
MEBIBYTE = 1 << 20
WEIGHTS = (MODEL_FILE, DELTA_FILE, ADAPTER_FILE)

READ = prose(f"""
    A model of {SMALL.parameters / 1e6:.0f} M parameters takes steps of AdamW on random tokens. Its weights
    are float32 in the optimizer; published they are bfloat16 or float32. After each of {STEPS} steps all
    weights are published once as `file` and once as `delta`. They go into a local folder, so the seconds are
    those of writing, hashing, comparing and compressing. A server takes them in the same way. Medians.

    *Changed* is the share of elements that differ from the step before. *Publish* is the learner's part, and
    *take* is the server's, until the whole model lies on its disk, proven by its digests. A delta is applied
    to the version before. Over a network the bytes count as well. The ratio is full over delta. A LoRA job
    publishes its adapter whole, here of rank 32.
""")


@dataclass
class Found:
    """The bytes and seconds of one way to publish, by version."""

    sizes: list[int] = field(default_factory=list)
    publish: list[float] = field(default_factory=list)
    take: list[float] = field(default_factory=list)


def measure(folder: Path) -> Section:
    """Measure both formats at two learning rates, and an adapter."""
    base = write_model(folder / "base", SMALL)
    rows = []
    for dtype in ("bfloat16", "float32"):
        for rate in RATES:
            rows.append(_full(folder / f"{dtype}-{rate}", base, dtype, rate))
    return Section(
        title="Weights: all of them against what changed",
        read=READ,
        tables=[
            Table("Full weights", rows),
            Table("Adapter", [_adapter(folder / "lora", base)]),
        ],
    )


def _full(folder: Path, base: Path, dtype: str, rate: float) -> Row:
    trained, published = _models(base, "float32"), _models(base, dtype)
    step = _steps(trained, list(trained.parameters()), rate)
    ways: dict[str, WeightPublisher] = {
        "full": FilePublisher(published, base, folder / "scratch-full"),
        "delta": DeltaPublisher(
            published, base, folder / "scratch-delta", full_every=100, whole=lambda step: False
        ),
    }
    found = {name: Found() for name in ways}
    held: dict[str, VersionOnDisk | None] = dict.fromkeys(ways)
    changed = []
    for number in range(BEFORE + STEPS + 1):
        step()
        if number < BEFORE:
            continue
        before = {name: tensor.detach().clone() for name, tensor in published.named_parameters()}
        _copy(trained, published)
        tensors = {name: tensor.detach() for name, tensor in published.named_parameters()}
        for name, way in ways.items():
            held[name] = _once(way, folder / name, number, tensors, held[name], found[name])
        changed.append(_share(before, tensors))
    # Skip the first version, which is full in both ways.
    size, delta_size = (statistics.median(found[name].sizes[1:]) for name in ways)
    medians = {name: [statistics.median(one[1:]) for one in (f.publish, f.take)] for name, f in found.items()}
    return {
        "published in": dtype,
        "learning rate": f"{rate:g}",
        "changed": f"{statistics.median(changed[1:]):.1%}",
        "full MiB": shown(size / MEBIBYTE),
        "delta MiB": shown(delta_size / MEBIBYTE),
        "ratio": shown(size / delta_size),
        "publish full s": shown(medians["full"][0]),
        "publish delta s": shown(medians["delta"][0]),
        "take full s": shown(medians["full"][1]),
        "take delta s": shown(medians["delta"][1]),
    }


def _adapter(folder: Path, base: Path) -> Row:
    model = _models(base, "bfloat16", lora={"rank": 32})
    way, found = LoraPublisher(model, f"file://{base}", folder / "scratch"), Found()
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    step = _steps(model, list(trained.values()), LORA_RATE)
    for number in range(STEPS):
        step()
        _once(way, folder / "store", number, trained, None, found)
    return {
        "published in": "bfloat16",
        "MiB": shown(statistics.median(found.sizes) / MEBIBYTE),
        "publish s": shown(statistics.median(found.publish)),
        "take s": shown(statistics.median(found.take)),
    }


def _models(base: Path, dtype: str, **training: Any) -> Any:
    spec = {"base": f"file://{base}", "dtype": dtype} | (training or {"full": {}})
    return models.load(base, ModelSpec.model_validate(spec), seed=0)


def _steps(model: Any, trained: list[torch.nn.Parameter], rate: float) -> Callable[[], None]:
    """A function that takes one step of AdamW on newly drawn tokens."""
    adam = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        tokens = torch.randint(20, 400, (4, TOKENS // 4), generator=generator)
        logits = model(input_ids=tokens).logits.float()
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adam.step()
        adam.zero_grad()

    return step


def _copy(trained: Any, published: Any) -> None:
    with torch.no_grad():
        for here, there in zip(published.parameters(), trained.parameters(), strict=True):
            here.copy_(there)


def _share(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    differ = sum(int((tensor != before[name]).sum()) for name, tensor in after.items())
    return differ / sum(tensor.numel() for tensor in after.values())


def _once(
    way: WeightPublisher,
    folder: Path,
    step: int,
    tensors: dict[str, torch.Tensor],
    held: VersionOnDisk | None,
    found: Found,
) -> VersionOnDisk:
    """Publish one version, and load it like a server."""
    store, version = FileStore(), PolicyVersion(incarnation=0, step=step)
    uri = f"file://{folder}/published/{step:06d}"
    began = time.monotonic()
    published: Published = way.publish(store, uri, version, tensors)
    published_at = time.monotonic()
    manifest = published.manifest(uri, version, Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1.0))
    taken = folder / "taken" / str(version)
    chain.fetch(store, manifest, taken, held)
    found.publish.append(published_at - began)
    found.take.append(time.monotonic() - published_at)
    found.sizes.append(sum(file.size for file in published.files if file.name in WEIGHTS))
    assert published.kind == "lora" or (taken / MODEL_FILE).exists()
    return VersionOnDisk(version, taken)
