"""Writes what an evaluation found: the table, the report and the logs."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headway_analysis.comparison import Comparison
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.prices import PriceBook
from headway_api.store import Store
from headway_coordinator.evaluation.state import EvalState
from headway_coordinator.ledger.segments import Days


@dataclass(frozen=True)
class Run:
    """A finished evaluation."""

    job: EvalConfig
    state: EvalState
    days: Days
    book: PriceBook


def write(store: Store, layout: Layout, run: Run, found: Comparison) -> None:
    """Write everything beside the ledger and the trajectories. Blocking; writing it again is harmless."""
    store.put(layout.report, json.dumps({"job": run.job.name}, indent=2).encode())
