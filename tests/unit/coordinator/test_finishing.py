"""The end of a job after its report: optional work ends within the time that the operator allows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from evaluation_rig import EvalJob, spec
from role_keys import KEYS

from headway_api import finishing
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.status import MlflowRun
from headway_api.store import FileStore
from headway_coordinator import page
from headway_coordinator.evaluation import job as coordinators
from headway_coordinator.evaluation.job import EvalCoordinator
from headway_coordinator.left_call import within
from headway_coordinator.metrics import evaluations, mlflow
from headway_coordinator.metrics.evaluations import Content, Publisher

REFERENCE = Path(__file__).resolve().parents[3] / "docs/reference/crds.md"
SHORT = 0.2
RUN = MlflowRun(experiment_id="1", run_id="r", url="http://mlflow/#/experiments/1/runs/r")


def test_each_tracker_ends_within_what_the_operator_allows() -> None:
    assert evaluations.MAX_SECONDS < finishing.TRACKING_SECONDS
    assert mlflow.CLOSE_SECONDS + mlflow.UPLOAD_SECONDS <= finishing.TRACKING_SECONDS
    bounds = {name: value for name, value in vars(finishing).items() if name.endswith("_SECONDS")}
    assert bounds.pop("FINISHING_SECONDS") == sum(bounds.values())


def test_both_kinds_document_the_extra_time_to_end() -> None:
    said = f"report is written has {finishing.FINISHING_SECONDS / 60:g} minutes more to end"
    assert REFERENCE.read_text().count(said) == 2


class Hanging:
    """A call that hangs until the test ends."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, *given: Any) -> None:
        self.begun.set()
        self.over.wait(60)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.over.set()


class Ending:
    """An evaluation that runs to its end."""

    def __init__(self, folder: Path) -> None:
        self.one = EvalJob(folder, spec(output={"uri": f"file://{folder}"}))
        self.statuses = list[dict[str, Any]]()
        job = EvalConfig(name="job", namespace="ns", uid="uid", spec=self.one.spec, candidates=())
        self.it = EvalCoordinator(job, KEYS, self.one.store, folder, self.statuses.append)

    @property
    def has_report(self) -> bool:
        """Whether the status names the report, so that the operator knows of it."""
        return bool(self.statuses) and "report" in self.statuses[-1].get("artifacts", {})

    async def run(self) -> None:
        evaluation = self.it._evaluation = await self.one.coordinator()
        evaluation._on_change = self.it._moved
        async with AsyncExitStack() as stack, asyncio.timeout(20):
            self.it._background(stack, self.it._status.run())
            await self.it._measure(stack, evaluation, [self.one.unit("base", "tuned", server_set=0)])


def errors(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The errors that were logged with this event."""
    found = [record for record in caplog.records if record.message == event]
    return [cast(Any, record).fields["error"] for record in found]


async def test_a_hanging_tracking_server_fails_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    def track(store: object, layout: object, written: object, found: Any) -> None:
        found(RUN)
        hanging()

    monkeypatch.setattr(coordinators, "TRACKING_SECONDS", SHORT)
    monkeypatch.setattr(coordinators.results, "track", track)
    job = Ending(tmp_path)
    await job.run()
    assert job.it._status_written
    assert job.statuses[-1]["tracking"]["mlflow"]["runId"] == "r", "the run is shown all the same"
    assert errors(caplog, "mlflow-failed") == ["the tracking server did not take everything within 0.2 s"]


async def test_the_status_names_the_report_before_mlflow_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: Hanging
) -> None:
    """Only once it knows of the report does the operator let the job end after its deadline."""
    monkeypatch.setattr(coordinators.results, "track", hanging)
    job = Ending(tmp_path)
    running = asyncio.create_task(job.run())
    await asyncio.to_thread(hanging.begun.wait, 20)
    async with asyncio.timeout(5):
        while not job.has_report:
            await asyncio.sleep(0.05)
    assert not running.done()
    hanging.over.set()
    await running


async def test_a_page_that_takes_too_long_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(page, "PAGE_SECONDS", SHORT)
    monkeypatch.setattr(page, "write", hanging)
    job = Ending(tmp_path)
    await job.run()
    assert job.has_report
    assert "page" not in job.statuses[-1]["artifacts"]
    assert errors(caplog, "page-not-written") == ["it was not written within 0.2 s"]


async def test_a_call_in_time_gives_its_result_or_its_error() -> None:
    assert await within(20, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await within(20, divmod, 7, 0)


async def test_an_abandoned_call_does_not_keep_the_process_alive(hanging: Hanging) -> None:
    with pytest.raises(TimeoutError):
        await within(SHORT, hanging)
    [thread] = [each for each in threading.enumerate() if each.name == "left-call"]
    assert thread.daemon
    hanging.over.set()
    await asyncio.to_thread(thread.join, 20)


class Noted(Publisher):
    """A publisher that records what it logs to each candidate's run."""

    def __init__(self, content: Content) -> None:
        super().__init__("http://mlflow", "e", FileStore(), Layout("file:///", "ns", "job", "uid"), content)
        self.noted = list[tuple[str, str]]()

    def _log_metrics(self, candidate: Any, parent: MlflowRun) -> MlflowRun:
        self.noted.append(("metrics", candidate["name"]))
        if candidate["name"] == "refused":
            raise ConnectionError("the server refused it")
        return RUN

    def _episodes(self, run: MlflowRun, candidate: Any, limit: int) -> None:
        self.noted.append((f"{limit} traces", candidate["name"]))


def test_metrics_of_all_candidates_precede_the_traces(caplog: pytest.LogCaptureFixture) -> None:
    """So a slow server gets every candidate's metrics, even if it takes the traces of only some."""
    names = ("base", "refused", "tuned")
    report = {
        "candidates": [{"name": name, "tries": 1} for name in names] + [{"name": "lost", "tries": 0}],
        "job": {"ended": None},
    }
    publisher = Noted(cast(Content, type("Content", (), {"report": report})))
    publisher.candidates(RUN)
    assert publisher.noted == [
        *(("metrics", name) for name in names),
        ("3333 traces", "base"),
        ("3333 traces", "tuned"),
    ]
    assert errors(caplog, "mlflow-failed") == ["the server refused it"]
