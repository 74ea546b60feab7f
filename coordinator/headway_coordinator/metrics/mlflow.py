"""A training job's run in MLflow: its metrics, and at the job's end its files and traces of episodes.

Everything is logged from a thread. A failing tracking server never stops training.

A coordinator that starts again logs nothing twice. The run's id is in the artifact store, or the run is found
by its tags. A metric that an earlier process may have logged is only sent if the run lacks it. A file
replaces an earlier one of the same name. The job's stored records alone decide which episodes become traces,
and a trace's id is a function of its episode.
"""

from __future__ import annotations

import logging
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from headway_api import logs, names
from headway_api.artifacts import Layout
from headway_api.status import MlflowRun
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read
from headway_api.withheld import without_secret
from headway_coordinator.metrics import traces
from headway_coordinator.metrics.traces import Traced

CLOSE_SECONDS = 15.0
UPLOAD_SECONDS = 120.0
"""The longest time for files and traces at the end of a job. The log reports the rest, which is dropped."""
MAX_WAITING = 1000
"""The most items that wait for a tracking server. Beyond that the oldest are dropped."""
BATCH = 900
"""Metrics in one request; MLflow takes at most 1,000."""
DESCRIBED_AT_ONCE = 100
"""Parameters, or tags, in one request; MLflow takes at most 100 of each."""
UID = f"{names.GROUP}/uid"
"""The tag with the uid of a run's job."""
CANDIDATE = f"{names.GROUP}/candidate"
"""The tag with the candidate of a run. An evaluation's own run and a training job's have none."""
NOW = f"{names.GROUP}/now"
"""The prefix of tags with the new values of changed parameters, because MLflow never changes a parameter."""
HTTP_ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""The variables for requests to a tracking server. A pod's own variables override them."""
NO_REDIRECTS = {"MLFLOW_ALLOW_HTTP_REDIRECTS": "false"}
"""The operator has checked the address in the spec, but not the addresses to which a server redirects."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Item:
    metrics: Mapping[str, float]
    step: int
    at_ms: int
    again: bool


@dataclass(frozen=True)
class _Tags:
    tags: Mapping[str, str]
    step: int | None = None


@dataclass(frozen=True)
class About:
    """The name, parameters and tags of a run, which describe its job."""

    name: str
    """The run's own name."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """What an ended job leaves in its run. Both functions are called in the logging thread."""

    job: str
    """The job's uid."""
    files: Callable[[], Mapping[str, bytes]]
    """Artifacts by name."""
    episodes: Callable[[], Iterable[Traced]]
    """The episodes that become traces, read one by one."""


class Mlflow:
    """One run. After a restart it is found again by its id in the artifact store, or by its tags."""

    def __init__(
        self, client: Any, uri: str, store: Store, layout: Layout, experiment: str, about: About
    ) -> None:
        self._client = client
        self._store = store
        self._server = uri
        self._kept_at = layout.mlflow_run
        self._experiment = experiment
        self._about = about
        self._described = False
        self._tags: dict[str, str] = {}
        """Tags that `tag` has added to those of `about`."""
        self._items: queue.Queue[_Item | _Tags | Ending | None] = queue.Queue(MAX_WAITING)
        self._steps: dict[str, set[int]] = {}
        """By name of a metric: the steps that the run had when they were first looked up."""
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._patience = CLOSE_SECONDS
        """The longest that `close` waits."""
        self.run: MlflowRun | None = None
        self.failures = 0
        self.dropped = 0
        """Items that were dropped because too many waited."""

    def start(self) -> None:
        """Begin to log."""
        self._thread.start()

    def log(self, metrics: Mapping[str, float], step: int, at_ms: int, *, again: bool = False) -> None:
        """Log the metrics of a step soon. Never waits.

        `again`: an earlier process may have logged them; they are only sent if the run lacks them.
        """
        self._put(_Item(dict(metrics), step, at_ms, again))

    def tag(self, tags: Mapping[str, str]) -> None:
        """Add tags to the run soon. Never waits. Repeating it changes nothing."""
        self._put(_Tags(dict(tags)))

    def finish(self, ending: Ending) -> None:
        """Upload the files of an ended job and log its traces soon. Never waits.

        `close` then waits up to `UPLOAD_SECONDS` longer.
        """
        self._patience = CLOSE_SECONDS + UPLOAD_SECONDS
        self._put(ending)

    def close(self) -> None:
        """Log what still waits, for a bounded time, and end the run. Blocking."""
        self._put(None)
        self._thread.join(self._patience)

    def _put(self, item: _Item | _Tags | Ending | None) -> None:
        """Queue an item. If there is no room, it replaces the oldest."""
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
        step = oldest.step if isinstance(oldest, _Item | _Tags) else None
        logs.event(_log, "mlflow-dropped", level=logging.WARNING, step=step, dropped=self.dropped)

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            if isinstance(item, Ending):
                self._upload(item)
            else:
                self._guarded(lambda item=item: self._send(item))
        if self.run is not None:
            run_id = self.run.run_id
            self._guarded(lambda: self._client.set_terminated(run_id))

    def _guarded(self, call: Any) -> None:
        try:
            call()
        except Exception as error:  # an optional part failed: count it, log it, and let training go on
            self.failures += 1
            logs.event(_log, "mlflow-failed", level=logging.WARNING, error=str(error), failures=self.failures)

    def _upload(self, ending: Ending) -> None:
        """Upload files and traces. If one of them fails, the other goes on."""
        until = time.monotonic() + UPLOAD_SECONDS
        self._guarded(lambda: put_files(self._client, self._known().run_id, ending.files()))
        self._guarded(lambda: self._trace(ending, until))

    def _trace(self, ending: Ending, until: float) -> None:
        from mlflow.tracing.client import TracingClient

        client = TracingClient(tracking_uri=self._server)
        traces.log(client, self._known(), ending.job, ending.episodes(), until)

    def _known(self) -> MlflowRun:
        """The run, which is found or created first."""
        self.run = self.run or self._find()
        return self.run

    def _send(self, item: _Item | _Tags) -> None:
        from mlflow.entities import Metric

        if isinstance(item, _Tags):
            self._tags |= item.tags
            self._described = False
        run = self._known()
        if not self._described:
            self._guarded(lambda: self._describe(run))
        if isinstance(item, _Tags) or (item.again and self._has(run, item)):
            return
        metrics = [Metric(name, value, item.at_ms, item.step) for name, value in item.metrics.items()]
        for some in batched(metrics, BATCH):
            self._client.log_batch(run.run_id, metrics=some)

    def _describe(self, run: MlflowRun) -> None:
        """Give the run its missing parameters, and the job's tags."""
        from mlflow.entities import Param, RunTag

        known = self._client.get_run(run.run_id).data.params
        wanted = self._about.parameters
        lacking = [Param(name, value) for name, value in wanted.items() if name not in known]
        changed = {
            f"{NOW}/{name}": value for name, value in wanted.items() if known.get(name, value) != value
        }
        tags = [RunTag(name, value) for name, value in {**self._about.tags, **changed, **self._tags}.items()]
        for parameters in batched(lacking, DESCRIBED_AT_ONCE):
            self._client.log_batch(run.run_id, params=parameters)
        for labels in batched(tags, DESCRIBED_AT_ONCE):
            self._client.log_batch(run.run_id, tags=labels)
        self._described = True

    def _has(self, run: MlflowRun, item: _Item) -> bool:
        """Whether the run has the item's metrics. They were sent together, so the first one decides."""
        name = next(iter(item.metrics))
        if name not in self._steps:
            history = self._client.get_metric_history(run.run_id, name)
            self._steps[name] = {point.step for point in history}
        return item.step in self._steps[name]

    def _find(self) -> MlflowRun:
        """The run of an earlier process of this job, or a new one."""
        try:
            kept = read(self._store, self._kept_at, MlflowRun)
            return kept.model_copy(update={"url": page(self._server, kept.experiment_id, kept.run_id)})
        except ObjectNotFoundError:
            pass
        run = run_of(self._client, self._server, self._experiment, self._about)
        self._store.put(self._kept_at, run.model_dump_json(by_alias=True).encode())
        return run


