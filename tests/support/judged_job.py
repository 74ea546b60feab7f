"""An evaluation of a training job's checkpoints on the cluster, and its results."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headway_api.names import API_VERSION
from headway_cli.progress import is_true
from headway_demo import quickstart
from headway_demo.evaluation import start_reference
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE, Settings

JUDGED = "judged"
"""The evaluation that tests share."""
ROWS = 12
END_S = 600
ENDPOINT = "reference"
"""Name of the demo's candidate, Service and Deployment."""


@dataclass(frozen=True)
class Outcome:
    """A finished evaluation, and a copy of its artifacts."""

    job: dict[str, Any]
    folder: Path

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.job["status"]
        return found

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    def rewards(self) -> dict[tuple[str, int], float]:
        """(candidate, row) -> reward."""
        table = pq.read_table(io.BytesIO((self.folder / "results.parquet").read_bytes()))
        return {(row["candidate"], row["row"]): row["reward"] for row in table.to_pylist()}

    def value(self, candidate: str, measure: str) -> float:
        """A measure of a candidate over all rows."""
        [found] = [each for each in self.report["candidates"] if each["name"] == candidate]
        return float(found["measures"]["all"][measure]["value"])

    def answers(self) -> dict[tuple[str, int], ModelOutput]:
        """(candidate, row) -> the model's output in the episode that counts."""
        groups = map(read_group, (self.folder / "trajectories" / "evaluation").glob("*/*.json.gz"))
        outputs = [
            ((group["candidate"], group["row"]), output_of(episode))
            for group in groups
            for episode in group["episodes"]
            if episode["outcome"] != "InfraError"
        ]
        assert len(outputs) == len(dict(outputs)), "one try at each row"
        return dict(outputs)


@dataclass(frozen=True)
class ModelOutput:
    """The output of a model in an episode, without the ids of tool calls, which are random."""

    messages: list[tuple[str | None, list[tuple[str, Any]]]]
    """For each turn: the text, and the tool calls by name and arguments."""
    tokens: list[int]
    """The sampled token ids, in order."""


def output_of(episode: dict[str, Any]) -> ModelOutput:
    """The model's output in an EpisodeRecord."""
    spoken = [message for message in episode["messages"] if message["role"] == "assistant"]
    calls = [[call["function"] for call in message.get("tool_calls") or []] for message in spoken]
    return ModelOutput(
        [
            (message.get("content"), [(call["name"], call["arguments"]) for call in made])
            for message, made in zip(spoken, calls, strict=True)
        ],
        [
            token
            for row in episode["rows"]
            for token, sampled in zip(row["tokens"], row["mask"], strict=True)
            if sampled
        ],
    )


@dataclass(frozen=True)
class Trained:
    """A training job that has ended and keeps the weights of its last two steps."""

    name: str
    steps: int


def evaluation(
    bench: Any, name: str, trained: Trained, gate: dict[str, Any], *, endpoint: bool = False
) -> dict[str, Any]:
    """The example's evaluation, greedy and on a few rows, of the two steps with weights. `endpoint` adds the
    example's endpoint."""
    document = quickstart.evaluation(bench.platform.environment_image, name=name)
    elsewhere = [each for each in document["spec"]["candidates"] if endpoint and "endpoint" in each]
    document["spec"] |= {
        "candidates": [
            {"name": "first", "checkpoint": {"job": trained.name, "step": trained.steps - 1}},
            {"name": "newest", "checkpoint": {"job": trained.name, "which": "latest", "withBase": True}},
            *elsewhere,
        ],
        "gate": gate,
        "evaluation": {"maxRows": ROWS, "sampling": {"maxTokens": 32}},
        "rollout": {"maxConcurrency": 6},
    }
    return document


def get(bench: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = bench.api.one(f"apis/{API_VERSION}", "rlevaljobs", name)
    return found


def rows_done(bench: Any, name: str) -> int:
    return int(get(bench, name).get("status", {}).get("progress", {}).get("groups", 0))


def ended(bench: Any, name: str, folder: Path) -> Outcome:
    """The evaluation once it has completed or failed."""
    job = bench.api.until(
        f"apis/{API_VERSION}",
        "rlevaljobs",
        name,
        lambda job: is_true(job, "Complete") or is_true(job, "Failed"),
        END_S,
    )
    with bench.platform.bucket() as bucket:
        bucket.download(job["status"]["artifacts"]["uri"], folder)
    return Outcome(job, folder)


@contextmanager
def served_elsewhere(bench: Any) -> Iterator[None]:
    """Run vLLM's own server behind a Service, as the demo does, until the block ends."""
    start_reference(bench.kube, bench.platform.refs, Settings.from_environ({}))
    try:
        bench.kube.wait_available(NAMESPACE, ENDPOINT)
        yield
    finally:
        bench.kube.run("delete", "deployment,service", ENDPOINT, "-n", NAMESPACE, "--ignore-not-found")
