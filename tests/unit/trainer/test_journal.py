"""The order of writes that makes a step durable, and what a restart does after a stop at any of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError
from role_keys import CHECKPOINTS

from headway_api.artifacts import Layout
from headway_api.exits import RESTART, RETRIABLE, JobError
from headway_api.records import Canary, PolicyVersion, StepReport, WeightsManifest
from headway_api.store import FileStore
from headway_trainer.checkpoint.journal import Journal, incarnation
from headway_trainer.checkpoint.manifest import Checkpoint, CheckpointManifest
from headway_trainer.checkpoint.signer import Signer


def report(step: int, number: int = 0, groups: tuple[str, ...] = ()) -> StepReport:
    version = PolicyVersion(incarnation=number, step=step)
    canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1e-3)
    weights = WeightsManifest(version=version, kind="lora", uri=f"file:///w/{step}", files=[], canary=canary)
    return StepReport(
        step=step,
        version=version,
        groups=list(groups),
        train_tokens={},
        weights=weights,
        durable=step,
        metrics={},
    )


class Recorder(FileStore):
    """A file store that remembers the order of writes and can die before one of them."""

    def __init__(self, dies_before: str = "") -> None:
        self.puts: list[str] = []
        self._dies_before = dies_before

    def put(self, uri: str, data: bytes) -> None:
        if self._dies_before and self._dies_before in uri:
            raise KeyboardInterrupt
        self.puts.append(uri)
        super().put(uri, data)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(f"file://{tmp_path}", "rl", "refunds", "uid")


def begun(layout: Layout, store: FileStore | None = None) -> tuple[Journal, Checkpoint | None]:
    """Start a learner. Returns its journal, and the checkpoint it resumes from."""
    journal = Journal(store or FileStore(), layout, Signer.of(CHECKPOINTS, layout))
    return journal, journal.begin()


def resumed(layout: Layout) -> Checkpoint:
    _, found = begun(layout)
    assert found is not None
    return found


def state(journal: Journal) -> CheckpointManifest:
    return CheckpointManifest(start=journal.start, files=[], world_size=1, updates=1)


def made_durable(journal: Journal, *reports: StepReport) -> None:
    for each in reports:
        journal.take(each)
        journal.seal(each, state(journal))


def pointed_to(layout: Layout) -> int:
    return int(json.loads(FileStore().get(layout.latest))["step"])


def test_a_new_job_has_nothing_to_resume(layout: Layout) -> None:
    assert begun(layout)[1] is None


def test_the_pointer_is_written_last(layout: Layout) -> None:
    store = Recorder()
    made_durable(begun(layout, store)[0], report(3))
    assert store.puts == [layout.step_history(3), layout.checkpoint_report(3, 0), layout.latest]


def test_a_step_is_resumed_once_it_is_durable_and_not_before(layout: Layout) -> None:
    journal, _ = begun(layout)
    made_durable(journal, report(1))
    journal.take(report(2))
    found = resumed(layout).report
    assert (str(found.version), found.durable) == ("1.1", 1)


@pytest.mark.parametrize(
    ("dies_before", "resumes_as"),
    [("steps/000002.json", "0.1"), ("checkpoints/000002/000001/report.json", "1.1"), ("latest.json", "1.1")],
)
def test_an_interrupted_step_is_retaken_in_a_new_incarnation(
    layout: Layout, dies_before: str, resumes_as: str
) -> None:
    made_durable(begun(layout)[0], report(1))
    with pytest.raises(KeyboardInterrupt):
        made_durable(begun(layout, Recorder(dies_before))[0], report(2))
    assert str(resumed(layout).report.version) == resumes_as


def test_a_pointer_moved_back_starts_a_new_incarnation(layout: Layout) -> None:
    made_durable(begun(layout)[0], *map(report, range(6)))
    FileStore().put(layout.latest, b'{"step": 3}')
    journal, found = begun(layout)
    assert found is not None
    version = found.report.version
    assert (version.step, version.incarnation, found.report.weights.version.incarnation) == (3, 1, 1)
    journal.confirm(found)
    assert resumed(layout).report.version == version


def test_a_start_keeps_a_pointer_that_a_person_moved(layout: Layout) -> None:
    """A person may have set the pointer after the learner read it."""
    made_durable(begun(layout)[0], report(1), report(2))
    journal, found = begun(layout)
    assert found is not None
    FileStore().put(layout.latest, b'{"step": 1}')
    journal.confirm(found)
    assert pointed_to(layout) == 1


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_replaced_process_writes_nothing_more(layout: Layout, beyond: int) -> None:
    """The process hung, with or without a step beyond the durable one.

    Without one, its successor has the same incarnation.
    """
    old, _ = begun(layout)
    made_durable(old, report(1))
    if beyond:
        old.take(report(2))
    new, found = begun(layout)
    assert found is not None
    assert found.report.version.incarnation == beyond
    new.confirm(found)
    made_durable(new, report(2, beyond), report(3, beyond))
    store = Recorder()
    old._store = store
    for write in (
        lambda: old.take(report(2)),
        lambda: old.seal(report(2), state(old)),
        lambda: old.confirm(Checkpoint(report=report(2), state=state(old))),
    ):
        with pytest.raises(JobError, match="start 1 of the learner has begun, and this is 0") as refused:
            write()
        assert (refused.value.termination.reason, refused.value.code) == ("Superseded", RESTART)
    assert store.puts == []
    assert pointed_to(layout) == 3
    made_durable(new, report(4, beyond))
    assert pointed_to(layout) == 4


def test_a_step_durable_before_the_successor_is_known_is_resumed(layout: Layout) -> None:
    old, _ = begun(layout)
    made_durable(old, report(1))

    class Late(FileStore):
        def put_new(self, uri: str, data: bytes) -> bool:
            made_durable(old, report(2))
            return super().put_new(uri, data)

    _, found = begun(layout, Late())
    assert found is not None
    assert str(found.report.version) == "0.2"


def test_two_learners_that_start_at_once_get_different_numbers(layout: Layout) -> None:
    """Another learner may claim a number after this one has looked for the next free number."""

    class Late(FileStore):
        def list(self, prefix_uri: str) -> list[str]:
            found = super().list(prefix_uri)
            if prefix_uri == layout.learners:
                begun(layout)
            return found

    assert [begun(layout)[0].start, begun(layout, Late())[0].start, begun(layout)[0].start] == [0, 2, 3]


@pytest.mark.parametrize(
    ("pointer", "message"),
    [
        (b'{"step": 2}', "checkpoints/000002 cannot be resumed from (it has no report.json)"),
        (b'{"step": 4}', "checkpoints/000004/000000/report.json cannot be resumed from (it cannot be read"),
        (b'{"step": 5}', "it was written for step 1, start 0"),
        (b"12", "latest.json cannot be resumed from (it holds no {"),
        (b'{"step": "last"}', "it holds no {"),
    ],
)
def test_a_pointer_to_no_checkpoint_can_be_set_back(layout: Layout, pointer: bytes, message: str) -> None:
    store = FileStore()
    made_durable(begun(layout)[0], report(1))
    store.put(f"{layout.checkpoint_of(2, 0)}/a.pt", b"half")
    store.put(layout.checkpoint_report(4, 0), b"{}")
    store.put(layout.checkpoint_report(5, 0), store.get(layout.checkpoint_report(1, 0)))
    store.put(layout.latest, pointer)
    with pytest.raises(JobError) as failed:
        begun(layout)
    assert message in failed.value.termination.message
    assert "set latest.json" in failed.value.termination.message
    assert (failed.value.termination.reason, failed.value.code) == ("CheckpointUnusable", RETRIABLE)


def test_the_newest_starts_checkpoint_of_a_step_is_resumed(layout: Layout) -> None:
    """An undone start left a whole checkpoint of the step that was taken again."""
    made_durable(begun(layout)[0], report(1), report(2))
    FileStore().put(layout.latest, b'{"step": 1}')
    journal, found = begun(layout)
    assert found is not None
    journal.confirm(found)
    made_durable(journal, report(2, 1))
    again = resumed(layout)
    assert (str(again.report.version), again.state.start) == ("1.2", 1)


def test_checkpoints_of_steps_taken_again_are_not_whole(layout: Layout) -> None:
    first, _ = begun(layout)
    made_durable(first, *map(report, range(1, 5)))
    assert first.standing({1: 0, 2: 0, 9: 0}) == {1, 2}
    FileStore().put(layout.latest, b'{"step": 2}')
    second, found = begun(layout)
    assert found is not None
    second.confirm(found)
    second.take(report(3, 1))
    made_durable(second, report(4, 1))
    third, _ = begun(layout)
    for journal in (second, third):
        assert journal.standing({1: 0, 2: 0, 3: 0, 4: 0}) == {1, 2}
        assert journal.standing({1: 0, 2: 0, 4: 1}) == {1, 2, 4}


def test_a_new_incarnation_is_above_all_earlier_ones() -> None:
    assert incarnation(report(3, 0), []) == 0
    assert incarnation(report(3, 0), [report(4, 0)]) == 1
    assert incarnation(report(3, 1), [report(4, 0)]) == 1
    assert incarnation(report(3, 1), [report(4, 0), report(5, 1)]) == 2
    assert incarnation(report(3, 0), [report(4, 2)]) == 3


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_report_with_a_non_finite_metric_is_never_written(value: float) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        StepReport.model_validate(report(1).model_dump() | {"metrics": {"training/grad_norm": value}})
