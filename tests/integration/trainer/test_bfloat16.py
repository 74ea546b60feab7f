"""Training in bfloat16: gradients are summed in float32, and saving, resuming and publishing are exact."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import step_variants
import torch
from safetensors.torch import load_file
from step_variants import ELEMENTS, MICRO_BATCHES
from torch import Tensor

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

STAGES: dict[str, dict[str, Any]] = {
    "stage1": {"zeroStage": 1, "checkpointing": True},
    "stage2": {"zeroStage": 2},
    "stage3": {"zeroStage": 3, "checkpointing": True},
    "stage1-offload": {"zeroStage": 1, "offload": "cpu"},
    "stage2-offload": {"zeroStage": 2, "offload": "cpu"},
    "stage3-offload": {"zeroStage": 3, "offload": "cpu"},
}
"""Every ZeRO setting that bfloat16 may have. Without ZeRO the job is refused."""
ROWS: dict[str, dict[str, Any]] = {
    **{name: {**stage, "dtype": "bfloat16", "tokens": 40, "save": True} for name, stage in STAGES.items()},
    "lora": {"zeroStage": 1, "dtype": "bfloat16", "lora": True, "tokens": 40, "save": True},
    "whole": {"zeroStage": 2, "dtype": "bfloat16"},
    "float32": {"zeroStage": 1},
}
SUMS = {f"{name}-sum": {**stage, "sum": True} for name, stage in STAGES.items()}
RESIZED = ("stage1", "stage2", "stage3", "lora")
"""Variants to resume with another number of ranks. With offload the files are those of stage 2 or 3."""
SAVED = [name for name, settings in ROWS.items() if settings.get("save")]
RANKS = (1, 2)


class Steps:
    """The losses, norms and weights that one variant computed."""

    def __init__(self, folder: Path, name: str) -> None:
        found = json.loads((folder / f"{name}.json").read_text())
        self.losses, self.norms = np.array(found["losses"]), np.array(found["norms"])
        self.micro_batches: list[int] = found["micro_batches"]
        self.weights: dict[str, Tensor] = load_file(folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Number of ranks -> folder with the results of all variants."""
    made = {ranks: tmp_path_factory.mktemp(f"ranks{ranks}") for ranks in RANKS}
    for ranks, folder in made.items():
        step_variants.start(model, folder, ROWS | SUMS, ranks)
    return made


@pytest.fixture(scope="module")
def resumed(
    model: Path, folders: dict[int, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, int, str], Steps]:
    """A variant's last step.

    Its arguments are the number of ranks before, the number of ranks after, and the variant.
    """
    taken = {ranks: tmp_path_factory.mktemp(f"resumed{ranks}") for ranks in RANKS}
    for ranks, folder in taken.items():
        again = {
            f"{name}-{before}": {
                **ROWS[name],
                "save": False,
                "load": {"folder": str(folders[before] / f"{name}.state"), "ranks": before},
            }
            for name in SAVED
            for before in RANKS
            if before == ranks or name in RESIZED
        }
        step_variants.start(model, folder, again, ranks)
    return lambda before, after, name: Steps(taken[after], f"{name}-{before}")


def distance(found: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """Difference of two trained models, relative to how far training moved the weights."""
    apart = sum(float((found[n].float() - expected[n].float()).square().sum()) for n in found)
    moved = sum(float((expected[n].float() - start[n].float()).square().sum()) for n in found)
    return math.sqrt(apart / moved)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", STAGES)
def test_small_gradients_are_not_lost_in_a_large_sum(folders: dict[int, Path], ranks: int, name: str) -> None:
    """The first addend is 1, and each other one is half of its last place in bfloat16.

    Summed in bfloat16, they would leave it at 1.
    """
    found = json.loads((folders[ranks] / f"{name}-sum.json").read_text())["norm"]
    smaller = ranks * MICRO_BATCHES - 1
    assert found == pytest.approx(math.sqrt(ELEMENTS) * (1 + smaller * step_variants.SMALL), rel=1e-6)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", STAGES)
def test_stages_ranks_and_micro_batches_differ_by_rounding_alone(
    folders: dict[int, Path], model: Path, ranks: int, name: str
) -> None:
    found, whole, exact = (
        Steps(folders[ranks], name),
        Steps(folders[1], "whole"),
        Steps(folders[1], "float32"),
    )
    assert min(found.micro_batches) > 1
    assert max(whole.micro_batches) == 1
    start = load_file(model / "model.safetensors")
    # Weights are about 0.02 and move by 0.002, so bfloat16's rounding alone is a tenth of the move.
    for other, apart in ((whole, 0.06), (exact, 0.2)):
        np.testing.assert_allclose(found.losses, other.losses, rtol=0.01, atol=1e-3)
        np.testing.assert_allclose(found.norms, other.norms, rtol=0.005)
        assert distance(found.weights, other.weights, start) < apart
    assert {tensor.dtype for tensor in found.weights.values()} == {torch.bfloat16}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", SAVED)
def test_a_resumed_learner_goes_on_bit_for_bit(
    folders: dict[int, Path], resumed: Callable[[int, int, str], Steps], ranks: int, name: str
) -> None:
    found, expected = resumed(ranks, ranks, name), Steps(folders[ranks], name)
    assert found.losses.tolist() == expected.losses[-1:].tolist()
    assert found.norms.tolist() == expected.norms[-1:].tolist()
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.equal(found.weights[n], expected.weights[n]) for n in found.weights)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("name", RESIZED)
def test_another_number_of_ranks_goes_on_from_the_same_state(
    folders: dict[int, Path],
    resumed: Callable[[int, int, str], Steps],
    before: int,
    after: int,
    name: str,
) -> None:
    found, expected = resumed(before, after, name), Steps(folders[before], name)
    np.testing.assert_allclose(found.losses, expected.losses[-1:], rtol=0.02, atol=1e-3)
    np.testing.assert_allclose(found.norms, expected.norms[-1:], rtol=0.02)
    assert distance(found.weights, expected.weights, load_file(folders[before] / f"{name}.before")) < 0.02
