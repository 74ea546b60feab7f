"""The one module that knows DeepSpeed.

DeepSpeed averages gradients over ranks and knows nothing of tokens; the loss that reaches `backward` is a
rank's share of a global token mean, so it is multiplied by the number of ranks. Accumulation is ours
(`managed_gradient_accumulation: false`): any number of backward calls, then one step.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from headway_api.spec.learner import DeepSpeed, OptimizerSpec
from headway_trainer.imports import lean
from headway_trainer.ranks import Ranks

PRECISION: Final[Mapping[torch.dtype, Mapping[str, Any]]] = {
    torch.float32: {},
    torch.bfloat16: {
        # At stage 1 a gradient is added to the sum in float32, and freed, as soon as there is one.
        "bf16": {"enabled": True, "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    },
}
"""What DeepSpeed is told of a model's number format. In bfloat16 sums of gradients, over micro-batches and
over ranks, are float32: what is some 250 times smaller than the sum would be lost. Without ZeRO it cannot."""
TAG: Final = "state"


@dataclass(frozen=True)
class Update:
    """One optimizer step, as it went."""

    gradient_norm: float
    """Before clipping, over all ranks."""
    learning_rate: float


def configuration(spec: DeepSpeed, optimizer: OptimizerSpec, dtype: torch.dtype) -> dict[str, Any]:
    """DeepSpeed's own configuration."""
    zero: dict[str, Any] = {"stage": spec.zero_stage}
    if spec.zero_stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0}
    if spec.offload == "cpu":
        zero |= {"offload_optimizer": {"device": "cpu"}}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimizer.gradient_clip if spec.zero_stage else 0.0,
        "zero_allow_untested_optimizer": True,
        # Its own Adam for the CPU needs a compiler at run time.
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "steps_per_print": 2**31,
        **PRECISION[dtype],
    }


def learning_rate(optimizer: OptimizerSpec, update: int) -> float:
    """Step size of the `update`-th optimizer step (from 0): a line up to `warmupSteps`, then constant."""
    return optimizer.learning_rate * min(1.0, (update + 1) / max(1, optimizer.warmup_steps))


class Engine:
    """A model with its optimizer, spread over the ranks."""

    def __init__(self, model: nn.Module, spec: DeepSpeed, optimizer: OptimizerSpec, ranks: Ranks) -> None:
        """Collective: every rank calls it with the same model."""
        deepspeed = _import()
        deepspeed.init_distributed(verbose=False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        adam = torch.optim.AdamW(
            trained,
            lr=optimizer.learning_rate,
            betas=(optimizer.betas[0], optimizer.betas[1]),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
        config = configuration(spec, optimizer, next(model.parameters()).dtype)
        self._engine, _, _, _ = deepspeed.initialize(
            model=model, optimizer=adam, config=config, dist_init_required=False
        )
        self._norm: float | None = None
        if spec.zero_stage == 0:
            adam.register_step_pre_hook(lambda *_: self._clip(trained))
        self._gathered = deepspeed.zero.GatheredParameters
        self._partial = any(not parameter.requires_grad for parameter in model.parameters())
        self._stage = spec.zero_stage
        self._optimizer = optimizer
        self._ranks = ranks
        self.model = model
        self.updates = 0
        """Optimizer steps taken since the first; restored by `load`."""

    def __call__(self, **inputs: Any) -> Any:
        """Forward pass."""
        return self._engine(**inputs)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of this rank's share of the loss; collective from stage 2."""
        self._engine.backward(loss * self._ranks.world)

    def step(self) -> Update:
        """Clip, step and clear the gradient; collective."""
        rate = learning_rate(self._optimizer, self.updates)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        self._engine.step()
        self.updates += 1
        norm = self._norm if self._stage == 0 else self._engine.get_global_grad_norm()
        return Update(gradient_norm=math.nan if norm is None else float(norm), learning_rate=rate)

    def _clip(self, trained: Sequence[nn.Parameter]) -> None:
        """Without ZeRO, DeepSpeed keeps the norm to itself. Every rank has the whole gradient by now."""
        most = self._optimizer.gradient_clip or math.inf
        self._norm = float(nn.utils.clip_grad_norm_(trained, most))

    def save(self, folder: Path) -> Path:
        """Write this rank's part of weights and optimizer state; collective. Frozen weights are left out.

        Returns:
            The folder with the files of every rank of this node.
        """
        self._engine.save_checkpoint(
            str(folder),
            tag=TAG,
            client_state={"updates": self.updates},
            save_latest=False,
            exclude_frozen_parameters=self._partial,
        )
        return folder / TAG

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, from the folder that holds the `state` folder; collective.

        The same number of ranks and the same ZeRO stage are needed; then training goes on bit for bit.
        """
        path, state = self._engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=not self._partial)
        if path is None:
            raise FileNotFoundError(f"no DeepSpeed checkpoint in {folder}")
        self.updates = int(state["updates"])

    @property
    def replicated(self) -> bool:
        """Whether every rank holds all of weights and optimizer: any number of ranks may load that."""
        return self._stage == 0

    def load_universal(self, folder: Path, tag: str, updates: int) -> None:
        """Restore a checkpoint of any number of ranks in DeepSpeed's universal format, from the folder that
        holds `tag`; collective. The same ZeRO stage is needed.
        """
        # Its own switch is read at the start, before anyone can know which kind of checkpoint there is.
        config = self._engine._config
        config.load_universal_checkpoint = True
        try:
            self._engine.load_checkpoint(str(folder), tag=tag, load_module_strict=not self._partial)
        finally:
            config.load_universal_checkpoint = False
        self.updates = updates

    def tensors(self, *, trained_only: bool) -> Iterator[tuple[str, Tensor]]:
        """Each parameter whole, on the CPU, by name; collective, one parameter in memory at a time."""
        for name, parameter in self.model.named_parameters():
            if trained_only and not parameter.requires_grad:
                continue
            if self._stage == 3:
                with self._gathered([parameter]):
                    whole = parameter.detach().to("cpu", copy=True)
            else:
                whole = parameter.detach().to("cpu", copy=True)
            yield name, whole.contiguous()


def _import() -> Any:
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DS_LOG_LEVEL", "warning")
    with lean():
        import deepspeed
        import deepspeed.ops
        from deepspeed.utils import logger

    logger.setLevel(logging.WARNING)
    # Its shared-memory collectives are compiled at first use (27 s and a compiler); gloo does as well here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
