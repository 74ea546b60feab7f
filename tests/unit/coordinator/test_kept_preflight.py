"""The key of a stored preflight result, when it is read back, and with which weights a preflight samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from job_rig import manifest, report, spec

from headway_analysis.preflight.definition import Example, Finding
from headway_api.artifacts import Layout, shared_preflight
from headway_api.records import WeightsManifest
from headway_api.spec.model import ModelSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore
from headway_coordinator.dataset import Data
from headway_coordinator.preflight import keyed, start

DATA = Data(train=[{"prompt": "1"}, {"prompt": "2"}], validation=[])
FOUND = Finding(
    "foothold", "Fail", "0 of 64", 0.0, 0.05, 0.0, 0.04, "simplify", "spec.model.base", 64,
    (Example("row 1", "no answer", "p0-000001-0-0"),), (("pass@8", 0.0), ("odd", float("nan"))),
)  # fmt: skip
DIGEST = "@sha256:" + "0" * 64
PINNED = {"environment": {"image": f"registry.test/env:1.4{DIGEST}", "entrypoint": "m:C"}}


def a_spec(**blocks: Any) -> RLTrainingJobSpec:
    return RLTrainingJobSpec.model_validate(spec().as_object() | PINNED | blocks)


def at(folder: Path, **blocks: Any) -> RLTrainingJobSpec:
    """A spec whose model is in a folder that the store can read."""
    return a_spec(**{"model": {"base": f"file://{folder}"}} | blocks)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"large")
    return folder


def key(of: RLTrainingJobSpec, model: Path, data: Data = DATA, uid: str = "uid") -> str:
    return keyed.key_of(of, data, model, uid, FileStore())


def test_an_equal_job_has_the_same_key(model: Path) -> None:
    assert key(a_spec(), model) == key(a_spec(), model, uid="another")


@pytest.mark.parametrize(
    "blocks",
    [
        {"seed": 7},
        {"model": {"base": "s3://b/other"}},
        {"environment": {"image": f"registry.test/env@sha256:{'1' * 64}", "entrypoint": "m:C"}},
        {"environment": PINNED["environment"] | {"config": {"hard": True}}},
        {"environment": PINNED["environment"] | {"contract": {"tools": []}}},
        {"agent": {"builtin": {"maxTurns": 3}}},
        {"rollout": {"sampling": {"temperature": 0.5}}},
        {"rollout": {"engine": {"extraArgs": ["--max-num-seqs=4"]}}},
        {"reward": {"range": [-1, 1]}},
        {"algorithm": {"groupSize": 4}},
        {"preflight": {"episodes": 64}},
        {"preflight": {"episodes": 0, "checks": {"splits": "Off"}}},
    ],
)
def test_every_input_of_the_preflight_changes_its_key(model: Path, blocks: dict[str, Any]) -> None:
    assert key(a_spec(**blocks), model) != key(a_spec(), model)


def test_rows_and_each_file_of_the_model_change_the_key(model: Path) -> None:
    before = key(at(model), model)
    assert key(at(model), model) == before
    assert key(at(model), model, Data(train=[{"prompt": "3"}], validation=[])) != before
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert key(at(model), model) != before


@pytest.mark.parametrize("weights", [b"large, and more", b"other"])
def test_weights_overwritten_in_place_change_the_key(model: Path, weights: bytes) -> None:
    before = key(at(model), model)
    (model / "model.safetensors").write_bytes(weights)
    assert key(at(model), model) != before


def test_each_file_of_sharded_weights_changes_the_key(model: Path) -> None:
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    found = []
    for content in (b"1", b"12"):
        (model / "model-2.safetensors").write_bytes(content)
        found.append(key(at(model), model))
    assert found[0] != found[1]


def test_the_hubs_commit_is_part_of_the_key(tmp_path: Path) -> None:
    of, commits = a_spec(model={"base": "hf://org/model"}), [tmp_path / name for name in ("1a", "2b")]
    for folder in commits:
        folder.mkdir()
    assert key(of, commits[0]) != key(of, commits[1])


@pytest.mark.parametrize(
    "blocks",
    [
        {"learner": {"nodes": 2}},
        {"rollout": {"replicas": 3}},
        {"optimizer": {"learningRate": 1e-4}},
        {"preflight": {"policy": "Warn", "episodes": 0, "checks": {"foothold": "Warn"}}},
    ],
)
def test_fields_that_do_not_affect_sampling_keep_the_key(model: Path, blocks: dict[str, Any]) -> None:
    assert key(a_spec(**blocks), model) == key(a_spec(preflight={"episodes": 0}), model)


@pytest.mark.parametrize(
    "image", ["registry.test/env", "registry.test:5000/env", "env:latest", "registry.test/env:v1"]
)
def test_an_image_without_a_digest_is_keyed_to_its_job_only(model: Path, image: str) -> None:
    moving = a_spec(environment={"image": image, "entrypoint": "m:C"})
    assert key(moving, model) == key(moving, model)
    assert key(moving, model) != key(moving, model, uid="another")
    pinned = a_spec(environment={"image": f"{image}{DIGEST}", "entrypoint": "m:C"})
    assert key(pinned, model) == key(pinned, model, uid="another")


def kept(of: str = "the key", job: str = "ns/job/uid") -> keyed.Kept:
    return keyed.Kept(key=of, job=job, episodes=64, wanted=104, findings=keyed.storable([FOUND]))


def layout(folder: Path, uid: str = "uid") -> Layout:
    return Layout(f"file://{folder}/out", "ns", "job", uid)


def test_a_stored_result_is_read_back_by_job_and_by_key(tmp_path: Path) -> None:
    store, own = FileStore(), layout(tmp_path)
    keyed.keep(store, own, kept(), "# Preflight\n")
    found = keyed.read_back(store, own, "the key", begun=False)
    assert found == kept()
    assert found.findings[0].examples == FOUND.examples
    assert found.findings[0].numbers == (("pass@8", 0.0),), "JSON has no other numbers"
    [stored] = json.loads(store.get(own.preflight))["findings"]
    assert stored["figures"] == [["pass@8", 0.0]], "as earlier versions of Headway stored them"
    assert keyed.read_back(store, layout(tmp_path, "another"), "the key", begun=False) == kept()
    assert store.get(own.preflight_for_people) == b"# Preflight\n"


def test_a_changed_key_keeps_the_result_only_once_a_job_trains(tmp_path: Path) -> None:
    store, own = FileStore(), layout(tmp_path)
    keyed.keep(store, own, kept(), "")
    assert keyed.read_back(store, own, "changed", begun=False) is None
    assert keyed.read_back(store, own, "changed", begun=True) == kept()
    assert keyed.read_back(store, layout(tmp_path, "another"), "changed", begun=True) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"key": 1}'])
def test_an_unreadable_result_is_computed_again(tmp_path: Path, data: bytes) -> None:
    store, own = FileStore(), layout(tmp_path)
    store.put(own.preflight, data)
    store.put(shared_preflight(own, "the key"), data)
    assert keyed.read_back(store, own, "the key", begun=False) is None


def of_another_job(folder: Path, weights: WeightsManifest) -> str:
    """Store the report of a job that published these weights as its step 3. Returns the weights' URI."""
    uri = f"file://{folder}/runs/weights/000003"
    step_report = report(3).model_copy(update={"weights": weights.model_copy(update={"uri": uri})})
    FileStore().put(f"file://{folder}/runs/steps/000003.json", step_report.model_dump_json().encode())
    return uri


def starting(uri: str, **how: Any) -> ModelSpec:
    return ModelSpec.model_validate({"base": "s3://b/m", "warmStart": {"uri": uri}, **how})


def test_a_job_without_a_start_samples_with_its_base_model() -> None:
    found, note = start.manifest(ModelSpec(base="s3://b/m"), FileStore())
    assert (found.kind, found.version, note) == ("base", start.BEFORE_TRAINING, None)


def test_a_warm_start_samples_with_the_adapter_it_starts_from(tmp_path: Path) -> None:
    uri = of_another_job(tmp_path, manifest(3))
    found, note = start.manifest(starting(uri, lora={"rank": 8, "alpha": 16}), FileStore())
    assert (found.kind, found.uri, note) == ("lora", uri, None)
    assert found.version == start.BEFORE_TRAINING, "the learner's first weights have another"
    assert found.canary is not None


def test_a_start_whose_weights_cannot_be_proved_has_a_note(tmp_path: Path) -> None:
    merged = of_another_job(tmp_path, manifest(3))
    for model in (starting("s3://b/elsewhere"), starting(merged, full={})):
        found, note = start.manifest(model, FileStore())
        assert (found.kind, note) == ("base", start.NOT_THE_START)
