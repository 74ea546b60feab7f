"""Checkpoints in the status: one to resume from, and weights that other tools can load."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from episodes import version

from headway_analysis.measures.episodes import Evaluation, ranked
from headway_api.artifacts import Layout
from headway_api.records import Canary, StepReport, WeightsManifest
from headway_api.status import Checkpoints
from headway_api.store import FileStore
from headway_api.weights_format import EXPORT_FILE, MODEL_FILE
from headway_coordinator import projections, whole_weights
from headway_coordinator.state import State

LAYOUT = Layout("s3://b/runs", "team", "refunds", "u-1")
CANARY = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=0.1)


def report(step: int, **described: Any) -> StepReport:
    """The learner's report of a step."""
    content = {"version": version(step), "kind": "lora", "uri": LAYOUT.weights(step), "files": []}
    weights = WeightsManifest.model_validate({**content, "canary": CANARY, **described})
    return StepReport(
        step=step,
        version=version(step),
        groups=[],
        train_tokens={},
        weights=weights,
        durable=step,
        metrics={},
    )


def shown(steps: int, scores: dict[int, float]) -> Checkpoints | None:
    """The checkpoints in the status after `steps` steps. `scores` has a validated step's external score."""
    evaluations = [Evaluation(step, 0.0, score, 0.0, 8, 0) for step, score in scores.items()]
    return projections.checkpoints(
        LAYOUT, State(reports=[report(step) for step in range(steps + 1)]), evaluations
    )


def test_newest_is_a_checkpoint_and_best_is_loadable_weights() -> None:
    found = shown(10, {0: 0.2, 5: 0.6, 10: 0.4})
    assert found is not None
    assert found.as_object() == {
        "latest": {"step": 10, "uri": "s3://b/runs/team/refunds/u-1/checkpoints/000010"},
        "best": {"step": 5, "uri": "s3://b/runs/team/refunds/u-1/weights/000005"},
        "adapter": {"step": 10, "uri": "s3://b/runs/team/refunds/u-1/weights/000010"},
    }


def lossy(step: int, score: float, scored: int, failed: int) -> Evaluation:
    return Evaluation(step, 0.0, score, 0.0, scored, failed)


def test_a_validation_that_lost_most_episodes_is_not_the_best() -> None:
    few, all_of_them = lossy(5, 0.61, 12, 88), lossy(10, 0.60, 100, 0)
    state = State(evaluations={e.step: e for e in (few, all_of_them)})
    assert state.validated == [10, 5]
    assert projections.best([few, all_of_them]) == all_of_them
    found = projections.validation([few, all_of_them])
    assert found is not None
    assert found.best is not None
    assert (found.best.step, found.best.external_score) == (10, "0.6")


def test_an_interval_is_shown_only_for_its_own_validation() -> None:
    found = [lossy(5, 0.61, 100, 0), lossy(10, 0.60, 100, 0)]
    for step, shown in ((10, "0.60 ± 0.05"), (5, None)):
        validation = projections.validation(found, (step, "0.60 ± 0.05"))
        assert validation is not None
        assert validation.score == shown


def test_validations_with_similar_losses_compare_by_score() -> None:
    assert [e.step for e in ranked([lossy(1, 0.60, 100, 0), lossy(2, 0.61, 95, 5)])] == [2, 1]
    assert [e.step for e in ranked([lossy(1, 0.60, 100, 0), lossy(2, 0.61, 94, 6)])] == [1, 2]
    # If every validation lost episodes, each is compared with the one that lost the fewest.
    worse = [lossy(1, 0.60, 80, 20), lossy(2, 0.61, 78, 22), lossy(3, 0.62, 12, 88)]
    assert [e.step for e in ranked(worse)] == [2, 1, 3]
    assert ranked([lossy(4, 0.0, 0, 100)]) == [lossy(4, 0.0, 0, 100)]


def test_without_a_validation_there_is_no_best_step() -> None:
    found = shown(3, {})
    assert found is not None
    assert (found.best, found.adapter and found.adapter.step) == (None, 3)


LINK = {"version": version(0), "uri": "s3://b/w", "files": []}
SOURCE = {"host": "learner", "port": 8310, "header": "0" * 64}


@pytest.mark.parametrize(
    "described", [{"kind": "delta", "chain": [LINK]}, {"kind": "direct", "direct": SOURCE}]
)
def test_loadable_weights_are_whole_or_the_exported_last_step(
    described: dict[str, Any],
) -> None:
    reports = [report(0, kind="full"), report(1, kind="full", direct=SOURCE), report(2, **described)]
    scores = [Evaluation(step, 0.0, score, 0.0, 8, 0) for step, score in enumerate((0.1, 0.2, 0.9))]
    for finished, exported, step in (None, False, 1), ("MaxSteps", False, 1), ("MaxSteps", True, 2):
        state = State(reports=reports, finished=finished, exported=exported)  # type: ignore[arg-type]
        found = projections.checkpoints(LAYOUT, state, scores)
        assert found is not None
        assert (found.adapter and found.adapter.step, found.best and found.best.step) == (step, step)
        assert found.adapter == found.best


def test_best_excludes_a_former_last_step_never_exported() -> None:
    """The step was going to be the last when it was validated, but then maxSteps was raised."""
    delta = {"kind": "delta", "chain": [LINK]}
    reports = [report(0, kind="full"), report(1, kind="full"), report(2, **delta), report(3, kind="full")]
    scores = [Evaluation(step, 0.0, score, 0.0, 8, 0) for step, score in enumerate((0.1, 0.5, 0.9, 0.3))]
    found = projections.checkpoints(
        LAYOUT, State(reports=reports, finished="MaxSteps", exported=True), scores
    )
    assert found is not None
    assert (found.best and found.best.step, found.adapter and found.adapter.step) == (1, 3)


def test_no_weights_are_named_if_none_are_loadable() -> None:
    found = projections.checkpoints(LAYOUT, State(reports=[report(0, kind="delta", chain=[LINK])]), [])
    assert found is not None
    assert (found.best, found.adapter) == (None, None)


async def test_the_end_waits_for_the_learners_last_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_weights, "EXPORT_POLL_SECONDS", 0.01)
    store = FileStore()
    newest = report(2, kind="delta", chain=[LINK], uri=f"file://{tmp_path}/000002").weights
    waiting = asyncio.create_task(whole_weights.until_whole(store, newest))
    marker = f"{newest.uri}/{EXPORT_FILE}"
    for uri, content in (
        (f"{newest.uri}/{MODEL_FILE}", b"a model that was here before"),
        (marker, version(2, incarnation=7).model_dump_json().encode()),
    ):
        store.put(uri, content)
        await asyncio.sleep(0.2)
        assert not waiting.done()
    store.put(marker, newest.version.model_dump_json().encode())
    async with asyncio.timeout(5):
        await waiting


def test_no_checkpoint_is_shown_before_the_first_report() -> None:
    assert projections.checkpoints(LAYOUT, State(), []) is None
