"""The weights at `spec.model.warmStart.uri` are compared with the job before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway_api import warm_start
from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_api.store import FileStore, digest

BASE = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512}


class BaseAndStart:
    """A base model, and a folder to start from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base"
        self.weights = folder / "job" / "weights" / "000003"
        for path in (self.base, self.weights):
            path.mkdir(parents=True)
        (self.base / "config.json").write_text(json.dumps(BASE))

    def adapter(self, **changes: Any) -> BaseAndStart:
        config = {
            "peft_type": "LORA",
            "r": 4,
            "lora_alpha": 8,
            "base_model_name_or_path": f"file://{self.base}",
        }
        (self.weights / "adapter_config.json").write_text(json.dumps(config | changes))
        (self.weights / "adapter_model.safetensors").write_bytes(b"adapter")
        return self

    def whole(self, **changes: Any) -> BaseAndStart:
        (self.weights / "config.json").write_text(json.dumps(BASE | changes))
        (self.weights / "model.safetensors").write_bytes(b"model")
        return self

    def described(self) -> BaseAndStart:
        """The folder, with the step report that a job leaves."""
        files = [digest(path).model_dump() for path in sorted(self.weights.iterdir())]
        report = self.folder / "job" / "steps" / "000003.json"
        report.parent.mkdir()
        report.write_text(json.dumps({"weights": {"uri": f"file://{self.weights}", "files": files}}))
        return self

    def model(self, **training: Any) -> ModelSpec:
        start = {"uri": f"file://{self.weights}/"}
        return ModelSpec.model_validate({"base": f"file://{self.base}", "warmStart": start} | training)

    def fetch(self, weights: bool = True, **training: Any) -> warm_start.LocalWeights:
        store, cache = FileStore(), self.folder / "cache"
        return warm_start.fetch(self.model(**training), self.base, store, cache, weights=weights)

    def refusal(self, **training: Any) -> str:
        with pytest.raises(JobError) as refused:
            self.fetch(**training)
        found = refused.value.termination
        assert (found.reason, found.field) == ("WarmStartUnusable", "spec.model.warmStart")
        assert refused.value.permanent
        return found.message


@pytest.fixture
def place(tmp_path: Path) -> BaseAndStart:
    return BaseAndStart(tmp_path)


LORA = {"lora": {"rank": 4, "alpha": 8}}
FULL: dict[str, Any] = {"full": {}}


@pytest.mark.parametrize("training", [LORA, FULL], ids=["trained on", "merged"])
def test_an_adapter_of_the_base_model_is_taken(place: BaseAndStart, training: dict[str, Any]) -> None:
    start = place.adapter().described().fetch(**training)
    assert start.adapter
    assert (start.folder / "adapter_model.safetensors").read_bytes() == b"adapter"


def test_full_weights_of_the_base_model_are_taken(place: BaseAndStart) -> None:
    start = place.whole().described().fetch(**FULL)
    assert not start.adapter
    assert (start.folder / "model.safetensors").exists()


def test_the_preflight_fetches_no_weights(place: BaseAndStart) -> None:
    start = place.adapter().described().fetch(weights=False, **LORA)
    assert [path.name for path in start.folder.iterdir()] == ["adapter_config.json"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"base_model_name_or_path": "Qwen/Qwen3-4B"},
            "the adapter is of base model Qwen/Qwen3-4B, not file://",
        ),
        ({"r": 16}, "the adapter has rank 16 and alpha 8, not 4 and 8"),
        ({"lora_alpha": 16}, "the adapter has rank 4 and alpha 16, not 4 and 8"),
        ({"use_dora": True}, "not a plain LoRA adapter"),
        ({"use_rslora": True}, "was trained with rsLoRA; set spec.model.lora.rsLora: true"),
        ({"rank_pattern": {"q_proj": 8}}, "not a plain LoRA adapter"),
        ({"peft_type": "IA3"}, "not a plain LoRA adapter"),
    ],
)
def test_another_adapter_is_refused(place: BaseAndStart, changes: dict[str, Any], words: str) -> None:
    assert words in place.adapter(**changes).refusal(**LORA)


SCALED = {"lora": {"rank": 4, "alpha": 8, "rsLora": True}}


@pytest.mark.parametrize("training", [SCALED, FULL], ids=["trained on", "merged"])
def test_an_adapter_with_rslora_goes_with_a_job_that_has_it(
    place: BaseAndStart, training: dict[str, Any]
) -> None:
    assert place.adapter(use_rslora=True).described().fetch(**training).adapter


def test_a_job_with_rslora_refuses_an_adapter_without_it(place: BaseAndStart) -> None:
    message = place.adapter().refusal(**SCALED)
    assert "was trained without rsLoRA; set spec.model.lora.rsLora: false" in message


def test_an_adapter_of_the_hub_is_known_by_the_hubs_name(place: BaseAndStart) -> None:
    place.adapter(base_model_name_or_path="Qwen/Qwen3-8B")
    model = place.model(**LORA).model_copy(update={"base": "hf://Qwen/Qwen3-8B"})
    assert warm_start.judge(place.weights, model, place.base).adapter


def test_an_adapter_of_another_rank_can_be_merged(place: BaseAndStart) -> None:
    assert place.adapter(r=64, lora_alpha=128).fetch(**FULL).adapter


def test_a_whole_model_is_not_an_adapter(place: BaseAndStart) -> None:
    assert "name the folder in spec.model.base instead" in place.whole().refusal(**LORA)


def test_a_model_of_another_size_is_refused(place: BaseAndStart) -> None:
    assert "has hidden_size 128, and the base model 64" in place.whole(hidden_size=128).refusal(**FULL)


def test_a_folder_that_is_neither_is_refused(place: BaseAndStart) -> None:
    (place.weights / "notes.txt").write_text("")
    assert "no adapter_config.json and no config.json" in place.refusal(**LORA)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_an_invalid_adapter_configuration_is_refused(place: BaseAndStart, content: str) -> None:
    place.adapter()
    (place.weights / "adapter_config.json").write_text(content)
    assert "adapter_config.json" in place.refusal(**LORA)


def test_an_empty_place_is_an_error_of_the_field(place: BaseAndStart) -> None:
    with pytest.raises(JobError, match="there is nothing at") as refused:
        place.fetch(**LORA)
    found = refused.value.termination
    assert (found.reason, found.field) == ("ModelUnavailable", "spec.model.warmStart")


def test_a_file_that_is_not_the_one_written_is_refused(place: BaseAndStart) -> None:
    place.adapter().described()
    (place.weights / "adapter_model.safetensors").write_bytes(b"another")
    message = place.refusal(**LORA)
    assert "adapter_model.safetensors is not the file that the job wrote" in message


def test_a_file_that_is_missing_is_refused(place: BaseAndStart) -> None:
    place.adapter().described()
    (place.weights / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors is not the file that the job wrote" in place.refusal(**LORA)


def test_a_copy_elsewhere_has_no_digests_to_compare_with(place: BaseAndStart) -> None:
    place.adapter().described()
    report = place.folder / "job" / "steps" / "000003.json"
    report.write_text(report.read_text().replace("/job/weights", "/moved/weights"))
    (place.weights / "adapter_model.safetensors").write_bytes(b"another")
    assert place.fetch(**LORA).adapter
