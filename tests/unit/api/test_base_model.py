"""Where the base model comes from, and the error if a job may not read it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
from refusing_bucket import refusing_store

from headway_api import base_model
from headway_api.exits import JobError
from headway_api.spec.model import ModelSpec
from headway_api.store import FileStore


def test_a_gated_model_says_where_its_token_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        answer = httpx.Response(403, request=httpx.Request("GET", "https://hub.test"))
        raise GatedRepoError("access to model acme/gated is restricted", response=answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(JobError) as refused:
        base_model.fetch(ModelSpec(base="hf://acme/gated"), FileStore(), tmp_path)
    termination = refused.value.termination
    assert (termination.reason, termination.field, refused.value.permanent) == (
        "ModelUnavailable",
        "spec.model.base",
        True,
    )
    assert "put an HF_TOKEN that may read it into the Secret of spec.output.secretRef" in termination.message


def test_a_hub_of_unknown_name_is_a_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: Any, **__: Any) -> None:
        raise LocalEntryNotFoundError(
            "Got: ConnectError: [Errno -2] Name or service not known\nSee the docs."
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unavailable)
    message = r"acme/open could not be fetched from the hub \(Name or service not known\); let the job's"
    with pytest.raises(JobError, match=message):
        base_model.fetch(ModelSpec(base="hf://acme/open"), FileStore(), tmp_path)


def test_a_hub_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: Any, **__: Any) -> None:
        raise LocalEntryNotFoundError("Got: ConnectError: Connection refused\nSee the docs.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unavailable)
    with pytest.raises(JobError, match="copy the model's folder to s3://") as refused:
        base_model.fetch(ModelSpec(base="hf://acme/open"), FileStore(), tmp_path)
    termination = refused.value.termination
    assert (termination.reason, termination.field, refused.value.permanent) == (
        "ModelNotFetched",
        "spec.model.base",
        False,
    )
    assert "Connection refused" in termination.message
    assert "See the docs" not in termination.message


class NoRoom(FileStore):
    """A store from which nothing can be copied because the disk is full."""

    def download(self, uri: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("scheme", ["hf", "file"])
def test_a_volume_without_room_names_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: NoRoom().download("", tmp_path)
    )
    base = "hf://acme/open" if scheme == "hf" else f"file://{tmp_path}/model"
    with pytest.raises(JobError) as full:
        base_model.fetch(ModelSpec.model_construct(base=base, revision=None), NoRoom(), tmp_path / "cache")
    termination = full.value.termination
    assert (termination.reason, full.value.permanent) == ("DiskFull", False)
    assert termination.message == (
        f"cacheSizeLimit of the chart's values: the volume for models has no room for {base} (No space left "
        "on device); ask an administrator for a larger limit or larger disks"
    )


def test_any_other_fault_of_a_disk_is_raised_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the place of the folder")
    (tmp_path / "model").mkdir()
    with pytest.raises(OSError, match="Not a directory"):
        base_model.fetch(
            ModelSpec.model_construct(base=f"file://{tmp_path}/model", revision=None),
            FileStore(),
            tmp_path / "cache",
        )


def test_the_hub_is_asked_for_the_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model = ModelSpec(base="hf://acme/open", revision="v1")
    assert base_model.fetch(model, FileStore(), tmp_path, weights=False) == tmp_path
    assert (asked["name"], asked["revision"]) == ("acme/open", "v1")
    assert base_model.WEIGHTS in asked["ignore_patterns"], "the preflight needs no weights"


@pytest.mark.parametrize(("code", "status"), [("NoSuchBucket", 404), ("AccessDenied", 403)])
def test_a_forbidden_bucket_is_an_error_for_the_user(code: str, status: int, tmp_path: Path) -> None:
    with pytest.raises(JobError) as refused:
        base_model.fetch(ModelSpec(base="s3://typo/model"), refusing_store(code, status), tmp_path)
    termination = refused.value.termination
    assert (termination.reason, termination.field, refused.value.permanent) == (
        "ModelUnavailable",
        "spec.model.base",
        True,
    )
    assert termination.message.startswith("s3://typo/model: ")
    assert f"({code})" in termination.message
    assert "let the credentials of spec.output read it" in termination.message


def test_a_name_that_the_hub_refuses_is_an_error_for_the_user(tmp_path: Path) -> None:
    model = ModelSpec.model_construct(base="hf://acme/qwen/3-8b", revision=None)
    with pytest.raises(JobError, match="correct name or revision") as refused:
        base_model.fetch(model, FileStore(), tmp_path)
    assert refused.value.termination.field == "spec.model.base"


@pytest.mark.parametrize("weights", [True, False])
def test_only_what_is_read_of_a_model_is_fetched(weights: bool, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "original").mkdir(parents=True)
    for name in (
        "config.json",
        "model.safetensors",
        "chat_template.jinja",
        "pytorch_model.bin",
        "original/a.pth",
    ):
        (source / name).write_text("{}")
    model = ModelSpec.model_construct(base=f"file://{source}", revision=None)
    found = base_model.fetch(model, FileStore(), tmp_path / "cache", weights=weights)
    fetched = {path.name for path in found.rglob("*") if path.is_file()}
    assert fetched == {"config.json", "chat_template.jinja"} | ({"model.safetensors"} if weights else set())
