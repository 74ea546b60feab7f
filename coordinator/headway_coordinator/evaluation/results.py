"""Writes an evaluation's results: the table, the report, the logs, and the runs in MLflow."""

from __future__ import annotations

import errno
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headway_analysis.billing.segments import Days
from headway_analysis.comparison import Comparison
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.metrics import Metrics, evaluation
from headway_analysis.report import inspect_log
from headway_analysis.report.document import CandidateTries, Finished, document
from headway_analysis.report.inspect_log import PlayedEpisode
from headway_analysis.report.markdown import markdown
from headway_analysis.report.table import parquet, plain, table
from headway_api import logs
from headway_api.artifacts import GROUPS, Layout, written
from headway_api.config import EvalConfig
from headway_api.prices import PriceBook
from headway_api.records import GroupRecord
from headway_api.status import MlflowRun
from headway_api.store import Store
from headway_api.stored import read_each
from headway_coordinator import spool
from headway_coordinator.evaluation.state import EvalState
from headway_coordinator.metrics import evaluations

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Error numbers that say that the local disk accepts no more data."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A finished evaluation."""

    job: EvalConfig
    state: EvalState
    days: Days
    book: PriceBook
    estimate: Mapping[str, Any] | None = None
    """The estimated cost, for comparison with the actual cost."""


@dataclass(frozen=True)
class Written:
    """The results of an evaluation, as they were written."""

    run: Finished
    report: Mapping[str, Any]
    """The report, as `report.document` makes it."""
    text: str
    """The report for people, in Markdown."""


def write(store: Store, layout: Layout, run: Run, found: Comparison) -> Written:
    """Write all results except the ledger and the trajectories, which exist already.

    This blocks, and must be called outside an event loop. It may be called again. `report.json` is the last
    file: if it exists, the others do too.
    """
    finished = _finished(run)
    report = document(finished, found)
    tries = {standing.name: standing.tries for standing in finished.standings}
    text = markdown(report)
    store.put(layout.results, parquet(table(tries, priced(run.book))))
    store.put(layout.report_for_people, text.encode())
    for standing in finished.standings:
        if standing.tries:
            _log_of(store, layout, finished, standing, found)
    store.put(layout.report, json.dumps(report, indent=2, allow_nan=False).encode())
    return Written(finished, report, text)


def _finished(run: Run) -> Finished:
    standings = [
        CandidateTries(each.name, each.stage, each.all_tries, each.reason, each.message, each.dropped)
        for each in run.state.candidates.values()
    ]
    days = {day: {str(name): amount for name, amount in used.items()} for day, used in run.days.items()}
    return Finished(run.job, standings, run.state.rows, days, run.book, run.estimate)


def _log_of(store: Store, layout: Layout, run: Finished, standing: CandidateTries, found: Comparison) -> None:
    """Write the Inspect log of one candidate. The log only shows trajectories, so its errors fail no job."""
    name, estimates = standing.name, found.estimates.get(standing.name, {})
    with ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()), f"{name}.eval")
            inspect_log.write(path, run, standing, estimates, played(store, layout, standing))
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError) as error:
            # A full disk is only logged. Any other OSError may come from the store, which may be unavailable
            # for a while. So it is raised, and the writing is retried.
            if isinstance(error, OSError) and error.errno not in FULL:
                raise
            text = f"{type(error).__name__}: {error}"
            logs.event(_log, "inspect-log-failed", level=logging.WARNING, candidate=name, error=text)
            return
        store.upload(path, layout.log(name))


def played(store: Store, layout: Layout, standing: CandidateTries) -> Iterator[PlayedEpisode]:
    """The tries of a candidate with their episodes and discarded attempts, by row. Groups are read lazily."""
    by_episode = {each.episode_id: each for each in standing.tries}
    for group in _groups(store, layout, standing):
        for episode in group.episodes:
            if (one := by_episode.get(episode.episode_id)) is not None:
                yield one, episode, [each for each in group.discarded if each.index == episode.index]


def _groups(store: Store, layout: Layout, standing: CandidateTries) -> Iterator[GroupRecord]:
    """The groups of a candidate's tries, including those without a scored episode, by row."""
    tries = {each.episode_id for each in standing.tries}
    mine = f"{layout.failed_groups}/e-{standing.name}-"
    failed = written(store.list(layout.failed_groups), layout.failed_groups, GROUPS)
    folder = layout.evaluation_groups(standing.name)
    uris = written(store.list(folder), folder, GROUPS)
    uris += [uri for uri in failed if uri.startswith(mine)]
    for group in read_each(store, uris, spool.decode):
        if any(episode.episode_id in tries for episode in group.episodes):
            yield group


def _metrics(store: Store, layout: Layout, run: Finished, standing: CandidateTries) -> Metrics:
    """A candidate's metrics on the job's own rows, with the same names as a validation's metrics."""
    spec = run.job.spec
    measure, agent = spec.evaluation, spec.agent
    found = [group for group in _groups(store, layout, standing) if group.suite is None]
    turns = agent.effective_builtin.max_turns if agent.is_builtin else None
    return evaluation(found, measure.pass_k, measure.success_threshold, "eval", max_turns=turns)


def track(store: Store, layout: Layout, results: Written, found: Callable[[MlflowRun], None]) -> None:
    """Log the results to MLflow if the spec asks for it. `found` is called once the job's MLflow run exists.

    This blocks, as `write` does. Call it after `report.html` is written, because the run gets that file too.
    """
    run = results.run
    wanted, job = run.job.spec.tracking.mlflow, run.job
    if wanted is None:
        return
    by_name = {standing.name: standing for standing in run.standings}
    price = priced(run.book)
    content = evaluations.Content(
        job,
        results.report,
        results.text,
        lambda name: parquet(table({name: by_name[name].tries}, price)),
        lambda name: plain(table({name: by_name[name].tries}, price)),
        lambda name: _metrics(store, layout, run, by_name[name]),
        lambda name: played(store, layout, by_name[name]),
    )
    experiment = wanted.experiment or f"{job.namespace}/{job.name}"
    evaluations.publish(wanted.uri, experiment, store, layout, content, found)
