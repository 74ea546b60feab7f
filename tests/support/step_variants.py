"""Runs the learner's optimizer steps under many settings, in one set of processes, and records the results.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python tests/support/step_variants.py BASE_MODEL FOLDER '{"NAME": {"zeroStage": 2, ...}, ...}'

Everything between a batch and the weights is the product's code. For each variant, FOLDER gets NAME.json
(losses, norms, layout) and NAME.safetensors (the trained weights). One set of processes runs all variants,
because starting a process costs more than the steps of ten variants.

A variant may have these settings:

- `save`: write the learner's state before the last step to NAME.state, and the weights to NAME.before.
- `load`: begin at such a state, which a given number of processes saved, and take only the last step.
- `state`: write what the optimizer holds, in float32. The state before the first step goes to NAME.start,
  before the last to NAME.last, and after the last to NAME.end.
- `sum`: take no rows, and use given gradients (see `_sum`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import learner_rig as rig
import ranks_of

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
ELEMENTS = 64
SMALL = 2.0**-9
"""So small that 1 + SMALL is 1 in bfloat16."""
MICRO_BATCHES = 257


def start(
    base: Path,
    folder: Path,
    variants: Mapping[str, Mapping[str, Any]],
    processes: int,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run all variants on `processes` ranks, and wait for them. `environ` is as for `ranks_of.run`.

    Raises:
        AssertionError: a rank failed; the message has its log.
    """
    ranks_of.run(__file__, [str(base), str(folder), json.dumps(variants)], folder, processes, environ)


def main() -> None:
    """Run one rank."""
    from headway_trainer.ranks import Ranks
    from headway_trainer.termination import end

    base, folder, variants = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    ranks = Ranks.join()
    for name, settings in variants.items():
        _run(base, folder / name, settings, ranks)
    ranks.barrier()  # a rank that leaves takes its connections with it
    end(0)


def _run(base: Path, target: Path, settings: dict[str, Any], ranks: Any) -> None:
    from headway_trainer.head import without_adapter
    from headway_trainer.step import optimizer_step, with_old

    if settings.get("sum"):
        norm = _sum(target, settings, ranks)
        if ranks.first:
            target.with_suffix(".json").write_text(json.dumps({"norm": norm}))
        return
    engine, policy, objective, head = _made(base, target, settings, ranks)
    taken = []
    first = _resumed(engine, settings["load"], ranks) if "load" in settings else 1
    _keep_state(engine, target.with_suffix(".start"), settings, ranks)
    for step in range(first, STEPS + 1):
        if step == STEPS:
            _keep_state(engine, target.with_suffix(".last"), settings, ranks)
        if settings.get("save") and step == STEPS:
            engine.save(target.with_suffix(".state"))
            _keep(engine, target.with_suffix(".before"), ranks)
        tokens = settings.get("tokens", 4096)
        parts = _parts(step, settings, objective)
        for rows in with_old(policy, objective, parts, ranks=ranks, max_tokens=tokens):
            taken.append(optimizer_step(engine, policy, objective, rows, ranks=ranks, max_tokens=tokens))
    _keep(engine, target.with_suffix(".safetensors"), ranks)
    _keep_state(engine, target.with_suffix(".end"), settings, ranks)
    if ranks.first:
        found = {
            "losses": [result.tokens["loss"] for result in taken],
            "norms": [result.update.gradient_norm for result in taken],
            "micro_batches": [result.micro_batches for result in taken],
            "tokens": [result.tokens for result in taken],
            "packed": policy.layout.packed,
            "attention": without_adapter(policy.model).config._attn_implementation,
            "head": head,
        }
        target.with_suffix(".json").write_text(json.dumps(found))


def _keep(engine: Any, file: Path, ranks: Any) -> None:
    from safetensors.torch import save_file

    weights = dict(engine.tensors(trained_only=True))
    if ranks.first:
        save_file(weights, file)


def _keep_state(engine: Any, file: Path, settings: dict[str, Any], ranks: Any) -> None:
    """Write the optimizer's weights and moments to `file`, if the variant asks for them."""
    from safetensors.torch import save_file

    if not settings.get("state"):
        return
    state = engine.state()
    found = {name: one.weight for name, one in state.parameters.items()}
    found |= {f"{name}/{m}": t for name, one in state.parameters.items() for m, t in one.moments.items()}
    if ranks.first:
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, file)


def _made(base: Path, target: Path, settings: dict[str, Any], ranks: Any) -> tuple[Any, Any, Any, str]:
    """Make a variant's engine, policy and objective; the last item is how the policy runs its head."""
    from headway_api.objective import episode_tokens
    from headway_trainer import layout
    from headway_trainer import model as models
    from headway_trainer import policy as policies
    from headway_trainer.engine import Engine
    from headway_trainer.objective.presets import Objective
    from headway_trainer.packing import Layout

    spec = rig.job(
        target,
        base,
        lora=LORA if settings.get("lora") else None,
        dtype=settings.get("dtype", "float32"),
        algorithm=settings.get("algorithm"),
        optimizer=OPTIMIZER,
    ).spec
    policies.CHUNK = settings.get("chunk", 2**26)  # type: ignore[misc]
    model = models.load(base, spec.model, spec.seed)
    if settings.get("checkpointing"):
        models.save_memory(model)
    engine = Engine(model, _deepspeed(settings), spec.optimizer, ranks)
    frozen = models.reference(base, spec, ranks.device)
    policy = policies.Policy(engine, model, temperature=1.0, frozen=frozen)
    choice = layout.choose(policy, ranks.device, quadratic=0.001)
    if not settings.get("packed", True):
        policy.layout = Layout(packed=False)
    return engine, policy, Objective.of(spec.algorithm, episode_tokens(spec)), choice.head


def _deepspeed(settings: dict[str, Any]) -> Any:
    from headway_api.spec.learner import DeepSpeed

    return DeepSpeed(zero_stage=settings["zeroStage"], offload=settings.get("offload", "none"))


def _parts(step: int, settings: dict[str, Any], objective: Any) -> Any:
    from headway_trainer.batch import mini_batches, training_batch

    batch = training_batch(rig.batch(step, groups=3, seed=5), objective)
    return mini_batches(batch, settings.get("updates", 1), objective)


def _resumed(engine: Any, saved: dict[str, Any], ranks: Any) -> int:
    """Load what `saved["ranks"]` processes left in `saved["folder"]`; return the step to take next."""
    from headway_trainer.checkpoint import resize
    from headway_trainer.engine import TAG

    folder = Path(saved["folder"])
    if saved["ranks"] == ranks.world:
        engine.load(folder)
        return STEPS
    if ranks.first:
        resize.to_universal(folder / TAG, folder / resize.TAG)
    ranks.barrier()
    engine.load_universal(folder, resize.TAG, STEPS - 1)
    return STEPS


def _sum(target: Path, settings: dict[str, Any], ranks: Any) -> float:
    """Return the norm of a sum of gradients.

    Each element is 1 in rank 0's first micro-batch, and `SMALL` in all others.
    """
    import torch

    from headway_trainer.engine import Engine

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(ELEMENTS, dtype=torch.bfloat16))

        def forward(self, by: float) -> torch.Tensor:
            return (self.weight * by).sum()

    optimizer = rig.job(target, target, optimizer=OPTIMIZER).spec.optimizer
    engine = Engine(Scaled(), _deepspeed(settings), optimizer, ranks)
    for first in [ranks.first, *[False] * (MICRO_BATCHES - 1)]:
        engine.backward(engine(by=1.0 if first else SMALL))
    return float(engine.step().gradient_norm)


if __name__ == "__main__":
    main()
