"""Writes what an evaluation found: the table, the report and the logs."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headway_analysis.comparison import Comparison
from headway_analysis.measures.candidate import priced
from headway_analysis.report.document import Finished, Standing, document
from headway_analysis.report.markdown import markdown
from headway_analysis.report.table import parquet, table
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
    """Write everything beside the ledger and the trajectories. Blocking; writing it again is harmless.

    `report.json` is written last: where it lies, the others do.
    """
    finished = _finished(run)
    report = document(finished, found)
    tries = {standing.name: standing.tries for standing in finished.standings}
    store.put(layout.results, parquet(table(tries, priced(run.book))))
    store.put(layout.report_for_people, markdown(report).encode())
    store.put(layout.report, json.dumps(report, indent=2, allow_nan=False).encode())


def _finished(run: Run) -> Finished:
    standings = [
        Standing(each.name, each.stage, each.all_tries, each.reason, each.message)
        for each in run.state.candidates.values()
    ]
    days = {day: {name.value: amount for name, amount in used.items()} for day, used in run.days.items()}
    return Finished(run.job, standings, run.state.rows, days, run.book)
