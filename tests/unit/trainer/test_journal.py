"""The order in which a step becomes durable, and what a restart makes of every point it can stop at."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.records import Canary, PolicyVersion, StepReport, WeightsManifest
from headway_api.store import FileStore
from headway_trainer.checkpoint.journal import Journal, incarnation


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


def test_a_new_job_has_nothing_to_resume(layout: Layout) -> None:
    assert Journal(FileStore(), layout).latest() is None


def made_durable(journal: Journal, *reports: StepReport) -> None:
    for each in reports:
        journal.take(each)
        journal.seal(each)


def test_the_pointer_is_written_last(layout: Layout) -> None:
    store = Recorder()
    made_durable(Journal(store, layout), report(3))
    assert store.puts == [layout.step_history(3), layout.step_report(3), layout.latest]


def test_a_step_is_resumed_once_it_is_durable_and_not_before(layout: Layout) -> None:
    journal = Journal(FileStore(), layout)
    made_durable(journal, report(1))
    journal.take(report(2))
    resumed = journal.latest()
    assert resumed is not None
    assert (str(resumed.version), resumed.durable) == ("1.1", 1)


@pytest.mark.parametrize(
    ("dies_before", "resumes_as"),
    [("steps/000002.json", "0.1"), ("checkpoints/000002/report.json", "1.1"), ("latest.json", "1.1")],
)
def test_what_was_cut_short_is_taken_anew_in_a_new_incarnation(
    layout: Layout, dies_before: str, resumes_as: str
) -> None:
    made_durable(Journal(FileStore(), layout), report(1))
    with pytest.raises(KeyboardInterrupt):
        made_durable(Journal(Recorder(dies_before), layout), report(2))
    resumed = Journal(FileStore(), layout).latest()
    assert resumed is not None
    assert str(resumed.version) == resumes_as


def test_a_pointer_moved_back_starts_a_new_incarnation(layout: Layout) -> None:
    journal = Journal(FileStore(), layout)
    made_durable(journal, *map(report, range(6)))
    FileStore().put(layout.latest, b'{"step": 3}')
    resumed = journal.latest()
    assert resumed is not None
    assert (resumed.step, resumed.version.incarnation, resumed.weights.version.incarnation) == (3, 1, 1)
    journal.confirm(resumed)
    again = journal.latest()
    assert again is not None
    assert again.version == PolicyVersion(incarnation=1, step=3)


def test_a_start_leaves_the_pointer_to_whoever_moves_it(layout: Layout) -> None:
    """Another process of this learner may have made a step durable since this one read the pointer."""
    journal = Journal(FileStore(), layout)
    made_durable(journal, report(1))
    resumed = journal.latest()
    assert resumed is not None
    made_durable(journal, report(2))
    journal.confirm(resumed)
    newest = journal.latest()
    assert newest is not None
    assert newest.step == 2


def test_a_process_that_was_replaced_moves_the_pointer_no_more(layout: Layout) -> None:
    """It hung, say, and its successor resumed at step 1, which was durable when both took step 2."""
    journal = Journal(FileStore(), layout)
    made_durable(journal, report(1))
    old = report(2).model_copy(update={"durable": 1})
    journal.take(old)
    resumed = journal.latest()
    assert resumed is not None
    journal.confirm(resumed)
    with pytest.raises(JobError, match="another process goes on from step 1"):
        journal.seal(old)
    assert json.loads(FileStore().get(layout.latest)) == {"step": 1}
    again = report(2, 1).model_copy(update={"durable": 1})
    made_durable(journal, again)
    assert json.loads(FileStore().get(layout.latest)) == {"step": 2}


def test_incarnations_only_grow() -> None:
    assert incarnation(report(3, 0), []) == 0
    assert incarnation(report(3, 0), [report(4, 0)]) == 1
    assert incarnation(report(3, 1), [report(4, 0)]) == 1
    assert incarnation(report(3, 1), [report(4, 0), report(5, 1)]) == 2
    assert incarnation(report(3, 0), [report(4, 2)]) == 3


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_could_not_be_read_again_is_never_written(value: float) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        StepReport.model_validate(report(1).model_dump() | {"metrics": {"training/grad_norm": value}})
