"""Every reader of objects in the store: if no job wrote the object, it raises one typed error or skips it.

A new reader must be added here. What a reader keeps of an object needs little memory, whatever the object
contains.
"""

from __future__ import annotations

import gzip
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import job_rig
import pytest
from episodes import a_group
from evil_replies import MIB, bomb
from memory import flat

from headway_analysis.estimate.made import Made
from headway_api import bounds, warm_start
from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.records import PolicyVersion
from headway_api.run_files import RunFiles
from headway_api.spec.candidate import CandidateRescore
from headway_api.spec.model import ModelSpec
from headway_api.status import MlflowRun, ResolvedCandidate
from headway_api.store import FileStore, ObjectNotFoundError, S3Store
from headway_api.stored import read
from headway_coordinator.evaluation import candidates, rescore
from headway_coordinator.faults import CandidateError
from headway_coordinator.judges.kept import KeptAnswer
from headway_coordinator.ledger.books import Books
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.preflight import evidence, keyed, start, tensors
from headway_coordinator.preflight.judges_bill import JudgesBill
from headway_coordinator.remedies import journal as decided
from headway_coordinator.spool import Spool
from headway_trainer.checkpoint import state
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.manifest import IncompleteCheckpointError
from headway_trainer.checkpoint.signer import Signer

ROOT = Path(__file__).resolve().parents[2]
MAX_MEMORY = 64 * MIB
FAULTS = (JobError, CandidateError, IncompleteCheckpointError)

CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "a list": b"[]",
    "null": b"null",
    "an empty object": b"{}",
    "deep lists": b"[" * 90_000,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "wide": b"[" + b"{}," * (2 * MIB) + b"{}]",
    "half a pair": b'{"a": "\\ud800"}',
    "no text": b'{"a": "\xff\xfe"}',
    "infinite": b'{"step": 1e999}',
    "no number": b'{"step": NaN}',
    "many digits": b'{"step": ' + b"9" * 10_000 + b"}",
    "a bomb": bomb(128 * MIB),
}
PACKED = {
    **{name: gzip.compress(plain, 1) for name, plain in CONTENTS.items() if name != "a bomb"},
    "not packed": b'{"a": 1}',
    "a bomb": bomb(128 * MIB),
    "a bomb in a bomb": gzip.compress(bomb(128 * MIB)),
    "cut short": gzip.compress(b"{}")[:-4],
    "something behind it": gzip.compress(b"{}") + b"more",
}


@dataclass(frozen=True)
class Reader:
    """A function that reads an object of the job."""

    uri: Callable[[Layout], str]
    read: Callable[[FileStore, Layout], Any]
    packed: bool = False
    """Whether the object is compressed with gzip."""


def journal(store: FileStore, layout: Layout) -> Journal:
    return Journal(store, layout, Signer.of("t", layout))


def spool(call: Callable[[Spool], Any]) -> Callable[[FileStore, Layout], Any]:
    return lambda store, layout: call(Spool(store, layout))


def rescored(store: FileStore, layout: Layout) -> Any:
    return rescore.stored("old", CandidateRescore(uri=layout.root, candidate="a"), store)


def spent_at_judges(store: FileStore, layout: Layout) -> None:
    JudgesBill(store, layout, Ledger(store, layout))._restore()


def candidate(store: FileStore, layout: Layout) -> Any:
    given = {"name": "a", "kind": "Adapter", "job": "refunds", "uri": layout.weights(3)}
    return candidates.manifest(ResolvedCandidate.model_validate(given), store)


def part(layout: Layout) -> str:
    return f"{layout.checkpoint_of(3, 0)}/parts/00000.json"


def resumed(store: FileStore, layout: Layout) -> Any:
    store.put(layout.latest, b'{"step": 3}')
    return journal(store, layout).begin()


def warm(uri: str) -> ModelSpec:
    """A model configuration that starts from weights."""
    return ModelSpec.model_validate({"base": "s3://b/m", "warmStart": {"uri": uri}})