def run_of(client: Any, server: str, experiment: str, about: About) -> MlflowRun:
    """The run that an earlier process created for the same job and candidate, or a new one. Blocking.

    Args:
        client: an `mlflow.MlflowClient`; what it raises is raised.
        server: the tracking server's address.
        experiment: name of the experiment, which is created if there is none.
        about: its tags name job and candidate. A run without a uid is always new.
    """
    known = client.get_experiment_by_name(experiment)
    identity = str(known.experiment_id if known else client.create_experiment(experiment))
    run_id = _created(client, identity, about.tags)
    if run_id is None:
        run_id = str(client.create_run(identity, run_name=about.name, tags=dict(about.tags)).info.run_id)
    return MlflowRun(experiment_id=identity, run_id=run_id, url=page(server, identity, run_id))


def _created(client: Any, experiment: str, tags: Mapping[str, str]) -> str | None:
    """Id of the first run with the uid and the candidate of these tags."""
    if UID not in tags:
        return None
    # MLflow's filter cannot select runs without a tag, and a job's own run has no tag for a candidate.
    of_job = client.search_runs(
        [experiment], f"tags.`{UID}` = '{tags[UID]}'", order_by=["attributes.start_time ASC"]
    )
    wanted = tags.get(CANDIDATE)
    return next((str(run.info.run_id) for run in of_job if run.data.tags.get(CANDIDATE) == wanted), None)


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in batches of at most `size`, as `itertools.batched` from Python 3.12 on."""
    return (items[start : start + size] for start in range(0, len(items), size))


def put_files(client: Any, run: str, files: Mapping[str, str | bytes]) -> None:
    """Upload files to the artifacts of a run. Each replaces an earlier one of its name. Blocking.

    Args:
        client: an `mlflow.MlflowClient`; what it raises is raised.
        run: the run's id.
        files: content by name.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content.encode() if isinstance(content, str) else content)
        client.log_artifacts(run, folder)


def page(server: str, experiment: str, run: str) -> str:
    """Address of a run in MLflow's user interface."""
    return f"{without_secret(server).rstrip('/')}/#/experiments/{experiment}/runs/{run}"


def bound_requests() -> None:
    """Make MLflow give up soon and follow no redirect, in this process."""
    for key, value in HTTP_ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    os.environ.update(NO_REDIRECTS)


def connect(uri: str, store: Store, layout: Layout, experiment: str, about: About) -> Mlflow:
    """A logger for the tracking server at `uri`. Nothing is sent yet."""
    bound_requests()
    from mlflow import MlflowClient

    return Mlflow(MlflowClient(tracking_uri=uri), uri, store, layout, experiment, about)
