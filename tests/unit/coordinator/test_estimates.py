"""Estimates of a job's whole cost in status, metrics and report, made by the real coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from preflight_bench import Bench, spec, write_inputs
from tests.estimate.jobs import JOBS
from tests.estimate.page import wrong
from tests.estimate.run import Came, run

from headway_analysis.estimate.made import Made
from headway_analysis.estimate.measured import BilledGroup, Measured, measure
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.prices import DEFAULT, Tariff
from headway_api.store import FileStore
from headway_coordinator import status as writer
from headway_coordinator.engines import fleet as fleets
from headway_coordinator.estimate import prompts
from headway_coordinator.estimate.job import TrainingEstimates
from headway_coordinator.estimate.made import of_status
from headway_coordinator.ledger.segments import Ledger

PLAYED = next(job for job in JOBS if job.played)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "DISCOVER_SECONDS", 0.05)
    monkeypatch.setattr(writer, "LEAST_SECONDS", 0.02)


def estimates(came: Came) -> Iterator[dict[str, Any]]:
    """The estimates that the status showed, in order."""
    for status in came.statuses:
        if "estimate" in status:
            yield status["estimate"]


async def test_a_job_shows_its_estimated_cost_until_its_end(tmp_path: Path) -> None:
    few = {
        "preflight": {"policy": "Warn", "episodes": 24},
        "algorithm": {"batchSize": 3, "groupSize": 4},
        "schedule": {"maxSteps": 6, "maxEpochs": 4},
    }
    came = await run(replace(PLAYED, spec={**few, "evaluation": {"everySteps": 3, "maxRows": 6}}), tmp_path)
    bases = list(dict.fromkeys(each["basis"] for each in estimates(came)))
    assert bases == ["Data", "Preflight", "Running"]
    assert all(
        Decimal(each["low"]) <= Decimal(each["likely"]) <= Decimal(each["high"]) for each in estimates(came)
    )
    last, used = came.statuses[-1]["estimate"], came.statuses[-1]["usage"]
    assert last["low"] == last["likely"] == last["high"] == used["cost"]
    assert {name: last[name] for name in ("prefillTokens", "trainTokens", "evaluationTokens")} == {
        name: used[name] for name in ("prefillTokens", "trainTokens", "evaluationTokens")
    }
    times = {each["time"] for each in estimates(came) if each["basis"] == "Running"}
    assert len(times) == 1, "the basis began once"
    assert came.report["estimate"]["actual"] == used["cost"]
    preflight = came.made("Preflight")
    assert preflight["inside"]
    assert preflight["relative_error"] == pytest.approx(
        float(Decimal(preflight["cost"][1]) / Decimal(used["cost"])) - 1, abs=1e-9
    )
    assert came.made("Data")["inside"]


@pytest.mark.parametrize(
    ("report", "expected_fault"),
    [
        ({}, ""),
        ({"usageByClass": {"train": 0.0}}, "trained nothing"),
        ({"usageByClass": {}}, "trained nothing"),
        ({"relative_error": -0.21}, "-21.0% off"),
        ({"inside": False}, "outside the range by Preflight"),
    ],
)
def test_the_benchmark_refuses_a_job_that_proves_nothing(report: dict[str, Any], expected_fault: str) -> None:
    preflight = {"basis": "Preflight", "relative_error": 0.19, "inside": True} | report
    made = [{"basis": "Data", "inside": True}, preflight]
    full_report = {"usageByClass": {"train": 5.0}, "estimate": {"made": made}} | report
    found = wrong([(Came(PLAYED, full_report, [], 0), 1.0)])
    assert expected_fault in "".join(found)
    assert len(found) == bool(expected_fault)


class Stage:
    """A job that has run nothing, and its estimates."""

    def __init__(self, folder: Path, **blocks: Any) -> None:
        self.folder, self.store = folder, FileStore()
        self.bench = Bench(spec(write_inputs(folder), **blocks))
        self.ready = self.bench.basics(folder)

    def estimates(self, previous: st.Estimate | None = None) -> TrainingEstimates:
        """The estimates of a new coordinator of the job, whose predecessor's estimate was `previous`."""
        ledger = Ledger(self.store, self.bench.layout)
        made = TrainingEstimates(
            self.bench.runner.spec, self.bench.layout, self.store, ledger, lambda: Tariff(DEFAULT), previous
        )
        made.planned(self.ready.data)
        made.before(self.ready, self.bench.runner)
        return made


