"""An evaluation's coordinator: its last measures, and candidates whose servers the operator gave up."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from evaluation_rig import EvalJob, spec
from role_keys import KEYS

from headway_analysis import comparison
from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord
from headway_api.status import RLEvalJobStatus
from headway_api.store import FileStore
from headway_coordinator import status
from headway_coordinator.dataset import position_of
from headway_coordinator.episode import Task
from headway_coordinator.evaluation import job as coordinators
from headway_coordinator.evaluation.job import EvalCoordinator
from headway_coordinator.evaluation.run import Evaluation, Unit


def coordinator(one: EvalJob, folder: Path, sink: status.Sink) -> EvalCoordinator:
    """A coordinator of the job. The test makes its units."""
    job = EvalConfig(name="job", namespace="ns", uid="uid", spec=one.spec, candidates=())
    return EvalCoordinator(job, KEYS, one.store, folder, sink)


async def measured(it: EvalCoordinator, evaluation: Evaluation, units: list[Unit]) -> None:
    """Let the coordinator measure the units while it writes its status."""
    evaluation._on_change = it._moved
    it._evaluation = evaluation
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        it._background(stack, it._status.run())
        await it._measure(stack, evaluation, units)


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> list[comparison.Comparison]:
    """Collects the results instead of writing them to the artifact store."""
    found = list[comparison.Comparison]()

    def write(store: object, layout: object, run: object, compared: comparison.Comparison) -> None:
        found.append(compared)

    monkeypatch.setattr(coordinators.results, "write", write)
    monkeypatch.setattr(coordinators.results, "track", lambda *given: None)
    return found


async def test_measures_of_fewer_rows_never_replace_complete_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritten: list[comparison.Comparison]
) -> None:
    """A comparison of fewer rows takes so long that the results of all rows are written before it ends."""
    one = EvalJob(tmp_path)
    begun, over = threading.Event(), threading.Event()

    def compared(*given: Any) -> Any:
        which = given[5]
        if which is not None:
            begun.set()
            assert over.wait(30)
        return comparison.compare_all(*given)

    monkeypatch.setattr(coordinators, "compare_all", compared)
    it = coordinator(one, tmp_path, lambda document: None)
    evaluation = await one.coordinator()
    episode, settle = one.episode, it._status.settle

    async def after_the_look(task: Task) -> EpisodeRecord:
        await asyncio.to_thread(begun.wait, 30)
        return await episode(task)

    async def looked(seconds: float) -> bool:
        over.set()
        await asyncio.sleep(0.2)
        return await settle(seconds)

    one.episode = after_the_look  # type: ignore[method-assign]
    it._status.settle = looked  # type: ignore[method-assign]
    try:
        await measured(it, evaluation, [one.unit("base", "tuned", server_set=0)])
    finally:
        over.set()
    assert it._compared is unwritten[0]
    [base, _] = it.status().results
    assert base.rows == len(one.rows)
    assert base.external_score is not None


async def test_the_status_shows_the_wait_for_the_store(tmp_path: Path) -> None:
    one, answer = EvalJob(tmp_path), threading.Event()
    it = coordinator(one, tmp_path, lambda document: None)
    evaluation = it._evaluation = await one.coordinator()
    waits = asyncio.create_task(evaluation._store(answer.wait, 30))
    try:
        async with asyncio.timeout(30):
            while not busy_seconds(it):
                await asyncio.sleep(0.01)
    finally:
        answer.set()
    await waits
    assert busy_seconds(it) == 0


def busy_seconds(it: EvalCoordinator) -> float:
    (found,) = (sample.value for sample in it._samples() if sample.name == "store/busy_seconds")
    return found


async def test_a_candidate_whose_servers_were_given_up_fails_alone(
    tmp_path: Path, unwritten: list[comparison.Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator writes the loss to the job's status.

    The coordinator reads it in the answer to its next write.
    """
    monkeypatch.setattr(status, "LEAST_SECONDS", 0.02)
    one = EvalJob(tmp_path)
    given_up = threading.Event()
    lost = status.JobUpdate(lost={"tuned": ("PendingDeadlineExceeded", "rollout was not ready")})
    written = list[dict[str, Any]]()

    def sink(document: dict[str, Any]) -> status.JobUpdate | None:
        written.append(document)
        return lost if given_up.is_set() else status.JobUpdate()

    it = coordinator(one, tmp_path, sink)
    evaluation = await one.coordinator()
    episode = one.episode

    async def without_servers(task: Task) -> EpisodeRecord:
        if task.group_id.startswith("e-tuned") and position_of(task.group_id) > 0:
            given_up.set()
            await asyncio.sleep(3600)
        return await episode(task)

    one.episode = without_servers  # type: ignore[method-assign]
    units = [one.unit("base", server_set=0), one.unit("tuned", server_set=1)]
    with pytest.raises(JobError) as raised:
        await measured(it, evaluation, units)
    assert raised.value.termination.reason == "CandidateFailed"
    base, tuned = evaluation.state.candidates["base"], evaluation.state.candidates["tuned"]
    assert (base.stage, len(base.tries)) == ("Complete", len(one.rows))
    assert (tuned.stage, tuned.reason) == ("Failed", "PendingDeadlineExceeded")
    assert len(unwritten) == 1, "the results are written all the same"
    results = {each["name"]: each for each in written[-1]["results"]}
    assert results["base"]["state"] == "Complete"
    assert results["tuned"]["message"] == "rollout was not ready"


