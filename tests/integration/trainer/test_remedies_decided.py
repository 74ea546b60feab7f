"""A coordinator's loop decides on remedies, and a learner process applies exactly these.

The jobs are those of `make bench-remedies`, with the demo's model and episodes, but smaller.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from raised import over_from, signal

sys.path.insert(0, str(Path(__file__).parents[3]))

from bench.remedies import job
from bench.remedies.job import Curve
from tests.signals.demo import Settings, quickstart
from tests.signals.rig import SEED

from headway_api.in_force import AdapterSize, InForce
from headway_api.records import StepReport
from headway_api.spec.algorithm import Kl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SMALL: dict[str, Any] = {
    "model": {"lora": {"rank": 4, "alpha": 8}},
    "algorithm": {"loss": "cispo", "batchSize": 2, "groupSize": 4, "maxStepsOffPolicy": 2},
    "optimizer": {"learningRate": 1e-3, "warmupSteps": 0},
    "schedule": {"maxSteps": 60},
    "rollout": {"maxRetries": 0, "sampling": {"maxTokens": 24}},
    "evaluation": {"everySteps": 2, "maxRows": 2},
    "checkpoints": {"everySteps": 2, "keepBest": 1, "keepLast": 1},
    "collapse": {"policy": "Remediate", "remedies": ["SmallerGroups", "WiderAdapter"]},
}
WIDE = AdapterSize(rank=8, alpha=16)
ORDERS = {
    5: "OnPolicy",
    7: "CispoToPpo",
    9: "LowerLearningRate",
    11: "LargerBatch",
    13: "WiderAdapter",
    15: "ReferenceKl",
    17: "RollBack",
    19: "Undo",
    21: "Undo@2",
}
"""Steps completed -> what a person orders then."""
UNTIL = 23


@pytest.fixture(scope="module")
def inputs() -> Path:
    folder: Path = quickstart.inputs(Settings.from_environ(os.environ).cache, SEED)
    return folder


async def played(folder: Path, inputs: Path, until: int) -> Curve:
    """Run the job in a folder until so many steps are completed."""
    return await job.run(
        job.configured(folder, inputs, SMALL),
        folder,
        inputs,
        catalogue=[signal(judge=over_from(3))],
        order=lambda step: ORDERS.get(step),
        until=until,
    )


def done_as_it_was_meant(found: Curve) -> None:
    """Check that the learner applied the signal's remedy and each order, and trained steps under them."""
    reports = {report.step: report for report in found.reports}
    assert [entry["state"] for entry in found.remedies if entry["state"] == "Refused"] == []
    first, *ordered = found.remedies
    assert (first["signal"], first["remedy"], first["step"]) == (signal().name, "SmallerGroups", 4)
    assert [entry["order"] for entry in ordered] == [o for o in ORDERS.values() if not o.startswith("Undo")]
    done = {report.step: report.in_force for report in found.reports if report.directive is not None}
    assert list(done) == [4, *(step + 1 for step in ORDERS)]
    assert [in_force.number for in_force in done.values()] == [*range(1, len(done) + 1)]
    standing = InForce(
        number=8,
        group_size=2,
        max_steps_off_policy=0,
        loss="ppo",
        learning_rate=3.3e-4,
        batch_size=4,
        adapter=WIDE,
        kl=Kl(coefficient=0.001),
    )
    assert done[18] == standing
    assert reports[18].restored is not None
    assert done[20] == standing.model_copy(update={"number": 9, "kl": None})
    assert done[22] == standing.model_copy(update={"number": 10, "kl": None, "adapter": None})
    assert reports[22].restored is not None
    assert reports[22].restored < 14, "an adapter is never made narrower"
    rates = trained(reports)
    assert rates[max(rates)] == pytest.approx(3.3e-4)


@pytest.mark.long
async def test_the_learner_applies_each_decision(inputs: Path, tmp_path: Path) -> None:
    found = await played(tmp_path, inputs, UNTIL)
    done_as_it_was_meant(found)
    rank = {report.step: 8 if 14 <= report.step < 22 else 4 for report in found.reports}
    assert found.ranks == [rank[step] for step in sorted(rank)], "what the servers took"


@pytest.mark.long
async def test_coordinator_and_learner_killed_together_decide_the_same(inputs: Path, tmp_path: Path) -> None:
    """They are killed after a reported remedy, before a wider adapter, and twice after a rollback."""
    for step in (4, 13, 18, 20):
        await played(tmp_path, inputs, step)
    done_as_it_was_meant(await played(tmp_path, inputs, UNTIL))


def trained(reports: dict[int, StepReport]) -> dict[int, float]:
    """Check that every other step was trained under what was in force, on a whole batch.

    Returns the learning rate of each that had a gradient.
    """
    rates = {}
    for step in (step for step in reports if step > 0 and reports[step].directive is None):
        before, report = reports[step - 1].in_force, reports[step]
        assert report.in_force == before
        assert len(report.groups) == (before.batch_size or 2)
        if any(report.train_tokens.values()):
            rates[step] = report.metrics["training/learning_rate"]
            assert rates[step] == pytest.approx(before.learning_rate or 1e-3)
            assert ("training/reference_kl" in report.metrics) == (before.kl is not None)
    return rates
