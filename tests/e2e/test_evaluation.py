"""An evaluation of two checkpoints and their base on one server, undisturbed and with its processes killed.

The undisturbed one also measures a model behind an endpoint, which is a separate vLLM.
"""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any, TypeVar

import pytest
from judged_job import (
    ENDPOINT,
    JUDGED,
    ROWS,
    Outcome,
    Trained,
    ended,
    evaluation,
    get,
    rows_done,
    served_elsewhere,
)
from live_job import pods, sandbox_in_use
from recounting import SCRIPT

from headway_cli.progress import is_true
from headway_demo.bill import recount, status_tokens
from headway_demo.settings import NAMESPACE
from headway_demo.watch import condition, why

KILLED, MET = "harried", "met"
CANDIDATES = ("first", "newest", "newest-base")
KILLS = {"coordinator": 2, "broker": 7, ENDPOINT: 10, "rollout": 15, "sandbox": 20, "operator": 20}
"""Role, or the endpoint -> how many rows are done when a process of it is killed. The operator is killed
right after a sandbox. The sandbox's episode must still be retried then, so the job is not about to end."""

Value = TypeVar("Value")

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.timeout(900)]


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


def test_an_endpoint_is_measured_too_and_counted_apart(judged: Outcome) -> None:
    [result] = [each for each in judged.status["results"] if each["name"] == ENDPOINT]
    assert result["state"] == "Complete", result
    assert judged.value(ENDPOINT, "tool_calls") > 0, "it was sent the tools, and its calls reached sandboxes"
    assert judged.value(ENDPOINT, "infra_error") == 0
    with_tokens = {name for (name, _), answer in judged.answers().items() if answer.tokens}
    assert with_tokens == set(CANDIDATES), "an endpoint gives text alone"
    counted = recount(judged.folder).tokens
    assert counted["endpoint"] == status_tokens(judged.job, counted)["endpoint"] > 0


def test_an_unmet_gate_fails_the_job_and_keeps_its_results(bench: Any, judged: Outcome) -> None:
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


def test_a_met_gate_lets_the_job_succeed(bench: Any, trained: Trained, tmp_path: Path) -> None:
    """The evidence suffices: the lower bound of nearly any completion rate in 12 rows is above 0.3."""
    gate = {"candidate": "newest", "metric": "completion", "minimum": "0.3"}
    bench.kube.apply(evaluation(bench, MET, trained, gate))
    try:
        job = ended(bench, MET, tmp_path).job
    finally:
        bench.kube.run("delete", "rlevaljob", MET, "-n", NAMESPACE, "--timeout=120s", timeout_s=140)
    judged = condition(job, "GatePassed")
    assert judged is not None
    assert (judged["status"], judged["reason"]) == ("True", "Passed"), judged["message"]
    assert "the rows show at least" in judged["message"]
    assert job["status"]["gate"]["result"] == "Passed"
    assert is_true(job, "Complete")
    assert is_true(job, "Ready")
    assert not is_true(job, "Failed")


def test_an_ended_evaluation_has_no_servers_and_its_bill_adds_up(bench: Any, judged: Outcome) -> None:
    assert not pods(bench.kube, JUDGED, "rollout")
    counted = recount(judged.folder).tokens
    assert counted == status_tokens(judged.job, counted)
    assert counted["evaluation"] > 0


def test_an_independent_recount_finds_every_number(judged: Outcome, tmp_path: Path) -> None:
    """The recount shares no code with Headway.

    It covers the report, and the status as `kubectl get` prints it.
    """
    status = tmp_path / "status.json"
    status.write_text(json.dumps(judged.job))
    files = [judged.folder / "results.parquet", judged.folder / "report.json"]
    command = [sys.executable, SCRIPT, *files, "--status", status]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > len(judged.rewards()), "it looks at every try"


@pytest.mark.long
@pytest.mark.chaos  # four minutes: `make test-long` alone runs it
def test_killed_processes_change_no_answer(
    bench: Any, trained: Trained, judged: Outcome, tmp_path: Path
) -> None:
    """Greedy answers of a job whose processes were each killed once equal those of an undisturbed job.

    A model behind an endpoint is measured at the same time, and its server is killed too. The gate asks for
    the reward that the undisturbed job reached, so one worse answer fails it.
    """
    reached = judged.value("newest", "reward")
    least = Decimal(reached).quantize(Decimal("0.000001"), ROUND_FLOOR)
    assert least > 0, "a gate that no result could miss"
    gate = {"candidate": "newest", "metric": "reward", "minimum": str(least), "minimumOf": "Value"}
    with served_elsewhere(bench):
        harry(bench, trained, judged, gate, tmp_path)


def harry(bench: Any, trained: Trained, judged: Outcome, gate: dict[str, Any], folder: Path) -> None:
    """Kill a process of each role, then compare with the undisturbed evaluation."""
    bench.kube.apply(evaluation(bench, KILLED, trained, gate, endpoint=True))
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
        harried = ended(bench, KILLED, folder)
        assert is_true(harried.job, "Complete"), why(harried.job)
        operators = [pod["metadata"]["uid"] for pod in pods(bench.kube, KILLED, "operator")]
        assert operators, "nobody could have said that the job is complete"
        assert killed not in operators
        assert is_true(harried.job, "GatePassed"), why(harried.job)
        assert harried.value("newest", "reward") == judged.value("newest", "reward")
        assert harried.rewards().keys() == judged.rewards().keys(), "the endpoint's rows too"
        assert of_servers(harried.rewards()) == of_servers(judged.rewards())
        answers, undisturbed = of_servers(harried.answers()), of_servers(judged.answers())
        assert undisturbed.keys() == of_servers(harried.rewards()).keys()
        assert harried.value(ENDPOINT, "infra_error") == 0
        assert all(each.messages and each.tokens for each in undisturbed.values())
        assert answers == undisturbed
        counted = recount(harried.folder).tokens
        assert counted == status_tokens(harried.job, counted)
        assert counted["evaluation"] == recount(judged.folder).tokens["evaluation"]
    finally:
        bench.kube.run("delete", "rlevaljob", KILLED, "-n", NAMESPACE, "--timeout=120s", timeout_s=140)


def of_servers(found: dict[tuple[str, int], Value]) -> dict[tuple[str, int], Value]:
    """Results of the candidates that both jobs have, without the endpoint's."""
    return {key: value for key, value in found.items() if key[0] in CANDIDATES}


def kill(bench: Any, role: str) -> str:
    """Kill a pod of this role without notice and return its uid. A sandbox is killed during an episode."""
    if role == ENDPOINT:
        [pod] = bench.kube.get("pods", "-n", NAMESPACE, "-l", f"app={ENDPOINT}")["items"]
        return deleted(bench, pod)
    if role != "sandbox":
        return deleted(bench, pods(bench.kube, KILLED, role)[0])
    with sandbox_in_use(bench.kube, KILLED) as sandbox:
        return deleted(bench, sandbox.pod)


def deleted(bench: Any, pod: dict[str, Any]) -> str:
    """Force the deletion of a pod, and return its uid."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    bench.kube.run("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force")
    return str(pod["metadata"]["uid"])
