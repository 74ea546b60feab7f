"""A delta that the learner writes gives a server exactly the learner's weights, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save_file

from headway_api import weights_format
from headway_api.store import CorruptFileError
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE
from headway_rollout.weights import delta
from headway_trainer.publish import codec

WIDTHS = st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64])


@st.composite
def steps(draw: st.DrawFn) -> tuple[Any, Any]:
    """Elements before and after a step, in which some change to arbitrary values."""
    dtype = draw(WIDTHS)
    before = draw(arrays.arrays(dtype, st.integers(0, 300)))
    after = before.copy()
    for at in draw(st.sets(st.integers(0, 299), max_size=40)):
        if at < len(after):
            after[at] = draw(st.integers(0, np.iinfo(dtype).max))
    return before, after


@given(steps(), st.sampled_from([1, 8, 64, 1 << 22]))
def test_any_step_comes_back_bit_for_bit(step: tuple[Any, Any], chunk: int) -> None:
    before, after = step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "CHUNK", chunk)
        patch.setattr(delta, "CHUNK", chunk)
        data = codec.encode(before, after)
        assert (data == b"") == bool((before == after).all())
        found = before.copy()
        if data:
            delta.decode(found, data)
    assert (found == after).all()


def test_one_step_of_bfloat16_in_which_little_changes_is_small() -> None:
    before = np.random.default_rng(0).integers(0, 1 << 16, 100_000, dtype=np.uint16)
    after = before.copy()
    after[::200] += 1
    assert len(codec.encode(before, after)) < before.nbytes / 100


@given(st.binary(max_size=60))
def test_any_other_bytes_are_refused_without_a_crash(data: bytes) -> None:
    elements = np.zeros(16, np.uint32)
    if data == b"\0" * 8:
        return  # a valid delta without changes
    with pytest.raises(ValueError, match=r"ends|changed|error|incorrect|incomplete|cannot|Error"):
        delta.decode(elements, data)


def files(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> tuple[Path, Path, Path, Path]:
    """Write the files before and after, the delta, and the digests of the result. Returns the four paths."""
    old, new = folder / "old.safetensors", folder / "new.safetensors"
    save_file(before, old, metadata={"format": "pt"})
    save_file(after, new, metadata={"format": "pt"})
    codec.write_delta(old, new, folder / DELTA_FILE)
    (folder / DIGESTS_FILE).write_text(codec.tensor_digests(new).model_dump_json())
    return old, new, folder / DELTA_FILE, folder / DIGESTS_FILE


def model(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "half": rng.standard_normal(33).astype(np.float16),
        "single": rng.standard_normal((3, 5)).astype(np.float32),
        "counts": np.arange(4),
        "scalar": np.array(seed, np.float32),
        "nothing": np.zeros((0, 3), np.float32),
    }


def test_a_delta_rebuilds_the_learners_file_byte_for_byte(tmp_path: Path) -> None:
    old, new, change, digests = files(tmp_path, model(1), model(2))
    made = tmp_path / "made.safetensors"
    delta.apply(old, change, digests, made)
    assert made.read_bytes() == new.read_bytes()


def test_unchanged_tensors_are_not_in_the_delta(tmp_path: Path) -> None:
    before = model(1)
    _, _, change, _ = files(tmp_path, before, before | {"single": before["single"] + 1})
    assert list(weights_format.read_spans(change)) == ["single"]


def test_a_delta_on_another_version_is_refused(tmp_path: Path) -> None:
    _, _, change, digests = files(tmp_path, model(1), model(2))
    save_file(model(3), tmp_path / "other.safetensors", metadata={"format": "pt"})
    with pytest.raises(CorruptFileError, match="expected sha256"):
        delta.apply(tmp_path / "other.safetensors", change, digests, tmp_path / "made.safetensors")


def test_a_delta_of_another_model_is_refused(tmp_path: Path) -> None:
    _, _, change, digests = files(tmp_path, model(1), model(2))
    save_file({"half": np.zeros(33, np.float16)}, tmp_path / "other.safetensors")
    with pytest.raises(CorruptFileError, match="not of the tensors"):
        delta.apply(tmp_path / "other.safetensors", change, digests, tmp_path / "made.safetensors")


def test_models_of_other_shapes_have_no_delta(tmp_path: Path) -> None:
    save_file({"w": np.zeros((2, 3), np.float32)}, tmp_path / "a.safetensors")
    save_file({"w": np.zeros((3, 2), np.float32)}, tmp_path / "b.safetensors")
    with pytest.raises(codec.LayoutMismatchError):
        codec.write_delta(tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / DELTA_FILE)
