"""A stored run of a training job, written by the real code: groups, ledger, prices, steps and weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from episodes import a_group

from headway_api.artifacts import Layout
from headway_api.job_folder import JobFolder
from headway_api.prices import DEFAULT, PriceBook
from headway_api.records import (
    Canary,
    GroupRecord,
    PolicyVersion,
    Purpose,
    StepReport,
    ValidationRecord,
    WeightsLink,
    WeightsManifest,
)
from headway_api.store import FileStore, digest
from headway_coordinator.ledger.books import Books
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.spool import Spool

NAME, UID, NAMESPACE = "desk", "5f0c", "team"
SPEC: dict[str, Any] = {
    "model": {"base": "hf://org/base", "dtype": "float32", "contextLength": 512, "lora": {"rank": 16}},
    "data": {"train": {"uri": "s3://b/t.jsonl"}, "validation": {"uri": "s3://b/v.jsonl"}},
    "environment": {"image": "i", "entrypoint": "m:C"},
    "output": {"uri": "s3://b/runs"},
}
SCORES: Mapping[int, float] = {0: 0.2, 2: 0.9, 4: 0.6}
"""External score of each validated step."""


class FinishedRun:
    """The run of the job `NAME`, in the folder of a local job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FileStore()
        self.layout = Layout(f"file://{folder}/artifacts", NAMESPACE, NAME, UID)
        self.ledger = Ledger(self.store, self.layout)

    @property
    def uri(self) -> str:
        return self.layout.root

    @property
    def place(self) -> Path:
        """The artifact folder as a path."""
        return Path(self.uri.removeprefix("file://"))

    def job(self, status: Mapping[str, Any] | None = None, **spec: Any) -> FinishedRun:
        """Write the job's spec and status, as the local engine does."""
        metadata = {"name": NAME, "namespace": NAMESPACE, "uid": UID}
        written = JobFolder(self.folder)
        output = {"uri": f"file://{self.folder}/artifacts"}
        kept = {**SPEC, "output": output, **spec}
        written.write({"kind": "RLTrainingJob", "metadata": metadata, "spec": kept})
        written.write_status("headway-coordinator", {"artifacts": {"uri": self.uri}, **(status or {})})
        return self

    def identity(self, **spec: Any) -> FinishedRun:
        """Write the job's identity and spec, as a coordinator does."""
        kept = {**SPEC, **spec}
        document = {"kind": "RLTrainingJob", "namespace": NAMESPACE, "name": NAME, "uid": UID, "spec": kept}
        self.store.put(f"{self.uri}/job.json", json.dumps(document).encode())
        return self

    def play(self, *groups: GroupRecord) -> FinishedRun:
        """Store groups and bill them."""
        spool = Spool(self.store, self.layout)
        for group in groups:
            spool.put(group)
            self.ledger.group(group)
        return self

    def played(self) -> FinishedRun:
        """Store two training groups, one of which has trained tokens, a held-out group, and the step."""
        trained, alike = a_group("t0-000000", [1.0, 0.0]), a_group("t0-000001", [1.0, 1.0], retried=1)
        held_out = a_group("v000000-000000", [1.0], purpose=Purpose.VALIDATION)
        self.play(trained, alike, held_out)
        tokens = sum(len(row.tokens) for episode in trained.scored for row in episode.rows)
        return self.step(1, train_tokens={"t0-000000": tokens, "t0-000001": 0})

    def step(
        self, step: int, files: Mapping[str, bytes] | None = None, *, kind: Any = "lora", **more: Any
    ) -> FinishedRun:
        """Store a step. Its weights are `files`: name -> content."""
        version = PolicyVersion(incarnation=0, step=step)
        folder = Path(self.layout.weights(step).removeprefix("file://"))
        digests = []
        for name, content in (files or {}).items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            digests.append(digest(folder / name))
        canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1e-3)
        chain = [WeightsLink(version=version, uri="s3://f", files=[])] if kind == "delta" else []
        fields = {"groups": [*more.get("train_tokens", {})], "train_tokens": {}, **more}
        report = StepReport(
            step=step,
            version=version,
            weights=WeightsManifest(
                version=version,
                kind=kind,
                uri="s3://where/it/was",
                files=digests,
                chain=chain,
                canary=canary,
            ),
            durable=step,
            metrics={},
            **fields,
        )
        self.store.put(self.layout.step_history(step), report.model_dump_json().encode())
        self.ledger.step(report, 1_700_000_100.0)
        return self

    def adapters(self, steps: Sequence[int] = (0, 2, 4)) -> FinishedRun:
        """Store a step with an adapter for each of `steps`, and the validations in `SCORES`."""
        for step in steps:
            self.step(step, {"adapter_config.json": b'{"r": 12}', "adapter_model.safetensors": b"w%d" % step})
            if step in SCORES:
                self.validate(step, SCORES[step])
        return self

    def validate(self, step: int, score: float) -> None:
        """Store the summary of a validation."""
        found = ValidationRecord(
            step=step,
            reward=score,
            external_score=score,
            success=score,
            episodes=10,
            failed=0,
            rows={},
            metrics={},
        )
        self.store.put(self.layout.validation(step), found.model_dump_json().encode())

    def prices(self, *books: PriceBook) -> FinishedRun:
        """Store editions of the price book, one after another. The first applies before anything is used."""
        file = self.folder / "prices.yaml"
        kept = Books(self.store, self.layout, file, None, SPEC["model"]["base"])
        for book in books or (DEFAULT,):
            file.write_text(json.dumps(book.as_object()))
            if not kept.editions:
                kept.first()
                kept.begin([])
            else:
                kept.look(self.ledger.used())
        return self
