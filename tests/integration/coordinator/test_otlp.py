"""OpenTelemetry traces in a real receiver: MLflow accepts them, and shows episodes turn by turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import flat_job
import pytest
import written_run
from aiohttp import ClientSession
from mlflow_server import mlflow_server

from headway_api.config import Identity
from headway_api.records import Purpose
from headway_api.run_files import RunFiles
from headway_api.store import FileStore
from headway_coordinator.metrics.otel import of_episode, of_step, trace_id
from headway_coordinator.metrics.otlp import Otlp

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]
JOB = Identity(name="refunds", namespace="team", uid="0f0e", kind="RLTrainingJob")


def test_a_receiver_shows_what_was_sent(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    made = written_run.write(tmp_path / "run", steps=2, groups=1, size=2)
    files = RunFiles(FileStore(), made.layout)
    report = files.steps()[1]
    [group] = files.groups([made.layout.train_group(each) for each in report.groups])
    with mlflow_server(tmp_path) as url:
        client = MlflowClient(tracking_uri=url)
        experiment = client.create_experiment("traces")

        async def send() -> Otlp:
            async with ClientSession() as http:
                out = Otlp(http, url, JOB, {"x-mlflow-experiment-id": experiment})
                for _ in range(2):  # a restart sends some of them again
                    for episode in group.episodes:
                        out.give(of_episode(JOB, "hf://acme/tiny", episode))
                out.give(of_step(JOB, report, [each.episode_id for each in group.episodes]))
                await out.close()
                return out

        out = asyncio.run(send())
        assert (out.dropped, out.sent > 0) == (0, True)
        traces: Any = client.search_traces(locations=[experiment])
    found = {trace.info.trace_id.removeprefix("tr-"): trace for trace in traces}
    wanted = [*(each.episode_id for each in group.episodes), "step-000001"]
    assert set(found) == {trace_id(JOB.uid, each).hex() for each in wanted}
    spans = found[trace_id(JOB.uid, group.episodes[0].episode_id).hex()].data.spans
    names = sorted(span.name for span in spans)
    assert names == sorted(
        [
            "invoke_agent refunds",
            "chat hf://acme/tiny",
            "chat hf://acme/tiny",
            "execute_tool look",
            "sandbox",
            "judgement",
        ]
    )
    [tool] = [span for span in spans if span.name == "execute_tool look"]
    assert (tool.end_time_ns - tool.start_time_ns) / 1e9 == pytest.approx(1.5, abs=1e-3)


def test_a_coordinator_sends_episodes_steps_and_updates(tmp_path: Path) -> None:
    """The coordinator is real, and its spec alone says where traces go."""
    from mlflow.tracking import MlflowClient

    with mlflow_server(tmp_path) as url:
        client = MlflowClient(tracking_uri=url)
        experiment = client.create_experiment("job")
        headers = [{"name": "x-mlflow-experiment-id", "value": experiment}]
        (tmp_path / "job").mkdir()
        job = flat_job.config(
            tmp_path / "job", steps=2, tracking={"otlp": {"endpoint": url, "headers": headers}}
        )
        ended = asyncio.run(flat_job.run(tmp_path / "job", job, None, None))
        traces: Any = client.search_traces(locations=[experiment], max_results=500)
    files = RunFiles(FileStore(), ended.layout)
    groups = [*files.groups(files.addresses(Purpose.TRAIN))]
    episodes = {each.episode_id: each for group in groups for each in group.episodes}
    found = {trace.info.trace_id.removeprefix("tr-"): trace for trace in traces}
    trained = {each.episode_id for group in groups if not group.abandoned for each in group.episodes}
    assert {trace_id(job.uid, each).hex() for each in trained} <= set(found)
    episode = episodes[min(trained)]
    spans = found[trace_id(job.uid, episode.episode_id).hex()].data.spans
    operations = Counter(str(span.attributes.get("gen_ai.operation.name")) for span in spans)
    assert operations["invoke_agent"] == 1
    assert operations["chat"] == len(episode.turns) == 2
    assert operations["execute_tool"] == 1
    providers = {
        span.attributes.get("gen_ai.provider.name") for span in spans if span.name.startswith("chat")
    }
    assert providers == {"headway"}
    for step in (1, 2):
        spans = found[trace_id(job.uid, f"step-{step:06d}").hex()].data.spans
        assert {"train_step", "update_weights"} <= {span.name for span in spans}
