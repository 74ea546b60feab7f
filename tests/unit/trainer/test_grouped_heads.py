"""Grouped-query attention: key heads are repeated if torch has no kernel for groups, with equal numbers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from headway_trainer import attention
from headway_trainer.attention import RowSpans, by_length, takes_groups

CPU = torch.device("cpu")
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
LENGTHS = (9, 9, 14, 3)


@pytest.mark.parametrize(
    ("device", "dtype", "masked", "takes"),
    [
        ("cuda", torch.bfloat16, False, True),
        ("cuda", torch.bfloat16, True, False),
        ("cuda", torch.float32, False, False),
        ("cuda", torch.float32, True, False),
        ("cpu", torch.float32, True, True),
    ],
)
def test_kernels_that_take_grouped_heads_are_known(
    device: str, dtype: torch.dtype, masked: bool, takes: bool
) -> None:
    assert takes_groups(device, dtype, masked=masked) == takes


@pytest.mark.parametrize("window", [None, 5])
def test_repeated_heads_have_the_numbers_of_grouped_ones(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    asked: list[bool] = []
    kernel = attention.scaled_dot_product_attention

    def spied(*tensors: Tensor, enable_gqa: bool, **options: object) -> Tensor:
        asked.append(enable_gqa)
        return kernel(*tensors, enable_gqa=enable_gqa, **options)

    def found() -> list[Tensor]:
        draw = torch.Generator().manual_seed(4)
        inputs = [torch.randn(1, n, sum(LENGTHS), 8, generator=draw).requires_grad_() for n in (6, 2, 2)]
        out, _ = by_length(
            nn.Identity(), *inputs, None, sliding_window=window, rows=RowSpans.of(LENGTHS, CPU)
        )
        weights = torch.linspace(-1, 1, out.numel()).view_as(out)
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]

    monkeypatch.setattr(attention, "scaled_dot_product_attention", spied)
    grouped = found()
    assert set(asked) == {True}
    asked.clear()
    monkeypatch.setattr(attention, "takes_groups", lambda *_, masked: False)
    repeated = found()
    assert set(asked) == {False}
    for one, other in zip(repeated, grouped, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_learner_disables_cudnn_attention_kernels() -> None:
    program = """
import torch
from headway_trainer.ranks import Ranks
torch.backends.cuda.enable_cudnn_sdp(True)
ranks = Ranks.join()
print(torch.backends.cuda.cudnn_sdp_enabled())
ranks.leave()
"""
    # In a subprocess, because another test may already have called `Ranks.join` in this one.
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **ALONE}, capture_output=True, text=True
    )
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr
