"""The same figures in MLflow, logged from a thread: a tracking server that fails never stops training."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway_api import logs
from headway_api.artifacts import Layout
from headway_api.status import MlflowRun
from headway_api.store import NotFound, Store

CLOSE_SECONDS = 15.0
WAITING_MOST = 1000
"""Steps' figures that wait for a tracking server; beyond it the oldest are dropped."""
BATCH = 900
"""Metrics in one request; MLflow takes at most 1,000."""
HTTP_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Item:
    figures: Mapping[str, float]
    step: int
    at_ms: int
    again: bool


class Mlflow:
    """One run, found again after a restart by the id kept in the artifact store."""

    def __init__(self, client: Any, store: Store, layout: Layout, experiment: str, name: str) -> None:
        self._client = client
        self._store = store
        self._uri = layout.mlflow_run
        self._experiment = experiment
        self._name = name
        self._items: queue.Queue[_Item | None] = queue.Queue(WAITING_MOST)
        self._steps: dict[str, set[int]] = {}
        """Steps of which an earlier process logged a figure, by its name, as far as that was asked."""
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self.run: MlflowRun | None = None
        self.failures = 0
        self.dropped = 0
        """Items that were never sent, because too many waited."""

    def start(self) -> None:
        """Begin to log."""
        self._thread.start()

    def log(self, figures: Mapping[str, float], step: int, at_ms: int, *, again: bool = False) -> None:
        """Log the figures of a step, some time soon; never waits.

        `again`: an earlier process may have done so; they are sent only if the run lacks them.
        """
        self._put(_Item(dict(figures), step, at_ms, again))

    def close(self) -> None:
        """Log what is still waiting, for at most `CLOSE_SECONDS`, and end the run. Blocking."""
        self._put(None)
        self._thread.join(CLOSE_SECONDS)

    def _put(self, item: _Item | None) -> None:
        """Queue an item, in the place of the oldest where there is no room."""
        while True:
            try:
                self._items.put_nowait(item)
                return
            except queue.Full:
                self._drop()

    def _drop(self) -> None:
        try:
            oldest = self._items.get_nowait()
        except queue.Empty:  # the thread took it meanwhile
            return
        self.dropped += 1
        step = oldest.step if oldest else None
        logs.event(_log, "mlflow-dropped", level=logging.WARNING, step=step, dropped=self.dropped)

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            self._guarded(lambda item=item: self._send(item))
        if self.run is not None:
            run_id = self.run.run_id
            self._guarded(lambda: self._client.set_terminated(run_id))

    def _guarded(self, call: Any) -> None:
        try:
            call()
        except Exception as error:  # the boundary to an optional part: counted, said, and training goes on
            self.failures += 1
            logs.event(_log, "mlflow-failed", level=logging.WARNING, error=str(error), failures=self.failures)

    def _send(self, item: _Item) -> None:
        from mlflow.entities import Metric

        run = self.run = self.run or self._find()
        if item.again and self._has(run, item):
            return
        metrics = [Metric(name, value, item.at_ms, item.step) for name, value in item.figures.items()]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(run.run_id, metrics=metrics[start : start + BATCH])

    def _has(self, run: MlflowRun, item: _Item) -> bool:
        """Whether the run has the item's figures: they were sent together, so the first tells of all."""
        name = next(iter(item.figures))
        if name not in self._steps:
            history = self._client.get_metric_history(run.run_id, name)
            self._steps[name] = {point.step for point in history}
        return item.step in self._steps[name]

    def _find(self) -> MlflowRun:
        """The run of an earlier process of this job, else a new one."""
        try:
            return MlflowRun.model_validate_json(self._store.get(self._uri))
        except NotFound:
            pass
        found = self._client.get_experiment_by_name(self._experiment)
        identity = found.experiment_id if found else self._client.create_experiment(self._experiment)
        created = self._client.create_run(identity, run_name=self._name)
        run = MlflowRun(experiment_id=str(identity), run_id=str(created.info.run_id))
        self._store.put(self._uri, run.model_dump_json(by_alias=True).encode())
        return run


def connect(uri: str, store: Store, layout: Layout, experiment: str, name: str) -> Mlflow:
    """A logger for the tracking server at `uri`; nothing is sent yet."""
    import os

    for key, value in HTTP_ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    from mlflow import MlflowClient

    return Mlflow(MlflowClient(tracking_uri=uri), store, layout, experiment, name)
