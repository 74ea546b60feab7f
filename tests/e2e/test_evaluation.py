"""An evaluation of two checkpoints and their base on one server, left alone and with its processes killed.

The one that is left alone measures a model behind an endpoint too: a vLLM of its own.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest
from live_job import pods, sandbox_in_use

from headway_api.names import API_VERSION
from headway_demo import quickstart
from headway_demo.bill import recount, status_tokens
from headway_demo.evaluation import start_reference
from headway_demo.objects import read_group
from headway_demo.settings import NAMESPACE, Settings
from headway_demo.watch import condition, is_true, why

JUDGED, KILLED = "judged", "harried"
ROWS = 12
CANDIDATES = ("first", "newest", "newest-base")
ENDPOINT = "reference"
"""Candidate, Service and Deployment: the demo's."""
KILLS = {"coordinator": 2, "broker": 7, "rollout": 12, "sandbox": 17, "operator": 17}
"""Role -> rows that are done when a process of it is killed. The operator is killed right after a sandbox,
whose episode is then to be tried again: so the job is not about to end."""

Value = TypeVar("Value")

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.timeout(900)]


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


def evaluation(
    bench: Any, name: str, trained: Trained, gate: dict[str, Any], *, endpoint: bool = False
) -> dict[str, Any]:
    """The example's evaluation, of the two steps that were kept, greedy, on a few rows; with its endpoint."""
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


@contextmanager
def served_elsewhere(bench: Any) -> Iterator[None]:
    """vLLM's own server behind a Service, as the demo has it, for as long as the block runs."""
    start_reference(bench.kube, bench.platform.refs, Settings.from_environ({}))
    try:
        bench.kube.wait_available(NAMESPACE, ENDPOINT)
        yield
    finally:
        bench.kube.run("delete", "deployment,service", ENDPOINT, "-n", NAMESPACE, "--ignore-not-found")


@pytest.fixture(scope="module")
def judged(bench: Any, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """An undisturbed evaluation, with an endpoint, whose gate asks for more than can be."""
    gate = {"candidate": "newest", "mustBeat": "newest-base", "margin": "0.99"}
    with served_elsewhere(bench):
        bench.kube.apply(evaluation(bench, JUDGED, trained, gate, endpoint=True))
        outcome = ended(bench, JUDGED, tmp_path_factory.mktemp("judged"))
    yield outcome
    bench.kube.run("delete", "rlevaljob", JUDGED, "-n", NAMESPACE, "--timeout=120s", timeout_s=140)


def test_checkpoints_and_their_base_share_one_set_of_servers(judged: Outcome, trained: Trained) -> None:
    sets = [(each["name"], each.get("serverSet")) for each in judged.status["candidates"]]
    assert sets == [*((name, 0) for name in CANDIDATES), (ENDPOINT, None)]
    assert [each["step"] for each in judged.status["candidates"] if "step" in each] == [
        trained.steps - 1,
        trained.steps,
    ]


def test_every_candidate_has_every_row(judged: Outcome) -> None:
    names = (*CANDIDATES, ENDPOINT)
    assert set(judged.rewards()) == {(name, row) for name in names for row in range(ROWS)}
    assert {each["name"]: each["rows"] for each in judged.status["results"]} == dict.fromkeys(names, ROWS)


def test_an_endpoint_is_measured_beside_them_and_counted_apart(judged: Outcome) -> None:
    [result] = [each for each in judged.status["results"] if each["name"] == ENDPOINT]
    assert result["state"] == "Complete", result
    assert judged.value(ENDPOINT, "tool_calls") > 0, "it was sent the tools, and its calls reached sandboxes"
    assert judged.value(ENDPOINT, "infra_error") == 0
    with_tokens = {name for (name, _), answer in judged.answers().items() if answer.tokens}
    assert with_tokens == set(CANDIDATES), "an endpoint gives text alone"
    counted = recount(judged.folder).tokens
    assert counted["endpoint"] == status_tokens(judged.job, counted)["endpoint"] > 0


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
        for role, wanted in KILLS.items():
            bench.kube.wait(
                f"row {wanted} of {KILLED}",
                lambda wanted=wanted: rows_done(bench, KILLED) >= wanted,
                deadline_s=300,
                explain=lambda: why(get(bench, KILLED)),
            )
            killed = kill(bench, role)
        assert not is_true(get(bench, KILLED), "Complete"), "the operator was killed when all was done"
        harried = ended(bench, KILLED, tmp_path)
        assert is_true(harried.job, "Complete"), why(harried.job)
        operators = [pod["metadata"]["uid"] for pod in pods(bench.kube, KILLED, "operator")]
        assert operators, "nobody could have said that the job is complete"
        assert killed not in operators
        assert is_true(harried.job, "GatePassed"), why(harried.job)
        assert harried.value("newest", "reward") == reached
        assert harried.rewards() == of_servers(judged.rewards())
        answers, undisturbed = harried.answers(), of_servers(judged.answers())
        assert undisturbed.keys() == harried.rewards().keys()
        assert all(each.messages and each.tokens for each in undisturbed.values())
        assert answers == undisturbed
        counted = recount(harried.folder).tokens
        assert counted == status_tokens(harried.job, counted)
        assert counted["evaluation"] == recount(judged.folder).tokens["evaluation"]
    finally:
        bench.kube.run("delete", "rlevaljob", KILLED, "-n", NAMESPACE, "--timeout=120s", timeout_s=140)


def of_servers(found: dict[tuple[str, int], Value]) -> dict[tuple[str, int], Value]:
    """Those of the candidates that both jobs have: the endpoint's left out."""
    return {key: value for key, value in found.items() if key[0] in CANDIDATES}


def kill(bench: Any, role: str) -> str:
    """Take a pod of this role away, without notice; a sandbox, from the episode that holds it. Its uid."""
    if role != "sandbox":
        return deleted(bench, pods(bench.kube, KILLED, role)[0])
    with sandbox_in_use(bench.kube, KILLED) as sandbox:
        return deleted(bench, sandbox.pod)


def deleted(bench: Any, pod: dict[str, Any]) -> str:
    """The uid of a pod, which is gone."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    bench.kube.run("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force")
    return str(pod["metadata"]["uid"])
