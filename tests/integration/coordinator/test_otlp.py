"""Traces of OpenTelemetry in a real receiver: MLflow takes them, and shows episodes turn by turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import written_run
from aiohttp import ClientSession
from mlflow_server import mlflow_server

from headway_api.config import Identity
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
