"""A learner's checkpoints in the store, which may also hold files of predecessors and of people."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import learner_rig as rig
import pytest
from role_keys import CHECKPOINTS

from headway_api.artifacts import Layout
from headway_api.exits import RETRIABLE, JobError
from headway_api.in_force import Directive, DirectiveRefusal
from headway_api.records import PolicyVersion, StepReport
from headway_api.spec.learner import CheckpointsSpec
from headway_api.store import FileStore
from headway_api.store_unavailable import StoreUnavailableError
from headway_trainer import learner
from headway_trainer.checkpoint import state
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.manager import CheckpointManager
from headway_trainer.checkpoint.manifest import IncompleteCheckpointError
from headway_trainer.checkpoint.signer import Signer
from headway_trainer.engine import TAG, Engine
from headway_trainer.learner import Learner
from headway_trainer.ranks import Ranks

ONE = Ranks(0, 0, 1, None)
EVERY = 5
Value = TypeVar("Value")


class Files(FileStore):
    """A store that records each request to delete, in order, and calls a hook before each upload."""

    def __init__(self) -> None:
        self.deleted: list[list[str]] = []
        self.before_upload: Callable[[], object] = lambda: None

    def delete(self, uris: object) -> None:
        gone = list(cast(list[str], uris))
        self.deleted += [gone] if gone else []
        super().delete(gone)

    def upload(self, path: Path, uri: str) -> None:
        self.before_upload()
        super().upload(path, uri)


class Counting:
    """An engine whose state is a word. Each rank writes its own files."""

    replicated = False
    updates = 1

    def __init__(self, word: str, rank: int) -> None:
        self.word = word
        self._weights, self._optimizer = f"weights_{rank}.pt", f"optimizer_{rank}.pt"

    def save(self, folder: Path) -> Path:
        (folder / TAG).mkdir()
        (folder / TAG / self._weights).write_text(self.word)
        (folder / TAG / self._optimizer).write_text(f"{self.word}'s moments")
        return folder / TAG

    def load(self, folder: Path) -> None:
        self.word = (folder / TAG / self._weights).read_text()
        assert (folder / TAG / self._optimizer).read_text() == f"{self.word}'s moments"


class Process:
    """The part of a learner that takes steps, and makes and deletes checkpoints."""

    def __init__(self, folder: Path, layout: Layout, name: str, ranks: Ranks = ONE, **spec: int) -> None:
        self.ranks = ranks
        self.store = Files()
        self.engine = Counting(name, ranks.rank)
        self.journal = Journal(self.store, layout, Signer.of(CHECKPOINTS, layout))
        self.checkpointer = CheckpointManager(
            CheckpointsSpec(every_steps=EVERY, **spec),
            cast(Engine, self.engine),
            self.store,
            layout,
            self.journal,
            folder / name,
            ranks,
        )
        self.incarnation = 0
        if (found := ranks.share(self.journal.begin() if ranks.first else None)) is not None:
            self.checkpointer.restore(found)
            self.journal.confirm(found)
            self.incarnation = found.report.version.incarnation

    def report(self, step: int) -> StepReport:
        version = PolicyVersion(incarnation=self.incarnation, step=step)
        return rig.report(step).model_copy(update={"version": version})

    def take(self, *steps: int) -> None:
        """Take steps without waiting for their checkpoints."""
        for step in steps:
            if self.ranks.first:
                self.journal.take(self.report(step))
            self.checkpointer.after(self.report(step))

    def durable(self, *steps: int, validated: tuple[int, ...] = ()) -> None:
        for step in steps:
            self.take(step)
            self.checkpointer.settle()
            self.checkpointer.prune(validated)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(f"file://{tmp_path}/store", "rl", "refunds", "uid")


@pytest.fixture
def start(tmp_path: Path, layout: Layout) -> Callable[..., Process]:
    def started(name: str, **spec: int) -> Process:
        return Process(tmp_path, layout, name, **{"keep_last": 2, "keep_best": 0} | spec)

    return started


def folders(layout: Layout) -> list[str]:
    """Folders of checkpoints that have any file, as "step/start"."""
    root = Path(layout.checkpoints.removeprefix("file://"))
    return sorted({"/".join(p.relative_to(root).parts[:2]) for p in root.rglob("*") if p.is_file()})


class Hung:
    """Makes a process hang in an upload, after it has uploaded `files` files."""

    def __init__(self, process: Process, files: int) -> None:
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self._left = files
        process.store.before_upload = self._wait

    def _wait(self) -> None:
        if self._left == 0:
            self.reached.set()
            assert self.goes_on.wait(30)
        self._left -= 1


@pytest.mark.parametrize("uploaded", [0, 1, 2])
def test_a_hung_upload_that_resumes_keeps_successors_checkpoint(
    start: Callable[..., Process], layout: Layout, uploaded: int
) -> None:
    """Both learners make a checkpoint of the same step.

    The older learner is killed meanwhile, or finishes.
    """
    old = start("old")
    old.durable(10)
    hung = Hung(old, uploaded)
    old.take(*range(11, 16))
    assert hung.reached.wait(30)

    new = start("new")
    assert (new.engine.word, new.incarnation) == ("old", 1)
    new.engine.word = "new"
    new.durable(*range(11, 16))
    assert start("after a kill").engine.word == "new"

    hung.goes_on.set()
    with pytest.raises(JobError, match="has begun, and this is 0") as ended:
        old.checkpointer.settle()
    assert ended.value.termination.reason == "Superseded"
    again = start("after its end")
    assert (again.engine.word, str(again.report(again.checkpointer.durable).version)) == ("new", "1.15")


def test_a_replaced_learner_uploads_and_deletes_nothing(
    start: Callable[..., Process], layout: Layout
) -> None:
    """The old learner hung before it took a step, so its successor has the same incarnation. It is cut off
    from the coordinator but not from the store."""
    old = start("old", keep_last=1)
    old.durable(5, 10)
    new = start("new")
    assert new.incarnation == 0
    new.durable(15, 20)
    there = folders(layout)
    assert there == ["000015/000001", "000020/000001"]
    old.checkpointer.saved = -1
    old.checkpointer.save(old.report(15))
    with pytest.raises(JobError, match="has begun, and this is 0"):
        old.checkpointer.settle()
    with pytest.raises(JobError, match="has begun, and this is 0"):
        old.checkpointer.prune([])
    assert folders(layout) == there
    assert start("after").checkpointer.durable == 20


class Meeting:
    """A rendezvous of two nodes with one process each. Waits time out after 30 s."""

    def __init__(self) -> None:
        self.values: list[object] = [None, None]
        self.both = threading.Barrier(2, timeout=30)

    def live(self, work: Callable[[Ranks], Value]) -> list[Value]:
        """Run `work` on both nodes at once. Returns the results."""
        with ThreadPoolExecutor(2) as nodes:
            return list(nodes.map(work, [Node(0, 0, 2, None, self), Node(1, 0, 2, None, self)]))


@dataclass(frozen=True)
class Node(Ranks):
    """The only process of its node."""

    meeting: Meeting

    def gather(self, value: Value) -> list[Value]:
        self.meeting.values[self.rank] = value
        self.barrier()
        values = list(self.meeting.values)
        self.barrier()
        return cast(list[Value], values)

    def share(self, value: Value) -> Value:
        return self.gather(value)[0]

    def barrier(self) -> None:
        self.meeting.both.wait()


class Absent:
    """Makes the store unavailable for the next `times` uploads of a process."""

    def __init__(self, process: Process, times: int) -> None:
        self.left = times
        process.store.before_upload = self._refuse

    def _refuse(self) -> None:
        if self.left:
            self.left -= 1
            raise StoreUnavailableError("no good answer")


def until_over(process: Process) -> None:
    """Check repeatedly, as the learner's loop does, until no upload is running."""
    while process.checkpointer._background._work is not None:
        process.checkpointer.check()


