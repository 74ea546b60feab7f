"""Measures held-out success before and after training, for one loss and several seeds, on a real cluster."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.support.machine import ROOT
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown

sys.path.insert(0, str(ROOT / "hack" / "demo"))

from headway_demo import bill, quickstart, report
from headway_demo.console import Timings
from headway_demo.platform import Platform, platform_up
from headway_demo.settings import NAMESPACE, Settings
from headway_demo.watch import Job, follow

LOSSES: Final = ("ppo", "cispo", "importance_sampling")
SEEDS: Final = (0, 1, 2)
GAIN: Final = 30
"""Minimum gain in held-out success of every seed, in percentage points."""
JOB_DEADLINE_S: Final = 3000

READ = prose("""
    Held-out success is the share of 64 cases, never trained on, whose external score is full. It is stricter
    than the reward. The cases are sampled greedily, before the first step and after the last. An episode that
    the platform failed counts neither way. The bill of every job was recounted from its stored trajectories
    and is equal.
""")


def measure(loss: str, folder: Path) -> Section:
    """Start a platform, and train one job for each seed, one after another."""
    base = Settings.from_environ({"OUTPUT": str(folder)})
    rows: list[Row] = []
    with platform_up(base, Timings()) as platform:
        for seed in SEEDS:
            rows.append(trained(platform, replace(base, seed=seed), loss))
            print(f"  {loss}: {rows[-1]}", flush=True)
    return section(loss, rows)


def trained(platform: Platform, settings: Settings, loss: str) -> Row:
    """Train one job, delete it, and return its row of the table."""
    name = f"{loss.replace('_', '-')}-{settings.seed}"
    with platform.bucket() as bucket:
        bucket.upload(quickstart.inputs(settings.cache, settings.seed), quickstart.PREFIX)
    changes = {"seed": settings.seed, "algorithm": {"loss": loss}}
    started = time.monotonic()
    platform.kube.apply(quickstart.job(platform.environment_image, name=name, changes=changes))
    try:
        job = follow(platform.kube, NAMESPACE, name, deadline_s=JOB_DEADLINE_S)
        seconds = time.monotonic() - started
        run = settings.output / name
        with platform.bucket() as bucket:
            bucket.download(job["status"]["artifacts"]["uri"], run)
    finally:
        platform.kube.run("delete", "rltrainingjob", name, "-n", NAMESPACE, "--timeout=60s", timeout_s=90)
    bill.verified(job, run)
    return row(settings.seed, job, run, seconds)


def row(seed: int, job: Job, run: Path, seconds: float) -> Row:
    """A table row from a finished job's artifacts."""
    threshold = float(job["spec"]["evaluation"]["successThreshold"])
    found = report.validations(run)
    curve = {step: report.success(groups, threshold) for step, groups in found.items()}
    rewards = report.training_rewards(run)
    usage: dict[str, Any] = job["status"]["usage"]
    return {
        "seed": seed,
        "before": shown(curve[min(curve)]),
        "after": shown(curve[max(curve)]),
        "held-out by step": ", ".join(f"{step}: {value:.0%}" for step, value in sorted(curve.items())),
        "training reward, first and last step": f"{rewards[0]:.2f}, {rewards[-1]:.2f}",
        "tokens": usage["totalTokens"],
        f"cost, {usage['currency']}": usage["cost"],
        "s": round(seconds),
    }


def section(loss: str, rows: list[Row]) -> Section:
    """The section of one loss, with its table of seeds and its goal."""
    points = [100 * (row["after"] - row["before"]) for row in rows]
    return Section(
        title=f"Loss {loss}",
        read=READ,
        tables=[Table(f"The demo's job with algorithm.loss: {loss}", rows)],
        goals=[
            Goal(
                f"{loss}: held-out success of every seed rises by {GAIN} percentage points or more",
                f"{min(points):.0f} .. {max(points):.0f}, mean {statistics.fmean(points):.0f}",
                min(points) >= GAIN,
            )
        ],
    )
