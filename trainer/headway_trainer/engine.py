"""The only module that uses DeepSpeed.

DeepSpeed averages gradients over ranks, whatever their number of tokens. The loss that reaches `backward` is
a rank's share of a global mean over tokens, so `backward` multiplies it by the number of ranks. The learner
accumulates gradients itself (`managed_gradient_accumulation: false`): any number of backward calls, then a
step.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import runpy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from headway_api.spec.learner import DeepSpeed, OptimizerSpec
from headway_trainer.adapter import MOMENTS, Trained, TrainedState
from headway_trainer.imports import lean
from headway_trainer.ranks import Ranks

PRECISION: Final[Mapping[torch.dtype, Mapping[str, Any]]] = {
    torch.float32: {},
    torch.bfloat16: {
        # At stage 1 each gradient is added to the float32 sum, and freed, as soon as it exists.
        "bf16": {"enabled": True, "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    },
}
"""DeepSpeed's settings for a model's number format.

In bfloat16, sums of gradients over micro-batches and ranks are float32. A bfloat16 sum would lose terms some
250 times smaller than itself. Without ZeRO, DeepSpeed cannot keep float32 sums.
"""
TAG: Final = "state"
DATA_ALONE: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Torch's environment variable that overrides a caller's `weights_only=False`."""


@dataclass(frozen=True)
class Update:
    """The result of one optimizer step."""

    gradient_norm: float
    """Norm of the gradient over all ranks, before clipping."""
    learning_rate: float


def configuration(spec: DeepSpeed, optimizer: OptimizerSpec, dtype: torch.dtype) -> dict[str, Any]:
    """The configuration that DeepSpeed reads."""
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
        # Use torch's Adam: DeepSpeed's own Adam for the CPU needs a compiler at run time.
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "steps_per_print": 2**31,
        **PRECISION[dtype],
    }


def learning_rate(optimizer: OptimizerSpec, update: int, horizon: int) -> float:
    """Learning rate of the `update`-th optimizer step (from 0): linear up to `warmupSteps`, then `schedule`.

    It depends only on its arguments, so a learner that resumes or goes back has the same rates. It is
    proportional to `learningRate`, which a remedy may lower.

    Args:
        horizon: optimizer steps, warm-up included, after which the decay is complete if `schedule` sets no
            number of steps.
    """
    warmup, schedule = optimizer.warmup_steps, optimizer.schedule
    if update < warmup or schedule.decay == "constant":
        return optimizer.learning_rate * min(1.0, (update + 1) / max(1, warmup))
    length = max(1, (schedule.decay_steps or horizon) - warmup)
    done, final = min(1.0, (update - warmup) / length), schedule.final_share or 0.0
    left = 1 - done if schedule.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return optimizer.learning_rate * (final + (1 - final) * left)


@dataclass(frozen=True)
class _Piece:
    """The piece of a parameter that the optimizer of this rank holds."""

    flat: Tensor
    """The float32 tensor that the optimizer updates. It contains the piece."""
    begin: int
    """Offset in `flat`."""
    place: int
    """Offset in the parameter."""
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        """This piece of `tensor`, which is `flat` or one of its moments."""
        return tensor.detach().view(-1).narrow(0, self.begin, self.size)


