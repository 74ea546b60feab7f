from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway_api import base_model
from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_api.store import FileStore
from headway_rollout.model import fetch, read_config


def test_a_store_that_fails_temporarily_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **named: object) -> Path:
        raise ConnectionResetError("by peer")

    monkeypatch.setattr(base_model, "fetch", broken)
    with pytest.raises(JobError, match="by peer") as caught:
        fetch(ModelSpec(base="s3://bucket/model"), FileStore(), tmp_path)
    termination = caught.value.termination
    assert (termination.reason, termination.field, caught.value.permanent) == (
        "ModelNotFetched",
        "spec.model.base",
        False,
    )


def test_a_model_missing_after_the_preflight_is_retriable(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        fetch(ModelSpec.model_construct(base=f"file://{tmp_path}/nothing"), FileStore(), tmp_path / "cache")
    assert not caught.value.permanent, "the preflight has seen it there"
    assert caught.value.termination.field == "spec.model.base"


def test_a_folder_without_config_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_multimodal_model_is_described_by_its_text_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 8}}))
    assert read_config(tmp_path) == {"hidden_size": 8}
