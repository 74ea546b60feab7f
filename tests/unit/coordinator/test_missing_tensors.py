"""The preflight reads headers of weights, and refuses missing tensors before the job requests a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from preflight_bench import Bench, safetensors, spec, write_inputs

from headway_api.exits import JobError
from headway_coordinator.preflight import tensors

PART = ("model.layers", "self_attn.q_proj.weight")
TOWER = ("visual.blocks", "attn.qkv.weight")
EXPERTS = ("model.layers.0.mlp.experts", "up_proj.weight")


def layers(part: tuple[str, str], *numbers: int) -> list[str]:
    return [f"{part[0]}.{number}.{part[1]}" for number in numbers]


def in_parts(count: int) -> dict[str, Any]:
    """The configuration of a multimodal model whose text part has `count` layers."""
    return {
        "num_hidden_layers": 9,
        "text_config": {"num_hidden_layers": count, "max_position_embeddings": 512},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_inputs(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    return tmp_path


def write(folder: Path, files: dict[str, list[str]], index: dict[str, str] | None, **config: Any) -> None:
    model = folder / "model"
    for name, held in files.items():
        (model / name).write_bytes(safetensors(dict.fromkeys(held, (0,))))
    if index is not None:
        (model / tensors.INDEX_FILE).write_text(json.dumps({"weight_map": index}))
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 512} | config))


def looked_at(folder: Path) -> Bench:
    bench = Bench(spec(folder, model={"base": f"file://{folder}/model", "full": {}}))
    bench.basics(folder)
    return bench


def refused(folder: Path) -> str:
    with pytest.raises(JobError) as caught:
        looked_at(folder)
    assert caught.value.permanent
    found = caught.value.termination
    assert (found.reason, found.field) == ("ModelIncomplete", "spec.model.base")
    return found.message


@pytest.mark.parametrize(
    ("held", "config", "lost"),
    [
        (layers(PART, 0, 2), {"num_hidden_layers": 3}, "model.layers.1"),
        (layers(PART, 0, 1), {"num_hidden_layers": 3}, "model.layers.2"),
        (layers(PART, 1, 2, 3), {"num_hidden_layers": 3}, "model.layers.0"),
        ([*layers(TOWER, 0), *layers(PART, 0, 1)], in_parts(3), "model.layers.2"),
        ([*layers(PART, 0), *layers(EXPERTS, 0, 1)], {"num_hidden_layers": 2}, "model.layers.1"),
    ],
)
def test_a_layer_without_tensors_is_named(
    folder: Path, held: list[str], config: dict[str, Any], lost: str
) -> None:
    write(folder, {"model.safetensors": ["model.embed_tokens.weight", *held]}, None, **config)
    message = refused(folder)
    assert f" has no tensor of {lost}, and config.json says num_hidden_layers: " in message
    assert message.endswith("; upload the whole Hugging Face folder again")


@pytest.mark.parametrize(
    ("held", "config"),
    [
        (layers(PART, 0, 1, 2), {"num_hidden_layers": 3}),
        (layers(PART, 0, 1, 2, 3), {"num_hidden_layers": 3}),  # the fourth layer predicts further tokens
        ([*layers(TOWER, 0), "visual.mlp.0.weight", "visual.mlp.2.weight", *layers(PART, 0, 1)],
         in_parts(2)),
        (layers(("transformer.h", "attn.c_attn.weight"), 0, 1), {"num_hidden_layers": 2}),
        (layers(PART, 0), {}),
        (["shared.weight"], {"num_hidden_layers": 3}),
    ],
)  # fmt: skip
def test_weights_of_every_layer_pass(folder: Path, held: list[str], config: dict[str, Any]) -> None:
    write(folder, {"model.safetensors": held}, None, **config)
    assert [check.passed for check in looked_at(folder).reports[-1].checks if check.name == "Weights"] == [
        True
    ]


ONE, TWO = "model-0.safetensors", "model-1.safetensors"


def test_a_tensor_of_the_index_that_no_file_has_is_named(folder: Path) -> None:
    whole = layers(PART, 0, 1, 2)
    index = dict.fromkeys(whole[:2], ONE) | dict.fromkeys(whole[2:], TWO)
    write(folder, {ONE: whole[:1], TWO: whole[2:]}, index)
    rest = f" of the tensors in {tensors.INDEX_FILE}, {whole[1]} of {ONE} among them; upload"
    assert f"lacks 1{rest}" in refused(folder)
    write(folder, {ONE: whole[:1], TWO: ["lm_head.weight"]}, index)
    assert f"lacks 2{rest}" in refused(folder)
    write(folder, {ONE: whole[:2], TWO: whole[2:]}, index)
    looked_at(folder)


def test_a_file_of_the_index_that_is_not_there_is_named(folder: Path) -> None:
    whole = layers(PART, 0, 1)
    write(folder, {ONE: whole[:1]}, {whole[0]: ONE, whole[1]: TWO})
    assert f"model/{TWO}: no such weights; upload the whole Hugging Face folder" in refused(folder)
