"""An evaluation's preflight refuses a gate on a task, a cost or a tool that no measure would report."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from evaluation_rig import spec

from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.prices import DEFAULT, DatedPrices, PriceBook
from headway_api.sandbox_api import ResetReply
from headway_api.status import Check, Preflight, ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator.preflight import gate as gate_checks
from headway_coordinator.preflight.evaluation import EvalRunner

SUITES = [
    {"name": "sums", "image": "i", "task": "a.py@sums", "limit": 3},
    {"name": "facts", "image": "i", "task": "pkg/facts", "limit": 2, "epochs": 3},
]
TODAY = date(2026, 11, 30)

KINDS = [{"prompt": "a", "kind": "refund"}, {"prompt": "b", "kind": "order"}, {"prompt": "c", "kind": "rare"}]


def gated(folder: Path, column: str | None = "kind", **gate: Any) -> EvalRunner:
    """The preflight of a job with a gate. The job measures the first two of three rows."""
    (folder / "t.json").write_text(json.dumps(KINDS))
    return EvalRunner(
        spec(
            suites=SUITES,
            data={"uri": f"file://{folder}/t.json"} | ({"taskColumn": column} if column else {}),
            evaluation={"maxRows": 2, "sampling": {"temperature": 1.0}},
            gate={"candidate": "tuned", "mustBeat": "base"} | gate,
        ),
        lambda report: None,
    )


@pytest.mark.parametrize(
    ("gate", "field"),
    [
        ({"task": "refunds"}, "spec.gate.task"),
        ({"task": "rare"}, "spec.gate.task"),  # beyond maxRows
        ({"noWorse": [{"metric": "success", "task": "sum"}]}, "spec.gate.noWorse[0].task"),
        (
            {"noWorse": [{"metric": "success", "task": "sums"}, {"metric": "success", "task": "odrer"}]},
            "spec.gate.noWorse[1].task",
        ),
    ],
)
def test_a_gate_on_a_task_that_is_not_measured_is_refused(
    tmp_path: Path, gate: dict[str, Any], field: str
) -> None:
    with pytest.raises(JobError) as caught:
        gated(tmp_path, **gate).rows(FileStore())
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("GateTaskUnknown", field)
    assert termination.message.endswith("write one of all, sums, facts, order, refund")


def test_a_gate_on_a_task_of_the_rows_needs_their_column(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"write one of all, sums, facts, or give spec\.data\.taskColumn"):
        gated(tmp_path, None, task="order").rows(FileStore())


@pytest.mark.parametrize(
    "gate",
    [{}, {"task": "order"}, {"task": "sums", "noWorse": [{"metric": "success", "task": "all"}]}],
)
def test_a_gate_on_a_measured_task_is_accepted(tmp_path: Path, gate: dict[str, Any]) -> None:
    assert len(gated(tmp_path, **gate).rows(FileStore())) == 2


def test_many_tasks_are_not_all_listed() -> None:
    rows = [{"kind": f"task-{number:03d}"} for number in range(100)]
    data = {"uri": "s3://b/t.jsonl", "taskColumn": "kind"}
    with pytest.raises(JobError) as caught:
        gate_checks.check_tasks(
            spec(data=data, gate={"candidate": "tuned", "minimum": "0.5", "task": "no"}), rows
        )
    assert caught.value.termination.message.endswith("task-021, task-022, ...")


CANDIDATES = [
    {"name": "base", "model": {"base": "s3://b/m"}},
    {"name": "tuned", "model": {"base": "s3://b/n"}},
    {"name": "frontier", "endpoint": {"url": "https://x/v1", "model": "large"}},
    {"name": "again", "rescore": {"uri": "s3://b/run", "step": 3}},
]
KIND = {"model": "Model", "endpoint": "Endpoint", "rescore": "Rescore"}


def job(**gate: Any) -> EvalConfig:
    resolved = [
        ResolvedCandidate.model_validate(
            {"name": each["name"], "kind": next(KIND[key] for key in KIND if key in each)}
            | ({"base": each["model"]["base"], "serverSet": 0} if "model" in each else {})  # type: ignore[index]
        )
        for each in CANDIDATES
    ]
    of = spec(candidates=CANDIDATES, suites=SUITES, gate=gate)
    return EvalConfig(name="j", namespace="ns", uid="uid", spec=of, candidates=tuple(resolved))


def priced(models: dict[str, Any] | None = None, **prices: str) -> DatedPrices:
    """Today's prices of a book with one entry."""
    entry = {"since": "2026-01-01", "prices": prices, "models": models or {}}
    return PriceBook.model_validate({"name": "own", "entries": [entry]}).of("").on(TODAY)


SERVED = {"evaluationPrefill": "1", "evaluationCachedPrefill": "1", "evaluationSample": "1"}
ELSEWHERE = {"endpointPrompt": "1", "endpointSample": "1"}


