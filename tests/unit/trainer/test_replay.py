"""Replaying a step: which checkpoint it starts from, what may be missing, and that the run is only read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import learner_rig as rig
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from role_keys import CHECKPOINTS
from safetensors.numpy import save_file

from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.in_force import AdapterSize, Directive, DirectiveRefusal, InForce
from headway_api.records import FileDigest, StepReport
from headway_api.replay import ReplayRequest
from headway_api.spec.algorithm import Clip
from headway_api.store import FileStore, ObjectNotFoundError, digest
from headway_coordinator.spool import encode
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.manifest import CheckpointManifest
from headway_trainer.checkpoint.signer import Signer
from headway_trainer.replay.__main__ import prepare
from headway_trainer.replay.comparison import digests, recorded_tensors, tensor_difference
from headway_trainer.replay.context import ReplayContext
from headway_trainer.replay.overlay import Overlay
from headway_trainer.replay.plan import batch_of, plan_replay, require_groups, without_algorithm

BACK = Directive(remedy="RollBack", restore=[4, 3])


def reports(last: int, restored: dict[int, int] | None = None) -> list[StepReport]:
    """Reports of steps 0 to `last`. Each step in `restored` went back to the older step given there."""
    gone_back = restored or {}
    made = []
    for step in range(last + 1):
        changes: dict[str, Any] = {"groups": [f"g{step}"] if step and step not in gone_back else []}
        if step in gone_back:
            changes |= {"directive": BACK, "restored": gone_back[step], "in_force": InForce(number=step)}
        made.append(rig.report(step).model_copy(update=changes))
    return made


# The path of a replay.


@pytest.mark.parametrize(
    ("kept", "step", "start", "trained"),
    [
        ({0, 2, 4}, 4, 2, [3, 4]),
        ({0, 2, 4}, 3, 2, [3]),
        ({0, 2, 4}, 5, 4, [5]),
        ({0}, 2, 0, [1, 2]),
        ({4}, 3, None, [1, 2, 3]),
        (set(), 1, None, [1]),
    ],
)
def test_a_replay_begins_at_the_newest_earlier_checkpoint(
    kept: set[int], step: int, start: int | None, trained: list[int]
) -> None:
    plan = plan_replay(reports(6), kept, step)
    assert (plan.start, [report.step for report in plan.reports]) == (start, trained)
    assert (plan.first is None) == (start is not None)


def test_a_replay_saves_a_step_that_a_rollback_returns_to() -> None:
    plan = plan_replay(reports(6, {5: 3}), {2}, 6)
    assert (plan.start, plan.saved, plan.idle) == (2, [3], [5])


def test_a_return_to_a_lost_checkpoint_needs_an_earlier_start() -> None:
    """Step 5 went back to step 3, whose checkpoint is gone, so a replay cannot start at step 4."""
    plan = plan_replay(reports(6, {5: 3}), {1, 4}, 6)
    assert (plan.start, plan.saved) == (1, [3])
    assert plan_replay(reports(6, {5: 3}), {1, 3, 4}, 6).start == 4
    assert plan_replay(reports(6, {5: 3}), {1, 4, 5}, 6).start == 5


@given(
    kept=st.sets(st.integers(0, 12)),
    back=st.dictionaries(st.integers(2, 12), st.integers(0, 11)),
    step=st.integers(1, 12),
)
def test_every_replay_path_is_complete_and_shortest(kept: set[int], back: dict[int, int], step: int) -> None:
    restored = {at: min(to, at - 1) for at, to in back.items()}
    plan = plan_replay(reports(12, restored), kept, step)

    def leads(start: int) -> bool:
        returns = [to for at, to in restored.items() if start < at <= step]
        return all(to > start or to in kept for to in returns)

    start = -1 if plan.start is None else plan.start
    assert [report.step for report in plan.reports] == [*range(max(start, 0) + 1, step + 1)]
    assert leads(start)
    assert not any(leads(other) for other in kept if start < other < step)


def test_a_gap_in_the_reports_is_named() -> None:
    found = [report for report in reports(6) if report.step != 4]
    with pytest.raises(JobError, match=r"steps/000004\.json is missing"):
        plan_replay(found, {2}, 6)


def test_missing_groups_are_named_with_their_steps() -> None:
    plan = plan_replay(reports(6), {2}, 5)
    require_groups(plan, {"g3", "g4", "g5"})
    with pytest.raises(JobError, match=r"groups of step 3, 5: of step 3 g3; copy them back"):
        require_groups(plan, {"g4", "unknown"})


# The batches of a replay.


def test_a_replayed_directive_restores_the_same_step() -> None:
    report = reports(5, {5: 3})[5]
    batch = batch_of(report, [], [2, 5, 7])
    assert batch.directive is not None
    assert (batch.directive.restore, batch.in_force, batch.idle) == ([3], report.in_force, [2])


def test_a_refused_directive_is_a_step_without_groups() -> None:
    refused = DirectiveRefusal(reason="TooLittleMemory", message="no room")
    report = rig.report(5).model_copy(update={"directive": BACK, "refused": refused})
    batch = batch_of(report, [], [])
    assert (batch.directive, batch.groups) == (None, [])


def test_another_algorithm_drops_the_algorithm_in_force() -> None:
    held = InForce(
        number=3, loss="cispo", clip=Clip(high=4), learning_rate=1e-5, adapter=AdapterSize(rank=8, alpha=8)
    )
    left = without_algorithm(held)
    assert left.changed == {"learning_rate", "adapter"}
    assert left.number == 3


# The overlay over the run's folder.


@pytest.fixture
def layered(tmp_path: Path) -> tuple[Overlay, Path]:
    run = tmp_path / "run"
    for name in ("latest.json", "learners/000000", "learners/000001", "steps/000001.json", "weights/1/a"):
        FileStore().put(f"file://{run}/{name}", name.encode())
    root = f"file://{tmp_path}/own"
    hidden = (f"{root}/latest.json", f"{root}/learners")
    return Overlay(FileStore(), f"file://{run}", root, hidden), run


def test_objects_written_by_the_replay_are_read_first(layered: tuple[Overlay, Path], tmp_path: Path) -> None:
    overlay, run = layered
    root = f"file://{tmp_path}/own"
    assert overlay.get(f"{root}/steps/000001.json") == b"steps/000001.json"
    assert overlay.put_new(f"{root}/steps/000001.json", b"new") is False
    assert overlay.put_new(f"{root}/steps/000002.json", b"new") is True
    overlay.put(f"{root}/weights/1/a", b"mine")
    assert (overlay.get(f"{root}/weights/1/a"), overlay.size(f"{root}/weights/1/a")) == (b"mine", 4)
    assert overlay.list(f"{root}/steps") == [f"{root}/steps/000001.json", f"{root}/steps/000002.json"]
    overlay.delete(overlay.list(f"{root}/weights"))
    assert overlay.get(f"{root}/weights/1/a") == b"weights/1/a"
    assert not (run / "steps/000002.json").exists()


def test_a_replay_does_not_see_the_runs_pointer_and_starts(
    layered: tuple[Overlay, Path], tmp_path: Path
) -> None:
    overlay, _ = layered
    root = f"file://{tmp_path}/own"
    with pytest.raises(ObjectNotFoundError):
        overlay.get(f"{root}/latest.json")
    assert overlay.list(f"{root}/learners") == []
    assert overlay.put_new(f"{root}/learners/000000", b"") is True


@pytest.mark.parametrize("outside", ["file:///elsewhere/a", "s3://bucket/a", "{root}-beside/a"])
def test_a_replay_writes_nothing_outside_of_its_folder(
    layered: tuple[Overlay, Path], tmp_path: Path, outside: str
) -> None:
    overlay, _ = layered
    uri = outside.format(root=f"file://{tmp_path}/own")
    for write in (
        lambda: overlay.put(uri, b""),
        lambda: overlay.put_new(uri, b""),
        lambda: overlay.upload(tmp_path / "x", uri),
        lambda: overlay.delete([uri]),
    ):
        with pytest.raises(PermissionError):
            write()


# Preparing a replay of a stored run.


class Stored:
    """A stored run of four steps, with checkpoints of the steps in `kept`."""

    def __init__(self, folder: Path, kept: Sequence[int], processes: int = 1) -> None:
        self.config = rig.job(folder, folder / "model")
        config = self.config
        self.layout = Layout(config.spec.output.uri, config.namespace, config.name, config.uid)
        self.folder, self.replay = folder, folder / "replay"
        self.replay.mkdir(parents=True)
        self.store = FileStore()
        journal = Journal(self.store, self.layout, Signer.of(CHECKPOINTS, self.layout))
        journal.begin()
        for report in reports(4):
            journal.take(report)
            for group in report.groups:
                self.store.put(self.layout.train_group(group), encode(rig.group(group, [1.0, 0.0])))
            if report.step in kept:
                state = CheckpointManifest(start=0, files=[], world_size=processes, updates=report.step)
                journal.seal(report, state)

    def place(self, step: int, key: str | None = CHECKPOINTS, **more: Any) -> ReplayContext:
        """The context of a replay of this step."""
        if key is not None:
            (self.folder / "key").write_text(key)
        output = self.config.spec.output.model_copy(update={"uri": self.layout.root})
        request = ReplayRequest(
            config=self.config,
            run=output,
            step=step,
            key=None if key is None else str(self.folder / "key"),
            models=str(self.folder),
            **more,
        )
        request.write(self.replay)
        assert ReplayRequest.read(self.replay) == request
        return ReplayContext(self.replay, request)


def test_a_replay_is_prepared_without_writing_to_the_run(tmp_path: Path) -> None:
    stored = Stored(tmp_path, [0, 2, 4], processes=2)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    place = stored.place(4)
    plan = prepare(place)
    assert (plan.start, plan.groups, plan.processes) == (2, ["g3", "g4"], 2)
    assert json.loads(place.store.get(place.layout.latest)) == {"step": 2}
    journal = place.journal()
    found = journal.begin()
    assert found is not None
    assert (found.report.step, journal.start) == (2, 1)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}


@pytest.mark.parametrize(
    ("key", "why"), [(None, "no key was given"), ("wrong", "signatures are not from the given key")]
)
def test_checkpoints_without_a_signature_are_refused(tmp_path: Path, key: str | None, why: str) -> None:
    stored = Stored(tmp_path, [0, 2, 4])
    with pytest.raises(JobError, match=why) as refused:
        prepare(stored.place(4, key))
    assert "--from-start" in str(refused.value)
    assert prepare(stored.place(4, key, from_start=True)).start is None


def test_a_changed_checkpoint_record_is_skipped(tmp_path: Path) -> None:
    stored = Stored(tmp_path, [1, 2])
    uri = stored.layout.checkpoint_report(2, 0)
    stored.store.put(uri, stored.store.get(uri).replace(b'"updates": 2', b'"updates": 9'))
    assert prepare(stored.place(4)).start == 1


def test_a_retaken_steps_undone_checkpoint_is_not_used(tmp_path: Path) -> None:
    """A rollback to step 1 undid the checkpoint of step 2, which another incarnation took again."""
    stored = Stored(tmp_path, [1, 2])
    again = rig.report(2)
    version = again.version.model_copy(update={"incarnation": 1})
    report = again.model_copy(update={"version": version, "groups": ["g2"]})
    stored.store.put(stored.layout.step_history(2), report.model_dump_json().encode())
    later = {"version": version.model_copy(update={"step": 3}), "groups": ["g3"]}
    third = rig.report(3).model_copy(update=later)
    stored.store.put(stored.layout.step_history(3), third.model_dump_json().encode())
    assert prepare(stored.place(3)).start == 1


def test_a_group_that_was_removed_is_refused_by_name(tmp_path: Path) -> None:
    stored = Stored(tmp_path, [2])
    stored.store.delete([stored.layout.train_group("g3")])
    with pytest.raises(JobError, match="of step 3 g3"):
        prepare(stored.place(4))


def test_a_half_written_report_names_its_object(tmp_path: Path) -> None:
    stored = Stored(tmp_path, [2])
    stored.store.put(stored.layout.step_history(3), b'{"step": 3')
    with pytest.raises(JobError, match=r"steps/000003\.json"):
        prepare(stored.place(4))


# Comparing the replayed weights with the recorded ones.


def file(name: str, of: str) -> FileDigest:
    return FileDigest(name=name, size=1, sha256=of * 64)


def test_digests_of_tensors_are_preferred_to_those_of_files() -> None:
    now = [file("model.safetensors", "a"), file("digests.json", "b"), file("config.json", "c")]
    full = digests(now, [file("digests.json", "b"), file("model.safetensors", "d")])
    assert (full.file, full.same) == ("digests.json", True)
    delta = digests(now, [file("weights.delta", "e"), file("digests.json", "f")])
    assert (delta.file, delta.same) == ("digests.json", False)
    assert digests(now, [file("model.safetensors", "a")]).same is True
    nothing = digests(now, [file("config.json", "c")])
    assert (nothing.file, nothing.recorded, nothing.same) == ("digests.json", None, None)


def test_tensors_that_differ_are_counted_and_measured(tmp_path: Path) -> None:
    one = {name: np.zeros(3, np.float32) for name in ("a", "b", "c", "gone")}
    other = one | {"b": np.array([0, 0.5, 0], np.float32), "c": np.array([-2, 0, 0], np.float32)}
    del other["gone"]
    other |= {"a": np.zeros(3, np.float32), "new": np.zeros(1, np.float32)}
    save_file(one, tmp_path / "one")
    save_file(other, tmp_path / "other")
    found = tensor_difference(tmp_path / "one", tmp_path / "other")
    assert (found.differing, found.total, found.max_abs, found.max_at, found.first) == (4, 5, 2.0, "c", "b")
    assert tensor_difference(tmp_path / "one", tmp_path / "one").differing == 0


def test_other_shapes_and_nan_count_as_different(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32), "b": np.ones(1, np.float32)}, tmp_path / "one")
    save_file({"a": np.zeros(2, np.float32), "b": np.full(1, np.nan, np.float32)}, tmp_path / "other")
    found = tensor_difference(tmp_path / "one", tmp_path / "other")
    assert (found.differing, found.max_abs, found.max_at) == (2, 0.0, "b")


def test_weights_that_are_gone_or_changed_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "weights/adapter_model.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"x")
    files, uri = [digest(path)], f"file://{path.parent}"
    assert recorded_tensors(FileStore(), uri, files, tmp_path / "to") is not None
    path.write_bytes(b"y")
    assert recorded_tensors(FileStore(), uri, files, tmp_path / "to") is None
    path.unlink()
    assert recorded_tensors(FileStore(), uri, files, tmp_path / "to") is None
    assert recorded_tensors(FileStore(), uri, [file("digests.json", "a")], tmp_path / "to") is None
