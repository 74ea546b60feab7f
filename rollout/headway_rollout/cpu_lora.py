"""Worker extension of vLLM for engines with adapters.

On a CPU, it keeps adapters out of requests for the base model. vLLM marks tokens of the base model with the
adapter index -1. Its GPU kernels skip these tokens. Its CPU kernels read -1 as the last adapter and apply it.
So a request for the base model that shares a batch with an adapter gets that adapter's answer, without an
error (vllm-project/vllm pull request 48421).

LoRA is two matrix products, shrink and expand. This module zeroes the result of shrink for those tokens, so
expand adds nothing.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.platforms import current_platform

from headway_rollout.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def skipping(shrink: Callable[..., None]) -> Callable[..., None]:
    """Wrap `shrink` so that its result is 0 for tokens without an adapter.

    Args:
        shrink: fills `output_tensor` (tokens x rank) from `inputs` (tokens x features), the stacked matrices
            and each token's adapter index.
    """

    @wraps(shrink)
    def skipped(
        inputs: Tensor, stacked: Tensor, output_tensor: Tensor, indices: Tensor, *rest: Any, **named: Any
    ) -> None:
        shrink(inputs, stacked, output_tensor, indices, *rest, **named)
        output_tensor.masked_fill_((indices < 0).unsqueeze(1), 0)

    return skipped


class LoraWorker(Worker):
    """The worker extension of an engine with adapters. Naming this class makes workers import this module."""


if current_platform.is_cpu():
    # Whole prompts use the name in `lora_ops`, and single tokens the name that `punica_cpu` imported.
    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = skipping(lora_ops.bgmv_shrink)