def test_an_upload_that_failed_is_made_again_from_the_snapshot(start: Callable[..., Process]) -> None:
    process = start("first")
    absent = Absent(process, 1)
    process.take(5)
    process.engine.word = "trained on"
    until_over(process)
    assert (absent.left, process.checkpointer.durable) == (0, 5)
    assert start("second").engine.word == "first"


def test_a_stop_after_a_failed_upload_saves_the_state(start: Callable[..., Process]) -> None:
    """The saved state may be of the step whose upload failed, or of a newer step."""
    process = start("first")
    Absent(process, 1)
    process.take(5)
    process.checkpointer.save(process.report(5))
    process.checkpointer.settle()
    assert start("second").checkpointer.durable == 5
    Absent(process := start("third"), 1)
    process.take(10, 11)
    process.engine.word = "at 11"
    process.checkpointer.save(process.report(11))
    process.checkpointer.settle()
    after = start("fourth")
    assert (after.checkpointer.durable, after.engine.word) == (11, "at 11")


@pytest.mark.parametrize("unavailable", [0, 1])
def test_no_node_waits_for_a_checkpoint_another_gave_up(
    unavailable: int, tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is unavailable for one of two nodes. The next checkpoint replaces the lost one on both."""
    monkeypatch.setattr(state, "PART_SECONDS", 20.0)

    def work(ranks: Ranks) -> int:
        node = Process(tmp_path, layout, f"node{ranks.rank}", ranks, keep_last=2, keep_best=0)
        if ranks.rank == unavailable:
            Absent(node, 1)
        node.take(5, 10)
        node.checkpointer.settle()
        if ranks.first:
            node.checkpointer.prune([])
        return node.checkpointer.durable

    assert Meeting().live(work) == [10, -1]
    assert folders(layout) == ["000010/000000"]
    found = Journal(FileStore(), layout, Signer.of(CHECKPOINTS, layout)).begin()
    assert found is not None
    assert {file.name for file in found.state.files} >= {"weights_0.pt", "weights_1.pt"}


def test_a_step_with_a_directive_makes_a_checkpoint(start: Callable[..., Process], layout: Layout) -> None:
    """A refused change makes no checkpoint, because nothing would be lost without one."""
    process = start("only")
    process.durable(5)
    directive = Directive(remedy="RollBack", restore=[5])
    refused = DirectiveRefusal(reason="NothingToRestore", message="step 5: it is gone")
    for step, fields in ((6, {"refused": refused}), (7, {})):
        report = process.report(step).model_copy(update={"directive": directive, **fields})
        process.journal.take(report)
        process.checkpointer.after(report)
        process.checkpointer.settle()
    assert folders(layout) == ["000005/000000", "000007/000000"]


def test_only_whole_checkpoints_of_this_branch_can_be_restored(
    start: Callable[..., Process], layout: Layout
) -> None:
    """Set back to 10, the learner takes 11 to 14 again.

    The checkpoint of 15 belongs to the abandoned branch.
    """
    first = start("first", keep_last=9)
    first.durable(*range(5, 16))
    first.store.put(f"{layout.checkpoint_of(7, 0)}/weights.pt", b"half")
    first.store.put(layout.latest, b'{"step": 10}')
    second = start("second", keep_last=9)
    second.journal.take(second.report(11))
    found = second.journal.find(10, last=11)
    assert (found.report.step, found.state.start) == (10, 0)
    assert second.checkpointer.fetch(found) is None
    for step, why in ((15, "step 11 is the last one taken"), (7, "it has no report.json")):
        with pytest.raises(IncompleteCheckpointError, match=why):
            second.journal.find(step, last=11)
    second.journal.take(second.report(15))
    with pytest.raises(IncompleteCheckpointError, match="taken again since"):
        second.journal.find(15, last=15)


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_unusable_checkpoint_files_are_found_before_loading(
    start: Callable[..., Process], layout: Layout, harm: str
) -> None:
    process = start("only", keep_last=9)
    process.durable(5, 10)
    process.engine.word = "now"
    weights = Path(layout.checkpoint_of(5, 0).removeprefix("file://")) / "weights_0.pt"
    weights.unlink() if harm == "gone" else weights.write_text("other")
    fault = process.checkpointer.fetch(process.journal.find(5, last=10))
    assert fault is not None
    assert "it is not whole" in fault.why
    assert fault.end.reason == "CheckpointUnusable"
    assert process.engine.word == "now"


def test_a_store_that_stays_unavailable_ends_a_learner(start: Callable[..., Process]) -> None:
    process = start("first")
    Absent(process, 2)
    process.take(5)
    with pytest.raises(StoreUnavailableError):
        process.checkpointer.settle()


def test_an_unavailable_store_is_logged_when_it_ends_a_learner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(environ: object) -> None:
        raise StoreUnavailableError("no good answer for 600 s")

    monkeypatch.setattr(learner, "run", unavailable)
    with pytest.raises(SystemExit) as left:
        learner._explained()
    assert left.value.code == RETRIABLE
    assert "StoreUnavailable: no good answer for 600 s" in capsys.readouterr().err


def test_separate_outages_of_the_store_are_not_added_up(start: Callable[..., Process]) -> None:
    process = start("first")
    for step in (5, 10, 15):
        Absent(process, 1)
        process.take(step)
        process.checkpointer.settle()
        assert process.checkpointer.durable == step


def test_a_replaced_learner_exports_nothing(start: Callable[..., Process]) -> None:
    old = start("old")
    written: list[StepReport] = []
    publisher = SimpleNamespace(complete=lambda store, newest: written.append(newest))
    parts = SimpleNamespace(publisher=publisher)
    learner = SimpleNamespace(_journal=old.journal, _parts=parts, _store=old.store)
    Learner.export(cast(Learner, learner), old.report(10))
    assert len(written) == 1
    start("new")
    with pytest.raises(JobError, match="has begun, and this is 0"):
        Learner.export(cast(Learner, learner), old.report(10))
    assert len(written) == 1


def test_a_hung_learners_late_write_hides_no_checkpoint(
    start: Callable[..., Process], layout: Layout
) -> None:
    """The old learner's report.json arrives long after its successor has made a checkpoint of that step."""
    old = start("old")
    old.durable(10)
    hung = Hung(old, 1)
    old.take(15)
    assert hung.reached.wait(30)
    new = start("new")
    new.engine.word = "new"
    new.durable(15)
    old.journal.refuse_superseded = lambda: None  # type: ignore[method-assign]
    hung.goes_on.set()
    old.checkpointer.settle()
    assert "000015/000000" in folders(layout)
    new.checkpointer.prune([])
    assert folders(layout) == ["000010/000000", "000015/000001"]
    assert start("after").engine.word == "new"


def test_a_torn_checkpoint_is_deleted_and_never_resumed(
    start: Callable[..., Process], layout: Layout
) -> None:
    """The checkpoint of step 13, made on SIGTERM, was cut off.

    From step 15, only step 10 is left to go back to.
    """
    first = start("first")
    first.durable(5, 10)
    first.store.put(f"{layout.checkpoint_of(13, 0)}/weights.pt", b"half")
    second = start("second", keep_best=1)
    second.durable(15, validated=(13, 10))
    assert folders(layout) == ["000010/000000", "000015/000001"]
    second.durable(20, 25, validated=(13, 10))
    assert folders(layout) == ["000010/000000", "000020/000001", "000025/000001"]


def test_checkpoints_of_an_undone_branch_do_not_count(start: Callable[..., Process], layout: Layout) -> None:
    """Set back to 10, the learner takes 11 to 20 again, with a checkpoint of 12 instead of 15."""
    first = start("first", keep_last=9)
    first.durable(*range(5, 21))
    assert folders(layout)[1:] == ["000010/000000", "000015/000000", "000020/000000"]
    first.store.put(layout.latest, b'{"step": 10}')
    second = start("second")
    second.journal.take(second.report(11))
    second.journal.take(second.report(12))
    second.checkpointer.save(second.report(12))
    second.checkpointer.settle()
    assert second.checkpointer.prune([]) == [10, 12, 15, 20], "those beyond wait for a person"
    for step in range(13, 17):
        second.journal.take(second.report(step))
    second.checkpointer.save(second.report(16))
    second.checkpointer.settle()
    second.checkpointer.prune([])
    assert folders(layout) == ["000012/000001", "000016/000001", "000020/000000"]
    second.durable(*range(17, 21))
    assert folders(layout) == ["000016/000001", "000020/000001"]


def test_the_report_of_a_checkpoint_is_deleted_first(start: Callable[..., Process], layout: Layout) -> None:
    process = start("only", keep_last=1)
    process.durable(5, 10, 15)
    gone = iter(process.store.deleted)
    for step, (reports, others) in zip((5, 10), zip(gone, gone, strict=True), strict=True):
        assert reports == [layout.checkpoint_report(step, 0)]
        assert len(others) == 4  # including the random state and this rank's part of the manifest
        assert all(uri.startswith(layout.checkpoint(step)) for uri in others)


def test_many_old_checkpoints_go_in_two_requests(start: Callable[..., Process], layout: Layout) -> None:
    start("first", keep_last=9).durable(5, 10, 15, 20)
    process = start("second", keep_last=1)
    process.checkpointer.prune([])
    assert [len(together) for together in process.store.deleted] == [3, 3 * 4]
    assert folders(layout) == ["000020/000000"]


@pytest.mark.parametrize("uploaded", [False, True])
def test_pruning_keeps_and_lists_a_checkpoint_being_written(
    start: Callable[..., Process], layout: Layout, uploaded: bool
) -> None:
    """`prune` returns steps whose weights stay.

    They include a checkpoint in progress before its first file exists.
    """
    process = start("only", keep_last=1)
    process.durable(5, 10)
    hung = Hung(process, int(uploaded))
    process.take(15)
    assert hung.reached.wait(30)
    assert process.checkpointer.prune([]) == [10, 15]
    assert folders(layout) == ["000010/000000", *["000015/000000"] * uploaded]
    hung.goes_on.set()
    process.checkpointer.settle()
    assert process.checkpointer.durable == 15


def test_a_persons_copy_of_a_checkpoint_is_not_deleted(start: Callable[..., Process], layout: Layout) -> None:
    process = start("only", keep_last=1)
    process.durable(5)
    copy = f"{layout.checkpoints}/000005-copy/000000/report.json"
    process.store.put(copy, b"{}")
    process.durable(10)
    assert folders(layout) == ["000005-copy/000000", "000010/000000"]


def test_a_step_costs_the_store_few_requests(
    start: Callable[..., Process], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests cost money and time, so nothing that was read of a checkpoint is read again."""
    first = start("first", keep_last=3)
    first.durable(*range(16))
    process = start("second", keep_last=3)
    process.durable(*range(16, 21))
    asked: list[str] = []
    for name in ("get", "list", "delete"):
        real = getattr(process.store, name)
        monkeypatch.setattr(process.store, name, lambda *a, n=name, r=real: (asked.append(n), r(*a))[1])
    process.take(21)
    process.checkpointer.prune([])
    assert [name for name in asked if name != "delete"] == ["get", "get", "list"]