class Engine:
    """A model with its optimizer, spread over the ranks."""

    def __init__(
        self, model: nn.Module, spec: DeepSpeed, optimizer: OptimizerSpec, ranks: Ranks, horizon: int = 0
    ) -> None:
        """Collective: every rank calls it with the same model. `horizon`: see `learning_rate`."""
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
        self._adam = adam
        self._norm: float | None = None
        if spec.zero_stage == 0:
            adam.register_step_pre_hook(lambda *_: self._clip(trained))
        self._gathered = deepspeed.zero.GatheredParameters
        self._partial = any(not parameter.requires_grad for parameter in model.parameters())
        self._stage = spec.zero_stage
        self.optimizer = optimizer
        """Settings of the optimizer. Only the learning rate may change between two steps."""
        self._horizon = horizon
        self._ranks = ranks
        self.model = model
        self.updates = 0
        """Number of optimizer steps taken since the job began; restored by `load`."""

    def __call__(self, **inputs: Any) -> Any:
        """Forward pass."""
        return self._engine(**inputs)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of this rank's share of the loss; collective from ZeRO stage 2."""
        self._engine.backward(loss * self._ranks.world)
        if self._stage == 3:
            _unwind(self.model)

    def step(self) -> Update:
        """Clip, step and clear the gradient; collective."""
        rate = learning_rate(self.optimizer, self.updates, self._horizon)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        self._engine.step()
        self.updates += 1
        norm = self._norm if self._stage == 0 else self._engine.get_global_grad_norm()
        return Update(gradient_norm=math.nan if norm is None else float(norm), learning_rate=rate)

    def _clip(self, trained: Sequence[nn.Parameter]) -> None:
        """Clip the gradient at ZeRO stage 0, where DeepSpeed does not report the norm. Every rank has the
        whole gradient by now."""
        limit = self.optimizer.gradient_clip or math.inf
        self._norm = float(nn.utils.clip_grad_norm_(trained, limit))

    def save(self, folder: Path) -> Path:
        """Write this rank's part of the trained weights and the optimizer state; collective.

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
        """Restore the files of `save` from `folder`, which contains the folder `state`; collective.

        It needs the same number of ranks and the same ZeRO stage. Training then continues bit for bit.
        """
        with data_alone():
            path, state = self._engine.load_checkpoint(
                str(folder), tag=TAG, load_module_strict=not self._partial
            )
        if path is None:
            raise FileNotFoundError(f"no DeepSpeed checkpoint in {folder}")
        self.updates = int(state["updates"])

    @property
    def replicated(self) -> bool:
        """Whether every rank holds all weights and optimizer state. Then any number of ranks can load a
        checkpoint."""
        return self._stage == 0

    def load_universal(self, folder: Path, tag: str, updates: int) -> None:
        """Restore a checkpoint of any number of ranks in DeepSpeed's universal format; collective.

        `folder` contains the folder `tag`. The ZeRO stage must be the same.
        """
        # DeepSpeed reads this option when the engine is made, before the kind of checkpoint is known.
        config = self._engine._config
        config.load_universal_checkpoint = True
        try:
            with data_alone():
                self._engine.load_checkpoint(str(folder), tag=tag, load_module_strict=not self._partial)
        finally:
            config.load_universal_checkpoint = False
        self.updates = updates

    def state(self) -> TrainedState:
        """All trained parameters with their moments, unsharded on every rank; collective. It takes 12 bytes a
        parameter."""
        pieces, stepped = self._pieces(), bool(self._adam.state)
        found = {}
        for name, parameter in self._trained():
            shape = getattr(parameter, "ds_shape", parameter.shape)
            weight, *moments = (
                self._whole(pieces.get(name), moment, shape) for moment in (None, *(MOMENTS * stepped))
            )
            found[name] = Trained(weight, dict(zip(MOMENTS, moments, strict=False)))
        steps = {float(state["step"]) for state in self._adam.state.values()}
        return TrainedState(found, max(steps, default=0.0), self.updates)

    def adopt(self, state: TrainedState) -> None:
        """Load `state` into an engine that has taken no step. Its parameters have the model's names and
        shapes.

        The model must already have the weights of `state` (`adapter.fill`). Every rank must call it, but no
        rank waits for another.
        """
        for name, piece in self._pieces().items():
            taken = state.parameters[name]
            _put(piece, piece.flat, taken.weight)
            for moment, tensor in taken.moments.items():
                adam_state = self._adam.state[piece.flat]
                if moment not in adam_state:
                    adam_state |= {moment: torch.zeros_like(piece.flat), "step": torch.tensor(state.steps)}
                _put(piece, adam_state[moment], tensor)
        self.updates = state.updates

    def close(self) -> None:
        """Release the model. Its memory is free once no other object refers to it."""
        self._engine.destroy()
        _forget(self.model)
        del self._engine, self._adam, self.model

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def _pieces(self) -> dict[str, _Piece]:
        """The pieces of this rank, by parameter. DeepSpeed records their positions differently at each
        stage."""
        found, zero = {}, self._engine.optimizer
        for name, parameter in self._trained():
            sharded: Any = parameter
            if self._stage == 0:
                found[name] = _Piece(parameter, 0, 0, parameter.numel())
            elif self._stage == 3:
                group, begin, size = zero.grad_position[zero.get_param_id(parameter)]
                place = size * self._ranks.rank
                size = max(0, min(size, sharded.ds_numel - place))
                found[name] = _Piece(zero.fp32_partitioned_groups_flat[group], begin, place, size)
            elif (link := sharded._hp_mapping) is not None:
                (flat,) = self._adam.param_groups[link.param_group_index]["params"]
                there, here = link.hp_fragment_address, link.lp_fragment_address
                found[name] = _Piece(flat, there.start, here.start, there.numel)
        return found

    def _whole(self, piece: _Piece | None, moment: str | None, shape: torch.Size) -> Tensor:
        """The unsharded weight of a parameter, or its unsharded `moment`."""
        whole = torch.zeros(shape.numel())
        if piece is not None:
            tensor = piece.flat if moment is None else self._adam.state[piece.flat][moment]
            whole[piece.place : piece.place + piece.size] = piece.of(tensor).float().cpu()
        return (whole if self.replicated else self._ranks.added(whole)).view(shape)

    def tensors(self, *, trained_only: bool) -> Iterator[tuple[str, Tensor]]:
        """Each parameter, unsharded on the CPU, by name. Collective; one parameter is in memory at a time."""
        for name, parameter in self.model.named_parameters():
            if trained_only and not parameter.requires_grad:
                continue
            if self._stage == 3:
                with self._gathered([parameter]):
                    whole = parameter.detach().to("cpu", copy=True)
            else:
                whole = parameter.detach().to("cpu", copy=True)
            yield name, whole.contiguous()


@contextmanager
def data_alone() -> Iterator[None]:
    """Within this context `torch.load` runs no code, although DeepSpeed passes `weights_only=False`. It
    creates only tensors, plain values and DeepSpeed's own records of them."""
    _import()
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    before = os.environ.get(DATA_ALONE)
    os.environ[DATA_ALONE] = "1"
    try:
        with torch.serialization.safe_globals([fragment_address, LossScaler, ZeroStageEnum]):
            yield
    finally:
        if before is None:
            del os.environ[DATA_ALONE]
        else:
            os.environ[DATA_ALONE] = before


