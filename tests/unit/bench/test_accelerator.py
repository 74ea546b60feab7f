"""The GPU benchmark: what it counts and compares, and the page with its results."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bench.accelerator import apart, shapes, speed
from bench.accelerator.shapes import Shape
from bench.learner.work import row
from bench.support.model import TINY
from safetensors.torch import save_file

OLDER = Path(__file__).resolve().parents[3] / "bench" / "accelerator" / "older" / "sitecustomize.py"
TINIEST = Shape("tiny", TINY, 512, tied=True, episodes=1)


def found(**more: Any) -> dict[str, Any]:
    """The results that `train` leaves for a model before anything is published."""
    return {
        "shape": "Tiny",
        "parameters": 1000,
        "trained": 100,
        "attention": "headway_variable",
        "micro-batches": 2,
        "max tokens": 16384,
        "episodes": 3,
        "tokens": 600,
        "action tokens": 200,
        "operations": 3e12,
        "weights bytes": 2000,
        "held bytes": 3600,
        "peak bytes": 9000,
        "rate": 10e12,
        "seconds": {"ours": [1.0, 1.0, 2.0], "packed": [0.8, 0.9, 1.8]},
        "failed": {},
    } | more


def test_operations_are_those_of_matrices_and_causal_attention() -> None:
    episode = row([(10, 6)], 512, seed=0)
    size = TINY
    head = 2 * 512 * size.hidden * 6
    forward = 2 * TINIEST.layers * 16 + head
    attention = 2 * 2 * size.layers * size.heads * size.head_dim * 16 * 16 / 2
    assert shapes.operations(TINIEST, [episode]) == 3 * (forward + attention)
    assert shapes.operations(TINIEST, [episode], adapter=7) == 2 * forward + 3 * (attention + 2 * 7 * 16)


def test_numbers_differ_by_relative_size_and_two_nans_are_equal() -> None:
    assert apart.numbers([1.1, math.nan], [1.0, math.nan]) == pytest.approx(0.1)
    assert apart.numbers([1e-6], [0.0], floor=1e-3) == pytest.approx(1e-3)
    assert apart.numbers([1.0, math.nan], [1.0, 1.0]) == math.inf


def test_an_update_is_what_steps_changed(tmp_path: Path) -> None:
    for name, end in (("mine", 3.0), ("theirs", 2.0)):
        start = {"w": torch.ones(4), "w/exp_avg": torch.zeros(4)}
        save_file(start, tmp_path / f"{name}.start")
        save_file(start | {"w": torch.full((4,), end)}, tmp_path / f"{name}.end")
    assert apart.updates(tmp_path / "mine", tmp_path / "theirs") == pytest.approx(1.0)
    assert apart.updates(tmp_path / "mine", tmp_path / "mine") == 0
    assert apart.same(tmp_path / "mine.end", tmp_path / "mine.end")
    assert not apart.same(tmp_path / "mine.end", tmp_path / "theirs.end")


def test_a_ratio_is_a_median_of_pairs_and_a_failed_side_is_named() -> None:
    section = speed._section("lora", "LoRA", "2", found(failed={"trl": "no time"}))
    assert [goal.found for goal in section.goals] == ["0.90"]
    assert section.goals[0].met
    assert section.read[-1].endswith("did not run: no time.")
    ours, bare = section.tables[0].rows
    assert (ours["s"], ours["of the product"], bare["ours is faster by"]) == (1.0, "30%", 0.9)
    assert section.tables[1].rows[0]["expected GiB"] > 0
    assert "Stops training" not in " ".join(section.read)


def test_published_weights_are_compared_bit_by_bit() -> None:
    version = {"kind": "delta", "bytes": 9, "stops": 1.0, "canary": 0.1, "copy": 0.1, "take": 0.2}
    beside = {"ours": [1.0, 1.0, 1.0], "trl": [2.0, 1.0, 3.0]}
    section = speed._section(
        "full",
        "Full weights",
        "18",
        found(publish=[version | {"equal": True}, version | {"equal": False}], beside=beside),
    )
    assert [(goal.found, goal.met) for goal in section.goals] == [
        ("0.90", True),
        ("2.00", True),
        ("1 of 2", False),
    ]
    assert "Stops training" in " ".join(section.read)


@pytest.mark.parametrize("knows", [True, False])
def test_an_older_torch_gets_no_option_for_grouped_heads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, knows: bool
) -> None:
    parameter = "enable_gqa=False" if knows else "window=0"
    (tmp_path / "varlen.py").write_text(f"def varlen_attn(q, *, {parameter}):\n    return locals()\n")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    older = _loaded("older", OLDER)
    loader = older._Loader("varlen", str(tmp_path / "varlen.py"))
    spec = importlib.util.spec_from_file_location("varlen", tmp_path / "varlen.py", loader=loader)
    assert spec is not None
    varlen = importlib.util.module_from_spec(spec)
    loader.exec_module(varlen)
    assert varlen.varlen_attn(1, enable_gqa=True).get("enable_gqa", False) == knows
    assert hasattr(varlen.varlen_attn, "__wrapped__") != knows


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
