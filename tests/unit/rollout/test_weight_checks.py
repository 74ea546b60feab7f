from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.records import Canary, FileDigest, PolicyVersion, WeightsManifest
from headway_rollout.weights import canary
from headway_rollout.weights.checks import (
    TensorHeader,
    UnusableManifestError,
    check_full,
    check_lora,
    check_manifest,
    read_header,
    read_headers,
)

LORA = {"peft_type": "LORA", "r": 8}


def tensor(*shape: int, dtype: str = "F32") -> TensorHeader:
    return TensorHeader(dtype, shape)


def pair(stem: str = "q_proj", rank: int = 8) -> dict[str, TensorHeader]:
    return {f"{stem}.lora_A.weight": tensor(rank, 16), f"{stem}.lora_B.weight": tensor(32, rank)}


def write(path: Path, tensors: dict[str, tuple[str, list[int]]], *, cut: int = 0) -> None:
    """Write a safetensors file whose tensors are zeros."""
    sizes = {"F32": 4, "BF16": 2, "I64": 8}
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + sizes[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(end)
    path.write_bytes(data[: len(data) - cut])


def manifest(**changes: Any) -> WeightsManifest:
    digest = FileDigest(name="adapter_model.safetensors", size=1, sha256="0" * 64)
    content: dict[str, Any] = {
        "version": PolicyVersion(incarnation=0, step=1),
        "kind": "lora",
        "uri": "s3://bucket/weights",
        "files": [digest],
        "canary": Canary(tokens=[1, 2, 3], logprobs=[-1.0, -2.0], tolerance=0.1),
    }
    return WeightsManifest.model_validate(content | changes)


def test_a_header_has_names_dtypes_and_shapes(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", {"w": ("F32", [2, 3]), "b": ("BF16", [4])})
    write(tmp_path / "b.safetensors", {"v": ("F32", [1])})
    assert read_headers(tmp_path) == {"w": tensor(2, 3), "b": tensor(4, dtype="BF16"), "v": tensor(1)}


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", {"w": ("F32", [2, 3])}, cut=1)
    with pytest.raises(UnusableManifestError, match="bytes long"):
        read_header(tmp_path / "a.safetensors")


@given(st.binary(max_size=64))
def test_a_file_of_anything_else_is_refused_and_never_crashes(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        path.write_bytes(data)
        with pytest.raises(UnusableManifestError):
            read_header(path)


def test_the_same_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.safetensors", {"w": ("F32", [1])})
    with pytest.raises(UnusableManifestError, match="repeats w"):
        read_headers(tmp_path)


def test_a_full_checkpoint_of_equal_shapes_may_differ_in_dtype() -> None:
    check_full({"w": tensor(2, 3)}, {"w": tensor(2, 3, dtype="BF16")})


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "lacks w"),
        ({"w": tensor(3, 2)}, r"shape \[3, 2\]"),
        ({"w": tensor(2, 3), "x": tensor(1)}, "no tensor x"),
        ({"w": tensor(2, 3, dtype="I64")}, "is I64"),
    ],
)
def test_a_full_checkpoint_of_another_model_is_refused(found: dict[str, TensorHeader], message: str) -> None:
    with pytest.raises(UnusableManifestError, match=message):
        check_full({"w": tensor(2, 3)}, found)


def test_a_tied_head_may_be_written_but_an_untied_head_must_be() -> None:
    embedding, both = {"embed": tensor(4, 2)}, {"embed": tensor(4, 2), "lm_head.weight": tensor(4, 2)}
    check_full(embedding, both)
    with pytest.raises(UnusableManifestError, match="lm_head"):
        check_full(both, embedding)


def test_an_adapter_of_pairs_passes() -> None:
    check_lora(LORA, pair() | pair("up_proj"), max_rank=8)


@pytest.mark.parametrize(
    ("config", "found", "message"),
    [
        ({"peft_type": "IA3", "r": 8}, pair(), "does not describe"),
        ({"peft_type": "LORA"}, pair(), "does not describe"),
        ({"peft_type": "LORA", "r": 16}, pair(rank=16), "rank is 16"),
        (LORA, {}, "no tensor"),
        (LORA, pair(rank=4), "the rank is 8"),
        (LORA, {"q_proj.lora_A.weight": tensor(8, 16)}, "lacks its"),
        (LORA, {"q_proj.weight": tensor(8, 16)}, "not a LoRA matrix"),
        (LORA, {"q.lora_A.weight": tensor(8, 16, dtype="I64"), "q.lora_B.weight": tensor(2, 8)}, "is I64"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    config: dict[str, Any], found: dict[str, TensorHeader], message: str
) -> None:
    with pytest.raises(UnusableManifestError, match=message):
        check_lora(config, found, max_rank=8)


def test_a_manifest_of_the_right_kind_passes() -> None:
    check_manifest(manifest(), ("lora",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "full"}, "of full weights"),
        ({"files": []}, "no safetensors"),
        ({"files": [FileDigest(name="sub/x.safetensors", size=1, sha256="0" * 64)]}, "not a plain name"),
        ({"canary": Canary(tokens=[1], logprobs=[], tolerance=0.1)}, "canary"),
        ({"canary": Canary(tokens=[1, 2], logprobs=[-1.0, -1.0], tolerance=0.1)}, "canary"),
    ],
)
def test_an_impossible_manifest_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnusableManifestError, match=message):
        check_manifest(manifest(**changes), ("lora",))


def test_the_canary_measures_the_mean_absolute_difference() -> None:
    assert canary.difference([-1.0, -2.0], [-1.5, -1.5]) == pytest.approx(0.5)


@pytest.mark.parametrize("found", [[], [-1.0], [-1.0, math.nan], [-1.0, -math.inf]])
def test_a_canary_that_cannot_be_compared_never_agrees(found: list[float]) -> None:
    assert not canary.agrees(canary.difference([-1.0, -2.0], found), 1e9)


@given(st.lists(st.floats(-50, 0), min_size=1, max_size=50))
def test_equal_canaries_agree_at_any_tolerance(values: list[float]) -> None:
    assert canary.agrees(canary.difference(values, values), 1e-12)


@given(st.integers(1, 5000))
def test_the_canarys_positions_span_the_whole_sequence(count: int) -> None:
    found = canary.positions(count)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (0, count - 1)
    assert len(found) == min(count, canary.MAX_POSITIONS)
