"""One platform for all end-to-end tests: cluster, Headway installed by its chart, object store, MLflow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from api_reader import ApiReader
from record import About, keep
from watched_cluster import Watched, watched_cluster

from headway_api.names import API_VERSION
from headway_cli.progress import is_true

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack" / "demo"))

import tiered_rows
from judged_job import JUDGED, Outcome, Trained, ended, evaluation, served_elsewhere

from headway_demo import quickstart
from headway_demo.console import Timings
from headway_demo.kube import Kube
from headway_demo.platform import KINDS, Platform, platform_up
from headway_demo.settings import BUCKET, NAMESPACE, SYSTEM_NAMESPACE, Settings
from headway_demo.watch import Job, condition


def step_of(job: Job) -> int:
    """Optimizer steps that a job has completed."""
    return int(job.get("status", {}).get("progress", {}).get("step", 0))


@dataclass(frozen=True)
class Bench:
    """What the end-to-end tests use: the platform, and a reader of the API server."""

    platform: Platform
    api: ApiReader

    @property
    def kube(self) -> Kube:
        return self.platform.kube

    def job(self, name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """The quickstart's job under another name, small, with `changes` merged into its spec."""
        small = {
            "algorithm": {"batchSize": 2, "groupSize": 4},
            "evaluation": {"everySteps": 0, "atStart": False},
            "schedule": {"maxSteps": 3},
            "preflight": {"episodes": 0},
        }
        return quickstart.job(
            self.platform.environment_image, name=name, changes=quickstart.merged(small, changes or {})
        )

    def get(self, name: str) -> Job:
        return self.api.one(f"apis/{API_VERSION}", "rltrainingjobs", name)

    def wait_condition(self, name: str, kind: str, *, deadline_s: float = 180) -> dict[str, Any]:
        """Wait until the condition is True, and return it."""
        found = condition(self._until(name, lambda job: is_true(job, kind), deadline_s), kind)
        assert found is not None
        return found

    def owned(self, name: str) -> list[str]:
        """Names of all objects in the namespace that carry the job's label."""
        label = f"headway.dev/job-name={name}"
        return self.kube.run("get", KINDS, "-n", NAMESPACE, "-l", label, "-o", "name").split()

    def pods(self, name: str) -> list[str]:
        """The role of each of the job's pods that exist."""
        found = self.api.labelled(f"headway.dev/job-name={name}", ["Pod"])
        return [pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in found.values()]

    def step(self, name: str) -> int:
        """Optimizer steps completed."""
        return step_of(self.get(name))

    def wait_step(self, name: str, wanted: int, *, deadline_s: float = 240) -> None:
        """Wait until so many steps are completed."""
        self._until(name, lambda job: step_of(job) >= wanted, deadline_s)

    def _until(self, name: str, ready: Callable[[Job], bool], deadline_s: float) -> Job:
        return self.api.until(f"apis/{API_VERSION}", "rltrainingjobs", name, ready, deadline_s)

    def delete(self, *names: str) -> None:
        """Delete jobs and wait until nothing of them is left."""
        target = ("rltrainingjob", *names, "-n", NAMESPACE, "--ignore-not-found")
        self.kube.run("delete", *target, "--timeout=180s", timeout_s=200)
        for name in names:
            self.kube.wait(
                f"{name} to leave nothing", lambda name=name: not self.owned(name), deadline_s=90,
                explain=lambda name=name: " ".join(self.owned(name)),
            )  # fmt: skip


SHARED = "shared"
"""The training job that tests share."""
STEPS = 12
"""Optimizer steps of the shared job: enough that tests can inspect it while it trains."""


@pytest.fixture(scope="session")
def watched(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A Prometheus that scrapes Headway and all jobs, starting before the shared job.

    KEEP_RECORD names a folder that keeps the scraped data. The pictures of the dashboards are drawn from it.
    """
    folder, kubeconfig = tmp_path_factory.mktemp("prometheus"), bench.platform.kube.kubeconfig
    assert kubeconfig is not None
    with watched_cluster(folder, kubeconfig, system=SYSTEM_NAMESPACE, namespaces=[NAMESPACE]) as found:
        yield found
    if (record := os.environ.get("KEEP_RECORD")) is not None:
        keep(folder, Path(record), About(found.begun, time.time(), SHARED, JUDGED))


@pytest.fixture(scope="session")
def shared_job(bench: Bench, watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job that tests inspect while it trains. Once it has ended, an evaluation measures its last two steps.

    It has held-out rows, tasks, a token budget and a penalty on the divergence from the base model, because
    the dashboards show metrics of each.
    """
    name, rows = SHARED, tmp_path_factory.mktemp("rows")
    settings = Settings.from_environ({})
    tiered_rows.write(quickstart.inputs(settings.cache, settings.seed), rows)
    with bench.platform.bucket() as bucket:
        bucket.upload(rows, f"{SHARED}-rows")
    spec = {
        "data": {
            split: {"uri": f"s3://{BUCKET}/{SHARED}-rows/{split}.jsonl", "taskColumn": tiered_rows.COLUMN}
            for split in tiered_rows.SPLITS
        },
        "algorithm": {"kl": {"coefficient": 0.001}},
        "budget": {"tokens": {"sample": 10_000_000}},
        "schedule": {"maxSteps": STEPS},
        "checkpoints": {"everySteps": 1, "keepLast": 2},
        "evaluation": {
            "everySteps": STEPS // 2,
            "atStart": True,
            "maxRows": 4,
            "passK": [1, 2],
            "groupSize": 2,
            "sampling": {"temperature": 1},
        },
    }
    bench.kube.apply(bench.job(name, spec))
    yield name
    bench.delete(name)


@pytest.fixture(scope="session")
def trained(bench: Bench, shared_job: str) -> Trained:
    """The shared job, once it has ended."""
    bench.wait_condition(shared_job, "Complete", deadline_s=400)
    return Trained(shared_job, bench.step(shared_job))


@pytest.fixture(scope="session")
def judged(bench: Bench, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """An undisturbed evaluation, with an endpoint, whose gate asks for a margin that no candidate reaches."""
    gate = {"candidate": "newest", "mustBeat": "newest-base", "margin": "0.99"}
    with served_elsewhere(bench):
        bench.kube.apply(evaluation(bench, JUDGED, trained, gate, endpoint=True))
        outcome = ended(bench, JUDGED, tmp_path_factory.mktemp("judged"))
    yield outcome
    bench.kube.run("delete", "rlevaljob", JUDGED, "-n", NAMESPACE, "--timeout=120s", timeout_s=140)


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    """The platform, started once for all tests."""
    settings = Settings.from_environ({"OUTPUT": "build/e2e"})
    with platform_up(settings, Timings()) as platform:
        assert platform.kube.kubeconfig is not None
        api = ApiReader(platform.kube.kubeconfig, NAMESPACE)
        yield Bench(platform, api)
        api.close()
