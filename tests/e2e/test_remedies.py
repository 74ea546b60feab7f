"""A person orders each remedy of a running job by an annotation, and a process dies while it is applied.

`make test-remedies` runs this in 40 minutes, with one job whose policy is Remediate. So its servers have room
for a wider adapter. The only signal that it acts on cannot be raised, because its rows have no tasks. So the
job changes only by order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_job import pods

from headway_api.names import ANNOTATION_REMEDY
from headway_demo.bill import recount, status_tokens
from headway_demo.objects import Bucket, read_group
from headway_demo.settings import NAMESPACE
from headway_demo.watch import why

NAME = "remedied"
STEPS = 70
LOOKS, LOOK_S = 200, 0.02
"""How often, and after how many seconds, the test looks for a decision. A learner takes most remedies within
a second, so the victim must be killed at once."""
ROW = (
    ("LowerLearningRate", "learner", {"learningRate"}),
    ("SmallerGroups", "coordinator", {"groupSize"}),
    ("RollBack", "learner", set[str]()),
    ("OnPolicy", "rollout", {"maxStepsOffPolicy"}),
    ("ReferenceKl", "learner", {"klCoefficient", "klEstimator"}),
    ("LargerBatch", "coordinator", {"batchSize"}),
    ("CispoToPpo", "coordinator", {"loss", "surrogate", "clipLow", "clipHigh"}),
    ("WiderAdapter", "learner", {"loraRank", "loraAlpha"}),
    ("Undo", "coordinator", {"loraRank", "loraAlpha"}),
)
"""The remedy that is ordered, the role that dies, and the fields of status.algorithm that change. The adapter
cannot be made narrower, so the last order goes back to a step from before it was widened. RollBack comes
before OnPolicy: while batches are older than the policy, there are always groups that a rollback discards."""

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def job(bench: Any) -> Iterator[str]:
    """A job that trains and has been validated at least once."""
    spec = {
        "algorithm": {"loss": "cispo", "maxStepsOffPolicy": 2},
        "schedule": {"maxSteps": STEPS, "maxEpochs": 50},
        "evaluation": {"everySteps": 2, "atStart": True},
        "checkpoints": {"everySteps": 2, "keepBest": 3},
        "collapse": {"policy": "Remediate", "signals": ["TasksDiverging"]},
    }
    bench.kube.apply(bench.job(NAME, spec))
    bench.wait_step(NAME, 3)
    bench.kube.wait(
        "a validation after training began",
        lambda: status(bench).get("validation", {}).get("step", 0) > 0,
        deadline_s=400,
    )
    yield NAME
    bench.delete(NAME)


def order(bench: Any, text: str) -> None:
    """Order a remedy by an annotation, as a person does."""
    bench.kube.run("annotate", "rltj", NAME, "-n", NAMESPACE, f"{ANNOTATION_REMEDY}={text}", "--overwrite")


def status(bench: Any) -> dict[str, Any]:
    found: dict[str, Any] = bench.get(NAME).get("status", {})
    return found


def answered(bench: Any, text: str, *states: str) -> bool:
    found = status(bench).get("remedyOrder", {})
    return found.get("order") == text and found.get("state") in states


@pytest.fixture(scope="module")
def bucket(bench: Any) -> Iterator[Bucket]:
    with bench.platform.bucket() as found:
        yield found


def recorded(bucket: Bucket, uri: str) -> bool:
    """Whether a decision becomes durable in time. The learner receives it right after that."""
    for _ in range(LOOKS):
        if bucket.has(uri):
            return True
        time.sleep(LOOK_S)
    return False


@pytest.fixture(scope="module")
def killed_early() -> list[str]:
    """The remedies whose step was not yet reported when their victim had been killed."""
    return []


@pytest.mark.parametrize(("remedy", "victim", "changes"), ROW, ids=[row[0] for row in ROW])
def test_a_running_job_changes_whichever_process_dies(
    bench: Any,
    job: str,
    bucket: Bucket,
    killed_early: list[str],
    remedy: str,
    victim: str,
    changes: set[str],
) -> None:
    bench.kube.wait(f"a running {victim}", lambda: bool(pods(bench.kube, NAME, victim)), deadline_s=120)
    before, step = status(bench)["algorithm"], bench.step(NAME)
    assert step < STEPS - 6, "the job is about to end before this could be ordered; raise STEPS"
    number = 1 + len(status(bench).get("remediations", []))
    uri = status(bench)["artifacts"]["uri"]
    decision = f"{uri}/remedies/{number:06d}.json"
    [pod, *_] = pods(bench.kube, NAME, victim)
    order(bench, remedy)
    bench.kube.wait(
        "the order to be decided",
        lambda: recorded(bucket, decision),
        deadline_s=240,
        explain=lambda: why(bench.get(NAME)),
    )
    # The learner is applying the remedy.
    bench.kube.run(
        "delete",
        "pod",
        pod["metadata"]["name"],
        "-n",
        NAMESPACE,
        "--grace-period=0",
        "--force",
        "--wait=false",
    )
    if not bucket.has(f"{uri}/steps/{bucket.json(decision)['step']:06d}.json"):
        killed_early.append(remedy)
    bench.kube.wait(
        "the order to be answered",
        lambda: answered(bench, remedy, "Taken", "Refused"),
        deadline_s=400,
        explain=lambda: why(bench.get(NAME)),
    )
    decided = status(bench)["remedyOrder"]["step"]
    bench.kube.wait(
        f"two steps after {remedy}",
        lambda: bench.step(NAME) >= decided + 2,
        deadline_s=400,
        explain=lambda: json.dumps(status(bench), indent=1),
    )
    found = status(bench)
    assert found["remedyOrder"] == {"order": remedy, "state": "Taken", "step": decided}
    if remedy != "Undo":
        [change] = [each for each in found["remediations"] if each.get("order") == remedy]
        assert (change["step"], change["state"]) == (decided, "Watching")
        assert ("restoredStep" in change) == (remedy == "RollBack")
    now = found["algorithm"]
    assert {name for name in now if now[name] != before.get(name)} == changes


def test_some_processes_died_before_the_remedy_was_taken(
    bench: Any, job: str, killed_early: list[str]
) -> None:
    victims = {victim for remedy, victim, _ in ROW if remedy in killed_early}
    assert {"learner", "coordinator"} <= victims, f"before a report of their step: {killed_early}"


def test_the_books_balance_afterwards(bench: Any, job: str, tmp_path: Path) -> None:
    bench.wait_condition(NAME, "Complete", deadline_s=1500)
    folder = tmp_path / "final"
    with bench.platform.bucket() as bucket:
        bucket.download(bench.get(NAME)["status"]["artifacts"]["uri"], folder)
    reports = [json.loads(path.read_text()) for path in sorted((folder / "steps").glob("*.json"))]
    assert [report["step"] for report in reports] == list(range(STEPS + 1))
    empty = [report["step"] for report in reports if report["directive"]]
    decided = [json.loads(path.read_text()) for path in sorted((folder / "remedies").glob("0*[0-9].json"))]
    assert [decision["step"] for decision in decided] == empty, "each is one step"
    assert [decision["number"] for decision in decided] == [*range(1, len(ROW) + 1)]
    assert [decision["order"] for decision in decided] == [row[0] for row in ROW]
    trained = [group for report in reports for group in report["groups"]]
    assert len(trained) == len(set(trained)), "a group was trained twice"
    stored = {
        path.name.removesuffix(".json.gz"): read_group(path)
        for path in (folder / "trajectories/train").iterdir()
    }
    given_up = {name for name, group in stored.items() if group["abandoned"]}
    assert not given_up & set(trained)
    assert any((stored[name]["abandoned"] or {}).get("reason") == "RolledBack" for name in given_up)
    counted = recount(folder).tokens
    assert counted == status_tokens(bench.get(NAME), counted)
