"""Fixes length-dependent factors of rotary embeddings once, when the model is loaded, as vLLM does.

transformers chooses such factors for each micro-batch, by its longest row. So a row's log-probabilities would
depend on the other rows. vLLM chooses the factors once, by the context length that it starts with. For
longrope (Phi-3) it uses the long factors if this context length is above the length of pretraining. For
dynamic NTK it uses the initial factors. docs/adr/0028 has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from headway_api.exits import JobError
from headway_trainer.imports import lean

DYNAMIC: Final = "dynamic"
LONGROPE: Final = "longrope"
DEPENDENT: Final = frozenset({DYNAMIC, LONGROPE})
"""transformers' `rope_type` values whose factors depend on length."""
FIXED: Final = "fixed"
"""The `rope_type` that Headway sets once the factors are fixed. transformers then no longer changes them."""
OF_OTHERS: Final = frozenset({"alpha", "max_trained_positions"})
"""Parameters of dynamic NTK that vLLM uses and transformers ignores."""
TOLERANCE: Final = 1e-4
"""Largest difference of a sine that counts as rounding: float32, at a few thousand positions."""
FIELD: Final = "spec.model.contextLength"


def fix(model: nn.Module, context_length: int | None) -> None:
    """Fix the factors of every rotary embedding of `model` to those of the rollout servers.

    Args:
        model: the model on the CPU, with its weights.
        context_length: the context length with which rollout servers start; None if the job does not set it.
    Raises:
        JobError: `RopeDependsOnLength`: the factors cannot be fixed, or vLLM reads their parameters
            differently.
    """
    for module in model.modules():
        for layer_type, kind in _kinds(module):
            if kind in DEPENDENT:
                _fix(module, layer_type, kind, context_length)


def proof_length(model: nn.Module, limit: int) -> int:
    """Length of a test row that exceeds every length below `limit` at which factors change; 0 if there is
    none."""
    found = [
        length + 1
        for module in model.modules()
        for layer_type, kind in _kinds(module)
        if kind == FIXED and (length := _boundary(module.config, layer_type)) < limit
    ]
    return max(found, default=0)


def _kinds(module: nn.Module) -> Iterator[tuple[str | None, str]]:
    """Pairs of (layer type, `rope_type`) of a rotary embedding; nothing for any other module."""
    found = getattr(module, "rope_type", None)
    if isinstance(found, str):
        yield None, found
    elif isinstance(found, dict):
        yield from found.items()


def _parameters(config: Any, layer_type: str | None) -> Mapping[str, Any]:
    found = config.rope_parameters
    parameters: Mapping[str, Any] = found if layer_type is None else found[layer_type]
    return parameters


def _boundary(config: Any, layer_type: str | None) -> int:
    """The length of pretraining, above which the factors change."""
    return int(
        _parameters(config, layer_type).get("original_max_position_embeddings")
        or config.max_position_embeddings
    )


def _fix(module: Any, layer_type: str | None, kind: str, context_length: int | None) -> None:
    config, parameters = module.config, _parameters(module.config, layer_type)
    boundary = _boundary(config, layer_type)
    # Without a context length, vLLM serves longrope up to the configuration's own original length.
    own = int(getattr(config, "original_max_position_embeddings", None) or config.max_position_embeddings)
    served = context_length or (own if kind == LONGROPE else config.max_position_embeddings)
    if kind == DYNAMIC and (OF_OTHERS & parameters.keys() or served > boundary):
        raise _refused(
            module,
            f"servers read dynamic NTK differently from the learner beyond {boundary} tokens, or with "
            f"{' or '.join(sorted(OF_OTHERS))}. Set {FIELD} to at most {boundary}, and use a base model "
            "whose config.json has neither parameter",
        )
    with lean():
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    length = served if kind == LONGROPE else None
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length, layer_type=layer_type)
    if kind == LONGROPE:
        scale = _served_scale(config, parameters, boundary, long=served > boundary)
    prefix = "" if layer_type is None else f"{layer_type}_"
    for name in (f"{prefix}inv_freq", f"{prefix}original_inv_freq"):
        if hasattr(module, name):
            setattr(module, name, frequencies.to(getattr(module, name).device))
    setattr(module, f"{prefix}attention_scaling", scale)
    module.rope_type = FIXED if layer_type is None else {**module.rope_type, layer_type: FIXED}
    if (apart := _apart(module, layer_type, frequencies, scale, served)) > TOLERANCE:
        raise _refused(
            module,
            f"it chooses new factors for each batch (sines differ by {apart:.2g}); use another base model, "
            f"or set {FIELD} to at most {boundary}",
        )


def _served_scale(config: Any, parameters: Mapping[str, Any], boundary: int, *, long: bool) -> float:
    """The factor by which vLLM multiplies longrope's sines and cosines. vLLM ignores `attention_factor`."""
    given = parameters.get("long_mscale" if long else "short_mscale")
    if given is not None:
        return float(given)
    ratio = config.max_position_embeddings / boundary
    return 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(boundary))


def _apart(module: Any, layer_type: str | None, frequencies_F: Tensor, scale: float, served: int) -> float:
    """Largest difference between the module's cosines and sines and those of the fixed factors.

    It compares a short row and the longest one.
    """
    found = []
    # The first positions are exact in float32. Factors that depend on length follow the last position.
    for positions_L in (torch.arange(min(8, served)), torch.tensor([0, 1, 2, 3, served - 1])):
        angles_LF = positions_L[:, None].float() * frequencies_F.cpu()
        expected_LD = torch.cat((angles_LF, angles_LF), -1)
        with torch.no_grad():
            kinds = {} if layer_type is None else {"layer_type": layer_type}
            cos_1LD, sin_1LD = module(torch.zeros(1, 1), positions_L[None], **kinds)
        found += [
            (cos_1LD[0, :5] - expected_LD.cos()[:5] * scale)[:4],
            (sin_1LD[0, :5] - expected_LD.sin()[:5] * scale)[:4],
        ]
    return max(float(difference.abs().max()) for difference in found)


def _refused(module: nn.Module, why: str) -> JobError:
    return JobError(
        "RopeDependsOnLength",
        f"the base model's rotary embedding ({type(module).__name__}) depends on length: {why}",
        field="spec.model.base",
    )
