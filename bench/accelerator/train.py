"""Measures a model of a real shape on the accelerator: speed against TRL, memory, publishing, a checkpoint.

python -m bench.accelerator.train full|lora|turns FOLDER FOUND.json
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import learner_rig as rig
import torch
from safetensors.torch import load_file
from torch import Tensor

from bench.accelerator import hardware, shapes
from bench.accelerator.shapes import Shape
from bench.accelerator.versions import product
from bench.learner.sides import Trl
from bench.learner.work import RATE, Turn, by_turn, one_rank, row
from headway_api.in_force import InForce
from headway_api.records import PolicyVersion, WeightsManifest
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore
from headway_rollout.weights import chain
from headway_rollout.weights.chain import VersionOnDisk
from headway_trainer import attention, memory
from headway_trainer import model as models
from headway_trainer.adapter import TrainedState
from headway_trainer.assembly import Assembly
from headway_trainer.batch import LearnerRow, weighted
from headway_trainer.checkpoint import state
from headway_trainer.head import without_adapter
from headway_trainer.packing import plan
from headway_trainer.policy import micro_batch
from headway_trainer.publish.canary import canary
from headway_trainer.publish.lora import WEIGHTS
from headway_trainer.step import StepResult, optimizer_step

REPEATS = 3
VERSIONS = 2
STARTED = time.monotonic()
ADAPTER: dict[str, Any] = {"rank": 32, "alpha": 64}
FEW = 256
"""Maximum tokens of a micro-batch in a rehearsal."""


class Ours:
    """The learner's parts for a model, assembled as in the learner."""

    def __init__(self, shape: Shape, way: str, folder: Path) -> None:
        self.ranks = one_rank()
        self.spec = spec_of(way, folder)
        self.model = trained(shape, self.spec, self.ranks.device)
        self.size = memory.size(self.model)
        self.parts = Assembly(self.spec, InForce(), folder, folder / "scratch", self.ranks, None)
        self.parts.put_together(self.model)

    @property
    def choice(self) -> Any:
        """Layout and attention, as chosen when the model was loaded."""
        return self.parts._choice

    def step(self, rows: Sequence[LearnerRow]) -> StepResult:
        """Take one whole step, from training rows to new weights."""
        parts = self.parts
        return optimizer_step(
            parts.engine,
            parts.policy,
            parts.objective,
            weighted(rows, parts.objective),
            ranks=self.ranks,
            max_tokens=parts.max_tokens,
        )


class Packed:
    """Runs the learner's micro-batches through the bare model.

    A step is forward, cross-entropy of the action tokens, backward, clip, and AdamW on the weights in their
    own number format.
    """

    def __init__(self, model: Any, rows: Sequence[LearnerRow], ours: Ours) -> None:
        """Changes `model`, which the caller must no longer use."""
        self._bare = without_adapter(model)
        attention.install(self._bare, ours.choice.attention)
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._adam = torch.optim.AdamW(self._trained, lr=RATE, weight_decay=0.0)
        layout = ours.choice.layout
        [mine] = plan([each.length for each in rows], ours.parts.max_tokens, 1, layout)
        device = ours.ranks.device
        self._parts = [micro_batch([rows[n] for n in chosen], device, packed=True) for chosen in mine]
        self._tokens = sum(each.action_tokens for each in rows)

    def step(self) -> None:
        """Take one optimizer step."""
        for part in self._parts:
            assert part.spans is not None
            logits = self._bare(
                input_ids=part.tokens_BL,
                position_ids=part.spans.positions_1L,
                rows=part.spans,
                logits_to_keep=part.positions_T,
            ).logits[0]
            loss = torch.nn.functional.cross_entropy(logits, part.targets_T, reduction="sum") / self._tokens
            loss.backward()
            del logits, loss
        torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._adam.step()
        self._adam.zero_grad()


def spec_of(way: str, folder: Path) -> RLTrainingJobSpec:
    """The spec of a job that trains in bfloat16: an adapter if `way` is `lora`, else all weights.

    All other settings are the defaults.
    """
    lora = ADAPTER if way == "lora" else None
    config = rig.job(folder, folder, lora=lora, dtype="bfloat16", optimizer={"learningRate": RATE})
    learner = config.spec.learner
    if hardware.rehearsing():
        learner = learner.model_copy(update={"micro_batch_tokens": FEW})
    return config.spec.model_copy(update={"learner": learner})


def trained(shape: Shape, spec: RLTrainingJobSpec, device: torch.device) -> Any:
    """The model, with the job's adapter if it has one."""
    model = shapes.model_of(shape, device)
    lora = spec.model.effective_lora
    return model if lora is None else models.with_adapter(model, lora, spec.seed)


