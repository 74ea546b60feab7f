"""A model that a command of this machine cannot get from the hub: the error, and that its advice helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import learner_rig as rig
import pytest
from finished_run import FinishedRun
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError

from headway_api import base_model
from headway_api.exits import JobError, Termination
from headway_api.replay import ReplayRequest
from headway_api.spec.lifecycle import OutputSpec
from headway_api.spec.model import ModelSpec
from headway_api.store import FileStore
from headway_cli import replaying, serving
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import opened
from headway_cli.where import LocalJob

MODEL = ModelSpec(base="hf://acme/open")
REMOTE = ("pods", "s3://", "Secret", "secretRef")
"""Words for things that a person at this machine does not have."""


def offline(*_: Any, **__: Any) -> None:
    raise LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known")


def gated(*_: Any, **__: Any) -> None:
    answer = httpx.Response(403, request=httpx.Request("GET", "https://hub.test"))
    raise GatedRepoError("access is restricted", response=answer)


def refusal(tmp_path: Path) -> Termination:
    with pytest.raises(JobError) as refused:
        base_model.fetch(MODEL, FileStore(), tmp_path)
    return refused.value.termination


@pytest.mark.parametrize(
    ("hub", "says"),
    [(offline, "--cache ~/.cache/huggingface"), (gated, "set HF_TOKEN in this shell")],
)
def test_a_replay_says_what_helps_on_this_machine(
    hub: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    request = ReplayRequest(
        config=rig.job(tmp_path, tmp_path),
        run=OutputSpec(uri=f"file://{tmp_path}"),
        step=1,
        models=str(tmp_path),
    )
    ended = refusal(tmp_path).model_dump_json().encode()
    told = replaying.failure_message(ended, request, tmp_path)
    assert told is not None
    assert told.startswith("spec.model.base: acme/open")
    assert says in told
    assert not any(word in told for word in REMOTE)


@pytest.mark.parametrize(
    ("hub", "says"),
    [(offline, "or write --base file:///FOLDER"), (gated, "correct --base, or set HF_TOKEN")],
)
def test_serving_says_what_helps_on_this_machine(
    hub: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    made = FinishedRun(tmp_path / "b").job(model={"base": MODEL.base}).adapters()
    run = opened(LocalJob(made.folder))
    with pytest.raises(RunNotFoundError, match=says) as told:
        serving.fetched(run, serving.chosen(run, "latest", None), tmp_path / "cache")
    assert not any(word in str(told.value) for word in REMOTE)


def test_an_earlier_download_helps_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has the form of ~/.cache/huggingface."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    there = tmp_path / "hub" / "models--acme--open"
    (there / "refs").mkdir(parents=True)
    (there / "refs" / "main").write_text("c0ffee")
    (there / "snapshots" / "c0ffee").mkdir(parents=True)
    (there / "snapshots" / "c0ffee" / "config.json").write_text("{}")
    assert base_model.fetch(MODEL, FileStore(), tmp_path) == there / "snapshots" / "c0ffee"
