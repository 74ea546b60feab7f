"""Which modules may have an adapter, by a checkpoint's tensors, and which of them the spec's names select."""

from __future__ import annotations

import pytest

from headway_api.lora_targets import adaptable, ends, matched, unmatched

Q, V = (f"model.layers.0.self_attn.{name}_proj" for name in "qv")
DOWN = "model.layers.0.mlp.down_proj"
DENSE = {
    "model.embed_tokens.weight": (64, 16),
    f"{Q}.weight": (16, 16),
    f"{Q}.bias": (16,),
    f"{V}.weight": (8, 16),
    f"{DOWN}.weight": (16, 32),
    "model.layers.0.input_layernorm.weight": (16,),
    "model.layers.0.conv1d.weight": (16, 1, 4),
    "lm_head.weight": (64, 16),
}


def test_linear_modules_exclude_norms_embeddings_and_the_head() -> None:
    assert adaptable(DENSE) == [DOWN, Q, V]


def test_experts_and_their_router_get_no_adapter() -> None:
    moe = {
        f"{Q}.weight": (16, 16),
        "model.layers.0.mlp.gate.weight": (4, 16),
        "model.layers.0.mlp.experts.0.gate_proj.weight": (8, 16),
        "model.layers.0.mlp.experts.gate_up_proj": (4, 16, 16),
        "model.layers.0.mlp.shared_expert.up_proj.weight": (8, 16),
    }
    assert adaptable(moe) == [Q]
    dense = ["h.0.mlp.gate", "h.0.mlp.up_proj"]
    assert adaptable({f"{path}.weight": (4, 4) for path in dense}) == dense, "without experts"


def test_modules_of_other_modalities_get_no_adapter() -> None:
    towers = {f"{part}.blocks.0.qkv.weight": (4, 4) for part in ("visual", "vision_tower", "model.visual")}
    assert adaptable(towers | {f"{Q}.weight": (4, 4)}) == [Q]


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (["q_proj"], {Q}),
        (["self_attn.q_proj", "down_proj"], {Q, DOWN}),
        ([Q], {Q}),
        ([f"base.{Q}"], {Q}),
        (["proj"], set()),
        (["_proj"], set()),
        ([], set()),
        (r".*\.(q|v)_proj", {Q, V}),
        ("q_proj", set()),
        ("(", set()),
    ],
)
def test_names_mean_what_they_mean_to_peft(targets: list[str] | str, found: set[str]) -> None:
    assert matched(targets, [Q, V, DOWN]) == found


def test_the_error_for_an_unknown_name_names_it() -> None:
    assert unmatched(["q_proj", "no_such", "embed_tokens"], adaptable(DENSE)) == ["no_such", "embed_tokens"]
    assert unmatched(["model.lm_head"], ["lm_head"]) == ["model.lm_head"]
    assert ends([Q, V, Q]) == "q_proj, v_proj"
    assert ends([]) == "none"