def convert() -> None:
    """Run DeepSpeed's conversion to its universal format on the arguments of this process."""
    with data_alone():
        runpy.run_module("deepspeed.checkpoint.ds_to_universal", run_name="__main__", alter_sys=True)


def _put(piece: _Piece, tensor: Tensor, whole: Tensor) -> None:
    piece.of(tensor).copy_(whole.view(-1)[piece.place : piece.place + piece.size])


def _unwind(model: nn.Module) -> None:
    """Remove the modules of `model` from ZeRO-3's list of running modules. Call it while no module runs.

    During the backward pass, recomputation stops a layer with an exception once it has the needed
    activations. So the layer's post-forward hook, which would remove it from the list, is never called.
    """
    from deepspeed.runtime.zero import parameter_offload

    stack = parameter_offload.FWD_MODULE_STACK
    if len(stack) > 1:
        within = set(model.modules()) - {model}
        stack[:] = [module for module in stack if module not in within]


def _forget(model: nn.Module) -> None:
    """Remove DeepSpeed's references to `model`. Under ZeRO-3 it otherwise keeps each model and its optimizer
    for the life of the process, in a list and in a method's cache."""
    from deepspeed.runtime.zero import parameter_offload, partitioned_param_coordinator

    stack, gone = parameter_offload.FWD_MODULE_STACK, set(model.modules())
    stack[:] = [module for module in stack if module not in gone]
    for cached in filter(lambda found: isinstance(found, _lru_cache_wrapper), gc.get_objects()):
        if cached.__module__ == partitioned_param_coordinator.__name__:
            cached.cache_clear()


def _import() -> Any:
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DS_LOG_LEVEL", "warning")
    with lean():
        import deepspeed
        import deepspeed.ops
        from deepspeed.runtime.zero.config import ZeroStageEnum
        from deepspeed.utils import logger

    # Python 3.11 pickles an enum as a call of getattr, which `data_alone` forbids.
    ZeroStageEnum.__reduce_ex__ = lambda self, protocol: (type(self), (self.value,))
    logger.setLevel(logging.WARNING)
    # DeepSpeed compiles its shared-memory collectives at first use, which takes 27 s and a compiler. gloo is
    # just as good here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
