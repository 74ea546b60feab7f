"""What vLLM's worker checks of the tensors that it receives and of those that it holds.

No server is started.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def worker() -> Any:
    """The worker's module, which imports vLLM."""
    from headway_rollout import weight_transfer

    return weight_transfer


@pytest.fixture
def model() -> Any:
    """Stands for vLLM's model: two parameters as a checkpoint has them, and a fused one."""
    import torch

    torch.manual_seed(0)
    made: Any = torch.nn.Module()
    made.norm = torch.nn.LayerNorm(8, bias=False).bfloat16()
    made.embed = torch.nn.Embedding(20, 8).bfloat16()
    made.qkv = torch.nn.Linear(8, 24, bias=False).bfloat16()
    return made


def checkpoint(model: Any) -> dict[str, Any]:
    import torch

    found = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    fused = found.pop("qkv.weight")
    return found | dict(zip(("q.weight", "k.weight", "v.weight"), torch.split(fused, 8), strict=True))


def digests(worker: Any, tensors: Mapping[str, Any]) -> dict[str, str]:
    return {name: worker.digest(tensor) for name, tensor in tensors.items()}


def one_unit_more(tensor: Any) -> Any:
    """The tensor with its last element replaced by the next larger number."""
    import torch

    found = tensor.detach().clone()
    found.view(torch.int16).flatten()[-1] += 1
    return found


def test_right_tensors_are_handed_on_in_order(worker: Any, model: Any) -> None:
    tensors = checkpoint(model)
    dtypes: dict[str, Any] = {}
    found = list(worker.verified(tensors.items(), digests(worker, tensors), dtypes))
    assert [name for name, _ in found] == list(tensors)
    assert all(tensor is tensors[name] for name, tensor in found)
    assert dtypes == {name: tensor.dtype for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", ["norm.weight", "v.weight"])
def test_a_tensor_off_by_one_unit_is_never_handed_on(worker: Any, model: Any, name: str) -> None:
    tensors = checkpoint(model)
    expected = digests(worker, tensors)
    wrong = tensors | {name: one_unit_more(tensors[name])}
    handed: list[str] = []
    taken = (handed.append(found) for found, _ in worker.verified(wrong.items(), expected, {}))
    with pytest.raises(worker.WrongTensorError, match=f"wrong tensor: {name}"):
        list(taken)
    assert name not in handed


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_other_tensors_than_those_published_are_refused(worker: Any, model: Any, change: str) -> None:
    tensors = checkpoint(model)
    expected = digests(worker, tensors)
    (tensors if change == "missing" else expected).pop("k.weight")
    with pytest.raises(worker.WrongTensorError, match=r"k\.weight"):
        list(worker.verified(tensors.items(), expected, {}))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_base_model_shows_which_parameters_are_kept_as_is(
    worker: Any, model: Any, tmp_path: Path, dtype: str
) -> None:
    """This holds even if the model's files are in another number format than the engine computes in."""
    import torch
    from safetensors.torch import save_file

    base = {name: tensor.to(getattr(torch, dtype)) for name, tensor in checkpoint(model).items()}
    save_file(base, tmp_path / "model.safetensors")
    assert worker.kept_as_they_are(model, tmp_path) == {"norm.weight", "embed.weight"}


def test_what_the_model_holds_is_compared_with_the_digests(worker: Any, model: Any) -> None:
    import torch

    tensors = checkpoint(model)
    expected = digests(worker, tensors)
    kept = dict.fromkeys(("norm.weight", "embed.weight"), torch.bfloat16)
    worker.check_kept(model, kept, expected)
    with torch.no_grad():
        model.embed.weight.copy_(one_unit_more(model.embed.weight))
    with pytest.raises(worker.WrongTensorError, match=r"embed\.weight"):
        worker.check_kept(model, kept, expected)
    worker.check_kept(model, kept | {"embed.weight": torch.float32}, expected)


def test_a_worker_may_use_tiles_where_the_processor_has_them() -> None:
    """The kernel shows it in bit 18 of its answer to ARCH_GET_XCOMP_PERM (Linux: arch/x86/xstate.rst)."""
    code = """
import ctypes, torch
from headway_rollout import worker
granted = ctypes.c_uint64()
ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(granted))
print(bool(granted.value >> 18 & 1), worker.ask_for_tiles(), torch.cpu._is_amx_tile_supported())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    granted, asked, supported = ended.stdout.split()
    assert granted == asked == supported
