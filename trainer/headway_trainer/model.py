"""The model: loaded from a folder in Hugging Face layout, with an adapter or with every weight trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from headway_api.exits import JobError
from headway_api.spec.model import Lora, ModelSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_trainer.imports import lean

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ADAPTER: Final = "default"


def load(folder: Path, spec: ModelSpec, seed: int) -> nn.Module:
    """The model to train, on the CPU; frozen but for the adapter where there is one.

    Dropout is switched off: the sampler has none, and a log-probability taken with dropout is not that of
    the policy that sampled. The adapter's initial weights are a function of `seed`.

    Raises:
        JobError: `ModelNotLoadable`, when the folder holds no causal language model that loads.
    """
    with lean():
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder)
        _no_dropout(config)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=DTYPES[spec.dtype])
    # from_pretrained raises whatever its reader raises (safetensors, JSON, pickle, missing keys): each of
    # them means that this folder does not hold a model.
    except Exception as error:
        raise JobError(
            "ModelNotLoadable",
            f"{spec.base} does not load as a causal language model ({type(error).__name__}: {error}); give a "
            "complete Hugging Face folder (config.json, safetensors weights) of a model this version knows",
            field="spec.model.base",
        ) from error
    model.config.use_cache = False
    lora = spec.effective_lora
    trained: nn.Module = model if lora is None else _with_adapter(model, lora, seed)
    return trained


def reference(folder: Path, spec: RLTrainingJobSpec, device: torch.device) -> nn.Module | None:
    """The untrained weights beside the trained ones, where the divergence from them is penalized.

    None where it is not, or where the adapter can be switched off instead. Costs a whole model's memory in
    each process, whatever the ZeRO stage.
    """
    if not spec.algorithm.kl.coefficient or spec.model.effective_lora is not None:
        return None
    return load(folder, spec.model, spec.seed).to(device).requires_grad_(requires_grad=False)


def save_memory(model: nn.Module) -> None:
    """Recompute a layer's activations in the backward pass instead of keeping them."""
    checkpointed: Any = model
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    checkpointed.train()  # it is off in a model that evaluates; nothing else differs, as there is no dropout


def vocabulary(model: nn.Module) -> int:
    """Number of token ids the model knows."""
    config: Any = model.config
    return int(config.get_text_config().vocab_size)


def _no_dropout(config: Any) -> None:
    for name, value in vars(config).items():
        if isinstance(value, float) and name.endswith(("dropout", "pdrop", "dropout_rate")):
            setattr(config, name, 0.0)


def _with_adapter(model: nn.Module, lora: Lora, seed: int) -> nn.Module:
    with lean():
        from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets) or "all-linear",
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config, adapter_name=ADAPTER, autocast_adapter_dtype=False)
    except ValueError as error:
        raise JobError(
            "ModelNotLoadable",
            f"no adapter can be put on {', '.join(lora.targets) or 'its linear modules'} ({error}); name "
            "modules that the model has",
            field="spec.model.lora.targets",
        ) from error
