"""An evaluation in MLflow: a run for the job, below it one for each candidate, and a trace for each episode.

The evaluation is logged once, at the end of the job. A failing tracking server never fails the job. The
coordinator's log lists what the server did not take, and the artifact store has everything.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final

from headway_analysis.measures.candidate import ALL
from headway_analysis.measures.names import hashed
from headway_analysis.report.inspect_log import PlayedEpisode
from headway_api import logs, names
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.finishing import TRACKING_SECONDS
from headway_api.status import MlflowRun
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read
from headway_coordinator.metrics import traces
from headway_coordinator.metrics.mlflow import (
    BATCH,
    DESCRIBED_AT_ONCE,
    About,
    batched,
    bound_requests,
    put_files,
    run_of,
)
from headway_coordinator.metrics.parameters import written

MAX_TRACES: Final = 10_000
"""The most episodes of a job that become traces, in equal numbers for each candidate, from the first rows.
The Inspect logs have all of them."""
MAX_SECONDS: Final = TRACKING_SECONDS - 60.0
"""The time after which no more traces are sent. The log reports the rest, which is dropped."""
MAX_LINES: Final = 10_000
"""The most tries of a candidate in MLflow's own table; `results.parquet` beside it has all of them."""
TABLE: Final = "results.json"
MAX_NAME: Final = 120
TAKEN: Final = re.compile(
    r"(mean|std|min|max)(_within_groups)?|(failed|succeeded)_rollouts|success_threshold|num_prompts"
    r"|rollouts_per_prompt|zero_frac|\w+_(rate|share)|pass_\w+_\d+"
)
"""Last parts of the names in `Content.metrics`, such as `mean` in `eval/reward/mean`. A task that has such a
name gets a hash, so that no two metrics share a name."""
ENDS: Final = re.compile(r".*_(low|high|p_holm)")
"""The suffixes of the bounds of an interval, and of a p value."""
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.\- /]")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Content:
    """A finished evaluation in the form for MLflow."""

    job: EvalConfig
    report: Mapping[str, Any]
    """The report, as `report.document` makes it."""
    text: str
    """The report for people."""
    parquet: Callable[[str], bytes]
    """A candidate's part of the table, as a file."""
    lines: Callable[[str], list[dict[str, Any]]]
    """A candidate's part of the table, as plain rows."""
    metrics: Callable[[str], Mapping[str, float]]
    """A candidate's metrics under SageMaker MTRL's names, `eval/*`."""
    episodes: Callable[[str], Iterable[PlayedEpisode]]
    """A candidate's episodes, one by one."""


def publish(
    uri: str,
    experiment: str,
    store: Store,
    layout: Layout,
    content: Content,
    found: Callable[[MlflowRun], None],
) -> None:
    """Log everything to the tracking server at `uri`. `found` gets the job's run as soon as it exists.

    Blocking. Logging it again, after a restart, changes nothing.
    """
    bound_requests()
    try:
        publisher = Publisher(uri, experiment, store, layout, content)
        run = publisher.run()
        found(run)
        publisher.parent(run)
        publisher.candidates(run)
    except Exception as error:  # an optional part failed: log it, and let the job go on to its end
        logs.event(_log, "mlflow-failed", level=logging.WARNING, error=str(error))


