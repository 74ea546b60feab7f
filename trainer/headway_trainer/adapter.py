"""Widens a LoRA adapter, with its optimizer's moments, without changing what it computes.

The adapter of a module adds scale * B(A x). In a wider pair the first rows of A and columns of B are the old
ones. New rows of A begin as PEFT begins them, and new columns of B are 0, so they add nothing yet. If the
scale changes, the old columns of B compensate for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from headway_trainer.imports import lean
from headway_trainer.model import ADAPTER

FIRST, SECOND = "exp_avg", "exp_avg_sq"
MOMENTS: Final = (FIRST, SECOND)
"""Adam's names for the running mean of a gradient and that of its square."""
INPUT, OUTPUT = ".lora_A.", ".lora_B."


@dataclass(frozen=True)
class Trained:
    """A trained parameter, whole, as the optimizer has it: float32, on the CPU."""

    weight: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)
    """By `MOMENTS`; none before the first optimizer step."""


@dataclass(frozen=True)
class TrainedState:
    """Everything that is trained, whole, however it is spread over ranks."""

    parameters: dict[str, Trained]
    """By their names in the model."""
    steps: float
    """Steps of the optimizer by its own count, which corrects Adam's moments."""
    updates: int


def scales(model: nn.Module) -> dict[str, float]:
    """Scale of each module's adapter, by the module's path."""
    with lean():
        from peft.tuners.lora import LoraLayer

    layers = ((path, module) for path, module in model.named_modules() if isinstance(module, LoraLayer))
    return {path: float(layer.scaling[ADAPTER]) for path, layer in layers}


def widened(state: TrainedState, before: Mapping[str, float], wider: nn.Module) -> TrainedState:
    """The initial state of `wider`, so that it computes what the model of `state` does.

    `wider` has a wider adapter on the same modules. Moments of new parameters are 0. Old moments are kept,
    but a gradient is divided by the factor of its weight.

    Args:
        before: the `scales` of the model of `state`.
    """
    after = scales(wider)
    found = {}
    for name, parameter in wider.named_parameters():
        if parameter.requires_grad:
            module = name.partition(".lora_")[0]
            by = before[module] / after[module] if OUTPUT in name else 1.0
            found[name] = _grown(state.parameters[name], parameter.detach().float(), by, new=INPUT in name)
    return TrainedState(found, state.steps, state.updates)


def fill(model: nn.Module, state: TrainedState) -> None:
    """Copy the weights of `state` into the parameters of a model on the CPU."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in state.parameters:
                parameter.copy_(state.parameters[name].weight)


def _grown(old: Trained, begun: Tensor, by: float, *, new: bool) -> Trained:
    """`old`, multiplied by `by`, in the first rows and columns of a tensor shaped like `begun`. The rest is
    as in `begun` if `new`, else 0."""
    there = tuple(slice(0, size) for size in old.weight.shape)
    weight = begun.clone() if new else torch.zeros_like(begun)
    weight[there] = old.weight * by
    moments = {}
    for name, moment in old.moments.items():
        moments[name] = torch.zeros_like(begun)
        moments[name][there] = moment / (by if name == FIRST else by * by)
    return Trained(weight, moments)
