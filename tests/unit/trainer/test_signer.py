"""Checkpoint records are signed, so that only the job's own processes can write them."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pickle
from pathlib import Path
from typing import Any, cast

import learner_rig as rig
import pytest
import torch
from role_keys import CHECKPOINTS, KEYS
from tries.planted import Planted, rewritten

from headway_api.artifacts import Layout
from headway_api.exits import RETRIABLE, JobError
from headway_api.keys import Key
from headway_api.spec.learner import CheckpointsSpec
from headway_api.store import FileStore
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.manager import CheckpointManager
from headway_trainer.checkpoint.manifest import IncompleteCheckpointError
from headway_trainer.checkpoint.signer import Signer
from headway_trainer.engine import TAG, Engine
from headway_trainer.ranks import Ranks

ALONE = Ranks(0, 0, 1, None)
WEIGHTS = "weights.pt"


class Pickled:
    """An engine whose state is a pickle, which it reads as DeepSpeed does by default."""

    replicated = True
    updates = 1
    value: object = None

    def save(self, folder: Path) -> Path:
        (folder / TAG).mkdir()
        torch.save({"weight": 1}, folder / TAG / WEIGHTS)
        return folder / TAG

    def load(self, folder: Path) -> None:
        self.value = torch.load(folder / TAG / WEIGHTS, weights_only=False)


class Process:
    """The part of a learner that makes and resumes checkpoints."""

    def __init__(self, layout: Layout, scratch: Path, key: str = CHECKPOINTS) -> None:
        self.store, self.engine = FileStore(), Pickled()
        self.journal = Journal(self.store, layout, Signer.of(key, layout))
        self.checkpointer = CheckpointManager(
            CheckpointsSpec(),
            cast(Engine, self.engine),
            self.store,
            layout,
            self.journal,
            scratch,
            ALONE,
        )

    def resume(self) -> None:
        found = self.journal.begin()
        if found is not None:
            self.checkpointer.restore(found)

    def take(self, step: int) -> None:
        self.journal.take(rig.report(step))
        self.checkpointer.save(rig.report(step))
        self.checkpointer.settle()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(f"file://{tmp_path}/store", "rl", "refunds", "uid")


@pytest.fixture
def durable(layout: Layout, tmp_path: Path) -> Layout:
    """The layout of a job whose step 1 is durable."""
    process = Process(layout, tmp_path / "first")
    process.resume()
    process.take(1)
    return layout


def path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def test_a_checkpoint_is_resumed_by_the_job_that_wrote_it(durable: Layout, tmp_path: Path) -> None:
    again = Process(durable, tmp_path / "again")
    again.resume()
    assert again.engine.value == {"weight": 1}


def test_a_planted_pickle_with_its_digest_rewritten_never_runs(durable: Layout, tmp_path: Path) -> None:
    mark = tmp_path / "code ran"
    planted = pickle.dumps(Planted(os.mkdir, str(mark)), protocol=2)
    path(f"{durable.checkpoint_of(1, 0)}/{WEIGHTS}").write_bytes(planted)
    report = path(durable.checkpoint_report(1, 0))
    report.write_bytes(rewritten(report.read_bytes(), WEIGHTS, planted))
    with pytest.raises(JobError) as refused:
        Process(durable, tmp_path / "again").resume()
    assert not mark.exists()
    assert refused.value.termination.reason == "CheckpointUnusable"
    assert "its signature is not this job's" in refused.value.termination.message
    assert "set latest.json" in refused.value.termination.message
    assert refused.value.code == RETRIABLE
    # Without the signature it would have run, because the digest matches and the engine reads any object.
    file = path(f"{durable.checkpoint_of(1, 0)}/{WEIGHTS}")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    pickle.loads(file.read_bytes())
    assert mark.exists()


def test_a_planted_pickle_alone_differs_from_its_digest(durable: Layout, tmp_path: Path) -> None:
    mark = tmp_path / "code ran"
    path(f"{durable.checkpoint_of(1, 0)}/{WEIGHTS}").write_bytes(
        pickle.dumps(Planted(os.mkdir, str(mark)), protocol=2)
    )
    with pytest.raises(JobError, match="expected sha256"):
        Process(durable, tmp_path / "again").resume()
    assert not mark.exists()


def test_a_record_without_a_signature_is_refused(durable: Layout, tmp_path: Path) -> None:
    report = path(durable.checkpoint_report(1, 0))
    content = json.loads(report.read_bytes())
    del content["signature"]
    report.write_text(json.dumps(content))
    with pytest.raises(JobError, match="has no signature"):
        Process(durable, tmp_path / "again").resume()


@pytest.mark.parametrize(
    "forge",
    [
        lambda record, data: rewritten(record, WEIGHTS, data),
        lambda record, data: json.dumps({"files": []}).encode(),
    ],
    ids=["rewritten", "empty"],
)
def test_each_nodes_list_of_uploaded_files_is_signed_too(layout: Layout, tmp_path: Path, forge: Any) -> None:
    """Otherwise rank 0 itself would sign the digest of a planted file."""

    class Meddling(FileStore):
        def put(self, uri: str, data: bytes) -> None:
            super().put(uri, forge(data, b"planted") if "/parts/" in uri else data)

    process = Process(layout, tmp_path / "first")
    process.checkpointer._store = Meddling()
    process.resume()
    with pytest.raises(JobError, match=r"signature.*let only this job's pods write below spec\.output"):
        process.take(1)
    assert not path(layout.checkpoint_report(1, 0)).exists()


def test_a_part_of_another_checkpoint_is_refused(layout: Layout, tmp_path: Path) -> None:
    process = Process(layout, tmp_path / "first")
    process.resume()
    process.take(1)
    older = path(f"{layout.checkpoint_of(1, 0)}/parts/00000.json").read_bytes()

    class Replaying(FileStore):
        def put(self, uri: str, data: bytes) -> None:
            super().put(uri, older if "/parts/" in uri else data)

    process.checkpointer._store = Replaying()
    with pytest.raises(JobError, match="it was written for"):
        process.take(2)


@pytest.mark.parametrize("other", [key for key in Key if key != Key.CHECKPOINTS])
def test_a_checkpoint_signed_with_another_roles_key_is_refused(
    other: Key, layout: Layout, tmp_path: Path
) -> None:
    """The keys of coordinator, rollout servers and brokers cannot sign anything that a learner resumes."""
    forger = Process(layout, tmp_path / "first", KEYS[other])
    forger.resume()
    forger.take(1)
    with pytest.raises(JobError, match="its signature is not this job's") as refused:
        Process(layout, tmp_path / "again").resume()
    assert refused.value.termination.reason == "CheckpointUnusable"


@pytest.mark.parametrize("other", ["key", "namespace", "name", "uid"])
def test_another_jobs_key_verifies_no_record(layout: Layout, other: str) -> None:
    given = {"key": CHECKPOINTS, "namespace": "rl", "name": "refunds", "uid": "uid"}
    content = {"step": 3, "metrics": {"loss": 0.1 + 0.2}}
    signed = Signer.of(CHECKPOINTS, layout).signed(content)
    strange = given | {other: "other"}
    key = strange.pop("key")
    with pytest.raises(IncompleteCheckpointError, match="not this job's"):
        Signer.of(key, Layout("file:///elsewhere", **strange)).opened("file:///r", signed)
    # The place of the artifacts is not part of the key, because a bucket may be copied.
    moved = Signer.of(CHECKPOINTS, Layout("file:///elsewhere", "rl", "refunds", "uid"))
    assert moved.opened("file:///r", signed) == content


def test_the_signature_is_an_hmac_with_a_derived_key(layout: Layout) -> None:
    """The test repeats the formulas of RFC 2104 and of the expansion in RFC 5869."""

    def mac(key: bytes, text: bytes) -> bytes:
        padded = key.ljust(64, b"\0")
        inner = hashlib.sha256(bytes(b ^ 0x36 for b in padded) + text).digest()
        return hashlib.sha256(bytes(b ^ 0x5C for b in padded) + inner).digest()

    key = mac(CHECKPOINTS.encode(), b'["headway.dev/checkpoint/v1", "rl", "refunds", "uid"]\x01')
    assert Signer.of(CHECKPOINTS, layout).key == key
    assert key != hmac.digest(CHECKPOINTS.encode(), b"", "sha256")
    found = json.loads(Signer.of(CHECKPOINTS, layout).signed({"b": [1, 2.5], "a": "ü"}))
    assert found["signature"] == mac(key, b'{"a":"\\u00fc","b":[1,2.5]}').hex()


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 100_000, b'{"a": 1e999}', b"\xff"])
def test_a_file_that_is_not_a_record_is_refused(layout: Layout, data: bytes) -> None:
    with pytest.raises(IncompleteCheckpointError, match="it cannot be read"):
        Signer.of(CHECKPOINTS, layout).opened("file:///r", data)