def speed(way: str, folder: Path, target: Path) -> None:
    """Measure everything about one model.

    It writes intermediate results to `target` before TRL runs, because TRL may take too long.
    """
    shape = shapes.scaled(shapes.LORA if way == "lora" else shapes.FULL)
    rows = shapes.episodes(shape)
    _say("model")
    ours = Ours(shape, way, folder)
    adapter = sum(p.numel() for p in ours.model.parameters() if p.requires_grad) if way == "lora" else 0
    before = _allocated()
    _say("steps")
    _reset()
    first = ours.step(rows)
    ours.step(rows)
    found: dict[str, Any] = {
        "shape": shape.name,
        "parameters": sum(p.numel() for p in ours.model.parameters()),
        "trained": sum(p.numel() for p in ours.model.parameters() if p.requires_grad),
        "attention": ours.choice.attention,
        "packed": ours.choice.layout.packed,
        "why": ours.choice.why,
        "micro-batches": first.micro_batches,
        "max tokens": ours.parts.max_tokens,
        "episodes": len(rows),
        "tokens": sum(each.length for each in rows),
        "action tokens": sum(each.action_tokens for each in rows),
        "operations": shapes.operations(shape, rows, adapter),
        "weights bytes": ours.size,
        "made bytes": before,
        "held bytes": _allocated(),
        "peak bytes": _peak(),
        "rate": product(256 if hardware.rehearsing() else 8192),
    }
    found |= sides(("ours", "packed"), ours, shape, rows)
    late = {"failed": {"trl": "it was not done when the time was over"}}
    target.write_text(json.dumps(found | late))
    memory.release()
    _say("publish")
    found["publish"] = published(ours, rows, folder / "published")
    target.write_text(json.dumps(found | late))
    # A checkpoint of full weights has 14 bytes per weight, which takes minutes on a slow disk.
    if way == "lora":
        _say("checkpoint")
        found["checkpoint"] = checkpoint(ours, rows, folder / "checkpoint")
        target.write_text(json.dumps(found | late))
    # Compare TRL separately, because its first step alone may take a minute.
    compared = sides(("ours", "trl"), ours, shape, rows)
    found["beside"] = compared["seconds"]
    found["failed"] |= compared["failed"]
    target.write_text(json.dumps(found))


