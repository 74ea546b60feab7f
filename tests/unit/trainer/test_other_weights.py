"""If weights are not those of the model in config.json, the learner names what differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tiny_model import write_model

from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_trainer import model as models


def refused(folder: Path, **changes: object) -> JobError:
    """Change config.json and load the model. Returns the error."""
    write_model(folder, tied=False)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return not_loaded(folder)


def not_loaded(folder: Path) -> JobError:
    spec = ModelSpec.model_validate({"base": "s3://models/desk", "dtype": "float32", "lora": {"rank": 4}})
    with pytest.raises(JobError) as found:
        models.load(folder, spec, seed=0)
    return found.value


def test_weights_of_other_sizes_are_named_with_their_sizes(tmp_path: Path) -> None:
    sizes = json.loads((write_model(tmp_path / "whole", tied=False) / "config.json").read_text())
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    error = refused(tmp_path / "other", intermediate_size=2 * inner)
    found = error.termination
    assert (found.reason, found.field, error.permanent) == ("ModelNotLoadable", "spec.model.base", True)
    assert found.message == (
        "s3://models/desk does not load as a causal language model (model.layers.0.mlp.down_proj.weight "
        f"has size {hidden} x {inner} in the weights, but {hidden} x {2 * inner} in config.json, and "
        f"{3 * sizes['num_hidden_layers'] - 1} more tensors differ); give a complete Hugging Face folder "
        "(config.json, safetensors weights) of a model this version knows"
    )


@pytest.mark.parametrize(
    "lost", ["model.layers.1.self_attn.k_proj.weight", "lm_head.weight", "model.norm.weight"]
)
def test_a_missing_tensor_is_named(tmp_path: Path, lost: str) -> None:
    """transformers would initialize it at random and only log a warning."""
    weights = write_model(tmp_path, tied=False) / "model.safetensors"
    kept = load_file(weights)
    del kept[lost]
    save_file(kept, weights, {"format": "pt"})
    found = not_loaded(tmp_path).termination
    assert (found.reason, found.field) == ("ModelNotLoadable", "spec.model.base")
    assert (
        f"(the weights lack 1 of the tensors that config.json asks for, {lost} among them); " in found.message
    )


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    sizes = json.loads((write_model(tmp_path / "whole", tied=False) / "config.json").read_text())
    count = sizes["num_hidden_layers"]
    kinds = sizes["layer_types"]
    error = refused(tmp_path / "other", num_hidden_layers=count + 1, layer_types=[*kinds, kinds[-1]])
    message = error.termination.message
    assert f"config.json asks for, model.layers.{count}." in message
