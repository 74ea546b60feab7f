"""An evaluation of two checkpoints and their base on one server, left alone and with its processes killed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from live_job import pods, sandbox_in_use

from headway_api.names import API_VERSION
from headway_demo import quickstart
from headway_demo.bill import recount, status_tokens
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE
from headway_demo.watch import condition, is_true, why

JUDGED, KILLED = "judged", "harried"
ROWS = 12
CANDIDATES = ("first", "newest", "newest-base")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Outcome:
    """A finished evaluation, and a copy of what it wrote."""

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

    def answers(self) -> dict[tuple[str, int], Said]:
        """(candidate, row) -> what the model said in the episode that counts."""
        groups = map(read_group, (self.folder / "trajectories" / "evaluation").glob("*/*.json.gz"))
        told = [
            ((group["candidate"], group["row"]), said(episode))
            for group in groups
            for episode in group["episodes"]
            if episode["outcome"] != "InfraError"
        ]
        assert len(told) == len(dict(told)), "one try at each row"
        return dict(told)


@dataclass(frozen=True)
class Said:
    """What a model said in an episode. Ids of tool calls are left out: they are drawn anew."""

    messages: list[tuple[str | None, list[tuple[str, Any]]]]
    """Of each turn: the words, and the tool calls by name and arguments."""
    tokens: list[int]
    """The sampled token ids, in order."""


def said(episode: dict[str, Any]) -> Said:
    """Out of an EpisodeRecord."""
    spoken = [message for message in episode["messages"] if message["role"] == "assistant"]
    calls = [[call["function"] for call in message.get("tool_calls") or []] for message in spoken]
    return Said(
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


def evaluation(bench: Any, name: str, trained: Trained, gate: dict[str, Any]) -> dict[str, Any]:
    """The example's evaluation, of the two steps that were kept, greedy, on a few rows."""
    document = quickstart.evaluation(bench.platform.environment_image, name=name)
    document["spec"] |= {
        "candidates": [
            {"name": "first", "checkpoint": {"job": trained.name, "step": trained.steps - 1}},
            {"name": "newest", "checkpoint": {"job": trained.name, "which": "latest", "withBase": True}},
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
    """The evaluation once it has ended, either way."""

    def over() -> bool:
        job = get(bench, name)
        return is_true(job, "Complete") or is_true(job, "Failed")

    bench.kube.wait(f"the end of {name}", over, deadline_s=600, explain=lambda: why(get(bench, name)))
    job = get(bench, name)
    with bench.platform.bucket() as bucket:
        bucket.download(job["status"]["artifacts"]["uri"], folder)
    return Outcome(job, folder)


@pytest.fixture(scope="module")
def trained(bench: Any, shared_job: str) -> Trained:
    """The job that tests share, once it has ended."""
    bench.wait_condition(shared_job, "Complete", deadline_s=400)
    return Trained(shared_job, bench.step(shared_job))


@pytest.fixture(scope="module")
def judged(bench: Any, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """An undisturbed evaluation, whose gate asks for more than can be."""
    gate = {"candidate": "newest", "mustBeat": "newest-base", "margin": "0.99"}
    bench.kube.apply(evaluation(bench, JUDGED, trained, gate))
    yield ended(bench, JUDGED, tmp_path_factory.mktemp("judged"))
    bench.kube.run("delete", "rlevaljob", JUDGED, "-n", NAMESPACE, "--timeout=120s", timeout_s=140)


def test_checkpoints_and_their_base_share_one_set_of_servers(judged: Outcome, trained: Trained) -> None:
    assert {each["serverSet"] for each in judged.status["candidates"]} == {0}
    assert [each["name"] for each in judged.status["candidates"]] == list(CANDIDATES)
    assert [each["step"] for each in judged.status["candidates"] if "step" in each] == [
        trained.steps - 1,
        trained.steps,
    ]


def test_every_candidate_has_every_row(judged: Outcome) -> None:
    assert set(judged.rewards()) == {(name, row) for name in CANDIDATES for row in range(ROWS)}
    assert {each["name"]: each["rows"] for each in judged.status["results"]} == dict.fromkeys(
        CANDIDATES, ROWS
    )


def test_a_gate_that_is_not_met_fails_the_job_and_leaves_its_results(bench: Any, judged: Outcome) -> None:
    failed, gate = condition(judged.job, "Failed"), condition(judged.job, "GatePassed")
    assert failed is not None
    assert gate is not None
    assert (failed["status"], failed["reason"], gate["status"]) == ("True", "GateNotPassed", "False")
    assert "0.99" in gate["message"]
    assert condition(judged.job, "Ready")["status"] == "False"  # type: ignore[index]
    assert judged.report["candidates"]
    columns = bench.kube.run("get", "rlev", JUDGED, "-n", NAMESPACE, "--no-headers")
    assert judged.status["headline"]["candidate"] in columns
    assert judged.status["gate"]["result"] in columns


def test_its_servers_are_gone_and_the_bill_adds_up(bench: Any, judged: Outcome) -> None:
    assert not pods(bench.kube, JUDGED, "rollout")
    counted = recount(judged.folder).tokens
    assert counted == status_tokens(judged.job, counted)
    assert counted["evaluation"] > 0


@pytest.mark.long
def test_killed_processes_change_no_answer(
    bench: Any, trained: Trained, judged: Outcome, tmp_path: Path
) -> None:
    """Greedy answers of a job each of whose processes was killed equal an undisturbed job's.

    The gate asks for the reward that the undisturbed job reached: one answer that is worse fails it.
    """
    reached = judged.value("newest", "reward")
    least = Decimal(reached).quantize(Decimal("0.000001"), ROUND_FLOOR)
    assert least > 0, "a gate that no result could miss"
    gate = {"candidate": "newest", "metric": "reward", "minimum": str(least), "minimumOf": "Value"}
    bench.kube.apply(evaluation(bench, KILLED, trained, gate))
    try:
        for number, role in enumerate(("coordinator", "broker", "rollout", "sandbox")):
            wanted = 2 + 5 * number
            bench.kube.wait(
                f"row {wanted} of {KILLED}",
                lambda wanted=wanted: rows_done(bench, KILLED) >= wanted,
                deadline_s=300,
                explain=lambda: why(get(bench, KILLED)),
            )
            kill(bench, role)
        harried = ended(bench, KILLED, tmp_path)
        assert is_true(harried.job, "Complete"), why(harried.job)
        assert is_true(harried.job, "GatePassed"), why(harried.job)
        assert harried.value("newest", "reward") == reached
        assert harried.rewards() == judged.rewards()
        answers, undisturbed = harried.answers(), judged.answers()
        assert undisturbed.keys() == judged.rewards().keys()
        assert all(each.messages and each.tokens for each in undisturbed.values())
        assert answers == undisturbed
        counted = recount(harried.folder).tokens
        assert counted == status_tokens(harried.job, counted)
        assert counted["evaluation"] == recount(judged.folder).tokens["evaluation"]
    finally:
        bench.kube.run("delete", "rlevaljob", KILLED, "-n", NAMESPACE, "--timeout=120s", timeout_s=140)


def kill(bench: Any, role: str) -> None:
    """Take a pod of this role away, without notice; a sandbox, from the episode that holds it."""
    if role == "sandbox":
        with sandbox_in_use(bench.kube, KILLED) as sandbox:
            name = sandbox.pod["metadata"]["name"]
            bench.kube.run("delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force")
        return
    name = pods(bench.kube, KILLED, role)[0]["metadata"]["name"]
    bench.kube.run("delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force")
