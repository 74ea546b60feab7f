"""Any one process may be killed: the job goes on, loses no acknowledged group and bills nothing twice.

There is one job. While it trains, each of its processes is killed in turn, without notice: its pod is deleted
by force, as if its node were lost. The job's ledger and history are read before and after each kill, and at
its end. Its bill is checked all the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from ledger_snapshots import Books, amounts, books, counted_twice, events, faults, fell, tokens
from live_job import pods, sandbox_in_use

from headway_analysis.signals.of_spec import job_of
from headway_analysis.signals.watch import Watch
from headway_api.names import PRICES_KEY
from headway_api.spec.training import RLTrainingJobSpec
from headway_demo.bill import recount, status_tokens
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE
from headway_demo.watch import why

NAME = "survival"
STEPS = 45
BOOK = "survival-prices"
RAISED = "0.80"
"""Price of a million sampled tokens in the corrected price book."""
VICTIMS = ("sandbox", "rollout", "learner", "coordinator", "broker", "operator")

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]


@dataclass
class Survivor:
    """A job that trains, with the record of what was killed and read."""

    bench: Any
    lost_episodes: list[str] = field(default_factory=list)
    """Episodes whose sandbox was killed."""
    read: list[Books] = field(default_factory=list)
    bill: dict[str, Decimal] = field(default_factory=dict)
    """The bill as it was at the last look."""

    def step(self) -> int:
        """Optimizer steps completed. Each call also checks the bill."""
        job = self.bench.get(NAME)
        earlier, self.bill = self.bill, amounts(job)
        assert not (fallen := fell(earlier, self.bill)), fallen
        return int(job["status"].get("progress", {}).get("step", 0))

    def read_books(self, folder: Path) -> Books:
        """Read the job's ledger and history as they are now."""
        folder.mkdir()
        with self.bench.platform.bucket() as bucket:
            self.read.append(books(bucket, self.bench.get(NAME), folder))
        return self.read[-1]

    def kill(self, role: str) -> str:
        """Kill a pod of this role and return its uid. A sandbox is killed during an episode."""
        if role != "sandbox":
            return self._delete(pods(self.bench.kube, NAME, role)[0])
        with sandbox_in_use(self.bench.kube, NAME) as sandbox:
            self.lost_episodes.append(sandbox.episode)
            return self._delete(sandbox.pod)

    def _delete(self, pod: dict[str, Any]) -> str:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self.bench.kube.run("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force")
        return str(pod["metadata"]["uid"])


def book_name(sample: str) -> str:
    """The name of the price book with this price."""
    return f"sample-{sample.replace('.', '-')}"


def price_book(sample: str) -> dict[str, Any]:
    """The ConfigMap of the job's own price book, with this price of a million sampled tokens."""
    prices = {
        "prefill": "0.13",
        "cachedPrefill": "0.026",
        "sample": sample,
        "train": "0.40",
        "discarded": "0",
    }
    book = {"name": book_name(sample), "entries": [{"since": "2026-01-01", "prices": prices}]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": BOOK, "namespace": NAMESPACE},
        "data": {PRICES_KEY: yaml.safe_dump(book)},
    }


@pytest.fixture(scope="module")
def survivor(bench: Any) -> Iterator[Survivor]:
    """The job, after its first step and after a correction of its price book."""
    bench.kube.apply(price_book("0.40"))
    bench.kube.apply(bench.job(NAME, {"schedule": {"maxSteps": STEPS}, "priceBook": BOOK}))
    bench.wait_step(NAME, 1)
    assert bench.get(NAME)["status"]["usage"]["priceBook"].startswith(f"{book_name('0.40')}@")
    bench.kube.apply(price_book(RAISED))
    yield Survivor(bench)
    bench.delete(NAME)
    bench.kube.run("delete", "configmap", BOOK, "-n", NAMESPACE)


@pytest.mark.parametrize("role", VICTIMS)
def test_a_killed_process_is_replaced_and_training_goes_on(
    bench: Any, survivor: Survivor, role: str, tmp_path: Path
) -> None:
    bench.kube.wait(f"a running {role}", lambda: bool(pods(bench.kube, NAME, role)), deadline_s=120)
    before = survivor.read_books(tmp_path / "before")
    step = survivor.step()
    assert step < STEPS - 2, "the job is about to end before this process could be killed; raise STEPS"
    uid = survivor.kill(role)

    def replaced() -> bool:
        return any(pod["metadata"]["uid"] != uid for pod in pods(bench.kube, NAME, role))

    bench.kube.wait(f"another {role}", lambda: survivor.step() == STEPS or replaced(), deadline_s=120)
    bench.kube.wait(
        f"step {step + 2}",
        lambda: survivor.step() >= step + 2,
        deadline_s=240,
        explain=lambda: why(bench.get(NAME)),
    )
    after = survivor.read_books(tmp_path / "after")
    assert faults(before, after) == []
    assert len(after.acknowledged) > len(before.acknowledged)


