"""Weights that are not of the model that config.json describes: the learner names what differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_model import write_model

from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_trainer import model as models


def refused(folder: Path, **changes: int) -> JobError:
    """What is said once config.json says something else."""
    write_model(folder, tied=False)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    spec = ModelSpec.model_validate({"base": "s3://models/desk", "dtype": "float32", "lora": {"rank": 4}})
    with pytest.raises(JobError) as found:
        models.load(folder, spec, seed=0)
    return found.value


def test_weights_of_other_sizes_are_told_by_name_and_size(tmp_path: Path) -> None:
    sizes = json.loads((write_model(tmp_path / "whole", tied=False) / "config.json").read_text())
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    error = refused(tmp_path / "other", intermediate_size=2 * inner)
    found = error.termination
    assert (found.reason, found.field, error.permanent) == ("ModelNotLoadable", "spec.model.base", True)
    assert found.message == (
        "s3://models/desk does not load as a causal language model (model.layers.0.mlp.down_proj.weight has "
        f"size {hidden} x {inner} in the weights and {hidden} x {2 * inner} by config.json, and "
        f"{3 * sizes['num_hidden_layers'] - 1} more tensors differ); give a complete Hugging Face folder "
        "(config.json, safetensors weights) of a model this version knows"
    )