async def test_a_job_update_before_the_first_measure_is_ignored(tmp_path: Path) -> None:
    lost = status.JobUpdate(lost={"tuned": ("PendingDeadlineExceeded", "rollout was not ready")})
    it = coordinator(EvalJob(tmp_path), tmp_path, lambda document: lost)
    assert await it._status.flush()
    assert not it.status().results


RESOLVED = [
    {"name": name, "kind": "Model", "base": base, "dtype": "bfloat16", "serverSet": number}
    for number, (name, base) in enumerate((("base", "s3://b/m"), ("tuned", "s3://b/n")))
]


def resolved(one: EvalJob, folder: Path, sink: status.Sink) -> EvalCoordinator:
    """A coordinator of the job whose candidates are resolved."""
    job = EvalConfig.model_validate(
        {"name": "job", "namespace": "ns", "uid": "uid", "spec": one.spec, "candidates": RESOLVED}
    )
    return EvalCoordinator(job, KEYS, one.store, folder, sink)


class NoRoomForAPage(FileStore):
    """A store without space for `report.html`."""

    def put(self, uri: str, data: bytes) -> None:
        if uri.endswith("/report.html"):
            raise OSError(errno.ENOSPC, "no space left")
        super().put(uri, data)


@pytest.mark.parametrize("store", [FileStore(), NoRoomForAPage()], ids=["room", "no room"])
async def test_the_status_names_the_page_only_if_it_was_written(
    tmp_path: Path, store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    written = list[dict[str, Any]]()
    one = EvalJob(tmp_path, spec(output={"uri": f"file://{tmp_path}"}))
    one.store = store
    it = resolved(one, tmp_path, written.append)
    with caplog.at_level(logging.WARNING):
        await measured(it, await one.coordinator(), [one.unit("base", "tuned", server_set=0)])
    assert it.layout == one.layout
    artifacts = written[-1]["artifacts"]
    assert artifacts["report"] == one.layout.report, "the job ends as it would"
    assert store.get(one.layout.report)
    failed = [each for each in caplog.records if each.message == "page-not-written"]
    if isinstance(store, NoRoomForAPage):
        assert "page" not in artifacts
        assert one.layout.page not in store.list(one.layout.root)
        assert "no space left" in failed[0].fields["error"]  # type: ignore[attr-defined]
        return
    assert failed == []
    assert artifacts["page"] == one.layout.page
    html = store.get(artifacts["page"]).decode()
    assert html.lstrip().lower().startswith("<!doctype html>")
    assert all(name in html for name in one.spec.candidate_names)
    assert all("page" not in each["artifacts"] for each in written if "report" not in each["artifacts"])


async def test_the_estimate_is_shown_until_it_is_the_bill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status, metrics and report show the estimate, which is renewed while rows are measured."""
    monkeypatch.setattr(status, "LEAST_SECONDS", 0.02)
    monkeypatch.setattr(coordinators, "COMPARE_SECONDS", 0.02)
    monkeypatch.setattr(coordinators, "REST_FOR_EACH", 0.1)
    runs, written = list[Any](), list[dict[str, Any]]()
    monkeypatch.setattr(coordinators.results, "write", lambda store, layout, run, found: runs.append(run))
    monkeypatch.setattr(coordinators.results, "track", lambda *given: None)
    one = EvalJob(tmp_path, spec(output={"uri": f"file://{tmp_path}/out"}), rows=40)
    it = resolved(one, tmp_path, written.append)
    it._estimates.before(len(one.rows), {})
    first = it.status().estimate
    assert first is not None
    assert first.basis == "Data"
    await it._load_ledger()
    names, start_number = one.spec.candidate_names, it._spool.take_start_number()
    evaluation = Evaluation(one.spec, one.rows, names, it._spool, it._ledger, start_number)
    await evaluation.restore()
    it._estimates.restored()
    await it._estimate(evaluation)
    episode = one.episode

    async def slowly(task: Task) -> EpisodeRecord:
        await asyncio.sleep(0.02)
        return await episode(task)

    one.episode = slowly  # type: ignore[method-assign]
    await measured(it, evaluation, [one.unit("base", server_set=0), one.unit("tuned", server_set=1)])
    shown = [(each["estimate"], each["usage"]) for each in written if "usage" in each]
    assert {each["basis"] for each, _ in shown} == {"Data", "Running"}
    for each, used in shown:
        low, likely, high = (Decimal(each[end]) for end in ("low", "likely", "high"))
        assert Decimal(used["cost"]) <= low <= likely <= high
    assert len({each["episodes"] for each, _ in shown}) > 3, "it goes on with the job"
    last, used = shown[-1]
    assert last["low"] == last["likely"] == last["high"] == used["cost"]
    assert last["evaluationTokens"] == used["evaluationTokens"] > 0
    assert last["episodes"] == 40 * 2 * 2
    assert runs[0].estimate["actual"] == used["cost"]
    assert [each["basis"] for each in runs[0].estimate["made"]] == ["Data"]
    by_bound = {sample.labels["bound"]: sample.value for sample in it._samples() if "estimate" in sample.name}
    assert by_bound == dict.fromkeys(("low", "likely", "high"), float(used["cost"]))


async def test_predecessors_estimate_stays_until_its_successor_has_one(tmp_path: Path) -> None:
    one = EvalJob(tmp_path)
    job = EvalConfig(name="job", namespace="ns", uid="uid", spec=one.spec, candidates=())
    previous = RLEvalJobStatus.model_validate(
        {"estimate": {"basis": "Running", "time": "2026-11-01T00:00:00Z", "likely": "1.25"}}
    )
    it = EvalCoordinator(job, KEYS, one.store, tmp_path, lambda document: None, previous=previous)
    assert it.status().estimate == previous.estimate
