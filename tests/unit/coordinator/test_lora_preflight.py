"""The modules that get an adapter are compared with the base model's tensors before GPUs are requested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from preflight_bench import Bench, safetensors, spec, write_inputs

from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_api.store import FileStore
from headway_coordinator.preflight import tensors

LAYER = "model.layers.0"
LINEAR = {"self_attn.q_proj": (8, 8), "self_attn.v_proj": (4, 8), "mlp.up_proj": (16, 8)}
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (64, 8),
    "lm_head.weight": (64, 8),
    f"{LAYER}.input_layernorm.weight": (8,),
    **{f"{LAYER}.{name}.weight": shape for name, shape in LINEAR.items()},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_inputs(tmp_path)
    (tmp_path / "model" / "model.safetensors").write_bytes(safetensors(SHAPES))
    return tmp_path


def training(folder: Path, **model: Any) -> Bench:
    return Bench(spec(folder, model={"base": f"file://{folder}/model"} | model))


def on(*targets: str) -> dict[str, Any]:
    return {"lora": {"rank": 4, "alpha": 8, "targets": list(targets)}}


def refusal(bench: Bench, folder: Path) -> tuple[str, str | None, str]:
    with pytest.raises(JobError) as refused:
        bench.basics(folder)
    assert refused.value.permanent
    assert bench.reports[-1].state == "Failed"
    found = refused.value.termination
    return found.reason, found.field, found.message


@pytest.mark.parametrize("targets", [("q_proj",), ("q_proj", "mlp.up_proj"), (f"{LAYER}.self_attn.v_proj",)])
def test_names_of_linear_modules_pass(folder: Path, targets: tuple[str, ...]) -> None:
    bench = training(folder, **on(*targets))
    bench.basics(folder)
    [check] = [check for check in bench.reports[-1].checks if check.name == "LoraTargets"]
    assert (check.passed, check.message) == (True, "linear modules are q_proj, up_proj, v_proj")


@pytest.mark.parametrize("wrong", ["no_such", "embed_tokens", "lm_head", "input_layernorm", "proj"])
def test_any_other_name_is_refused_with_the_usable_names(folder: Path, wrong: str) -> None:
    reason, field, message = refusal(training(folder, **on("q_proj", wrong)), folder)
    assert (reason, field) == ("LoraTargetsUnusable", "spec.model.lora.targets")
    assert message.startswith(f"{wrong}: the base model has no linear module of that name")
    assert "name some of q_proj, up_proj, v_proj, or leave targets out" in message


def test_a_job_without_target_modules_needs_no_weights(folder: Path) -> None:
    (folder / "model" / "model.safetensors").unlink()
    training(folder, lora={"rank": 4}).basics(folder)
    training(folder, full={}).basics(folder)


def adapter(folder: Path, target_modules: object) -> dict[str, Any]:
    """Write an adapter, and return the `model` fields of a job that starts from it."""
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": f"file://{folder}/model",
        "target_modules": target_modules,
    }
    (folder / "start").mkdir()
    (folder / "start" / "adapter_config.json").write_text(json.dumps(config))
    return {"warmStart": {"uri": f"file://{folder}/start"}}


ALL = [f"{LAYER}.{name}" for name in LINEAR]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (["v_proj", "q_proj"], ("q_proj", "v_proj")),
        (ALL, ()),
        (["q_proj", "v_proj", "up_proj"], ()),
        (ALL[:1], ("q_proj",)),
    ],
)
def test_an_adapter_on_the_same_modules_is_a_start(
    folder: Path, there: list[str], here: tuple[str, ...]
) -> None:
    training(folder, **adapter(folder, there), **on(*here)).basics(folder)


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (["q_proj", "v_proj"], ("q_proj",), "targets modules q_proj, v_proj, the job q_proj;"),
        (["q_proj"], (), "targets modules q_proj, the job q_proj, up_proj, v_proj;"),
        (r".*\.q_proj", ("v_proj",), r"targets modules .*\.q_proj, the job v_proj;"),
        (None, ("v_proj",), "targets modules none, the job v_proj;"),
    ],
)
def test_an_adapter_on_other_modules_is_refused_with_both_lists(
    folder: Path, there: object, here: tuple[str, ...], words: str
) -> None:
    reason, field, message = refusal(training(folder, **adapter(folder, there), **on(*here)), folder)
    assert (reason, field) == ("WarmStartUnusable", "spec.model.warmStart")
    assert words in message
    assert "set spec.model.lora.targets to the adapter's" in message


def test_an_adapter_to_be_merged_may_be_on_any_module(folder: Path) -> None:
    training(folder, **adapter(folder, ["q_proj"]), full={}).basics(folder)


def shapes(folder: Path) -> tensors.Shapes:
    model = ModelSpec.model_construct(base=f"file://{folder}/model", revision=None)
    return tensors.shapes(model, folder / "model", FileStore())


def test_a_header_of_any_length_is_read(folder: Path) -> None:
    assert shapes(folder) == SHAPES
    (folder / "model" / "model.safetensors").write_bytes(safetensors(SHAPES, padding=2 * tensors.FIRST_BYTES))
    assert shapes(folder) == SHAPES


def test_weights_in_several_files_are_read_by_their_index(folder: Path) -> None:
    model = folder / "model"
    (model / "model.safetensors").unlink()
    (model / "consolidated.safetensors").write_bytes(safetensors({"wq.weight": (8, 8)}))
    parts = [dict(list(SHAPES.items())[:2]), dict(list(SHAPES.items())[2:])]
    where = {}
    for number, part in enumerate(parts):
        (model / f"model-{number}.safetensors").write_bytes(safetensors(part))
        where |= dict.fromkeys(part, f"model-{number}.safetensors")
    (model / tensors.INDEX_FILE).write_text(json.dumps({"weight_map": where}))
    assert shapes(folder) == SHAPES


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "ModelIncomplete"),
        (b"", "ModelNotLoadable"),
        (b"\xff" * 64, "ModelNotLoadable"),
        (safetensors(SHAPES)[:-1], "ModelNotLoadable"),
        ((2).to_bytes(8, "little") + b"[]", "ModelNotLoadable"),
    ],
)
def test_weights_that_cannot_be_read_are_the_models_fault(
    folder: Path, content: bytes | None, reason: str
) -> None:
    file = folder / "model" / "model.safetensors"
    file.unlink() if content is None else file.write_bytes(content)
    found, field, message = refusal(training(folder, **on("q_proj")), folder)
    assert (found, field) == (reason, "spec.model.base")
    assert "model.safetensors" in message


def sized(size: int) -> bytes:
    """A safetensors file: a header with one tensor, and `size` bytes after it."""
    entry = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {"format": "pt"}, f"{LAYER}.mlp.up_proj.weight": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


@pytest.mark.parametrize("size", [0, 7, 9])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_file_whose_size_contradicts_its_header_is_refused(folder: Path, size: int, parts: int) -> None:
    model = folder / "model"
    names = ["model.safetensors"] if parts == 1 else ["model-0.safetensors", "model-1.safetensors"]
    for name in names[:-1]:
        (model / name).write_bytes(sized(8))
    (model / names[-1]).write_bytes(sized(size))
    if parts > 1:
        where = {str(number): name for number, name in enumerate(names)}
        (model / tensors.INDEX_FILE).write_text(json.dumps({"weight_map": where}))
    reason, field, message = refusal(training(folder, full={}), folder)
    whole = len(sized(8))
    assert (reason, field) == ("ModelNotLoadable", "spec.model.base")
    assert f"{names[-1]} has {whole - 8 + size} bytes, but its header describes {whole}; upload" in message


def test_weights_as_long_as_their_header_says_pass(folder: Path) -> None:
    (folder / "model" / "model.safetensors").write_bytes(sized(8))
    bench = training(folder, full={})
    bench.basics(folder)
    [check] = [check for check in bench.reports[-1].checks if check.name == "Weights"]
    assert (check.passed, check.message) == (True, f"{len(sized(8))} bytes of weights, as their headers say")


def test_headers_are_read_from_the_hub_at_the_specs_revision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str | None]] = []
    info = huggingface_hub.utils.TensorInfo
    named = {name: info("F32", list(shape), (0, 0)) for name, shape in SHAPES.items()}

    def metadata(
        _: object, name: str, *, revision: str | None
    ) -> huggingface_hub.utils.SafetensorsRepoMetadata:
        asked.append((name, revision))
        file = huggingface_hub.utils.SafetensorsFileMetadata({}, named)
        return huggingface_hub.utils.SafetensorsRepoMetadata(None, False, {}, {"model.safetensors": file})

    monkeypatch.setattr(huggingface_hub.HfApi, "get_safetensors_metadata", metadata)
    model = ModelSpec(base="hf://acme/open", revision="v1")
    assert tensors.shapes(model, tmp_path, FileStore()) == SHAPES
    assert asked == [("acme/open", "v1")]
