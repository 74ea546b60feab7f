"""Widens a LoRA adapter, with its optimizer's moments, without changing what it computes.

The adapter of a module adds scale * B(A x). A wider pair keeps the old rows of A and the old columns of B in
front. New rows of A are initialized as in PEFT, and new columns of B are 0, so they add nothing yet. If the
scale changes, the old columns of B are multiplied by old scale / new scale.
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
"""Adam's names for the running means of a gradient and of its square."""
INPUT, OUTPUT = ".lora_A.", ".lora_B."


@dataclass(frozen=True)
class Trained:
    """The optimizer's copy of a trained parameter, unsharded: float32, on the CPU."""

    weight: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)
    """Adam's moments by their names in `MOMENTS`; empty before the first optimizer step."""


@dataclass(frozen=True)
class TrainedState:
    """All trained parameters, unsharded, whatever the number of ranks."""

    parameters: dict[str, Trained]
    """By their names in the model."""
    steps: float
    """Adam's own step count, which it uses to correct the bias of its moments."""
    updates: int


def scales(model: nn.Module) -> dict[str, float]:
    """Scale of each module's adapter, by the module's path."""
    with lean():
        from peft.tuners.lora import LoraLayer

    layers = ((path, module) for path, module in model.named_modules() if isinstance(module, LoraLayer))
    return {path: float(layer.scaling[ADAPTER]) for path, layer in layers}


def widened(state: TrainedState, before: Mapping[str, float], wider: nn.Module) -> TrainedState:
    """The initial state of `wider`, with which it computes the same outputs as the model that has `state`.

    `wider` has a wider adapter on the same modules. Moments of new parameters are 0. Old moments are kept. If
    a weight is multiplied by a factor, its first moment is divided by it, and its second by its square.

    Args:
        before: the `scales` of the model that has `state`.
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
    """A parameter shaped like `begun` whose first rows and columns are `old` times `by`. The other values
    are those of `begun` if `new`, else 0."""
    there = tuple(slice(0, size) for size in old.weight.shape)
    weight = begun.clone() if new else torch.zeros_like(begun)
    weight[there] = old.weight * by
    moments = {}
    for name, moment in old.moments.items():
        moments[name] = torch.zeros_like(begun)
        moments[name][there] = moment / (by if name == FIRST else by * by)
    return Trained(weight, moments)
