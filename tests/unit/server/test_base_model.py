from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway_api.exits import JobError
from headway_api.store import FileStore
from headway_rollout.server.model import from_store, read_config


def test_only_what_the_engine_reads_is_fetched(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "original").mkdir(parents=True)
    for name in (
        "config.json",
        "model.safetensors",
        "chat_template.jinja",
        "pytorch_model.bin",
        "original/a.json",
    ):
        (source / name).write_text("{}")
    found = from_store(FileStore(), f"file://{source}", tmp_path / "model")
    assert sorted(path.name for path in found.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
    ]


def test_an_empty_place_is_a_mistake_of_the_spec(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        from_store(FileStore(), f"file://{tmp_path}/nothing", tmp_path / "model")
    assert caught.value.permanent
    assert caught.value.termination.field == "spec.model.base"


def test_a_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"config\.json"):
        read_config(tmp_path)


def test_the_text_model_of_a_multimodal_one_is_described(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 8}}))
    assert read_config(tmp_path) == {"hidden_size": 8}
