"""Metrics and status go to Prometheus, MLflow and the API server. No failure of these may stop training."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from episodes import a_group
from job_rig import spec
from prometheus_client.parser import text_string_to_metric_families
from role_keys import KEYS

from headway_analysis.measures import metrics
from headway_analysis.measures.tries import Rules, TryPlace, tries_of
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.exits import JobError, not_final
from headway_api.metrics import UnknownMetricError
from headway_api.records import Purpose
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import RLTrainingJobStatus, TrainingProgress
from headway_api.store import FileStore
from headway_coordinator import status
from headway_coordinator.coordinator import Coordinator, begun
from headway_coordinator.metrics import mlflow
from headway_coordinator.metrics import parameters as described
from headway_coordinator.metrics.mlflow import NOW, About, Ending, Mlflow
from headway_coordinator.metrics.parameters import parameters
from headway_coordinator.metrics.prometheus import Exporter, Sample
from headway_coordinator.metrics.traces import Traced


def test_metrics_carry_the_job_and_their_labels() -> None:
    samples = [
        Sample("usage/tokens", 12, {"class": "sample"}),
        Sample("usage/tokens", 3, {"class": "train"}),
        Sample("val/reward/pass_at_4", 0.5),
    ]
    exporter = Exporter("ns", "job", lambda: samples)
    exporter.observe("episodes/seconds", 2.0, outcome="Completed")
    found = {
        (sample.name, sample.labels.get("class")): sample
        for family in text_string_to_metric_families(exporter.text().decode())
        for sample in family.samples
    }
    assert found["headway_usage_tokens_total", "sample"].value == 12
    assert found["headway_val_reward_pass_at_4", None].labels == {"namespace": "ns", "job_name": "job"}
    assert found["headway_episodes_seconds_count", None].value == 1


def test_exported_counters_of_a_bill_never_fall() -> None:
    """Prometheus would treat a lower value as a restarted counter, and add the whole bill again."""
    now = {"sample": 12.0, "train": 3.0}
    exporter = Exporter(
        "ns", "job", lambda: [Sample("usage/tokens", value, {"class": name}) for name, value in now.items()]
    )

    def shown() -> dict[str, float]:
        found = text_string_to_metric_families(exporter.text().decode())
        return {sample.labels["class"]: sample.value for known in found for sample in known.samples}

    seen = [shown()]
    for sample, train in ((8.0, 4.0), (13.0, 4.0)):
        now |= {"sample": sample, "train": train}
        seen.append(shown())
    assert seen == [
        {"sample": 12, "train": 3},
        {"sample": 12, "train": 4},
        {"sample": 13, "train": 4},
    ]


def test_a_metric_without_a_family_is_an_error() -> None:
    with pytest.raises(UnknownMetricError):
        Exporter("ns", "job", lambda: [Sample("made/up", 1)]).text()


def a_job(folder: Path) -> JobConfig:
    output = spec().output.model_copy(update={"uri": f"file://{folder}"})
    of = spec().model_copy(update={"output": output})
    return JobConfig(name="job", namespace="ns", uid="uid", spec=of)


class Server:
    """A scripted tracking server, which may be down."""

    def __init__(self, down: int = 0) -> None:
        self.down = down
        self.logged: list[tuple[str, list[Any]]] = []
        self.runs = 0
        self.mute = False
        """Whether the server takes metrics but does not answer questions about its runs."""
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.without_artifacts = False
        self.artifacts: dict[str, bytes] = {}

    def get_experiment_by_name(self, name: str) -> None:
        if self.down:
            self.down -= 1
            raise ConnectionError("no tracking server")

    def create_experiment(self, name: str) -> str:
        return "7"

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        self.runs += 1
        return type("Run", (), {"info": type("Info", (), {"run_id": f"run-{self.runs}"})})

    def get_run(self, run_id: str) -> Any:
        if self.mute:
            raise ConnectionError("no answer")
        return type("Run", (), {"data": type("Data", (), {"params": dict(self.params)})})

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        self.params |= {param.key: param.value for param in params}
        self.tags |= {tag.key: tag.value for tag in tags}
        if metrics:
            self.logged.append((run_id, metrics))

    def get_metric_history(self, run_id: str, name: str) -> list[Any]:
        return [
            point for run, points in self.logged for point in points if (run, point.key) == (run_id, name)
        ]

    def set_terminated(self, run_id: str) -> None:
        self.logged.append((run_id, []))

    def log_artifacts(self, run_id: str, folder: str) -> None:
        if self.without_artifacts:
            raise ConnectionError("no artifact store")
        self.artifacts |= {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def tracker(server: Server, folder: Path, **parameters: str) -> Mlflow:
    # Otherwise the logger's thread would import this during `close`, and on a cold disk exceed its timeout.
    from mlflow.entities import Metric  # noqa: F401

    layout = Layout(f"file://{folder}", "ns", "job", "uid")
    about = About("job", parameters, {"headway.dev/job": "job"})
    found = Mlflow(server, "http://me:secret@mlflow:5000/", FileStore(), layout, "ns/job", about)
    found.start()
    return found


def test_metrics_are_sent_to_mlflow_in_accepted_batch_sizes(tmp_path: Path) -> None:
    server = Server()
    found = tracker(server, tmp_path)
    found.log({f"m{i}": float(i) for i in range(1000)}, step=3, at_ms=5)
    found.close()
    assert [len(metrics) for _, metrics in server.logged] == [900, 100, 0]
    assert {metric.step for _, metrics in server.logged for metric in metrics} == {3}


def test_tracking_server_that_is_down_is_counted_and_retried(tmp_path: Path) -> None:
    server = Server(down=1)
    found = tracker(server, tmp_path)
    found.log({"a": 1.0}, step=1, at_ms=1)
    found.log({"a": 2.0}, step=2, at_ms=2)
    found.close()
    assert found.failures == 1
    assert [metrics[0].step for _, metrics in server.logged if metrics] == [2]


def test_hanging_tracking_server_costs_old_metrics_not_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "MAX_WAITING", 3)
    server, hanging = Server(), threading.Event()
    create, asked = server.create_run, threading.Event()

    def slow(experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        asked.set()
        hanging.wait(10)
        return create(experiment, run_name, tags)

    server.create_run = slow  # type: ignore[method-assign]
    found = tracker(server, tmp_path)
    found.log({"a": 0.0}, step=0, at_ms=0)
    assert asked.wait(10)
    for step in range(1, 8):
        found.log({"a": 1.0}, step=step, at_ms=step)
    assert found.dropped == 4
    monkeypatch.setattr(mlflow, "CLOSE_SECONDS", 0.01)
    found.close()
    assert found.dropped == 5, "the end of the run has its place too"
    hanging.set()
    found._thread.join(10)
    assert [metrics[0].step for _, metrics in server.logged if metrics] == [0, 6, 7]


def test_a_restart_continues_the_same_run(tmp_path: Path) -> None:
    server = Server()
    for step in (1, 2):
        found = tracker(server, tmp_path)
        found.log({"a": 1.0}, step=step, at_ms=1)
        found.close()
    assert server.runs == 1
    assert {run for run, _ in server.logged} == {"run-1"}


def test_validation_missing_in_mlflow_is_logged_after_a_crash(tmp_path: Path) -> None:
    server = Server()
    before = tracker(server, tmp_path)
    found_then = metrics.validation([a_group("v000000-000000", [0.0, 1.0], step=0)], (1,), 0.5)
    before.log(found_then, step=0, at_ms=1)
    before.close()
    for _ in range(2):
        coordinator = Coordinator(a_job(tmp_path), KEYS, FileStore(), tmp_path, lambda status: None)
        coordinator._outlets.metrics.tracker = found = tracker(server, tmp_path)
        for step in (0, 2):
            coordinator._outlets.validated(step, found_then)
        found.close()
    assert [metrics[0].step for _, metrics in server.logged if metrics] == [0, 2], "each once"
    assert server.runs == 1


class Traces:
    """A fake of MLflow's client for traces."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.entries: list[Any] = []

    def log_spans(self, experiment: str, spans: list[Any]) -> None:
        self.spans += spans

    def start_trace(self, entry: Any) -> None:
        self.entries.append(entry)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traces:
    """Replaces the trace client that a logger makes."""
    from mlflow.tracing import client

    found = Traces()
    monkeypatch.setattr(client, "TracingClient", lambda tracking_uri: found)
    return found


