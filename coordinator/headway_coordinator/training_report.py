"""The report of a finished training job: what it achieved, used and cost."""

from __future__ import annotations

from typing import Any

from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import projections
from headway_coordinator.estimate.job import TrainingEstimates
from headway_coordinator.ledger.books import Books
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.remedies import shown
from headway_coordinator.training import Training


def training_report(
    name: str,
    spec: RLTrainingJobSpec,
    training: Training,
    layout: Layout,
    ledger: Ledger,
    books: Books,
    usage: st.Usage,
    estimates: TrainingEstimates,
) -> dict[str, Any]:
    """What `report.json` contains."""
    report = projections.report(
        name, training.remedies.now, layout, training.state, ledger.days, books.now, ledger.episodes
    )
    report["usage"] = usage.as_object()
    report["priceEditions"] = [each.model_dump(mode="json") for each in books.editions]
    report["estimate"] = estimates.report(usage)
    report["remedies"] = shown.report(training.remedies.course, spec)
    return report