def test_suspend_stops_every_pod_and_resume_goes_on_where_it_was(bench: Any, survivor: Survivor) -> None:
    patch(bench, {"suspend": True})
    bench.wait_condition(NAME, "Suspended")
    bench.kube.wait("no pods", lambda: not bench.pods(NAME), deadline_s=90)
    held = survivor.step()
    patch(bench, {"suspend": False})
    bench.wait_condition(NAME, "Complete", deadline_s=400)
    assert 1 <= held <= survivor.step() == STEPS


def patch(bench: Any, spec: dict[str, Any]) -> None:
    """Change the job as a user does."""
    change = json.dumps({"spec": spec})
    bench.kube.run("patch", "rltrainingjob", NAME, "-n", NAMESPACE, "--type=merge", "-p", change)


def test_the_books_balance_afterwards(bench: Any, survivor: Survivor, tmp_path: Path) -> None:
    bench.wait_condition(NAME, "Complete", deadline_s=400)
    final = survivor.read_books(tmp_path / "final")
    assert [faults(earlier, final) for earlier in survivor.read] == [[]] * len(survivor.read)
    job, run = bench.get(NAME), tmp_path / "final"

    reports = [json.loads(p.read_text()) for p in sorted((run / "steps").glob("*.json"))]
    assert [r["step"] for r in reports] == list(range(STEPS + 1))
    acknowledged = [group for report in reports for group in report["groups"]]
    assert len(acknowledged) == len(set(acknowledged)), "a group was trained twice"

    stored = {p.name.removesuffix(".json.gz"): read_group(p) for p in (run / "trajectories/train").iterdir()}
    assert set(acknowledged) <= set(stored), "an acknowledged group was lost"
    for group in stored.values():
        for episode in group["episodes"]:
            assert (episode["reward"] is None) == (episode["outcome"] == "InfraError"), "a fault was scored"

    recounted = recount(run, sample=RAISED)
    counted, usage = recounted.tokens, job["status"]["usage"]
    assert counted == status_tokens(job, counted)
    assert (usage["priceBook"].partition("@")[0], usage["cost"]) == (book_name(RAISED), recounted.cost)
    assert usage["priceCorrections"], "what was used before the correction is priced anew"
    ledger = events(run)
    assert counted_twice(ledger) == []
    assert tokens(ledger) == counted
    bench.kube.wait("no pod to be left", lambda: not bench.pods(NAME), deadline_s=120)


@pytest.mark.usefixtures("survivor")
def test_the_jobs_signals_are_those_of_its_stored_steps(bench: Any, tmp_path: Path) -> None:
    """This holds however often the judging process was replaced."""
    run, job = tmp_path, bench.get(NAME)
    with bench.platform.bucket() as bucket:
        for part in ("steps", "figures", "validations"):
            bucket.download(f"{job['status']['artifacts']['uri']}/{part}", run / part)
    spec = RLTrainingJobSpec.model_validate(job["spec"])
    watch = Watch(job_of(spec))
    for report in map(read_json, sorted((run / "steps").glob("*.json"))):
        if step := report["step"]:
            kept = read_json(run / "figures" / f"{step:06d}.json")
            assert kept["groups"] == report["groups"]
            watch.step(step, report["metrics"] | kept["figures"])
    for summary in map(read_json, sorted((run / "validations").glob("*.json"))):
        watch.validation(summary["step"], summary["figures"])
    judged = {verdict.signal.name: verdict.standing for verdict in watch.verdicts()}
    signals = {signal["name"]: signal for signal in job["status"]["signals"]}
    assert len(signals) == 16
    for name, signal in signals.items():
        assert (signal["state"], signal["since"]) == (judged[name].state, judged[name].since), name
    assert any(signal["state"] != "Unknown" for signal in signals.values())


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_an_episode_that_lost_its_sandbox_was_retried(survivor: Survivor, tmp_path: Path) -> None:
    assert survivor.lost_episodes
    survivor.read_books(tmp_path / "final")
    groups = [read_group(path) for path in (tmp_path / "final/trajectories/train").iterdir()]
    retried = {
        episode["episode_id"]: episode["outcome"] for group in groups for episode in group["discarded"]
    }
    assert [retried.get(episode) for episode in survivor.lost_episodes] == ["InfraError"]
    again = {f"{e['group_id']}-{e['index']}": e["outcome"] for group in groups for e in group["episodes"]}
    lost = [episode.rpartition("-")[0] for episode in survivor.lost_episodes]
    assert [again[name] for name in lost] != ["InfraError"]