READERS: dict[str, Reader] = {
    "a group to train on": Reader(lambda at: at.train_group("t0-000000"), spool(Spool.replay), True),
    "a validation's group": Reader(
        lambda at: at.validation_group(3, "v000003-000000"), spool(Spool.replay), True
    ),
    "a failed group": Reader(lambda at: at.failed_group("v000003-000000-0"), spool(Spool.replay), True),
    "an unanswered group": Reader(lambda at: at.failed_group("e-a-000000-0"), spool(Spool.unanswered), True),
    "a candidate's group": Reader(
        lambda at: at.evaluation_group("a", "e-a-000000"), spool(lambda s: s.evaluated("a")), True
    ),
    "a test's group": Reader(lambda at: at.evaluation_group("a", "e-a-000000"), spool(Spool.tested), True),
    "a run to rescore": Reader(lambda at: at.evaluation_group("a", "e-a-000000"), rescored, True),
    "a failed group to rescore": Reader(lambda at: at.failed_group("e-a-000000-0"), rescored, True),
    "a judge's answer": Reader(
        lambda at: at.judgement("0" * 64), lambda store, at: read(store, at.judgement("0" * 64), KeptAnswer)
    ),
    "a validation's summary": Reader(lambda at: at.validation(3), spool(Spool.replay)),
    "a step's report": Reader(lambda at: at.step_history(3), spool(Spool.replay)),
    "the newest version": Reader(lambda at: at.step_history(3), spool(Spool.latest)),
    "a step's metrics": Reader(lambda at: at.batch_metrics(3), spool(Spool.batch_metrics)),
    "the pointer": Reader(lambda at: at.latest, spool(Spool.replay)),
    "the digest of rows": Reader(lambda at: at.rows_digest, spool(lambda s: s.rows_digest("d"))),
    "an edition of the price book": Reader(
        lambda at: at.price_edition(1),
        lambda store, at: Books(store, at, Path("/nowhere/prices.yaml"), None, "").first(),
    ),
    "a segment of the ledger": Reader(
        lambda at: at.usage_of_step(3), lambda store, at: Ledger(store, at).load()
    ),
    "a decision": Reader(lambda at: at.remedy(1), lambda store, at: decided.Journal(store, at).read()),
    "a decision that stays": Reader(
        lambda at: at.remedy_kept(1), lambda store, at: decided.Journal(store, at).read()
    ),
    "a refused order": Reader(
        lambda at: at.refused_order("x"), lambda store, at: decided.Journal(store, at).read()
    ),
    "a candidate's weights": Reader(lambda at: at.step_history(3), candidate),
    "a tracked run": Reader(
        lambda at: at.mlflow_run, lambda store, at: read(store, at.mlflow_run, MlflowRun)
    ),
    "an exported version": Reader(
        lambda at: f"{at.weights(3)}/export.json",
        lambda store, at: read(store, f"{at.weights(3)}/export.json", PolicyVersion),
    ),
    "what a preflight found": Reader(
        lambda at: at.preflight, lambda store, at: keyed.read_back(store, at, "key", begun=True)
    ),
    "an estimate": Reader(
        lambda at: at.estimate("data"), lambda store, at: read(store, at.estimate("data"), Made)
    ),
    "what a preflight asked of judges": Reader(
        lambda at: at.preflight_judgement("deterministic"), spent_at_judges
    ),
    "what a group's sandboxes answered": Reader(
        lambda at: at.preflight_answers("p0-000001"),
        lambda store, at: evidence.answers_of(store, at, a_group("p0-000001", [1])),
    ),
    "weights to sample with first": Reader(
        lambda at: at.step_history(3), lambda store, at: start.manifest(warm(at.weights(3)), store)
    ),
    "weights to start from": Reader(
        lambda at: at.step_history(3), lambda store, at: warm_start._digests(store, at.weights(3))
    ),
    "a run's steps": Reader(lambda at: at.step_history(3), lambda store, at: RunFiles(store, at).steps()),
    "a run's metrics": Reader(
        lambda at: at.batch_metrics(3), lambda store, at: RunFiles(store, at).batch_metrics()
    ),
    "a run's validations": Reader(
        lambda at: at.validation(3), lambda store, at: RunFiles(store, at).validations()
    ),
    "a run's decisions": Reader(lambda at: at.remedy(1), lambda store, at: RunFiles(store, at).decisions()),
    "a run's groups": Reader(
        lambda at: at.train_group("t0-000001"),
        lambda store, at: RunFiles(store, at).groups([at.train_group("t0-000001")]),
    ),
    "a run's report": Reader(lambda at: at.report, lambda store, at: RunFiles(store, at).document(at.report)),
    "the learner's pointer": Reader(lambda at: at.latest, lambda store, at: journal(store, at).begin()),
    "a checkpoint's record": Reader(lambda at: at.checkpoint_report(3, 0), resumed),
    "a checkpoint to replay from": Reader(
        lambda at: at.checkpoint_report(2, 0), lambda store, at: journal(store, at).usable_checkpoints()
    ),
    "a rank's record": Reader(part, lambda store, at: state._uploaded(store, part(at), Signer.of("t", at))),
    "the learner's reports": Reader(
        lambda at: at.step_history(3), lambda store, at: journal(store, at)._reports()
    ),
}
WHERE = {
    "api/headway_api/rows.py": "`test_dataset.py`",
    "api/headway_api/run_files.py": "a run's steps, metrics, validations, decisions, groups and report",
    "api/headway_api/stored.py": "all of them",
    "api/headway_api/warm_start.py": "weights to start from",
    "coordinator/headway_coordinator/estimate/kept.py": "an estimate",
    "coordinator/headway_coordinator/evaluation/candidates.py": "a candidate's weights",
    "coordinator/headway_coordinator/evaluation/rescore.py": "a run to rescore",
    "coordinator/headway_coordinator/evaluation/results.py": "as `a candidate's group`",
    "coordinator/headway_coordinator/ledger/books.py": "an edition of the price book",
    "coordinator/headway_coordinator/ledger/segments.py": "a segment of the ledger",
    "coordinator/headway_coordinator/metrics/evaluations.py": "a tracked run",
    "coordinator/headway_coordinator/metrics/mlflow.py": "a tracked run",
    "coordinator/headway_coordinator/metrics/tracking.py": "bytes that MLflow keeps as they are",
    "coordinator/headway_coordinator/preflight/evidence.py": "what a group's sandboxes answered",
    "coordinator/headway_coordinator/preflight/judges_bill.py": "what a preflight asked of judges",
    "coordinator/headway_coordinator/preflight/keyed.py": "what a preflight found",
    "coordinator/headway_coordinator/preflight/run.py": "only whether there is a pointer",
    "coordinator/headway_coordinator/preflight/start.py": "weights to sample with first",
    "coordinator/headway_coordinator/preflight/tensors.py": "`test_headers_out_of_bounds_are_refused`",
    "coordinator/headway_coordinator/remedies/journal.py": "a decision",
    "coordinator/headway_coordinator/spool.py": "a group to train on",
    "coordinator/headway_coordinator/whole_weights.py": "an exported version",
    "trainer/headway_trainer/checkpoint/journal.py": "the learner's pointer",
    "trainer/headway_trainer/checkpoint/manager.py": "only names: `by_number`",
    "trainer/headway_trainer/checkpoint/state.py": "a rank's record",
    "trainer/headway_trainer/learner.py": "only names: `by_number`",
    "trainer/headway_trainer/replay/__main__.py": "only names: `by_number` and `written`",
    "trainer/headway_trainer/replay/rank.py": "only names",
}
"""Files that read the store -> the entries of `READERS` for them."""
SAYS_LESS = (
    "a candidate's weights",
    "a checkpoint's record",
    "a checkpoint to replay from",
    "what a preflight found",
    "what a group's sandboxes answered",
    "weights to sample with first",
)
"""Readers that replace the error by their own message."""
READS = re.compile(r"store\.(?:get|list|get_start)\(|\b(?:get_each|read_each)\(|\bread\((?:self\._)?store\b")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(f"file://{tmp_path}/out", "rl", "refunds", "0f0f")