def measured(*tokens: float) -> Measured:
    return measure([BilledGroup({"prefill": each, "sample": each}, 2) for each in tokens])


def test_an_estimate_from_data_alone_is_kept(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first = stage.estimates().status(None)
    assert first is not None
    assert first.basis == "Data"
    assert first.likely is not None
    assert first.message == "the first messages of an episode are not known"
    assert (first.episodes, first.seconds) == (0, None)
    again = stage.estimates().status(None)
    assert again == first, "a restart reads it back"


def test_a_preflight_with_too_few_groups_gives_the_reason(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    made = stage.estimates()
    for found, why in ((measured(), "no episode was measured"), (measured(5.0), "1 group of episodes")):
        made.measured(found, None)
        estimate = made.status(None)
        assert estimate is not None
        assert estimate.basis == "Data"
        assert estimate.message is not None
        assert estimate.message.startswith(why)
        assert estimate.message.endswith("so this is from data and limits")
    made.measured(None, None)
    assert made.status(None) == estimate


def test_the_preflight_estimate_survives_restarts(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    made = stage.estimates()
    made.measured(measured(400.0, 500.0, 450.0), 2.0)
    first = made.status(None)
    assert first is not None
    assert first.basis == "Preflight"
    assert first.seconds is not None
    other = stage.estimates()
    other.measured(measured(4000.0, 5000.0, 4500.0), 20.0)
    assert other.status(None) == first
    assert [sample.labels for sample in other.samples(None)] == [
        {"bound": "low"}, {"bound": "likely"}, {"bound": "high"}
    ]  # fmt: skip


def test_an_estimate_that_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.store.put(stage.bench.layout.estimate("data"), b"hello")
    estimate = stage.estimates().status(None)
    assert estimate is not None
    assert estimate.likely is not None


def test_an_amount_too_long_for_status_is_left_out() -> None:
    made = Made(
        basis="Data",
        time=datetime(2026, 11, 1, tzinfo=UTC),
        cost=("0.00", "1.00", "9" * 30),
        price_book="b@d",
    )
    estimate = of_status(made)
    assert (estimate.low, estimate.likely, estimate.high) == ("0.00", "1.00", None)


def test_a_report_shows_the_error_of_each_estimate(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    made = stage.estimates()
    likely = Decimal(made.status(None).likely or "0")  # type: ignore[union-attr]
    report = made.report(st.Usage(cost=str(likely * 2)))
    assert report["made"][0]["relative_error"] == pytest.approx(-0.5)
    assert made.report(st.Usage())["made"][0]["relative_error"] is None
    json.dumps(report)


def test_the_estimate_counts_each_prompts_own_text(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    from headway_api.sandbox_api import ResetReply

    first = ResetReply(messages=[{"role": "user", "content": "Handle this: a"}], tools=[])
    rows = [{"prompt": "a"}, {"prompt": "a" * 40}]
    short, long = prompts.lengths(first, stage.ready.renderer, rows, None, None)
    assert long > short
    assert short == len(stage.ready.renderer.render(first.messages, []))
    assert prompts.lengths(None, stage.ready.renderer, rows, None, None) == []
    assert prompts.lengths(first, stage.ready.renderer, [], None, None) == []
    many = [{"prompt": "a"}] * 1000
    assert len(prompts.lengths(first, stage.ready.renderer, many, None, None)) == 250


def test_a_failing_template_gives_no_prompt_length(tmp_path: Path) -> None:
    class Broken:
        def render(self, messages: Any, tools: Any) -> list[int]:
            raise ValueError("no template")

    from headway_api.sandbox_api import ResetReply

    first = ResetReply(messages=[{"role": "user", "content": "x"}], tools=[])
    assert prompts.lengths(first, Broken(), [{"prompt": "a"}], None, None) == []  # type: ignore[arg-type]


def test_an_estimate_is_stored_where_the_layout_says() -> None:
    layout = Layout("s3://b", "ns", "job", "uid")
    assert layout.estimate("data").endswith("/estimates/data.json")
