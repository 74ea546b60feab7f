"""Runs two jobs with the same seed: one only raises alerts, and the other also applies remedies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.signals.demo import Settings, quickstart
from tests.signals.rig import SEED

from bench.remedies import curves, job, replay
from bench.remedies.job import Curve
from bench.support import machine
from bench.support.report import Goal, Row, Section, Table, prose
from headway_api.signals import ACTED_ON

SEEDS: Final = (0, 1, 2)
POLICIES: Final = ("Alert", "Remediate")
RATE: Final = 2e-3
LAG: Final = 4
STEPS: Final = 150
EVERY: Final = 5
"""Steps between two validations, and between two checkpoints."""
RESULTS: Final = machine.ROOT / "bench" / "results"
LAST: Final = 3
"""Number of last validations whose mean is a job's result. A single validation varies too much."""
SETTINGS: Final[Mapping[str, Any]] = {
    "algorithm": {
        "loss": "cispo",
        "batchSize": 4,
        "groupSize": 8,
        "maxStepsOffPolicy": LAG,
        "sampler": "in_order",
    },
    "optimizer": {"learningRate": RATE},
    "schedule": {"maxSteps": STEPS, "maxEpochs": 100},
    "rollout": {"maxRetries": 0, "maxConcurrency": 1024},
    # Sample validations like training. Greedy episodes soon solve every case, which would hide further gains.
    "evaluation": {"everySteps": EVERY, "maxRows": 64, "sampling": {"temperature": 1}},
    "checkpoints": {"everySteps": EVERY, "keepBest": 2, "keepLast": 1},
}
"""Changes to the demo's job."""


def measure(seed: int, folder: Path) -> Section:
    """Run both jobs, one after another."""
    inputs = quickstart.inputs(Settings.from_environ(os.environ).cache, SEED)
    found, rows = {}, []
    for policy in POLICIES:
        started = time.monotonic()
        place = folder / policy
        changes = {**SETTINGS, "seed": seed, "collapse": {"policy": policy}}
        found[policy] = asyncio.run(job.run(job.configured(place, inputs, changes), place, inputs))
        rows.append(row(policy, found[policy], time.monotonic() - started))
        print(f"  seed {seed}: {rows[-1]}", flush=True)
    same = agree(*found.values())
    for one in rows:
        one["same weights as the other until step"] = same
    recorded = json.dumps(curves.recorded(found), indent=1) + "\n"
    made = section(seed, rows, recorded)
    made.files = {
        curves_of(seed): recorded,
        f"remedies-seed-{seed}.svg": curves.drawn(found, f"CISPO collapse, seed {seed}"),
    }
    return made


def agree(one: Curve, other: Curve) -> int:
    """The last step up to which both jobs have published the same weights."""
    both = zip(one.reports, other.reports, strict=False)
    differs = next((a.step for a, b in both if digest(a.weights.files) != digest(b.weights.files)), None)
    return min(one.reports[-1].step, other.reports[-1].step) if differs is None else differs - 1


def digest(files: Sequence[Any]) -> str:
    """A digest of the files of a version."""
    return hashlib.sha256(repr(files).encode()).hexdigest()


def alert(curve: Curve) -> int | None:
    """The first step after which a signal of `ACTED_ON` was raised; None if no such signal was raised."""
    acted = {name.value for name in ACTED_ON}
    return next((step for step, names in sorted(curve.raised.items()) if acted & set(names)), None)


def row(policy: str, curve: Curve, seconds: float) -> Row:
    """The table's row for one job."""
    alerted, last = alert(curve), max(curve.scores)
    before = {step: score for step, score in curve.scores.items() if alerted is None or step <= alerted}
    since = [score for step, score in curve.scores.items() if step not in before]
    best = max(before, key=lambda step: (before[step], -step))
    tail = [score for _, score in sorted(curve.scores.items())[-LAST:]]
    acted = {name.value for name in ACTED_ON}
    raised = [f"{step}: {name}" for step, names in curve.raised.items() for name in names if name in acted]
    return {
        "policy": policy,
        "alerted after step": alerted,
        "best before": before[best],
        "at step": best,
        "end": sum(tail) / len(tail),
        "last": curve.scores[last],
        "lowest since": min(since, default=None),
        "raised": "; ".join(raised),
        "remedies": "; ".join(
            f"{entry['step']}: {entry['remedy']} ({entry['action']}): {entry['state']}"
            for entry in curve.remedies
        ),
        "s": round(seconds),
    }


def curves_of(seed: int) -> str:
    """Name of the file with a seed's curves."""
    return f"remedies-seed-{seed}.json"


def section(seed: int, rows: list[Row], recorded: str | None = None) -> Section:
    """The section with its table and goals. `recorded` is the text of the curves' file; None to read the
    file."""
    kept = json.loads(recorded or (RESULTS / curves_of(seed)).read_text())
    by_policy = {each["policy"]: each for each in rows}
    read = prose(f"""
        Scores are the mean external score of 64 held-out cases, sampled as training samples. *Best before* is
        the best single validation up to the alert, the first signal that `Remediate` acts on. *End* is the
        mean of the last {LAST} validations.

        ![Held-out score and reward of both jobs](remedies-seed-{seed}.svg)

        [All metrics]({curves_of(seed)})

        The signals of today judge the metrics of `Alert` again. They raise these:
        {replay.summary(kept["Alert"], LAG)}.
    """)
    left, changed = (by_policy[policy] for policy in POLICIES)
    return Section(
        title=f"Seed {seed}",
        read=read,
        tables=[Table(f"The same job under two policies, {STEPS} steps", rows)],
        goals=[
            Goal(
                f"seed {seed}: with Remediate it ends above its best validation before",
                best_to_end(changed),
                changed["end"] > changed["best before"],
            ),
            Goal(
                f"seed {seed}: with Alert it ends below",
                best_to_end(left),
                left["end"] < left["best before"],
            ),
        ],
    )


def best_to_end(one: Row) -> str:
    """The best score before the alert and the score at the end, as text."""
    return f"{one['best before']:.2f} -> {one['end']:.2f}"