def ending(count: int) -> Ending:
    """The end of a job with `count` episodes."""
    group = a_group("t0-000000", [1.0] * count)
    rules, place = Rules(), TryPlace("", 0)
    found = [
        Traced(one, episode, (Purpose.TRAIN, 1))
        for one, episode in zip(tries_of(group, place, rules), group.episodes, strict=True)
    ]
    return Ending("uid", lambda: {"report.html": b"<html>", "job.json": b"{}"}, lambda: found)


@pytest.mark.parametrize("without", [False, True], ids=["", "no artifact store"])
def test_an_ended_jobs_run_has_its_traces_and_report(tmp_path: Path, traced: Traces, without: bool) -> None:
    """A server may take traces although it has no artifact store."""
    server = Server()
    server.without_artifacts = without
    found = tracker(server, tmp_path)
    found.finish(ending(3))
    found.close()
    assert server.artifacts == ({} if without else {"report.html": b"<html>", "job.json": b"{}"})
    assert found.failures == int(without)
    assert len({entry.trace_id for entry in traced.entries}) == 3
    assert {entry.trace_metadata["mlflow.sourceRun"] for entry in traced.entries} == {"run-1"}
    assert server.logged == [("run-1", [])], "the run ended"


def test_the_upload_of_traces_ends_in_time(
    tmp_path: Path, traced: Traces, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    found = tracker(server, tmp_path)
    monkeypatch.setattr(mlflow, "UPLOAD_SECONDS", 0.0)
    found.finish(ending(3))
    found.close()
    assert traced.entries == []
    assert [each.message for each in caplog.records] == ["mlflow-traces-left"]
    assert server.artifacts


def test_a_server_that_hangs_at_the_end_is_not_awaited(
    tmp_path: Path, traced: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "UPLOAD_SECONDS", 0.2)
    monkeypatch.setattr(mlflow, "CLOSE_SECONDS", 0.2)
    server, answer = Server(), threading.Event()
    server.log_artifacts = lambda run_id, folder: answer.wait(30)  # type: ignore[method-assign, assignment]
    found = tracker(server, tmp_path)
    begun = time.monotonic()
    found.finish(ending(1))
    found.close()
    assert 0.4 <= time.monotonic() - begun < 10
    assert found._thread.is_alive()
    assert found._thread.daemon, "it keeps no process from its end"
    answer.set()
    found._thread.join(10)


def test_a_run_has_its_jobs_parameters_and_a_page(tmp_path: Path) -> None:
    server = Server()
    for rank, steps in (("32", "50"), ("32", "80")):
        found = tracker(server, tmp_path, lora_rank=rank, max_steps=steps)
        found.log({"a": 1.0}, step=1, at_ms=1)
        found.close()
        assert found.run is not None
        assert found.run.url == "http://mlflow:5000/#/experiments/7/runs/run-1"
    assert server.params == {"lora_rank": "32", "max_steps": "50"}, "MLflow never changes a parameter"
    assert server.tags == {"headway.dev/job": "job", f"{NOW}/max_steps": "80"}


def test_run_tags_are_sent_until_the_tracking_server_takes_them(tmp_path: Path) -> None:
    server = Server(down=1)
    found = tracker(server, tmp_path)
    found.tag({"a": "1", "b": "1"})
    found.tag({"a": "2"})
    found.close()
    assert found.failures == 1
    assert server.tags == {"headway.dev/job": "job", "a": "2", "b": "1"}


def test_metrics_are_logged_though_parameters_cannot_be(tmp_path: Path) -> None:
    server = Server()
    server.mute = True
    found = tracker(server, tmp_path, lora_rank="32")
    found.log({"a": 1.0}, step=1, at_ms=1)
    found.close()
    assert [metrics[0].step for _, metrics in server.logged if metrics] == [1]
    assert found.failures == 1
    server.mute = False
    later = tracker(server, tmp_path, lora_rank="32")
    later.log({"a": 1.0}, step=2, at_ms=2)
    later.close()
    assert server.params == {"lora_rank": "32"}


def test_parameters_hold_no_secret_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://user:hush@agents.acme.dev/play?key=hush"
    fields = {
        "agent": {"http": {"url": url}},
        "environment": {"image": "i", "entrypoint": "m:C", "config": {"token": "hush"}},
        "learner": {"podTemplate": {"spec": {"containers": [{"name": "learner", "env": []}]}}},
        "tracking": {"mlflow": {"uri": "http://user:hush@mlflow:5000"}},
    }
    found = parameters(RLTrainingJobSpec.model_validate(spec().as_object() | fields))
    assert not [name for name, value in found.items() if "hush" in value or "podTemplate" in name]
    assert found["spec.agent.http.url"] == "http://agents.acme.dev/play"
    assert (found["group_size"], found["spec.algorithm.groupSize"], found["lora_rank"]) == ("2", "2", "32")
    assert "max_turns" not in found, "the agent's own loop decides"
    monkeypatch.setattr(described, "MAX_PARAMETERS", 3)
    assert list(parameters(spec())) == ["global_batch_size", "group_size", "advantage_method"]


async def test_status_is_written_on_change_and_never_twice_the_same() -> None:
    written: list[dict[str, Any]] = []
    now = RLTrainingJobStatus(progress=TrainingProgress(step=1))
    writer = status.Writer(written.append, lambda: now)
    assert await writer.flush()
    assert await writer.flush()
    now.progress = TrainingProgress(step=2)
    assert await writer.flush()
    assert [found["progress"]["step"] for found in written] == [1, 2]


async def test_unchanged_status_is_written_again_to_get_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "REFRESH_SECONDS", 0.0)
    heard: list[status.JobUpdate] = []
    writer = status.Writer(lambda found: status.JobUpdate(3), RLTrainingJobStatus, heard.append)
    assert await writer.flush()
    assert await writer.flush()
    assert heard == [status.JobUpdate(3)] * 2