class Publisher:
    """Logs one evaluation. Its calls raise what MLflow raises."""

    def __init__(self, uri: str, experiment: str, store: Store, layout: Layout, content: Content) -> None:
        from mlflow import MlflowClient
        from mlflow.tracing.client import TracingClient

        self._uri = uri
        self._experiment = experiment
        self._store = store
        self._layout = layout
        self._content = content
        self._client = MlflowClient(tracking_uri=uri)
        self._traces = TracingClient(tracking_uri=uri)
        self._ends = time.monotonic() + MAX_SECONDS
        self._at = ended_ms(content.report)

    def run(self) -> MlflowRun:
        """The job's own run, with the gate's verdict."""
        job, gate = self._content.job, self._content.report["gate"]
        tags = {"gate": gate["verdict"]} if gate is not None else {}
        return self._run(self._layout.mlflow_run, f"{job.name}-{job.uid[:8]}", tags)

    def parent(self, run: MlflowRun) -> None:
        """Log the parameters and the report to the job's own run."""
        report = self._content.report
        self._params(run, settings(report["job"]))
        files: dict[str, str | bytes] = {
            "report.json": json.dumps(report, indent=2),
            "report.md": self._content.text,
        }
        with suppress(ObjectNotFoundError):  # writing the page may have failed, which fails no job
            files["report.html"] = self._store.get(self._layout.page)
        put_files(self._client, run.run_id, files)
        self._client.set_terminated(run.run_id)

    def candidates(self, parent: MlflowRun) -> None:
        """Log a run below the job's for each measured candidate. If one fails, the others go on.

        All metrics are sent before the traces, because a slow server may take only some of the traces.
        """
        measured = [each for each in self._content.report["candidates"] if each["tries"]]
        runs = dict[str, MlflowRun]()
        for candidate in measured:
            with _others_go_on(candidate["name"]):
                runs[candidate["name"]] = self._log_metrics(candidate, parent)
        for candidate in measured:
            if (run := runs.get(candidate["name"])) is not None:
                with _others_go_on(candidate["name"]):
                    self._episodes(run, candidate, MAX_TRACES // len(measured))

    def _log_metrics(self, candidate: Mapping[str, Any], parent: MlflowRun) -> MlflowRun:
        """Log a candidate's parameters, metrics and files. Returns its run, which has not ended."""
        from mlflow.entities import Metric

        name, content = candidate["name"], self._content
        tags = {"candidate": name, "state": candidate["state"]}
        run = self._run(self._layout.mlflow_run_of(name), name, tags, parent)
        self._params(run, parameters(candidate, content.report["job"]))
        found = {**content.metrics(name), **metrics(candidate, content.report)}
        for some in batched([Metric(key, value, self._at, 0) for key, value in found.items()], BATCH):
            self._client.log_batch(run.run_id, metrics=some)
        table = as_table(content.lines(name)[:MAX_LINES])
        files: dict[str, str | bytes] = {
            "results.parquet": content.parquet(name),
            TABLE: table,
            "report.md": content.text,
        }
        put_files(self._client, run.run_id, files)
        self._client.set_tag(
            run.run_id, "mlflow.loggedArtifacts", json.dumps([{"path": TABLE, "type": "table"}])
        )
        return run

    def _run(
        self, kept_at: str, name: str, tags: Mapping[str, str], parent: MlflowRun | None = None
    ) -> MlflowRun:
        """The run of an earlier process, or a new one."""
        job = self._content.job
        tags = {"job": job.name, "namespace": job.namespace, "uid": job.uid, "kind": job.kind, **tags}
        labels = {f"{names.GROUP}/{key}": value for key, value in tags.items()}
        if parent is not None:
            labels["mlflow.parentRunId"] = parent.run_id
        try:
            return read(self._store, kept_at, MlflowRun)
        except ObjectNotFoundError:
            pass
        run = run_of(self._client, self._uri, self._experiment, About(name, tags=labels))
        self._store.put(kept_at, run.model_dump_json(by_alias=True).encode())
        return run

    def _params(self, run: MlflowRun, wanted: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        for some in batched([Param(key, value) for key, value in wanted.items()], DESCRIBED_AT_ONCE):
            self._client.log_batch(run.run_id, params=some)

    def _episodes(self, run: MlflowRun, candidate: Mapping[str, Any], limit: int) -> None:
        """Log traces of the first episodes, and end the candidate's run."""
        name = candidate["name"]
        played = islice(self._content.episodes(name), limit)
        found = (traces.Traced(one, episode) for one, episode, _ in played)
        traces.log(self._traces, run, self._content.job.uid, found, self._ends, candidate=name)
        self._client.set_terminated(run.run_id, "FAILED" if candidate["state"] == "Failed" else "FINISHED")


@contextmanager
def _others_go_on(candidate: str) -> Iterator[None]:
    """Log a failure of one candidate: it says nothing about the others."""
    try:
        yield
    except Exception as error:  # an optional part failed: log it, and let the job go on to its end
        logs.event(_log, "mlflow-failed", level=logging.WARNING, candidate=candidate, error=str(error))


def metrics(candidate: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, float]:
    """A candidate's metrics: `eval/<measure>`, with `_low` and `_high` for its interval.

    Names for a task or suite end with `/<task>`. Differences from the baseline are
    `eval/difference/<measure>`, followed by the task or suite if there is one.
    """
    found: dict[str, float | None] = {}
    for task, of in candidate["measures"].items():
        behind = "" if task == ALL else f"/{shown_task(task)}"
        for name, each in of.items():
            measure = shown_measure(name)
            found[f"eval/{measure}{behind}"] = each["value"]
            found |= {f"eval/{measure}_{end}{behind}": each[end] for end in ("low", "high")}
    found |= _differences(candidate["name"], report["differences"], "")
    for task, of in (*report["suites"].items(), *report["tasks"].items()):
        found |= _differences(candidate["name"], of["differences"], f"/{shown_task(task)}")
    return {name: value for name, value in found.items() if value is not None}


def _differences(candidate: str, differences: Mapping[str, Any], behind: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, by_candidate in differences.items():
        measure = shown_measure(name)
        if (each := by_candidate.get(candidate)) is not None:
            found[f"eval/difference/{measure}{behind}"] = each["value"]
            for end in ("low", "high", "p_holm"):
                found[f"eval/difference/{measure}_{end}{behind}"] = each[end]
    return found


def parameters(candidate: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, str]:
    """The candidate's model and the settings of its measurement, as parameters of its run."""
    return {**dict(flat("candidate", candidate["model"])), **settings(job)}


def settings(job: Mapping[str, Any]) -> dict[str, str]:
    """The settings of the measurement.

    A parameter never changes, so values that a restart may change are left out.
    """
    return dict(flat("job", {key: value for key, value in job.items() if key not in ("begun", "ended")}))


def flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every leaf of a nested value, with its path."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from flat(f"{path}.{usable(name)}", item)
    elif value is not None:
        yield path, written(value)


def usable(name: str) -> str:
    """A name that MLflow accepts. A changed name gets a short hash, so that two names never become one."""
    short = _UNUSABLE.sub("_", name)[:MAX_NAME]
    return short if short == name else hashed(short, name, MAX_NAME)


def shown_task(task: str) -> str:
    """A task's name as part of a metric's name. It gets a hash if it matches `TAKEN`."""
    return hashed(task, task) if TAKEN.fullmatch(task) else usable(task)


def shown_measure(measure: str) -> str:
    """A measure's name as part of a metric's name.

    It gets a hash if it looks like the bound of another measure's interval.
    """
    return hashed(measure, measure) if ENDS.fullmatch(measure) else measure


def as_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Rows in the form of MLflow's own table."""
    columns = [*lines[0]] if lines else []
    return json.dumps({"columns": columns, "data": [[line[name] for name in columns] for line in lines]})


def ended_ms(report: Mapping[str, Any]) -> int:
    """When the last episode ended, in milliseconds."""
    ended = report["job"]["ended"]
    return 0 if ended is None else int(datetime.fromisoformat(ended).timestamp() * 1000)
