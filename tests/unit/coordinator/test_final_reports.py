"""Reports at the end of a training job. The status names only those that were written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import flat_job
import pytest
from role_keys import KEYS

from headway_api.exits import JobError
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.training import Training


def coordinator(folder: Path, written: list[dict[str, Any]], **fields: Any) -> Coordinator:
    config = flat_job.config(folder, **fields)
    return Coordinator(config, KEYS, FileStore(), folder / "cache", written.append, port=0)


def page_of(it: Coordinator) -> str | None:
    """The report page from the store, or None if there is none."""
    store = FileStore()
    return store.get(it.layout.page).decode() if it.layout.page in store.list(it.layout.root) else None


async def test_a_job_that_its_preflight_refuses_has_a_page(tmp_path: Path) -> None:
    written = list[dict[str, Any]]()
    it = coordinator(tmp_path, written)
    (tmp_path / "train.jsonl").write_text("no JSON\n")
    with pytest.raises(JobError) as raised:
        await it.run()
    assert raised.value.permanent
    html = page_of(it)
    assert html is not None
    assert "ns/job" in html
    assert written[-1]["artifacts"]["page"] == it.layout.page
    assert "report" not in written[-1]["artifacts"]


@pytest.mark.parametrize("permanent", [True, False])
async def test_a_background_tasks_fault_also_decides_about_the_page(tmp_path: Path, permanent: bool) -> None:
    """A background task finds that the budget is exhausted, which may fail the job."""
    written, reached = list[dict[str, Any]](), asyncio.Event()
    it = coordinator(tmp_path, written)

    async def claimed(*_: object) -> None:
        reached.set()
        await asyncio.sleep(30)

    async def fails() -> None:
        await reached.wait()
        raise JobError("BudgetExhausted", "nothing is left", permanent=permanent)

    it._claimed = claimed  # type: ignore[method-assign, assignment]
    it._enforce_budget = fails  # type: ignore[method-assign]
    running = asyncio.create_task(it.run())
    with pytest.raises(asyncio.CancelledError):
        await running
    assert isinstance(it.fault, JobError)
    assert (page_of(it) is not None) == permanent
    assert ("page" in written[-1]["artifacts"]) == permanent


def test_a_job_that_is_stopped_has_no_page(tmp_path: Path) -> None:
    """The job continues later, so the page would describe only half of a run."""
    it = asyncio.run(flat_job.run(tmp_path, flat_job.config(tmp_path), None, 1))
    assert page_of(it) is None


def test_the_status_names_a_report_only_once_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, named = Coordinator._finish, list[str | None]()

    def note(it: Coordinator) -> None:
        artifacts = it.status().artifacts
        assert artifacts is not None
        named.append(artifacts.report)

    async def noted(it: Coordinator, training: Training) -> None:
        assert training.state.finished is not None
        note(it)
        await finish(it, training)
        note(it)

    monkeypatch.setattr(Coordinator, "_finish", noted)
    it = asyncio.run(flat_job.run(tmp_path, flat_job.config(tmp_path), None, None))
    assert named == [None, it.layout.report]
    assert FileStore().get(it.layout.report)
    assert page_of(it) is not None