@pytest.mark.parametrize(
    ("gate", "book", "field", "missing"),
    [
        (
            {"candidate": "frontier", "metric": "cost", "mustBeat": "base"},
            DEFAULT.on(TODAY),
            "spec.gate.metric",
            "endpointPrompt:large, endpointSample:large",
        ),
        (
            {"candidate": "base", "metric": "cost_per_success", "mustBeat": "frontier"},
            priced(**SERVED, endpointPrompt="1", sandboxSeconds="0"),
            "spec.gate.metric",
            "endpointSample:large",
        ),
        (
            {"candidate": "tuned", "mustBeat": "base", "noWorse": [{"metric": "turns"}, {"metric": "cost"}]},
            priced(**SERVED),
            "spec.gate.noWorse[1].metric",
            "sandboxSeconds",
        ),
        (
            {"candidate": "tuned", "mustBeat": "base", "noWorse": [{"metric": "cost"}]},
            priced(sandboxSeconds="0", evaluationPrefill="1", evaluationCachedPrefill="1"),
            "spec.gate.noWorse[0].metric",
            "evaluationSample:s3://b/n",
        ),
    ],
)
def test_a_gate_on_a_cost_without_a_price_is_refused(
    gate: dict[str, Any], book: DatedPrices, field: str, missing: str
) -> None:
    found = job(**gate)
    shown: list[Preflight] = []
    with pytest.raises(JobError) as caught:
        EvalRunner(found.spec, shown.append).gate_prices(found, book)
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("GateCostUnknown", field)
    assert f"the price book has no price for {missing}. Add these prices" in termination.message
    assert shown[-1].state == "Failed"


@pytest.mark.parametrize(
    ("gate", "book"),
    [
        ({"candidate": "tuned", "metric": "cost", "mustBeat": "base"}, DEFAULT.on(TODAY)),
        (
            {"candidate": "frontier", "metric": "cost", "mustBeat": "base"},
            priced({"large": ELSEWHERE}, **SERVED, sandboxSeconds="0"),
        ),
        ({"candidate": "again", "metric": "cost", "mustBeat": "base"}, priced(**SERVED, sandboxSeconds="0")),
    ],
)
def test_a_gate_on_a_cost_with_prices_is_accepted(gate: dict[str, Any], book: DatedPrices) -> None:
    assert gate_checks.check_prices(job(**gate), book).startswith("every class of usage of")


def test_a_gate_on_no_cost_needs_no_prices() -> None:
    found = job(candidate="frontier", mustBeat="base")
    shown: list[Preflight] = []
    EvalRunner(found.spec, shown.append).gate_prices(found, priced())
    assert shown == []


def first(*tools: str) -> ResetReply:
    """An environment's answer to a reset that offers these tools."""
    return ResetReply(messages=[], tools=[{"type": "function", "function": {"name": each}} for each in tools])


@pytest.mark.parametrize(
    ("gate", "field", "name"),
    [
        ({"metric": "tool_calls_serach", "mustBeat": "base"}, "spec.gate.metric", "serach"),
        (
            {"mustBeat": "base", "noWorse": [{"metric": "turns"}, {"metric": "tool_calls_a_b"}]},
            "spec.gate.noWorse[1].metric",
            "a_b",
        ),
    ],
)
def test_a_gate_on_a_tool_that_is_not_offered_is_refused(gate: dict[str, Any], field: str, name: str) -> None:
    with pytest.raises(JobError) as caught:
        gate_checks.check_tools(job(candidate="tuned", **gate).spec, first("search", "open"))
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("GateToolUnknown", field)
    assert f"has no tool {name} in the first row; it has search, open." in termination.message


@pytest.mark.parametrize(
    ("gate", "changes"),
    [
        ({"candidate": "tuned", "metric": "tool_calls_look_up"}, {}),
        ({"candidate": "tuned", "metric": "tool_calls_other", "task": "sums"}, {}),
        ({"candidate": "again", "metric": "tool_calls_other"}, {}),
        ({"candidate": "tuned", "metric": "tool_calls_other"}, {"agent": {"sandboxed": {"command": ["a"]}}}),
    ],
    ids=["a tool's name in a measure", "a suite's tool", "a stored run", "an agent with its own loop"],
)
def test_a_gate_on_a_possibly_offered_tool_is_accepted(gate: dict[str, Any], changes: dict[str, Any]) -> None:
    of = spec(candidates=CANDIDATES, suites=SUITES, gate={"mustBeat": "base"} | gate, **changes)
    assert gate_checks.check_tools(of, first("look.up")) == "the gate's metrics can be reported"


def test_the_preflight_runs_the_check_of_tools() -> None:
    runner = EvalRunner(
        job(candidate="tuned", metric="tool_calls_x", mustBeat="base").spec, lambda report: None
    )
    runner._try("Gate", lambda: gate_checks.check_tools(runner.spec, first("y")))
    [failed] = runner.failed
    assert isinstance(failed, Check)
    assert (failed.name, failed.field) == ("Gate", "spec.gate.metric")