def sides(names: Sequence[str], ours: Ours, shape: Shape, rows: Sequence[LearnerRow]) -> dict[str, Any]:
    """Seconds of a step of each side. The sides take turns, after one uncounted step each.

    A side that fails, for example because it does not fit into memory, has only the reason.
    """
    device = ours.ranks.device
    made: dict[str, Callable[[], Callable[[], Any]]] = {
        "ours": lambda: lambda: ours.step(rows),
        "packed": lambda: Packed(_checkpointed(trained(shape, ours.spec, device)), rows, ours).step,
        "trl": lambda: _theirs(ours, shape, rows),
    }
    seconds: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    steps: dict[str, Callable[[], Any]] = {}
    for name in names:
        try:
            _say(name)
            steps[name] = made[name]()
            steps[name]()
            seconds[name] = []
        except (torch.OutOfMemoryError, ImportError, RuntimeError) as error:
            failed[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            steps.pop(name, None)
            memory.release()
    for _ in range(REPEATS):
        for name in seconds:
            _wait()
            began = time.perf_counter()
            steps[name]()
            _wait()
            seconds[name].append(time.perf_counter() - began)
    return {"seconds": seconds, "failed": failed}


def _theirs(ours: Ours, shape: Shape, rows: Sequence[LearnerRow]) -> Callable[[], Any]:
    """A function that takes one step of TRL, with all of torch's attention kernels.

    The learner forbids cuDNN's kernel in this process, so the function allows it during the step.
    """
    device = ours.ranks.device
    model = without_adapter(_checkpointed(trained(shape, ours.spec, device)))
    theirs = Trl(model, rows, str(device))

    def step() -> None:
        torch.backends.cuda.enable_cudnn_sdp(True)
        try:
            theirs.step()
        finally:
            torch.backends.cuda.enable_cudnn_sdp(False)

    return step


def published(ours: Ours, rows: Sequence[LearnerRow], folder: Path) -> list[dict[str, Any]]:
    """Publish versions, with a step between two of them.

    It measures how long each publication stops training. It also checks whether the version that a server
    loads has the bytes of the tensors on the accelerator.
    """
    found: list[dict[str, Any]] = []
    held: VersionOnDisk | None = None
    for number in range(VERSIONS):
        if number:
            ours.step(rows)
        version = PolicyVersion(incarnation=0, step=number + 1)
        held, measured = _version(ours, version, folder, held)
        found.append(measured)
    shutil.rmtree(folder)
    return found


def _version(
    ours: Ours, version: PolicyVersion, folder: Path, held: VersionOnDisk | None
) -> tuple[VersionOnDisk, dict[str, Any]]:
    """Publish a version, and load it like a server that holds the previous version."""
    store, parts, device = FileStore(), ours.parts, ours.ranks.device
    uri = f"file://{folder}/{version.step:06d}"
    _wait()
    began = time.perf_counter()
    manifest = parts.publisher.publish(store, uri, version)
    stops = time.perf_counter() - began
    vocabulary, lora = models.vocabulary(ours.model), manifest.kind == "lora"
    taken = folder / "taken" / f"{version.step:06d}"
    return VersionOnDisk(version, taken), {
        "kind": manifest.kind,
        "bytes": sum(file.size for file in manifest.files),
        "stops": stops,
        "canary": _timed(lambda: canary(parts.policy, vocabulary, torch.bfloat16, device)),
        "copy": _timed(lambda: dict(parts.engine.tensors(trained_only=lora))),
        "take": _timed(lambda: chain.fetch(store, manifest, taken, held)),
        "equal": _equal(ours.model, manifest, taken),
    }


def _equal(model: Any, manifest: WeightsManifest, taken: Path) -> bool:
    """Whether the files have all tensors that are on the accelerator, bit for bit."""
    lora = manifest.kind == "lora"
    files = load_file(taken / (WEIGHTS if lora else "model.safetensors"))
    expected: dict[str, Tensor] = {
        name.replace(".default", "") if lora else name: parameter.detach().cpu()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return files.keys() == expected.keys() and all(torch.equal(files[n], expected[n]) for n in files)


def checkpoint(ours: Ours, rows: Sequence[LearnerRow], folder: Path) -> dict[str, Any]:
    """Measure how long a snapshot stops training, and check it.

    It checks whether an engine that loads the snapshot has the same bits. It also checks whether the same
    step, taken twice from the snapshot, ends with the same bits.
    """
    before = ours.parts.engine.state()
    _wait()
    began = time.perf_counter()
    taken = state.snapshot(ours.parts.engine, 0, folder, ours.ranks)
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in taken.files.rglob("*") if file.is_file())
    ours.parts.engine.load(folder)
    equal = _alike(before, ours.parts.engine.state())
    ours.step(rows)
    first = ours.parts.engine.state()
    ours.parts.engine.load(folder)
    ours.step(rows)
    twice = _alike(first, ours.parts.engine.state())
    shutil.rmtree(folder)
    return {"bytes": size, "stops": seconds, "equal": equal, "twice": twice}


def _alike(one: TrainedState, other: TrainedState) -> bool:
    """Whether weights and moments have the same bits."""
    return all(
        torch.equal(mine.weight, other.parameters[name].weight)
        and all(torch.equal(mine.moments[key], other.parameters[name].moments[key]) for key in mine.moments)
        for name, mine in one.parameters.items()
    )


def turns(folder: Path) -> dict[str, Any]:
    """Measure episodes as one row each, and as one row for each turn."""
    shape = shapes.scaled(shapes.SMALL)
    ours = Ours(shape, "full", folder)
    low = 16 if hardware.rehearsing() else 1
    found = []
    for count in (4, 16):
        made: list[Turn] = [((512 if turn == 0 else 96) // low, 128 // low) for turn in range(count)]
        each: dict[str, list[LearnerRow]] = {
            "one": [row(made, shape.vocabulary, seed=n, episode=n) for n in range(shape.episodes)],
            "a turn": [
                one
                for n in range(shape.episodes)
                for one in by_turn(made, shape.vocabulary, seed=n, episode=n)
            ],
        }
        taken: dict[str, list[float]] = {name: [] for name in each}
        for repeat in range(REPEATS + 1):
            for name, rows in each.items():
                _wait()
                began = time.perf_counter()
                ours.step(rows)
                _wait()
                if repeat:
                    taken[name].append(time.perf_counter() - began)
        tokens = {name: sum(one.length for one in rows) for name, rows in each.items()}
        work = {name: shapes.operations(shape, rows) for name, rows in each.items()}
        found.append(
            {
                "turns": count,
                "episodes": shape.episodes,
                "tokens": tokens,
                "operations": work,
                "seconds": taken,
            }
        )
    return {"shape": shape.name, "found": found}


def _say(what: str) -> None:
    print(f"{time.monotonic() - STARTED:.0f} s: {what}", flush=True)


def _checkpointed(model: Any) -> Any:
    models.save_memory(model)
    return model


def _timed(work: Callable[[], Any]) -> float:
    _wait()
    began = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _reset() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def main() -> None:
    """Measure rows and turns, or one way to train, and write the result to a file."""
    way, folder, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if way == "turns":
        target.write_text(json.dumps(turns(folder)))
    else:
        speed(way, folder, target)


if __name__ == "__main__":
    main()
