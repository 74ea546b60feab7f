"""Loads the model from a folder in Hugging Face layout, to train an adapter or every weight."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from headway_api import lora_targets
from headway_api.exits import JobError
from headway_api.spec.model import Lora, ModelSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_trainer import rope
from headway_trainer.imports import lean

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ADAPTER: Final = "default"


def load(folder: Path, spec: ModelSpec, seed: int) -> nn.Module:
    """Load the model to train, on the CPU. With an adapter, the base weights are frozen.

    Dropout is off because the sampler has none: a log-probability taken with dropout differs from the
    sampler's. An adapter's dropout acts only within `dropping`.
    The adapter's initial weights are a function of `seed`.

    Raises:
        JobError: `ModelNotLoadable`: the folder does not hold a complete causal language model.
            `LoraTargetsUnusable`: a name in spec.model.lora.targets matches no linear module.
            `RopeDependsOnLength`: the rotary embedding would make a row depend on other rows' lengths.
    """
    with lean():
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder)
        _no_dropout(config)
        found: tuple[Any, Any] = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[spec.dtype],
            ignore_mismatched_sizes=True,  # refused below, with their names
            output_loading_info=True,
        )
    # from_pretrained passes on any exception of the file readers (safetensors, JSON, pickle). Each one means
    # that this folder does not hold a model.
    except Exception as error:
        raise _not_loadable(spec, f"{type(error).__name__}: {error}") from error
    model, info = found
    if other := info["mismatched_keys"]:
        raise _not_loadable(spec, _of_other_sizes(other))
    if missing := info["missing_keys"]:  # transformers fills them with random values, and only logs it
        raise _not_loadable(spec, _left_out(missing))
    model.config.use_cache = False
    rope.fix(model, spec.context_length)
    lora = spec.effective_lora
    trained: nn.Module = model if lora is None else with_adapter(model, lora, seed)
    return trained


def _not_loadable(spec: ModelSpec, why: str) -> JobError:
    return JobError(
        "ModelNotLoadable",
        f"{spec.base} does not load as a causal language model ({why}); give a complete Hugging Face folder "
        "(config.json, safetensors weights) of a model this version knows",
        field="spec.model.base",
    )


def _of_other_sizes(tensors: Collection[tuple[str, Sequence[int], Sequence[int]]]) -> str:
    """Describe weights whose sizes differ from config.json: name, stored size, configured size."""
    name, stored, configured = min(tensors)
    more = f", and {len(tensors) - 1} more tensors differ" if len(tensors) > 1 else ""
    return f"{name} has size {_size(stored)} in the weights, but {_size(configured)} in config.json{more}"


def _left_out(tensors: Collection[str]) -> str:
    """Describe tensors that config.json requires but no weights file has."""
    return (
        f"the weights lack {len(tensors)} of the tensors that config.json asks for, {min(tensors)} among them"
    )


def _size(shape: Sequence[int]) -> str:
    return " x ".join(str(length) for length in shape)


def reference(folder: Path, spec: RLTrainingJobSpec, device: torch.device) -> nn.Module | None:
    """A frozen copy of the untrained model, for the divergence penalty.

    It is None if the job has no such penalty, or if the adapter can be switched off instead. Each process
    needs memory for a whole model, whatever the ZeRO stage.
    """
    if not needs_copy(spec):
        return None
    return load(folder, spec.model, spec.seed).to(device).requires_grad_(requires_grad=False)


def needs_copy(spec: RLTrainingJobSpec) -> bool:
    """Whether the divergence penalty needs a copy of the base model's weights."""
    return spec.algorithm.kl.coefficient > 0 and spec.model.effective_lora is None


def save_memory(model: nn.Module) -> None:
    """Recompute a layer's activations in the backward pass instead of keeping them."""
    checkpointed: Any = model
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        # Recomputation acts only in training mode. In that mode MoE routers may choose experts at random,
        # which the sampler never does. So only the recomputed layers enter training mode, not the modules in
        # them.
        if vars(module).get("gradient_checkpointing"):
            module.training = True


@contextmanager
def dropping(model: nn.Module, *draw: int) -> Iterator[None]:
    """Turn on the adapter's dropout, if it has any, within this context: for a forward pass with gradients.

    Args:
        draw: numbers that seed the dropout masks. Without dropout, the random state does not change.
    """
    modules = _dropouts(model)
    if modules:
        torch.manual_seed(int.from_bytes(sha256(repr(draw).encode()).digest()[:8], "big", signed=True))
    try:
        for module in modules:
            module.training = True
        yield
    finally:
        for module in modules:
            module.training = False


def _dropouts(model: nn.Module) -> list[nn.Dropout]:
    """The dropout modules of an adapter."""
    return [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Dropout) and ".lora_dropout." in path
    ]


def vocabulary(model: nn.Module) -> int:
    """Number of token ids in the model's vocabulary."""
    config: Any = model.config
    return int(config.get_text_config().vocab_size)


def _no_dropout(config: Any) -> None:
    """Set every dropout of the configuration and its sub-configurations to 0.

    This is necessary because `save_memory` puts layers in training mode.
    """
    for name, value in vars(config).items():
        if isinstance(value, float) and name.endswith(("dropout", "pdrop", "dropout_rate", "layerdrop")):
            setattr(config, name, 0.0)
    for part in getattr(config, "sub_configs", ()):
        if (within := getattr(config, part, None)) is not None:
            _no_dropout(within)


def _linear(model: Any) -> tuple[list[str], list[str]]:
    """Paths of the linear modules that get an adapter by default, and the path of the output head."""
    with lean():
        from transformers.pytorch_utils import Conv1D

    linear = {
        path: module for path, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)
    }
    head = [path for path, module in linear.items() if module is model.get_output_embeddings()]
    tensors = [name for name, _ in model.named_parameters()]
    return lora_targets.chosen(linear.keys() - head, tensors), head


def with_adapter(model: nn.Module, lora: Lora, seed: int) -> nn.Module:
    """`model`, frozen, with an adapter whose initial weights are a function of `seed`.

    Raises:
        JobError: `LoraTargetsUnusable`.
    """
    with lean():
        from peft import LoraConfig, get_peft_model

    modules, head = _linear(model)
    if unknown := lora_targets.unmatched(lora.targets, [*modules, *head]):
        # PEFT silently skips an unknown name if other names match. For the name of an embedding it makes an
        # adapter that no rollout server can load.
        raise JobError(
            "LoraTargetsUnusable",
            f"{', '.join(unknown)}: the trained model has no linear module of that name; name some of "
            f"{lora_targets.ends(modules)}, or leave targets out for all except the output head",
            field=lora_targets.FIELD,
        )
    torch.manual_seed(seed)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        # Give full paths: PEFT would match short names, and "all-linear", to experts as well.
        target_modules=sorted(lora_targets.matched(lora.targets, [*modules, *head]) or modules),
        lora_dropout=lora.dropout,
        use_rslora=lora.rs_lora,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        adapted: nn.Module = get_peft_model(model, config, adapter_name=ADAPTER, autocast_adapter_dtype=False)
    except ValueError as error:
        raise JobError(
            "LoraTargetsUnusable",
            f"no adapter can be put on {', '.join(lora.targets) or 'its linear modules'} ({error}); name "
            f"others of {lora_targets.ends(modules)}",
            field=lora_targets.FIELD,
        ) from error
    for module in _dropouts(adapted):
        module.training = False  # see `dropping`
    return adapted