def outcome(reader: Reader, store: FileStore, layout: Layout) -> str:
    """The message of the typed error that a read ends with, or None."""
    try:
        found = reader.read(store, layout)
        if isinstance(found, Iterator):
            deque(found, 0)
    except FAULTS as fault:
        return str(fault)
    except ObjectNotFoundError:
        return ""
    return ""


def test_every_file_that_reads_the_store_is_known_here() -> None:
    packages = ("api", "analysis", "coordinator", "operator", "rollout", "trainer", "sandbox")
    found = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if READS.search(path.read_text())
    }
    assert found - {"api/headway_api/store.py", "api/headway_api/store_unavailable.py"} == set(WHERE)


@pytest.mark.parametrize("name", READERS)
def test_an_object_that_no_job_wrote_is_a_typed_fault(name: str, layout: Layout) -> None:
    reader, store = READERS[name], FileStore()
    # A run has other records too, and the reader must reach the bad one.
    store.put(layout.step_history(2), job_rig.report(2).model_dump_json().encode())
    for which, content in (PACKED if reader.packed else CONTENTS).items():
        store.put(reader.uri(layout), content)
        with flat(MAX_MEMORY):
            message = outcome(reader, store, layout)
        assert len(message) < 4000, which
        assert message.isprintable(), which