async def test_a_status_that_cannot_be_written_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LEAST_SECONDS", 0.01)
    written: list[dict[str, Any]] = []

    def sink(found: dict[str, Any]) -> None:
        if writer.failures < 2:
            raise ConnectionError("no API server")
        written.append(found)

    writer = status.Writer(sink, lambda: RLTrainingJobStatus(progress=TrainingProgress(step=1)))
    running = asyncio.create_task(writer.run())
    async with asyncio.timeout(10):
        while not written:
            await asyncio.sleep(0.01)
    running.cancel()
    assert writer.failures == 2


async def test_the_last_status_is_sent_again_until_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LEAST_SECONDS", 0.01)
    written: list[dict[str, Any]] = []

    def sink(found: dict[str, Any]) -> None:
        if writer.failures < 4:
            raise ConnectionError("no API server")
        written.append(found)

    writer = status.Writer(sink, lambda: RLTrainingJobStatus(progress=TrainingProgress(step=20)))
    assert not await writer.settle(0.02)
    assert await writer.settle(10)
    assert [found["progress"]["step"] for found in written] == [20]


def test_no_bill_is_shown_before_the_ledger_is_loaded(tmp_path: Path) -> None:
    """If the counter restarted at 0, Prometheus would count the predecessor's bill twice."""
    coordinator = Coordinator(a_job(tmp_path), KEYS, FileStore(), tmp_path, lambda status: None)
    assert not [sample for sample in coordinator._samples() if sample.name.startswith("usage/")]
    coordinator._outlets.restoring = False
    assert [sample for sample in coordinator._samples() if sample.name.startswith("usage/")]


@pytest.mark.parametrize(("progress", "permanent"), [(None, True), (TrainingProgress(step=3), False)])
def test_a_fault_after_training_began_is_never_permanent(
    progress: TrainingProgress | None, permanent: bool
) -> None:
    with pytest.raises(JobError) as caught, not_final(begun(RLTrainingJobStatus(progress=progress))):
        raise JobError("BucketUnavailable", "403")
    assert caught.value.permanent is permanent
