"""The learner's optimizer steps under many settings, in one set of processes, and what each computed.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python tests/support/step_variants.py BASE_MODEL FOLDER '{"NAME": {"zeroStage": 2, ...}, ...}'

Everything between a batch and the weights is the product's; FOLDER gets NAME.json (losses, norms, layout) and
NAME.safetensors (the trained weights) of each. Starting a process costs more than the steps of ten variants.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import learner_rig as rig

STEPS = 3
OPTIMIZER: dict[str, Any] = {
    "learningRate": 1e-3,
    "betas": (0.9, 0.95),
    "eps": 1e-4,  # large, so that rounding noise in a tiny gradient is not blown up to a whole step
    "weightDecay": 0.01,
    "gradientClip": 0.5,
    "warmupSteps": 2,
}
LORA = {"rank": 4, "alpha": 8}


def start(base: Path, folder: Path, variants: Mapping[str, Mapping[str, Any]], processes: int) -> None:
    """Run all variants on so many ranks, and wait for them.

    Raises:
        AssertionError: with the log of the rank that failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rig.free_port()), "OMP_NUM_THREADS": "1"}
    running = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        command = [sys.executable, __file__, str(base), str(folder), json.dumps(variants)]
        with (folder / f"rank{rank}.log").open("wb") as log:
            environ = {**os.environ, **shared, **place}
            running.append(subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=500) for process in running]
    finally:
        for process in running:
            process.kill()
    for rank, code in enumerate(codes):
        assert code == 0, (folder / f"rank{rank}.log").read_text()[-6000:]


def main() -> None:
    """One rank."""
    from headway_trainer.ranks import Ranks

    base, folder, variants = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    ranks = Ranks.join()
    for name, settings in variants.items():
        _run(base, folder / name, settings, ranks)
    ranks.leave()


def _run(base: Path, target: Path, settings: dict[str, Any], ranks: Any) -> None:
    from safetensors.torch import save_file

    from headway_api.spec.learner import DeepSpeed
    from headway_trainer import layout
    from headway_trainer import model as models
    from headway_trainer import policy as policies
    from headway_trainer.batch import mini_batches, training_batch
    from headway_trainer.engine import Engine
    from headway_trainer.objective.presets import Objective
    from headway_trainer.packing import Layout
    from headway_trainer.step import optimizer_step

    spec = rig.job(
        target,
        base,
        lora=LORA if settings.get("lora") else None,
        dtype=settings.get("dtype", "float32"),
        algorithm={"kl": {"coefficient": settings.get("kl", 0.0)}},
        optimizer=OPTIMIZER,
    ).spec
    deepspeed = DeepSpeed(zero_stage=settings["zeroStage"], offload=settings.get("offload", "none"))
    objective = Objective.of(spec.algorithm)
    policies.CHUNK = settings.get("chunk", 2**26)  # type: ignore[misc]
    model = models.load(base, spec.model, spec.seed)
    if settings.get("checkpointing"):
        models.save_memory(model)
    engine = Engine(model, deepspeed, spec.optimizer, ranks)
    frozen = models.reference(base, spec, ranks.device)
    policy = policies.Policy(engine, model, temperature=1.0, frozen=frozen)
    choice = layout.choose(policy, ranks.device, quadratic=0.001)
    if not settings.get("packed", True):
        policy.layout = Layout(packed=False)
    results = []
    for step in range(1, STEPS + 1):
        batch = training_batch(rig.batch(step, groups=3, seed=5), objective)
        (rows,) = mini_batches(batch, 1, objective)
        tokens = settings.get("tokens", 4096)
        results.append(optimizer_step(engine, policy, objective, rows, ranks=ranks, max_tokens=tokens))
    weights = dict(engine.tensors(trained_only=True))
    if ranks.first:
        save_file(weights, target.with_suffix(".safetensors"))
        found = {
            "losses": [result.tokens["loss"] for result in results],
            "norms": [result.update.gradient_norm for result in results],
            "micro_batches": [result.micro_batches for result in results],
            "packed": policy.layout.packed,
            "head": choice.head,
        }
        target.with_suffix(".json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