@pytest.mark.parametrize("name", READERS)
def test_an_object_that_is_too_large_is_not_read(
    name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "OBJECT", 4 * MIB)
    reader, store = READERS[name], FileStore()
    store.put(layout.step_history(2), job_rig.report(2).model_dump_json().encode())
    store.put(reader.uri(layout), b"")
    with Path(reader.uri(layout).removeprefix("file://")).open("wb") as stream:
        stream.truncate(1 << 40)  # a sparse file of a terabyte
    with flat(MAX_MEMORY):
        message = outcome(reader, store, layout)
    assert "has more than 4194304 bytes" in message or name in SAYS_LESS


def test_headers_out_of_bounds_are_refused(layout: Layout) -> None:
    """The headers of a base model in a bucket have the shapes that the preflight reads."""
    store, uri = FileStore(), f"{layout.root}/model.safetensors"
    for which, content in CONTENTS.items():
        store.put(uri, len(content).to_bytes(8, "little") + content)
        with flat(MAX_MEMORY):
            message = described(store, uri)
        assert len(message) < 4000, which


def described(store: FileStore, uri: str) -> str:
    try:
        assert tensors._of_file(store, uri) == {}
    except JobError as fault:
        return str(fault)
    return ""


ODD_NAMES = (
    "000003 (copy).json", "000003.json.bak", "\u00b2.json", "a?b#c.json", "%2e%2e.json", "new\nline.json.gz",
    "a" * 240, "Thumbs.db", "\u202egpj.json", "-.json.gz", "/".join(["d" * 200] * 4) + "/e.json",
)  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_odd_names_beside_a_jobs_objects_are_skipped(name: str, layout: Layout) -> None:
    reader, store = READERS[name], FileStore()
    store.put(layout.step_history(2), job_rig.report(2).model_dump_json().encode())
    before = outcome(reader, store, layout)
    folder = reader.uri(layout).rpartition("/")[0]
    for odd in ODD_NAMES:
        store.put(f"{folder}/{odd}", b"\xff")
    for n in range(200):
        store.put(f"{folder}/{n}.tmp", b"")
    assert outcome(reader, store, layout) == before


def test_an_endless_listing_is_not_kept_in_memory(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        FileStore().put(layout.train_group(f"t0-{n:06d}"), b"")
    for bound, limit in (("KEYS", 10), ("LISTING", 1000)):
        with monkeypatch.context() as patched:
            patched.setattr(bounds, bound, limit)
            with pytest.raises(JobError, match=r"holds more than \d+ objects"):
                FileStore().list(layout.train_groups)
    assert len(FileStore().list(layout.train_groups)) == 20


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%3Fb", "a\nb", " a ", "\u00b2", "a:b", "a//b", "a" * 1000])
def test_a_key_of_any_characters_is_requested_unchanged(name: str) -> None:
    assert S3Store._split(f"s3://bucket/folder/{name}") == ("bucket", f"folder/{name}")
    assert str(FileStore()._path(f"file:///folder/{name}")) == str(Path(f"/folder/{name}"))
